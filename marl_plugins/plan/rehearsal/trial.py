"""One run of a workflow without any model: every answer is made up, every tool answers nothing."""

from __future__ import annotations

import ast
import asyncio
import copy
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.fields import Miscalled
from marl_plugins.core.prompts import followup_renderer, prompt_renderer
from marl_plugins.core.roles import Call, RoleSpec, Sampling
from marl_plugins.core.tools import Tool, ToolCall
from marl_plugins.core.trajectory import Generation, Task, ToolResult, Trajectory
from marl_plugins.core.workflow import RoleCall, Workflow, calls_of, run_workflow
from marl_plugins.loading import users_line
from marl_plugins.plan.rehearsal.apart import Caught, Failure, failure_of, failures_kept, run_on_a_loop
from marl_plugins.run import Run

MOST_CALLS = 200
"""A workflow that continues for as long as answers are wrong is left there."""
MOST_TEXTS = 20
TESTS = ("startswith", "endswith", "removeprefix", "removesuffix")
"""Methods of a text that compare it with another."""
SECONDS = 3.0
"""A workflow that waits longer, for whatever it is, is left there."""
WORD = re.compile("answerzq[a-z]{3}")
"""What an action says when every answer is a word: a word of its own, found again wherever it is shown."""


def word(number: int) -> str:
    """The word of the action with a number."""
    return "answerzq" + "".join(chr(ord("a") + number // 26**place % 26) for place in (2, 1, 0))


@dataclass(frozen=True)
class Answers:
    """A kind of answers: its name, and the text of the action with a number."""

    name: str
    text: Callable[[int], str]


WORDS = Answers("a word", word)
ONES = Answers("the number 1", lambda number: "1")


def saying(text: str) -> Answers:
    """Every answer is the same text, such as the name of a role, as a router's is."""
    return Answers(f"the text {text!r}", lambda number: text)


def compared(source: str) -> list[str]:
    """The texts that a workflow's file compares something with: answers that lead into branches which no others reach."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TESTS:
            parts = node.args
        for part in parts:
            items = part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part]
            found |= {i.value: None for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str) and i.value}
    return list(found)[:MOST_TEXTS]


@dataclass
class Trial:
    """What one run of a workflow left.

    Args:
        answers: What all roles said.
        trajectory: None where the workflow raised something.
        calls: All calls of roles, in order.
        failures: What it raised.
        endless: Whether it was still calling roles after `MOST_CALLS`.
        left_at: Where it waited when it was left after `SECONDS`.
    """

    answers: Answers
    trajectory: Trajectory | None = None
    calls: list[RoleCall] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    endless: bool = False
    left_at: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the workflow raised something, be it that the agents have failed."""
        return self.trajectory is None or self.trajectory.agent_failure is not None

    @property
    def complete(self) -> bool:
        """Whether the workflow came to its own end."""
        return self.trajectory is not None and not (self.failed or self.trajectory.infrastructure_failure)


class Chat:
    """A chat format in which everything is empty, except for what is answered: its only id is the number of the answer."""

    def __init__(self, answers: Answers):
        self.answers = answers

    def opening(self, messages: Any) -> tuple[int, ...]:
        return ()

    def keeps(self, conversation: Any, following: Any) -> bool:
        return True

    def continuation(self, sampled: Any, following: Any) -> tuple[int, ...]:
        return ()

    def said(self, ids: tuple[int, ...]) -> str:
        return self.text(ids)

    def text(self, ids: tuple[int, ...]) -> str:
        return self.answers.text(ids[0])


def try_workflow(
    run: Run, workflow: Workflow, task: Task, tools: Iterable[str], answers: Answers, file: str, caught: Caught
) -> Trial:
    """Run a workflow once on a copy of a task.

    Args:
        tools: Names of the tools that it may call besides those of the roles.
        file: Named where no line of the workflow's took part in a mistake.
        caught: Of `run_apart`.
    """
    trial = Trial(answers)
    chat: Any = Chat(answers)
    roles = {
        name: RoleSpec(
            name,
            run.recipe.policy_of(name),
            prompt_renderer(run.prompt(name), run.system(name)),
            chat,
            Sampling(1.0, 1.0, 1, MOST_CALLS + 2),
            render_next=followup_renderer(run.followup(name)),
        )
        for name in run.recipe.roles
    }
    names = {*tools, *(name for role in run.recipe.roles.values() for name in role.tools)}
    silent = {name: Tool(name, _nothing, lambda text: [], functions=()) for name in names}
    with failures_kept(trial.failures, file, caught):
        trial.trajectory = run_on_a_loop(_run(trial, workflow, copy.deepcopy(task), roles, silent))
    trial.failures += [
        failure_of(call.refused, file) for call in trial.calls if call.refused
    ]  # also those that it has caught
    return trial


async def _nothing(call: ToolCall) -> ToolResult:
    return ToolResult("tool", call.text, "", ok=True)


async def _run(
    trial: Trial, workflow: Workflow, task: Task, roles: Mapping[str, RoleSpec], tools: Mapping[str, Tool]
) -> Trajectory:
    answered = 0

    async def generate(call: Call) -> Generation:
        """An answer at once, so that whatever runs beside the workflow has not begun when it ends without waiting for it."""
        nonlocal answered
        answered += 1
        if answered > MOST_CALLS:
            trial.endless = True
            raise InfrastructureFailure("rehearsal", f"more than {MOST_CALLS} calls")
        return Generation((answered,), (0.0,), "stop", call.policy, 0)

    async def watched(task: Task, roles: Any, tools: Any) -> Any:
        trial.calls = calls_of(roles).made
        awaitable = workflow(task, roles, tools)
        if not inspect.isawaitable(awaitable):
            kind = type(awaitable).__name__
            raise Miscalled(f"run gives {kind} at once; write `async def run(task, roles, tools)`, without `yield`", None)
        try:
            returned = await awaitable
        except asyncio.CancelledError as error:
            trial.left_at = users_line(error, ())
            raise
        if not inspect.isawaitable(returned):
            refuse_running_tasks()
        return returned

    return await run_workflow(
        watched, task, 0, step=0, run_seed=0, roles=roles, tools=tools, generate=generate, seconds=SECONDS
    )


def refuse_running_tasks() -> None:
    """Raise `Miscalled` where the workflow has ended and a task of its own still runs that it has not cancelled."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    running = sorted(_place_and_name(task) for task in tasks if not task.done() and not task.cancelling())
    for place, name in running:
        raise Miscalled(f"{name} runs as a task that nobody awaits when run ends; await it, or cancel it", place)


def _place_and_name(task: asyncio.Task[Any]) -> tuple[str, str]:
    coroutine: Any = task.get_coro()
    if isinstance(coroutine, RoleCall):
        return coroutine.place, f"role {coroutine.spec.name!r}"
    code = coroutine.cr_code
    return f"{code.co_filename}:{code.co_firstlineno}", coroutine.__qualname__


MARK = "labelzqxj"
MARK_OF_NUMBERS = 728915403


def marked(label: Any) -> Any:
    """A label of the same form that occurs nowhere else, to see where it is shown; what cannot be marked stays."""
    if isinstance(label, str):
        return str(MARK_OF_NUMBERS) if _is_number(label) else MARK
    if isinstance(label, list | tuple):
        return [marked(item) for item in label]
    if isinstance(label, dict):
        return {key: marked(item) for key, item in label.items()}
    if isinstance(label, bool) or not isinstance(label, int | float):
        return label
    return MARK_OF_NUMBERS if isinstance(label, int) else MARK_OF_NUMBERS + 0.5


def with_marked_label(task: Task, copies: Collection[str] = ()) -> Task:
    """The task with a label that can be recognised; the same task where it cannot be.

    Args:
        copies: Keys of the metadata under which the label stands too.
    """
    label = marked(task.label)
    return replace(task, label=label, metadata={k: label if k in copies else v for k, v in task.metadata.items()})


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
