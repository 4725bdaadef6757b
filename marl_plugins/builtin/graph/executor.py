"""The executor of graphs: it starts what is ready, waits, settles.

A node is ready when all that it names has settled. Then it is skipped, or has its value at once, or
joins the frontier, from which nodes are started. A plain graph goes on with whatever has finished
first: what its nodes do depends on nothing but what they name. One with `budget`, `stop`, `choose`,
`once` or a cooldown goes in rounds: all that was started is waited for, and settles in the order of
the file, before anything is decided, so that no decision hangs on timing. An agent's failure stops
what names its node; the rest comes to its own end, and of several failures the first in the order
of the file is raised. All else that is raised ends what still runs.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from marl_plugins.builtin.graph.expressions import Expression, Scope, until_one_ran
from marl_plugins.builtin.graph.nodes import (
    DONE,
    LEFT,
    Graph,
    LetNode,
    Node,
    note_of,
    result_of,
    sources_of,
)
from marl_plugins.builtin.graph.values import Absence, Result, Sources, as_field, union
from marl_plugins.core.concurrency import end
from marl_plugins.core.failures import AgentFailure
from marl_plugins.core.workflow import RoleCalls, Tools

Inner = dict[str, Any]
Decide = Callable[[Expression, Scope], bool]
"""Decides conditions in place of the graph, for the rehearsal."""


def holds(condition: Expression, scope: Scope) -> bool:
    """Returns whether a condition holds."""
    return bool(condition.value(scope))


class Runner:
    """Runs the graphs of one trajectory."""

    def __init__(self, calls: RoleCalls, tools: Tools, decide: Decide | None = None):
        self.calls = calls
        self.tools = tools
        self.holds = decide or holds

    async def execute(self, graph: Graph, outer: Scope, base: Sources) -> Inner:
        """Runs a graph on what it sees from outside; its results by name.

        Args:
            base: The actions on which all of its nodes depend.

        Raises:
            AgentFailure: A node's.
            RecipeError: An expression does not take its values.
        """
        progress = Progress(self, graph, outer, base)
        try:
            await progress.to_the_end()
        finally:
            await end(progress.running)
        return progress.scope

    async def all_of(self, work: list[Coroutine[Any, Any, Inner]]) -> list[Inner]:
        """Does all of some work at the same time; an agent's failure in one lets the others come to
        their own end."""
        if len(work) == 1:
            return [await work[0]]
        tasks = [asyncio.create_task(one) for one in work]
        try:
            return await asyncio.gather(*tasks)
        except AgentFailure:
            results = await asyncio.gather(*tasks, return_exceptions=True)
            raised = [error for error in results if isinstance(error, BaseException)]
            raise next(
                (error for error in raised if not isinstance(error, AgentFailure)), raised[0]
            ) from None
        finally:
            await end(tasks)


class Progress:
    """One run of one graph.

    Attributes:
        scope: Results by name, those from outside included.
        frontier: Nodes that may be started.
        running: Those that were.
        decided: The actions that have decided what runs now, beyond what a node names (`stop`,
            `choose`).
        waiting: Nodes whose `once` has not held so far.
        asked: The actions that have decided on a node's `once`.
        cooling: Nodes that wait for another try, with the number of nodes that have to have run.
        left: What is left of the budget.
    """

    def __init__(self, runner: Runner, graph: Graph, outer: Scope, base: Sources):
        self.runner = runner
        self.graph = graph
        self.base = base
        self.scope: Inner = {**outer}
        self.waits = [len(node.waits) for node in graph.nodes]
        # in the order of the file, which is that of a heap
        self.ready = [node.index for node in graph.nodes if not node.waits]
        self.frontier: list[int] = []
        self._kept: list[int] = []  # of the frontier, for the next round
        self.running: dict[asyncio.Task[Result | Absence], int] = {}
        self.failures: dict[int, AgentFailure] = {}
        self.tries: dict[int, int] = {}
        self.last: dict[int, Result] = {}
        self.done = 0
        self.decided: Sources = ()
        self.waiting: list[int] = []
        self.asked: dict[int, Sources] = {}
        self.cooling: dict[int, int] = {}
        self.left = dict(graph.budget)

    async def to_the_end(self) -> None:
        """Settles every node.

        Raises:
            AgentFailure: Of the first node in the order of the file that has failed.
        """
        while True:
            self._settle_ready()
            if self.graph.in_rounds:
                await self._begin_round()
            started, self.frontier, self._kept = self.frontier, self._kept, []
            if len(started) == 1 and not self.running:
                await self._alone(started[0])
            elif started or self.running:
                await self._together(started)
            elif not (self.ready or self._may_go_on()):
                break
        if self.failures:
            raise self.failures[min(self.failures)]
        for node in self.graph.nodes:
            self.scope.setdefault(node.name, Absence(self.decided))

    def _settle_ready(self) -> None:
        """Settle what needs no waiting, and let the others join the frontier."""
        while self.ready:
            index = heapq.heappop(self.ready)
            node = self.graph.nodes[index]
            if node.counts:
                self._count()
            sources = self._sources(node)
            skipped = None if index in self.asked else self._skipped(node, sources)
            if skipped is not None:
                self._settle(index, skipped, ran=False)
            elif node.once is not None and index not in self.asked:
                self.waiting.append(index)
                self._ask([index])
            elif isinstance(node, LetNode) and node.at_once:
                self._settle(index, result_of(node.value, self.scope, sources))
            else:
                self.frontier.append(index)

    def _skipped(self, node: Node, sources: Sources) -> Result | Absence | None:
        """Returns what a node comes to that does not run; None where it runs."""
        if any(isinstance(self.scope[name], Absence) for name in node.hard):
            return self._instead(node, sources)
        if node.when is not None and not self.runner.holds(node.when, self.scope):
            return self._instead(node, sources)
        return None

    def _instead(self, node: Node, sources: Sources) -> Result | Absence:
        if node.otherwise is None:
            return Absence(sources)
        return result_of(node.otherwise, self.scope, sources)

    def _sources(self, node: Node) -> Sources:
        """The actions on which a node depends."""
        scope = self.scope
        parts = [scope[name].sources for name in node.reads]
        for names in node.firsts:
            parts += [scope[name].sources for name in until_one_ran(names, scope)]
        if self.graph.first_to_run[node.index]:
            parts.append(self.base)
        parts.append(self.decided)
        if node.index in self.last:
            parts.append(self.last[node.index].sources)
        return union((*parts, self.asked.get(node.index, ())))

    def _settle(self, index: int, result: Result | Absence, ran: bool = True) -> None:
        self.scope[self.graph.nodes[index].name] = result
        self.done += ran
        for dependent in self.graph.dependents[index]:
            self.waits[dependent] -= 1
            if not self.waits[dependent]:
                heapq.heappush(self.ready, dependent)
        self._ask(sorted(self.waiting))

    async def _alone(self, index: int) -> None:
        """Perform the only node that there is to perform, without a task of its own."""
        node = self.graph.nodes[index]
        try:
            result = await node.perform(self.runner, self.scope, self._sources(node))
        except AgentFailure as failure:
            self.failures[index] = failure
        else:
            self._performed(index, result)

    async def _together(self, started: Iterable[int]) -> None:
        """Starts nodes, and waits: for the first that finishes, or for all of a round."""
        for index in started:
            node = self.graph.nodes[index]
            work = node.perform(self.runner, self.scope, self._sources(node))
            self.running[asyncio.create_task(work)] = index
        when = asyncio.ALL_COMPLETED if self.graph.in_rounds else asyncio.FIRST_COMPLETED
        finished, _ = await asyncio.wait(self.running, return_when=when)
        for task in sorted(finished, key=self.running.__getitem__):
            index, error = self.running.pop(task), task.exception()
            if isinstance(error, AgentFailure):
                self.failures[index] = error
            else:
                self._performed(index, task.result())

    def _performed(self, index: int, result: Result | Absence) -> None:
        """Settle a node that has been performed, or have it tried again."""
        node = self.graph.nodes[index]
        tries = self.tries[index] = self.tries.get(index, 0) + 1
        retry = node.retry
        if retry is not None and tries < retry.most and isinstance(result, Result):
            self.last[index] = result
            again = self.runner.holds(retry.repeated, {**self.scope, node.name: result})
            if again and self._covers(node):
                if retry.cooldown:
                    self.cooling[index] = self.done + retry.cooldown
                else:
                    self.frontier.append(index)
                return
        self._settle(index, result)

    async def _begin_round(self) -> None:
        """Leaves in the frontier what is started now: what has cooled, is covered by the budget,
        and was chosen."""
        graph = self.graph
        self.frontier += [index for index, until in self.cooling.items() if until <= self.done]
        self.frontier.sort(key=lambda index: (-graph.nodes[index].priority, index))
        for index in self.frontier:
            self.cooling.pop(index, None)
        if graph.stop is not None and self.tries and self._stopped(graph.stop):
            self.waiting = []
            for index in {*self.frontier, *self.cooling} & self.last.keys():
                last = self.last[index]
                self._settle(index, last.of(union((last.sources, self.decided))))
            self.frontier, self._kept, self.cooling, self.ready = [], [], {}, []
            return
        covered = []
        for index in self.frontier:
            node = graph.nodes[index]
            if self._covers(node):
                covered.append(index)
                if graph.choose is None:
                    self._pay(node)
            else:
                tried = index in self.last
                instead = self.last[index] if tried else self._instead(node, self._sources(node))
                self._settle(index, instead, ran=tried)
        self.frontier, self._kept = covered, []
        if graph.choose is not None and covered:
            if len(covered) > 1:
                chosen = await self._chosen(covered)
            else:  # that there was nothing to choose was decided, too
                (chosen,), self.decided = covered, self._so_far(covered)
            self.frontier, self._kept = [chosen], [index for index in covered if index != chosen]
            self._pay(graph.nodes[chosen])

    def _may_go_on(self) -> bool:
        """Returns whether nodes cool down, which then go on, or wait, which are then skipped."""
        self.cooling = dict.fromkeys(self.cooling, 0)
        if self.cooling or not self.waiting:
            return bool(self.cooling)
        waiting, self.waiting = sorted(self.waiting), []
        self.asked |= {index: self._askers(index, self._by_now()) for index in waiting}
        for index in waiting:
            node = self.graph.nodes[index]
            instead = self._instead(node, self._sources(node))
            self._settle(index, instead, ran=False)
        return True

    def _ask(self, waiting: Iterable[int]) -> None:
        """Has those nodes go on whose `once` holds by now."""
        for index in waiting:
            once, scope = self.graph.nodes[index].once, self._by_now()
            assert once is not None
            if not once.skipped_in(scope) and self.runner.holds(once, scope):
                self.waiting.remove(index)
                self.asked[index] = self._askers(index, scope)
                heapq.heappush(self.ready, index)

    def _askers(self, index: int, scope: Scope) -> Sources:
        """The actions that decide on a node's `once` now."""
        once = self.graph.nodes[index].once
        return union((self._so_far(), sources_of(once, scope) if once else ()))

    def _by_now(self) -> Scope:
        """What expressions may read that wait for nothing: a node that has not settled counts as
        one that did not run."""
        self._count()
        unsettled = Absence()
        return {**{node.name: unsettled for node in self.graph.nodes}, **self.scope}

    def _covers(self, node: Node) -> bool:
        return all(self.left[resource] >= amount for resource, amount in node.cost.items())

    def _pay(self, node: Node) -> None:
        for resource, amount in node.cost.items():
            self.left[resource] -= amount

    def _count(self) -> None:
        """Writes how many nodes have run, and what is left, where expressions read it."""
        self.scope[DONE] = Result(self.done, sources=self._so_far())
        self.scope[LEFT] = Result(dict(self.left))

    def _so_far(self, options: Iterable[int] = ()) -> Sources:
        """The actions of all that has settled or been tried, and those that made nodes options,
        which decide how a round begins."""
        settled = [
            result.sources
            for node in self.graph.nodes
            if (result := self.scope.get(node.name)) is not None
        ]
        made = [self._sources(self.graph.nodes[index]) for index in options]
        return union(
            (*settled, *(result.sources for result in self.last.values()), self.decided, *made)
        )

    def _stopped(self, stop: Expression) -> bool:
        """Returns whether nothing more is started."""
        scope = self._by_now()
        self.decided = self._so_far()
        return not stop.skipped_in(scope) and self.runner.holds(stop, scope)

    async def _chosen(self, options: list[int]) -> int:
        """The node that a role chooses to run next; any other answer is the first of them."""
        choose, nodes = self.graph.choose, self.graph.nodes
        assert choose is not None
        names = [nodes[index].name for index in options]
        scope = self._by_now()
        fields = {name: as_field(value.value(scope)) for name, value in choose.fields.items()}
        note = note_of(choose.address, self.scope)
        fields["options"] = ", ".join(names)
        seen = union((self._so_far(options), self.base))
        action = await self.runner.calls.call(
            choose.role, fields, seen, None, choose.place, {"graph": note}
        )
        answer = action.text.strip()
        note["legal"] = answer in names
        self.decided = (action,)
        return options[names.index(answer)] if answer in names else options[0]
