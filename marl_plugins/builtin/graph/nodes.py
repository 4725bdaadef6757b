"""A checked graph: its nodes, each of a kind, and what a node of that kind does.

A node is performed with the results of what it names (`scope`) and the actions on which it depends
(`sources`); when it may be, is the executor's affair (executor.py). What stands in a loop, a map or
a graph depends on all that is named in it, because it does not begin before that has settled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from marl_plugins.builtin.graph.cases import AROUND, NodeCase
from marl_plugins.builtin.graph.expressions import Expression, Scope
from marl_plugins.builtin.graph.reading import ReadForm
from marl_plugins.builtin.graph.values import (
    Absence,
    Result,
    Sources,
    as_field,
    as_text,
    kind_of,
    union,
)
from marl_plugins.core.failures import AgentFailure, RecipeError
from marl_plugins.core.workflow import RoleCalls, Tools

ROUND = "round"
INDEX = "index"
TASK = "task"
TRAINING = "training"
DONE = "done"
LEFT = "left"
RESERVED = (TASK, TRAINING, DONE, LEFT, ROUND, INDEX)
"""Names that no node may have."""


class Execution(Protocol):
    """A workflow on one task, as nodes see it."""

    calls: RoleCalls
    tools: Tools
    holds: Callable[[Expression, Scope], bool]
    """Whether a condition holds."""

    def execute(
        self, graph: Graph, outer: Scope, base: Sources
    ) -> Coroutine[Any, Any, dict[str, Any]]:
        """Runs a graph on what it sees from outside; its results by name.

        Args:
            base: The actions on which all of its nodes depend.
        """

    def all_of(
        self, work: list[Coroutine[Any, Any, dict[str, Any]]]
    ) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        """Does all of some work at the same time."""


@dataclass(frozen=True)
class Retry:
    """Another try of a node; see `RetryConfig`."""

    most: int
    repeated: Expression
    cooldown: int


@dataclass(kw_only=True, eq=False, repr=False)
class Node(ABC):
    """A node of a graph.

    Args:
        name, address: In its graph; in the whole workflow, as in `rounds.plan`.
        place: `FILE:LINE`.
        index: In the order of the file.
        reads: The names on whose actions it depends, those of `after` first.
        firsts: More of them, of which those count that come up to the first that ran.
        hard: The names that it cannot do without.
        waits: The nodes of its own graph that have to settle before; what `once` names is not among
            them.
        otherwise: Its value where it is skipped.
        cost: What it takes of the graph's budget.
        priority: Of the nodes that may start in a round, those with the highest are first.
        counts: Whether it reads the number of nodes that have run, or what is left of a budget.
    """

    name: str
    address: str
    place: str
    index: int
    reads: tuple[str, ...]
    firsts: tuple[tuple[str, ...], ...]
    hard: tuple[str, ...]
    waits: tuple[int, ...]
    when: Expression | None
    once: Expression | None
    otherwise: Expression | None
    retry: Retry | None
    cost: Mapping[str, float]
    priority: float
    counts: bool

    @abstractmethod
    async def perform(
        self, execution: Execution, scope: Scope, sources: Sources
    ) -> Result | Absence:
        """Returns what it comes to."""


@dataclass(kw_only=True, eq=False, repr=False)
class RoleCallNode(Node):
    role: str
    fields: Mapping[str, Expression]
    reading: ReadForm
    continues: Expression | None
    case: NodeCase | None

    async def perform(self, execution: Execution, scope: Scope, sources: Sources) -> Result:
        fields = {
            name: as_field(expression.value(scope)) for name, expression in self.fields.items()
        }
        builder, case, score = execution.calls.builder, None, None
        if self.case is not None:
            case, shown = await self.case.generated(builder, scope)
            fields = {**{name: as_field(value) for name, value in shown.items()}, **fields}
        note = note_of(self.address, scope)
        earlier = None
        if self.continues is not None and (continued := self.continues(scope)) is not None:
            earlier = getattr(continued, "action", None)
            if earlier is None and not (isinstance(continued, Result) and continued.value is None):
                raise RecipeError(
                    self.place,
                    "TypeError",
                    f"node {self.name!r}, continues: expected a role's answer, or None",
                )
        call = execution.calls.call(
            self.role, fields, sources, earlier, self.place, {"graph": note}
        )
        call.options = {"waits": lambda turn: True} if self.case is not None else {}
        action = await call
        value, note["legal"] = self.reading.read(action.text, scope)
        if self.case is not None:
            score = note["score"] = await self.case.verified(value, case)
            builder.scoring.scored(action, score)
        return Result(
            value,
            action.text,
            action.tool_output,
            note["legal"],
            sources=(action,),
            action=action,
            score=score,
        )


def note_of(address: str, scope: Scope) -> dict[str, Any]:
    """Returns what is recorded with a node's actions: the node, the number of the innermost round
    around it, whether they had their form, and all rounds and items that it is in."""
    number = scope.get(ROUND)
    note = {"node": address, "round": None if number is None else number.value, "legal": False}
    within = [[*step] for step in scope.get(AROUND, ())]
    return note | ({"within": within} if within else {})


@dataclass(kw_only=True, eq=False, repr=False)
class ToolNode(Node):
    tool: str
    function: str
    call: Expression | None
    fields: Mapping[str, Expression]

    async def perform(self, execution: Execution, scope: Scope, sources: Sources) -> Result:
        tool = getattr(execution.tools, self.tool)
        if self.call is not None:
            result = await tool(as_text(self.call.value(scope)))
        else:
            arguments = {name: expression.value(scope) for name, expression in self.fields.items()}
            result = await getattr(tool, self.function)(**arguments)
        return Result(result.output, result.output, result.output, result.ok, sources=sources)


@dataclass(kw_only=True, eq=False, repr=False)
class LetNode(Node):
    value: Expression

    @property
    def at_once(self) -> bool:
        """Returns whether it settles without waiting for anything."""
        return not (self.cost or self.retry)

    async def perform(
        self, execution: Execution, scope: Scope, sources: Sources
    ) -> Result | Absence:
        return result_of(self.value, scope, sources)


@dataclass(kw_only=True, eq=False, repr=False)
class FailNode(Node):
    why: Expression

    async def perform(self, execution: Execution, scope: Scope, sources: Sources) -> Result:
        raise AgentFailure("no_answer", as_text(self.why.value(scope)))


@dataclass(kw_only=True, eq=False, repr=False)
class BodyNode(Node):
    """A node in which a graph runs.

    Args:
        outer: The names from outside that its graph sees.
    """

    body: Graph
    outer: tuple[str, ...]

    def seen(self, scope: Scope) -> dict[str, Any]:
        """Returns what the graph sees from outside."""
        return {name: scope[name] for name in (*self.outer, AROUND) if name in scope}


@dataclass(kw_only=True, eq=False, repr=False)
class MapNode(BodyNode):
    over: Expression
    item: str
    most: int | None

    async def perform(self, execution: Execution, scope: Scope, sources: Sources) -> Result:
        items = self.over.value(scope)
        if not isinstance(items, list):
            message = f"node {self.name!r}, over: expected a list, got {kind_of(items)}"
            error = RecipeError(self.place, "TypeError", message)
            raise AgentFailure("no_answer", str(error)) if sources_of(self.over, scope) else error
        seen, around = self.seen(scope), scope.get(AROUND, ())
        scopes = await execution.all_of(
            [
                execution.execute(
                    self.body,
                    {
                        **seen,
                        self.item: Result(item, sources=sources),
                        INDEX: Result(n),
                        AROUND: (*around, (self.address, INDEX, n)),
                    },
                    sources,
                )
                for n, item in enumerate(items[: self.most])
            ]
        )
        results = [self.body.given(inner) for inner in scopes]
        known = () if results and self.body.gives_own else sources
        values = [result.value for result in results if isinstance(result, Result)]
        return Result(values, sources=union([*(result.sources for result in results), known]))


@dataclass(kw_only=True, eq=False, repr=False)
class LoopNode(BodyNode):
    most: int
    start: Mapping[str, Expression]
    until: Expression | None
    following: Mapping[str, Expression]

    async def perform(
        self, execution: Execution, scope: Scope, sources: Sources
    ) -> Result | Absence:
        seen, base, decided = self.seen(scope), sources, Sources()
        carried = results_of(self.start, scope)
        turn, over = 0, False
        while True:
            around = (*scope.get(AROUND, ()), (self.address, ROUND, turn))
            inner = await execution.execute(
                self.body, {**seen, **carried, ROUND: Result(turn), AROUND: around}, base
            )
            turn += 1
            if turn == self.most:
                break
            if self.until is not None:
                decided = sources_of(self.until, inner)
                over = not self.until.skipped_in(inner) and execution.holds(self.until, inner)
                if not over:
                    base = decided if self.body.owns(self.until) else union((base, decided))
            if over:
                break
            if self.body.failing:
                base = union((base, self.body.spared(inner)))
            carried |= results_of(self.following, inner)
        result = self.body.given(inner)
        known = self.body.gives_own or (
            over and self.until is not None and self.body.owns(self.until)
        )
        all_of = union((result.sources, decided if over else (), () if known else base))
        return result.of(all_of, turn)


@dataclass(kw_only=True, eq=False, repr=False)
class GraphCallNode(BodyNode):
    fields: Mapping[str, Expression]

    async def perform(
        self, execution: Execution, scope: Scope, sources: Sources
    ) -> Result | Absence:
        outer = {**self.seen(scope), **results_of(self.fields, scope)}
        inner = await execution.execute(self.body, outer, sources)
        result = self.body.given(inner)
        all_of = result.sources if self.body.gives_own else union((result.sources, sources))
        return result.of(all_of)


def result_of(expression: Expression, scope: Scope, sources: Sources) -> Result | Absence:
    """Returns what an expression comes to, as a node's result with the node's sources."""
    if expression.skipped_in(scope):
        return Absence(sources)
    value = expression(scope)
    return value.of(sources) if isinstance(value, Result) else Result(value, sources=sources)


def results_of(expressions: Mapping[str, Expression], scope: Scope) -> dict[str, Result | Absence]:
    """Returns what each of some expressions comes to, with its own sources."""
    return {
        name: result_of(expression, scope, sources_of(expression, scope))
        for name, expression in expressions.items()
    }


def sources_of(expression: Expression, scope: Scope) -> Sources:
    """Returns the actions on which an expression's names depend."""
    return union(scope[name].sources for name in expression.used_in(scope))


@dataclass(frozen=True)
class Choice:
    """The role that chooses what runs next; see `ChooseConfig`."""

    role: str
    fields: Mapping[str, Expression]
    address: str
    place: str


@dataclass(eq=False, repr=False)
class Graph:
    """A checked graph.

    Args:
        nodes: In the order of the file.
        give: What it comes to.
        budget: What there is of each resource.
        stop: Once it holds, nothing more is started.
    """

    nodes: list[Node]
    give: Expression
    budget: Mapping[str, float]
    stop: Expression | None
    choose: Choice | None

    def __post_init__(self) -> None:
        self.index = {node.name: node.index for node in self.nodes}
        self.dependents: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for before in node.waits:
                self.dependents[before].append(node.index)
        self.gives_own = self.owns(self.give)
        """Whether what it comes to depends on a node of its own."""
        self.first_to_run = [not self._own(node.reads, node.firsts) for node in self.nodes]
        """By node, whether it depends on no node before it, and so has to be given what all nodes
        depend on."""
        self.failing: list[str] = [
            node.name
            for node in self.nodes
            if isinstance(node, FailNode) or (isinstance(node, BodyNode) and node.body.failing)
        ]
        """Nodes that may end all, in the graph or in one within."""
        self.in_rounds = bool(
            self.budget
            or self.stop
            or self.choose
            or any(
                node.counts or node.once or (node.retry and node.retry.cooldown)
                for node in self.nodes
            )
        )
        """Whether all nodes that were started are waited for before anything is decided, so that no
        decision hangs on timing."""

    def owns(self, expression: Expression) -> bool:
        """Returns whether an expression always depends on a node of this graph, and so on all that
        its nodes depend on."""
        return self._own(expression.always, expression.firsts)

    def _own(self, always: Iterable[str], firsts: Iterable[Sequence[str]]) -> bool:
        return any(
            name in self.index for name in (*always, *(names[0] for names in firsts if names))
        )

    def spared(self, scope: Scope) -> Sources:
        """Returns the actions that have decided that nothing has ended all."""
        return union(scope[name].sources for name in self.failing)

    def given(self, scope: Scope) -> Result | Absence:
        """Returns what the graph has come to."""
        sources = sources_of(self.give, scope)
        if self.failing:
            sources = union((sources, self.spared(scope)))
        return result_of(self.give, scope, sources)
