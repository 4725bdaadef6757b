"""One run of a workflow without any model: every answer is empty, every tool answers nothing.

It shows who sees whom (`openrlhf recipes show`), and finds before anything starts what no answer would change: a role or tool
that the recipe does not have, a field that a prompt needs and is not given, a `run` that cannot be called.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from marl_plugins.core.failures import InfrastructureFailure, leaves_of
from marl_plugins.core.prompts import prompt_renderer
from marl_plugins.core.trajectory import Generation, Task, ToolResult, Trajectory
from marl_plugins.core.workflow import (
    Call,
    Miscalled,
    NotInRecipe,
    RoleSpec,
    Sampling,
    Tool,
    ToolCall,
    Workflow,
    refuse_unawaited,
    run_workflow,
)
from marl_plugins.manager import Plugins
from marl_plugins.plan.plan import Plan
from marl_plugins.plan.tasks import from_hub
from marl_plugins.run import Run

MOST_CALLS = 200
SECONDS = 10.0
"""A workflow that continues for as long as answers are wrong is left there."""


@dataclass
class Rehearsal:
    """What one rehearsal found.

    Args:
        graph: Who saw whom, a line per action.
        wrong: Mistakes that no answer would change, with file and line.
        unclear: What else the workflow raised: an agent may really answer nothing, and a run would end there.
    """

    graph: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)


def check_workflow(plan: Plan, tools: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Mistakes of the run's workflow that show without any model, and what else it raises, as warnings."""
    tasks = [] if from_hub(plan.run) else plan.tasks("train")
    task = tasks[0] if tasks else Task("example", "an example", "0")
    found = rehearse(plan.run, workflow_of(plan.plugins, plan.run), task, tools or ())
    return found.wrong, found.unclear


def workflow_of(plugins: Plugins, run: Run) -> Workflow:
    """The run's workflow: a plugin's, or the recipe's."""
    workflow: Workflow = plugins.call_while_planning("marl_workflow", run=run)
    return workflow


def rehearse(run: Run, workflow: Workflow, task: Task, tools: Iterable[str] = ()) -> Rehearsal:
    """Run a workflow once on a task, without any model.

    Args:
        tools: Names of the tools that it may call; those of the roles are among them.
    """
    code = getattr(workflow, "__code__", None)
    file = f"{code.co_filename}:{code.co_firstlineno}" if code else str(run.folder / run.recipe.workflow)
    try:
        inspect.signature(workflow).bind(None, None, None)
    except TypeError as error:
        return Rehearsal(wrong=[f"{file}: run is called with task, roles and tools: {error}"])
    try:
        with ThreadPoolExecutor(1) as thread:  # a notebook's own thread has an event loop already
            trajectory = thread.submit(asyncio.run, _rehearsed(run, workflow, task, tools)).result()
    except Exception as error:  # the recipe's own code, of any kind
        leaves = list(leaves_of(error))
        if wrong := [f"{_line(e, file)}: {e}" for e in leaves if isinstance(e, Miscalled | NotInRecipe)]:
            return Rehearsal(wrong=wrong)
        return Rehearsal(
            unclear=[
                f"{_line(e, file)}: the workflow does not run on empty answers: {type(e).__name__}: {e}" for e in leaves
            ]
        )
    names = {a.path: a.role + (f" (turn {a.turn + 1})" if a.turn else "") for a in trajectory.actions}
    return Rehearsal([f"{', '.join(names[p] for p in a.parents) or 'task'} -> {names[a.path]}" for a in trajectory.actions])


def _line(error: BaseException, file: str) -> str:
    """The last line of the workflow's file that led to an error."""
    name = file.rpartition(":")[0]
    lines = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
    return lines[-1] if lines else file


class EmptyChat:
    """A chat format in which everything is empty."""

    def opening(self, messages: Any) -> tuple[int, ...]:
        return ()

    def text(self, ids: Any) -> str:
        return ""


async def _rehearsed(run: Run, workflow: Workflow, task: Task, tools: Iterable[str]) -> Trajectory:
    calls = 0

    async def generate(call: Call) -> Generation:
        nonlocal calls
        calls += 1
        if calls > MOST_CALLS:
            raise InfrastructureFailure("rehearsal", f"more than {MOST_CALLS} calls")
        await asyncio.sleep(0)
        return Generation((0,), (0.0,), "stop", call.policy, 0)

    async def answer(call: ToolCall) -> ToolResult:
        return ToolResult("tool", call.text, "", ok=True)

    async def checked(task: Task, roles: Any, tools: Any) -> Any:
        answer = workflow(task, roles, tools)
        if not inspect.isawaitable(answer):
            raise Miscalled("run is a plain function; write `async def run(task, roles, tools)`")
        returned = await answer
        refuse_unawaited(returned, "run returns")
        return returned

    chat: Any = EmptyChat()
    roles = {
        name: RoleSpec(
            name,
            run.recipe.policy_of(name),
            prompt_renderer(run.prompt(name), run.system(name)),
            chat,
            Sampling(1.0, 1.0, 1, 2),
        )
        for name in run.recipe.roles
    }
    names = {*tools, *(name for role in run.recipe.roles.values() for name in role.tools)}
    silent = {name: Tool(name, answer, lambda text: []) for name in names}
    return await run_workflow(
        checked, task, 0, step=0, run_seed=0, roles=roles, tools=silent, generate=generate, seconds=SECONDS
    )
