"""One run of a recipe's workflow without any model: every answer is empty, every tool says nothing.

It shows who sees whom (`openrlhf recipes show`), and finds before anything starts what no answer would change: a role or tool
that the recipe does not have, a field that a prompt needs and is not given, a `run` that cannot be called.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.prompts import prompt_renderer
from marl_plugins.core.recipe import Recipe
from marl_plugins.core.trajectory import Generation, Task, ToolResult, Trajectory
from marl_plugins.core.workflow import (
    Call,
    Miscalled,
    NotInRecipe,
    RoleSpec,
    Sampling,
    Tool,
    refuse_unawaited,
    run_workflow,
)

MOST_CALLS = 200
SECONDS = 10.0
"""A workflow that goes on for as long as answers are wrong is left there."""


@dataclass
class Rehearsal:
    """What one run came to.

    Args:
        graph: Who saw whom, a line per action.
        wrong: Mistakes that no answer would change, with file and line.
        odd: What the workflow raised besides: an agent may really say nothing, and a run would end there.
    """

    graph: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


def rehearse(
    workflow: Callable[..., Any], recipe: Recipe, folder: Path, task: Task, tools: Iterable[str] = ()
) -> Rehearsal:
    """Run a workflow once on a task, without any model.

    Args:
        tools: Names of the tools that it may call; those of the roles are among them.
    """
    code = getattr(workflow, "__code__", None)
    file = f"{code.co_filename}:{code.co_firstlineno}" if code else str(folder / recipe.workflow)
    try:
        inspect.signature(workflow).bind(None, None, None)
    except TypeError as error:
        return Rehearsal(wrong=[f"{file}: run is called with task, roles and tools: {error}"])
    try:
        with ThreadPoolExecutor(1) as apart:  # a notebook's thread has an event loop already
            trajectory = apart.submit(asyncio.run, _run(workflow, recipe, folder, task, tools)).result()
    except Exception as error:  # the recipe's own code, of any kind
        leaves = list(_leaves(error))
        if wrong := [f"{_line(e, file)}: {e}" for e in leaves if isinstance(e, Miscalled | NotInRecipe)]:
            return Rehearsal(wrong=wrong)
        return Rehearsal(
            odd=[f"{_line(e, file)}: the workflow does not run on empty answers: {type(e).__name__}: {e}" for e in leaves]
        )
    names = {a.path: a.role + (f" (turn {a.turn + 1})" if a.turn else "") for a in trajectory.actions}
    return Rehearsal([f"{', '.join(names[p] for p in a.parents) or 'task'} -> {names[a.path]}" for a in trajectory.actions])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """An exception, or those in the group that parallel branches make of theirs."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _line(error: BaseException, file: str) -> str:
    """The last line of the workflow's file that led to an error."""
    name = file.rpartition(":")[0]
    lines = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
    return lines[-1] if lines else file


async def _run(workflow: Callable[..., Any], recipe: Recipe, folder: Path, task: Task, tools: Iterable[str]) -> Trajectory:
    class Nothing:
        """A chat format in which everything is empty."""

        def opening(self, messages: Any) -> tuple[int, ...]:
            return ()

        def text(self, ids: Any) -> str:
            return ""

    calls = 0

    async def generate(call: Call) -> Generation:
        nonlocal calls
        calls += 1
        if calls > MOST_CALLS:
            raise InfrastructureFailure("rehearsal", f"more than {MOST_CALLS} calls")
        await asyncio.sleep(0)
        return Generation((0,), (0.0,), "stop", call.policy, 0)

    async def answer(text: str) -> ToolResult:
        return ToolResult("tool", text, "", ok=True)

    def text(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    async def run(task: Task, roles: Any, tools: Any) -> Any:
        answer = workflow(task, roles, tools)
        if not inspect.isawaitable(answer):
            raise Miscalled("run is a plain function; write `async def run(task, roles, tools)`")
        returned = await answer
        refuse_unawaited(returned, "run returns")
        return returned

    chat: Any = Nothing()
    roles = {
        name: RoleSpec(
            name,
            recipe.policy_of(name),
            prompt_renderer(text(role.prompt), text(role.system) if role.system else None),
            chat,
            Sampling(1.0, 1.0, 1, 2),
        )
        for name, role in recipe.roles.items()
    }
    names = {*tools, *(name for role in recipe.roles.values() for name in role.tools)}
    silent = {name: Tool(name, answer, lambda text: []) for name in names}
    return await run_workflow(
        run, task, 0, step=0, run_seed=0, roles=roles, tools=silent, generate=generate, seconds=SECONDS
    )
