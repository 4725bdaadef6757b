"""The rehearsal of a graph tries this: answers in the form in which they are read, tools that fail,
and each condition both ways.

A condition that such answers have not brought to both of its values is forced, so that every branch
is entered whatever real answers would lead there. Conditions that a forced one leads to are
forced in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from marl_plugins.builtin.graph.executor import Decide, holds
from marl_plugins.builtin.graph.expressions import Expression, Scope
from marl_plugins.builtin.graph.nodes import BodyNode, Graph, LoopNode, Node, RoleCallNode, ToolNode
from marl_plugins.core.workflow import Workflow
from marl_plugins.engine.plan.script import TOOL, FailureText, Script
from marl_plugins.engine.plan.workflow_file import Explorer

MOST_FORCED = 200
"""Attempts in which a condition is forced."""
MAX_LOOP_ROUNDS = 5
"""Times that a role's examples are said in turn, where nodes read its answers in several forms."""
Lines = Mapping[str, tuple[str | None, ...]]


def nodes_of(graph: Graph) -> Iterator[Node]:
    """Yields the nodes of a graph, those within others included."""
    for node in graph.nodes:
        yield node
        if isinstance(node, BodyNode):
            yield from nodes_of(node.body)


class GraphExplorer(Explorer):
    """Tries a graph's conditions.

    Args:
        decided_by: Returns the workflow of the graph, whose conditions somebody else decides.

    Attributes:
        met: By condition, the values that it has had by itself.
    """

    def __init__(self, graph: Graph, decided_by: Callable[[Decide], Workflow]):
        self.graph = graph
        self.decided_by = decided_by
        self.nodes = list(nodes_of(graph))
        self.met: dict[Expression, set[bool]] = {}

    @property
    def conditions(self) -> list[Expression]:
        """All conditions of the graph and of those within."""
        conditions = [self.graph.stop]
        for node in self.nodes:
            conditions += [node.when, node.once, node.retry.repeated if node.retry else None]
            if isinstance(node, LoopNode) and node.most > 1:
                conditions.append(node.until)
            if isinstance(node, BodyNode):
                conditions.append(node.body.stop)
        return [condition for condition in conditions if condition is not None]

    def attempts(self) -> Iterator[Script]:
        legal = self.examples()
        tools = {node.tool for node in self.nodes if isinstance(node, ToolNode)}
        failing = {f"{TOOL}{tool}": (FailureText("it failed"),) for tool in sorted(tools)}
        yield self._attempt("every answer has the form in which it is read", legal)
        if failing:
            yield self._attempt("every tool fails", {**legal, **failing})
        tried: set[tuple[Expression, bool]] = set()
        while (forced := self._next_forced(tried)) is not None and len(tried) < MOST_FORCED:
            tried.add(forced)
            condition, value = forced
            description = f"{condition.what} is taken as {'true' if value else 'false'}"
            yield self._attempt(description, legal, {condition: value})

    def _attempt(
        self, when: str, lines: Lines, forced: Mapping[Expression, bool] | None = None
    ) -> Script:
        def decide(condition: Expression, scope: Scope) -> bool:
            if forced and condition in forced:
                return forced[condition]
            held = holds(condition, scope)
            self.met.setdefault(condition, set()).add(held)
            return held

        return Script(when, lines=lines, workflow=self.decided_by(decide))

    def examples(self) -> dict[str, tuple[str | None, ...]]:
        """Returns, by role, answers in the forms in which they are read."""
        answers: dict[str, list[str]] = {}
        for node in self.nodes:
            if isinstance(node, RoleCallNode):
                answers.setdefault(node.role, []).append(node.reading.example())
        return {
            role: (texts[0],) if len(set(texts)) == 1 else tuple(texts) * MAX_LOOP_ROUNDS
            for role, texts in answers.items()
        }

    def _next_forced(self, tried: set[tuple[Expression, bool]]) -> tuple[Expression, bool] | None:
        """The next value to be forced of a condition that has not had it."""
        for condition in self.conditions:
            for value in (True, False):
                if value not in self.met.get(condition, ()) and (condition, value) not in tried:
                    return condition, value
        return None
