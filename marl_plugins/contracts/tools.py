"""The promises of a plugin's tools, tested on example calls that its author gives.

class TestCalc(PluginContract):
    plugin = "calc.py"
    calls = {"calc": ["1+1", "2*3"]}                       # what `run` is given, and succeeds
    bad_calls = {"calc": ["1/0"]}                          # what fails through the agent's fault
    answers = {"calc": ["It is <calc>1+1</calc>."]}        # what a role says, in which `find` finds
        a call
    deterministic = True                                   # an answer depends on the call alone
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, ClassVar
from unittest import SkipTest
from unittest.mock import patch

from marl_plugins.contracts.subject import Subject
from marl_plugins.core.calls import calls_in
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.tools import Tool, ToolCall
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.engine.plan.plan import Plan

JUNK = ("", ")]} \x00")
"""Calls that mean nothing to most tools; agents make such calls."""
CONTRACT_ROUNDS = 4
"""How often each call is made at the same time."""
CONTRACT_TRIES = 3
"""How often a call may block the event loop before the tool is told: on a busy machine, or while it
imports, any may once."""
LONGEST_STALL_SECONDS = 0.3
LARGEST_ANSWER_BYTES = 100_000
FIELDS = {
    "tool": str,
    "call": str,
    "output": str,
    "ok": bool,
    "seconds": int | float,
    "files": tuple,
}


def with_tools(
    test: Callable[[ToolContract, Mapping[str, Tool]], Awaitable[None]],
) -> Callable[[ToolContract], None]:
    """Gives a test the plugin's tools, of a run that has started; it passes where there are none,
    and is skipped, visibly, where their service is unavailable here."""

    def tried(self: ToolContract) -> None:
        if self._tools():
            try:
                asyncio.run(started(self, self.plan))
            except (InfrastructureFailure, ConfigurationError) as failure:
                raise SkipTest(
                    f"the tools are unavailable here, so this is not tested: {failure}"
                ) from failure

    async def started(self: ToolContract, plan: Plan) -> None:
        async with plan.plugins.started(plan.run, "train"):
            await test(self, self._tools(plan))

    tried.__doc__ = test.__doc__
    return tried


class ToolContract(Subject):
    """The promises of `marl_tools`. A plugin without tools passes; one whose tools have no examples
    does not."""

    calls: ClassVar[Mapping[str, Sequence[str]]] = {}
    """By tool: calls that succeed, as its `run` is given them."""
    bad_calls: ClassVar[Mapping[str, Sequence[str]]] = {}
    """By tool: calls that fail through the agent's fault."""
    answers: ClassVar[Mapping[str, Sequence[str]]] = {}
    """By tool: answers of a role in which `find` finds a call; none for a tool that only workflows
    call."""
    deterministic: ClassVar[bool] = False
    """Whether an answer depends on the call alone, and is the same the next time."""

    def test_every_tool_has_examples(self) -> None:
        """The other contracts of tools say nothing about one that has none."""
        own, problems = self._tools(), []
        for name in own:
            if not self.calls.get(name):
                problems.append(
                    f"tool {name!r} has no example call; add calls = {{{name!r}: ['...']}}, which "
                    "its run answers"
                )
            if name not in self.answers:
                problems.append(
                    f"tool {name!r} has no example of a role's answer; add answers = {{{name!r}: "
                    f"['...']}}, in which find "
                    f"finds a call, or answers = {{{name!r}: []}} where only workflows call it"
                )
        for kind in ("calls", "bad_calls", "answers"):
            examples = getattr(self, kind)
            problems += [
                f"{kind} names the tool {name!r}; the plugin brings {[*own]}"
                for name in examples
                if name not in own
            ]
        assert not problems, f"in {type(self).__name__}: " + "\n".join(problems)

    def test_find_gives_a_list_of_calls(self) -> None:
        """Each a text; none in an empty answer, with which a role's turns would never end."""
        for name, tool in self._tools().items():
            examples = self.answers.get(name, ())
            for text in ("", "nothing is called here", *examples):
                calls = find_calls(tool, text)
                assert find_calls(tool, text) == calls, (
                    f"find of tool {name!r} gives another list the second time"
                )
                assert calls or text not in examples, (
                    f"find of tool {name!r} finds no call in {text!r}"
                )
            assert not find_calls(tool, ""), (
                f"find of tool {name!r} finds a call in an empty answer"
            )

    @with_tools
    async def test_a_tool_answers_its_calls(self, tools: Mapping[str, Tool]) -> None:
        """`run` is async and gives a `ToolResult`; the examples succeed."""
        for tool, text in self._examples(tools, self.calls):
            result = await answer(tool, text)
            assert result.ok, (
                f"tool {tool.name!r} answered ok=False to the example call {text!r}: "
                f"{result.output}"
            )
        for name, tool in tools.items():
            for call in (
                call for text in self.answers.get(name, ()) for call in find_calls(tool, text)
            ):
                await answer(tool, call)

    @with_tools
    async def test_a_tool_lets_others_work(self, tools: Mapping[str, Tool]) -> None:
        """`run` does not block the event loop, in which all trajectories live; its answer is not
        too large to be shown."""
        for tool, text in self._examples(tools, self.calls):
            stalls: list[float] = []
            while len(stalls) < CONTRACT_TRIES and (
                not stalls or min(stalls) > LONGEST_STALL_SECONDS
            ):
                async with stall() as longest:
                    result = await answer(tool, text)
                stalls.append(longest())
            assert min(stalls) <= LONGEST_STALL_SECONDS, (
                f"tool {tool.name!r} blocked the event loop for {min(stalls):.1f} s on "
                f"{text!r}, and with it every other "
                "trajectory; await what takes long, or call it by asyncio.to_thread"
            )
            assert result.bytes <= LARGEST_ANSWER_BYTES, (
                f"tool {tool.name!r} answered {text!r} with {result.bytes} bytes, which become a "
                f"model's context; cut it to {LARGEST_ANSWER_BYTES} or fewer"
            )

    @with_tools
    async def test_a_bad_call_is_an_answer(self, tools: Mapping[str, Tool]) -> None:
        """A bad call is answered with `ok=False`, not with an exception: the agents made it, and
        see what became of it."""
        for tool, text in self._examples(tools, self.calls):
            await answer(tool, text)  # the tool is not down
        bad = self._examples(tools, self.bad_calls)
        for tool, text in (*bad, *((tool, text) for tool in tools.values() for text in JUNK)):
            try:
                result = await answer(tool, text)
            except InfrastructureFailure as failure:
                raise AssertionError(
                    f"tool {tool.name!r} is not down, and says so of the call {text!r}: {failure}"
                ) from failure
            assert not (result.ok and (tool, text) in bad), (
                f"tool {tool.name!r} answered ok=True to the bad call {text!r}"
            )

    @with_tools
    async def test_an_outage_is_an_infrastructure_failure(self, tools: Mapping[str, Tool]) -> None:
        """An example is, without network and processes, answered all the same, or raises
        `InfrastructureFailure`: a tool that is down and answers `ok=False` has its agents
        blamed."""
        for tool, text in self._examples(tools, self.calls):
            try:
                with outage():
                    result = await answer(tool, text)
            except InfrastructureFailure:
                continue
            assert result.ok, (
                f"tool {tool.name!r} answered ok=False to {text!r} while network and processes "
                f"were unavailable ({result.output}); raise InfrastructureFailure"
            )

    @with_tools
    async def test_concurrent_calls_do_not_mix_answers(self, tools: Mapping[str, Tool]) -> None:
        """Each result is its own call's; what is answered alike twice is so among other calls
        too."""
        junk = dict.fromkeys(tools, JUNK)
        examples = [
            e for kind in (self.calls, self.bad_calls, junk) for e in self._examples(tools, kind)
        ]
        alone = [[said(await answer(tool, text)) for tool, text in examples] for _ in range(2)]
        results = await asyncio.gather(
            *(answer(tool, text) for _ in range(CONTRACT_ROUNDS) for tool, text in examples),
            return_exceptions=True,
        )
        expected = [
            pair for _ in range(CONTRACT_ROUNDS) for pair in zip(examples, *alone, strict=True)
        ]
        for ((tool, text), first, second), result in zip(expected, results, strict=True):
            if isinstance(result, InfrastructureFailure):  # too busy: it says so
                continue
            if isinstance(result, BaseException):
                raise result
            mixed = first == second and said(result) != first
            assert not mixed, (
                f"tool {tool.name!r} answered {said(result)} to {text!r} among other calls, "
                f"alone {first}"
            )

    @with_tools
    async def test_answers_depend_on_the_call_alone(self, tools: Mapping[str, Tool]) -> None:
        """Answers depend on the call alone where the class says `deterministic`: not on whose call
        it is, nor on what was called before."""
        for tool, text in self._examples(tools, self.calls) if self.deterministic else ():
            first = said(await answer(tool, text))
            # a workflow's, of another trajectory
            other = said(await answer(tool, text, ToolCall(text, "t1", 3, 2)))
            assert first == other, (
                f"tool {tool.name!r} answered {first} to {text!r}, and then {other}"
            )

    def _tools(self, plan: Plan | None = None) -> dict[str, Tool]:
        """The plugin's own tools, by name, in a run or in a new one."""
        if not hasattr(self.module, "marl_tools"):
            return {}
        plan = plan or self.plan
        return {tool.name: tool for tool in self._own(plan, "marl_tools", run=plan.run) or ()}

    def _examples(
        self, tools: Mapping[str, Tool], calls: Mapping[str, Sequence[str]]
    ) -> list[tuple[Tool, str]]:
        return [(tool, text) for name, tool in tools.items() for text in calls.get(name, ())]


async def answer(tool: Tool, text: str, call: ToolCall | None = None) -> ToolResult:
    """A tool's answer, of the right types, to a role's call.

    Raises:
        AssertionError: There is none, or it is not a `ToolResult` of this call.
        InfrastructureFailure: The tool says that it is down.
    """
    of = f"tool {tool.name!r}, called with {text!r},"
    try:
        waiting: Any = tool.run(call or ToolCall(text, "t0", 0, 1, "role", "role.1"))
        assert inspect.isawaitable(waiting), (
            f"{of} gave {type(waiting).__name__}; its run has to be `async def`"
        )
        result: Any = await waiting
    except (InfrastructureFailure, AssertionError):
        raise
    except Exception as error:  # the plugin's own code, of any kind
        raise AssertionError(
            f"{of} raised {type(error).__name__}: {error}; a call that fails through the agent's "
            "fault is an answer with ok=False, and a tool that is down raises InfrastructureFailure"
        ) from error
    assert isinstance(result, ToolResult), (
        f"{of} gave {type(result).__name__}, expected a ToolResult"
    )
    wrong = [name for name, kind in FIELDS.items() if not isinstance(getattr(result, name), kind)]
    if not wrong and not all(isinstance(file, str) for file in result.files):
        wrong = ["files"]
    assert not wrong, (
        f"{of} gave a ToolResult with {', '.join(f'{n}={getattr(result, n)!r}' for n in wrong)}"
    )
    assert result.tool == tool.name, f"{of} gave a result of the tool {result.tool!r}"
    assert result.call == text, f"{of} gave the result of the call {result.call!r}"
    return result


def find_calls(tool: Tool, text: str) -> list[str]:
    """The calls that a tool finds in a role's answer; of one that is called by name, those between
    tags.

    Raises:
        AssertionError: They are not a list of texts.
    """
    if tool.find is None:
        return [call.text for call in calls_in([tool], None, text, text) if call.tool is not None]
    calls: Any = tool.find(text)
    good = isinstance(calls, list) and all(isinstance(call, str) for call in calls)
    assert good, (
        f"find of tool {tool.name!r} gave {calls!r:.80} for {text!r}, expected a list of texts"
    )
    return list(calls)


def said(result: ToolResult) -> tuple[str, bool, tuple[str, ...]]:
    """Returns an answer without how long it took."""
    return result.output, result.ok, result.files


@asynccontextmanager
async def stall() -> AsyncIterator[Callable[[], float]]:
    """`async with`: gives what returns, afterwards, the longest time in seconds in which the event
    loop did nothing else."""
    longest, last = 0.0, time.monotonic()

    def tick() -> None:
        nonlocal longest, last
        now = time.monotonic()
        longest, last = max(longest, now - last), now

    async def beat() -> None:
        while True:
            tick()
            await asyncio.sleep(0.01)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)
    try:
        yield lambda: longest
    finally:
        tick()
        beating.cancel()


@contextmanager
def outage() -> Iterator[None]:
    """Neither network nor processes: what connects, or starts a program, gets an `OSError`."""

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "unavailable in this test")

    unavailable = [
        (socket.socket, "connect"),
        (socket, "getaddrinfo"),
        (subprocess.Popen, "__init__"),
    ]
    with ExitStack() as stack:
        for owner, name in unavailable:
            stack.enter_context(patch.object(owner, name, refuse))
        yield
