"""The rehearsal of a graph tries this: answers in the form in which they are read, tools that fail,
and each condition both ways.

A condition that invented answers have not brought to both of its values is forced, so that every
branch is entered whatever real answers would lead there. Conditions that a forced one leads to are
forced in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from marl_plugins.builtin.graph.executor import Watch
from marl_plugins.builtin.graph.expressions import Expression, Scope
from marl_plugins.builtin.graph.nodes import BodyNode, Graph, LoopNode, Node, RoleCallNode, ToolNode
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.workflow import Workflow
from marl_plugins.engine.plan.script import TOOL, FailureText
from marl_plugins.engine.plan.workflow_file import Attempt, Explorer

MOST_GUESSES = 40
"""Attempts with answers that a condition names."""
MOST_FORCED = 200
"""Attempts in which a condition is forced."""
MAX_LOOP_ROUNDS = 5
"""Times that a role's examples are said in turn, where nodes read its answers in several forms."""
Lines = Mapping[str, tuple[str | None, ...]]


@dataclass
class Conditions:
    """Keeps which values the conditions of a graph have had.

    Args:
        met: By condition, the values that it has had by itself.
        forced: The values that are forced in this attempt.
    """

    met: dict[Expression, set[bool]] = field(default_factory=dict)
    forced: Mapping[Expression, bool] = field(default_factory=dict)

    def decide(self, condition: Expression, scope: Scope) -> bool:
        if condition in self.forced:
            return self.forced[condition]
        held = bool(condition.value(scope))
        self.met.setdefault(condition, set()).add(held)
        return held


def nodes_of(graph: Graph) -> Iterator[Node]:
    """Yields the nodes of a graph, those within others included."""
    for node in graph.nodes:
        yield node
        if isinstance(node, BodyNode):
            yield from nodes_of(node.body)


class GraphExplorer(Explorer):
    """Tries a graph's conditions.

    Args:
        watched: The workflow of the graph, whose conditions somebody else decides.
    """

    def __init__(self, graph: Graph, watched: Callable[[Watch], Workflow]):
        self.graph = graph
        self.watched = watched
        self.nodes = list(nodes_of(graph))
        self.met: dict[Expression, set[bool]] = {}
        self.untils = [
            node.until
            for node in self.nodes
            if isinstance(node, LoopNode) and node.until and node.most > 1
        ]
        self.onces = [node.once for node in self.nodes if node.once]

    @property
    def conditions(self) -> list[Expression]:
        """All conditions, in the order of the file."""
        conditions = [node.when for node in self.nodes] + [
            node.retry.repeated for node in self.nodes if node.retry
        ]
        graphs = [self.graph, *(node.body for node in self.nodes if isinstance(node, BodyNode))]
        return [
            c
            for c in (*conditions, *self.onces, *self.untils, *(graph.stop for graph in graphs))
            if c is not None
        ]

    def attempts(self) -> Iterator[Attempt]:
        legal = self.examples()
        tools = {node.tool for node in self.nodes if isinstance(node, ToolNode)}
        failing = {f"{TOOL}{tool}": (FailureText("it failed"),) for tool in sorted(tools)}
        yield self._attempt("every answer has the form in which it is read", legal)
        if failing:
            yield self._attempt("every tool fails", {**legal, **failing})
        yield from self._guesses(legal)
        tried: set[tuple[Expression, bool]] = set()
        while (forced := self._next_forced(tried)) is not None and len(tried) < MOST_FORCED:
            tried.add(forced)
            condition, value = forced
            description = f"{condition.what} is taken as {'true' if value else 'false'}"
            yield self._attempt(description, legal, {condition: value})

    def _attempt(
        self, when: str, lines: Lines, forced: Mapping[Expression, bool] | None = None
    ) -> Attempt:
        return Attempt(when, self.watched(Conditions(self.met, forced or {})), lines)

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

    def _guesses(self, legal: Lines) -> Iterator[Attempt]:
        """Answers that name what a condition compares with, as long as it has not had both
        values."""
        guessed = 0
        for condition in self.conditions:
            for constant in condition.constants:
                for node in self.nodes:
                    if len(self.met.get(condition, ())) == 2 or guessed == MOST_GUESSES:
                        break
                    if isinstance(node, RoleCallNode) and node.name in self._behind(condition):
                        guessed += 1
                        answer = node.reading.example(constant)
                        yield self._attempt(
                            f"role {node.role!r} says {answer!r}", {**legal, node.role: (answer,)}
                        )

    def _behind(self, condition: Expression) -> set[str]:
        """The names on which a condition depends, directly or through others."""
        reads = {node.name: node.reads for node in self.nodes}
        reached: set[str] = set()
        pending = list(condition.names)
        while pending:
            name = pending.pop()
            if name not in reached:
                reached.add(name)
                pending += reads.get(name, ())
        return reached

    def _next_forced(self, tried: set[tuple[Expression, bool]]) -> tuple[Expression, bool] | None:
        """The next value to be forced of a condition that has not had it."""
        for condition in self.conditions:
            for value in (True, False):
                if value not in self.met.get(condition, ()) and (condition, value) not in tried:
                    return condition, value
        return None

    def remarks(self) -> list[Problem]:
        return [
            Problem(
                "graph.until",
                at(line=until.place),
                f"no invented answer met `until: {until.text}`, so the loop always went on to its "
                "last round",
                fix="see whether it can be met",
                severity="warning",
            )
            for until in self.untils
            if True not in self.met.get(until, ())
        ] + [
            Problem(
                "graph.once",
                at(line=once.place),
                f"no invented answers met `once: {once.text}`, so its node never ran",
                fix="see whether it can be met",
                severity="warning",
            )
            for once in self.onces
            if True not in self.met.get(once, ())
        ]
