"""The graph of who saw whom in a trajectory: as lines of text, as nodes and edges, and as a Mermaid
flowchart."""

from __future__ import annotations

from collections import Counter
from typing import Any

from marl_plugins.core.trajectory import Trajectory

TASK = "task"


class DependencyGraph:
    """The actions of a trajectory and what each of them saw, in order.

    Args:
        trajectory: None: the graph is empty.

    Attributes:
        nodes: The actions, as JSON values: `id`, unique in the graph (`solver_2`), and which of its
            role's it is (`role`, `number`, from 1).
        labels: For people, by id: the role, with the number where it acts more than once.
        parents: Ids of the actions that one saw, by its id.
        continues: The one of them whose conversation it continues.
    """

    def __init__(self, trajectory: Trajectory | None = None):
        self.nodes: list[dict[str, Any]] = []
        self.labels: dict[str, str] = {}
        self.parents: dict[str, list[str]] = {}
        self.continues: dict[str, str] = {}
        actions = trajectory.actions if trajectory else []
        total, count = Counter(action.role for action in actions), Counter[str]()
        ids: dict[str, str] = {}
        for action in actions:
            role = action.role
            count[role] += 1
            ids[action.path] = node = f"{role}_{count[role]}"
            self.nodes.append({"id": node, "role": role, "number": count[role]})
            self.labels[node] = role if total[role] == 1 else f"{role} {count[role]}"
            self.parents[node] = [ids[path] for path in action.parents]
            if action.before:
                self.continues[node] = ids[action.before.path]

    @property
    def edges(self) -> list[tuple[str, str]]:
        """The edges, from id to id; what saw no action begins at `task`."""
        return [
            (seen, node) for node, parents in self.parents.items() for seen in parents or [TASK]
        ]

    def lines(self) -> list[str]:
        """Returns a line per action: what it saw, and who it is."""
        return [
            f"{', '.join(self.labels[seen] for seen in parents) or TASK} -> {self.labels[node]}"
            + (f" (continues {self.labels[before]})" if before else "")
            for node, parents in self.parents.items()
            for before in [self.continues.get(node)]
        ]

    def as_json(self) -> dict[str, Any]:
        """Returns nodes and edges as JSON values."""
        edges = [list(edge) for edge in self.edges]
        return {"nodes": self.nodes, "edges": edges, "continues": self.continues}

    def mermaid(self) -> str:
        """Returns a Mermaid flowchart; a thick arrow leads from a turn to the one that continues
        its conversation."""
        nodes = [f'    {node}["{label}"]' for node, label in self.labels.items()]
        edges = [
            f"    {seen} {'==>' if self.continues.get(node) == seen else '-->'} {node}"
            for seen, node in self.edges
        ]
        return "\n".join(["flowchart TD", f"    {TASK}([{TASK}])", *nodes, *edges])
