"""The graph of who saw whom in a trajectory: as lines of text, as nodes and edges, and as a Mermaid
flowchart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from marl_plugins.core.trajectory import Trajectory

TASK = "task"


@dataclass(frozen=True)
class DependencyNode:
    """One action.

    Args:
        id: Unique in the graph: `solver_2`.
        role, number: The number-th action of a role, from 1.
        label: For people: the role, with the number where it acts more than once.
        parents: Ids of the nodes whose actions it saw.
        continues: The one of them whose conversation it continues.
    """

    id: str
    role: str
    number: int
    label: str
    parents: tuple[str, ...]
    continues: str | None = None


@dataclass(frozen=True)
class DependencyGraph:
    """The actions of a trajectory and what each of them saw, in order."""

    nodes: tuple[DependencyNode, ...] = ()

    @classmethod
    def of(cls, trajectory: Trajectory) -> DependencyGraph:
        """Returns the graph of a trajectory."""
        total = Counter(action.role for action in trajectory.actions)
        count: Counter[str] = Counter()
        ids: dict[str, str] = {}
        nodes = []
        for action in trajectory.actions:
            count[action.role] += 1
            number = count[action.role]
            ids[action.path] = f"{action.role}_{number}"
            label = action.role if total[action.role] == 1 else f"{action.role} {number}"
            parents = tuple(ids[p] for p in action.parents)
            continues = ids[action.before.path] if action.before else None
            nodes.append(
                DependencyNode(ids[action.path], action.role, number, label, parents, continues)
            )
        return cls(tuple(nodes))

    @property
    def edges(self) -> list[tuple[str, str]]:
        """The edges, from id to id; what saw no action begins at `task`."""
        return [(parent, node.id) for node in self.nodes for parent in node.parents or (TASK,)]

    def lines(self) -> list[str]:
        """Returns a line per action: what it saw, and who it is."""
        labels = {node.id: node.label for node in self.nodes}
        return [
            f"{', '.join(labels[p] for p in node.parents) or TASK} -> {node.label}"
            + (f" (continues {labels[node.continues]})" if node.continues else "")
            for node in self.nodes
        ]

    def as_json(self) -> dict[str, Any]:
        """Returns nodes and edges as JSON values."""
        return {
            "nodes": [
                {"id": node.id, "role": node.role, "number": node.number} for node in self.nodes
            ],
            "edges": [list(edge) for edge in self.edges],
            "continues": {node.id: node.continues for node in self.nodes if node.continues},
        }

    def mermaid(self) -> str:
        """Returns a Mermaid flowchart; a thick arrow leads from a turn to the one that continues
        its conversation."""
        nodes = [f'    {node.id}["{node.label}"]' for node in self.nodes]
        continued = {(node.continues, node.id) for node in self.nodes}
        edges = [
            f"    {edge[0]} {'==>' if edge in continued else '-->'} {edge[1]}"
            for edge in self.edges
        ]
        return "\n".join(["flowchart TD", f"    {TASK}([{TASK}])", *nodes, *edges])
