"""Who saw whom in a trajectory: as lines of text, as nodes and edges, and as a Mermaid flowchart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from marl_plugins.core.trajectory import Trajectory

TASK = "task"


@dataclass(frozen=True)
class Node:
    """One action.

    Args:
        id: Unique in the graph: `solver_2`.
        role, number: The number-th action of a role, from 1.
        label: For people: the role, with the number where it acts more than once.
        parents: Ids of the nodes whose actions it saw.
    """

    id: str
    role: str
    number: int
    label: str
    parents: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """The actions of a trajectory and what each of them saw, in order."""

    nodes: tuple[Node, ...] = ()

    @classmethod
    def of(cls, trajectory: Trajectory) -> Graph:
        """The graph of a trajectory."""
        total = Counter(action.role for action in trajectory.actions)
        count: Counter[str] = Counter()
        ids: dict[str, str] = {}
        nodes = []
        for action in trajectory.actions:
            count[action.role] += 1
            number = count[action.role]
            ids[action.path] = f"{action.role}_{number}"
            label = action.role if total[action.role] == 1 else f"{action.role} {number}"
            nodes.append(Node(ids[action.path], action.role, number, label, tuple(ids[p] for p in action.parents)))
        return cls(tuple(nodes))

    @property
    def edges(self) -> list[tuple[str, str]]:
        """From id to id; what saw no action begins at `task`."""
        return [(parent, node.id) for node in self.nodes for parent in node.parents or (TASK,)]

    def lines(self) -> list[str]:
        """A line per action: what it saw, and who it is."""
        labels = {node.id: node.label for node in self.nodes}
        return [f"{', '.join(labels[p] for p in node.parents) or TASK} -> {node.label}" for node in self.nodes]

    def as_json(self) -> dict[str, Any]:
        """Nodes and edges as JSON values."""
        return {
            "nodes": [{"id": node.id, "role": node.role, "number": node.number} for node in self.nodes],
            "edges": [list(edge) for edge in self.edges],
        }

    def mermaid(self) -> str:
        """A Mermaid flowchart."""
        nodes = [f'    {node.id}["{node.label}"]' for node in self.nodes]
        edges = [f"    {parent} --> {child}" for parent, child in self.edges]
        return "\n".join(["flowchart TD", f"    {TASK}([{TASK}])", *nodes, *edges])
