"""Answers of which their author knows what they are worth: a grader pays what is right, and neither
what is wrong nor tricks.

    # answers.py, in the recipe's folder
    from marl_plugins.contracts.graders import GradedAnswers

    def answers(tasks):                    # the recipe's own tasks, of both splits
        yield GradedAnswers(tasks[0], right=["59", "\\boxed{59}"], wrong=["58", "5 9"],
        tricks=["52+7", "58 or 59", "42 59"])

`openrlhf recipes check FOLDER` runs the workflow once for each answer, without models and with
silent tools, and then the grader, as a run does. To the tricks are added those of `TRICKS`, which
no grader should pay, whatever the task.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.recipe_yaml import read_recipe
from marl_plugins.core.recipe.schema import find_recipe
from marl_plugins.core.roles import Call
from marl_plugins.core.scoring import score_outcome
from marl_plugins.core.tools import Tool, ToolCall
from marl_plugins.core.trajectory import File, Generation, Task, ToolResult, Trajectory
from marl_plugins.core.workflow import run_workflow
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan.build import draft_plan
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.resolve_plugins import tools_of
from marl_plugins.engine.plan.scripted_roles import ScriptedChat, scripted_role
from marl_plugins.engine.plan.user_code_thread import (
    Capture,
    UserCodeTimeout,
    run_in_thread,
    run_on_a_loop,
)
from marl_plugins.grading.exploits import TRICKS

FILE = "answers.py"
GRADER_SECONDS = 30.0
"""Workflow and grader are left behind where no answer has been graded for so long."""
T = TypeVar("T")


@dataclass(frozen=True)
class GradedAnswers:
    """Answers of one role on one task.

    Args:
        task: What is asked.
        right: Answers that are paid.
        wrong: Answers that are not, as honest models give them.
        tricks: Answers that want to be paid for nothing.
        role: Who gives them; default: the recipe's last role.
        others: What every other role says, by its name; default: the same as `role` does.
        file: Answers are the content of this file of the workspace, and not what the role says.
        paid, unpaid: The outcome of the role for a right answer, at least, and for another one, at
            most; both in [0, 1].
    """

    task: Task
    right: Sequence[str] = ()
    wrong: Sequence[str] = ()
    tricks: Sequence[str] = ()
    role: str = ""
    others: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    paid: float = 1.0
    unpaid: float = 0.0


class GraderFinding(NamedTuple):
    """The score that the grader gave one answer, and whether that is as it should be.

    Args:
        kind: `right`, `wrong` or `tricks`; of labels `label`, `wrong`, `empty` or `another task's`.
        outcome: Of the role, in [0, 1]; None where it has none.
        fine: Whether the grader pays what is right, and nothing else.
        failure: Why the workflow did not come to its end; empty where it did.
    """

    task: str
    role: str
    kind: str
    answer: str
    outcome: float | None
    fine: bool
    failure: str


class RecipeGrader:
    """What a recipe's grader pays for answers, without models or a run.

    Args:
        recipe: As `--recipe` takes it.

    Raises:
        ConfigurationError: It cannot be planned.
    """

    def __init__(self, recipe: str) -> None:
        path = find_recipe(recipe)
        self.plan = draft_plan(["--recipe", str(path)], Plugins(read_recipe(path).plugins))

    def outcome(self, task: Task, answer: str | None) -> float:
        """Returns the outcome of a trajectory that has this answer, and no actions.

        Raises:
            ConfigurationError: The grader never ends.
            Exception: What the grader raises.
        """
        trajectory = Trajectory(task, sample=0, step=0, answer=answer)
        graded_apart(self.plan, lambda caught: write_outcome(self.plan, trajectory))
        return trajectory.outcome or 0.0


def check_grader(plan: Plan) -> list[GraderFinding]:
    """Grades all answers of the file `answers.py` of a recipe's folder.

    Raises:
        ConfigurationError: There is no such file, it has no `answers(tasks)`, or it names what the
            recipe does not have; or the recipe's code never ends.
        Exception: What workflow or grader raise.
    """
    return graded_apart(plan, lambda caught: _check(plan, caught))


def graded_apart(plan: Plan, grade: Callable[[Capture], Coroutine[Any, Any, T]]) -> T:
    """Runs what grades answers in a thread of its own, and says where the recipe's code never ends.

    Args:
        grade: Says after each answer that it goes on.

    Raises:
        ConfigurationError: No answer was graded for `GRADER_SECONDS`.
    """
    try:
        # Once around all answers: patches that overlap in time would restore one another's.
        with patch("os._exit", side_effect=SystemExit):  # which would end the check without a word
            return run_in_thread(lambda caught: run_on_a_loop(grade(caught)), GRADER_SECONDS)
    except UserCodeTimeout as stuck:
        file = plan.run.folder / str(plan.run.recipe.grader or plan.run.recipe.workflow)
        problem = stuck.problem("the recipe's code, given an answer,", str(file))
        raise ConfigurationError(problem) from None


def _listed(plan: Plan) -> Iterator[GradedAnswers]:
    path = plan.run.folder / FILE
    answers = getattr(load_file(path), "answers", None)
    if not callable(answers):
        raise ConfigurationError(
            Problem(
                "answers.none",
                at(file=path),
                "no function",
                "answers(tasks), which yields GradedAnswers",
            )
        )
    roles = list(plan.run.recipe.roles)
    told = answers([*plan.tasks("train"), *plan.tasks("eval")])
    if not isinstance(told, Iterable):
        got = f"answers(tasks) gave {type(told).__name__}"
        raise ConfigurationError(
            Problem("answers.type", at(file=path), got, "GradedAnswers, yielded one by one")
        )
    for graded in told:
        if unknown := {graded.role or roles[-1], *graded.others} - {*roles}:
            unknown_roles = (
                f"{', '.join(map(repr, sorted(unknown)))}, which the recipe does not have"
            )
            raise ConfigurationError(
                Problem("answers.role", at(file=path), unknown_roles, f"a role: {', '.join(roles)}")
            )
        yield replace(graded, role=graded.role or roles[-1])


async def _check(plan: Plan, caught: Capture) -> list[GraderFinding]:
    findings: list[GraderFinding] = []

    async def graded_outcome(graded: GradedAnswers, answer: str) -> tuple[float | None, str]:
        try:
            return await outcome_of(plan, graded, answer)
        finally:
            caught.goes_on()

    listed = list(_listed(plan))
    caught.goes_on()
    for graded in listed:
        told = {
            "right": graded.right,
            "wrong": graded.wrong,
            "tricks": [
                *graded.tricks,
                *(trick for trick in TRICKS if trick not in (*graded.right, *graded.wrong)),
            ],
        }
        for kind, answers in told.items():
            outcomes = await asyncio.gather(*(graded_outcome(graded, answer) for answer in answers))
            for answer, (outcome, failure) in zip(answers, outcomes, strict=True):
                fine = outcome is not None and (
                    outcome >= graded.paid if kind == "right" else outcome <= graded.unpaid
                )
                of = graded.task.id, graded.role
                findings.append(GraderFinding(*of, kind, answer, outcome, fine, failure))
    return findings


async def write_outcome(plan: Plan, trajectory: Trajectory) -> None:
    """Writes the outcome that the recipe's grader gives a trajectory."""
    run, hook = plan.run, plan.plugins.hook
    await score_outcome(
        trajectory,
        lambda t: hook.marl_score_outcome(run=run, trajectory=t),
        None,
        run.recipe.roles,
    )


async def outcome_of(plan: Plan, graded: GradedAnswers, answer: str) -> tuple[float | None, str]:
    """The outcome of a role that gives an answer, None where it has none; and why the workflow did
    not come to its end, empty where it did.

    Raises:
        Exception: What workflow or grader raise.
    """
    run, texts = plan.run, {**dict.fromkeys(plan.run.recipe.roles, answer), **graded.others}
    trajectory = await _acted(plan, graded.task, {role: texts[role] for role in run.recipe.roles})
    with tempfile.TemporaryDirectory() as folder:
        if graded.file:
            _leave(Path(folder, graded.file), answer, trajectory)
        try:
            await write_outcome(plan, trajectory)
        except SystemExit:
            got = f"it runs programs in its own process, which {answer!r} has left"
            raise ConfigurationError(
                Problem(
                    "answers.left",
                    at(file=run.folder / str(run.recipe.grader)),
                    got,
                    fix="run them with Checker",
                )
            ) from None
    failure = trajectory.infrastructure_failure or trajectory.agent_failure
    return trajectory.outcome_of(graded.role), f"{failure}: {trajectory.detail}" if failure else ""


def _leave(path: Path, content: str, trajectory: Trajectory) -> None:
    """Make a file what the last action has left in the workspace."""
    path.write_text(content, encoding="utf-8")
    trajectory.workspace = path.parent
    trajectory.files = (File(path.name, len(content.encode()), "", trajectory.actions[-1].path),)


async def answer_nothing(call: ToolCall) -> ToolResult:
    """Answers a call as a silent tool."""
    return ToolResult("tool", call.text, "", ok=True)


async def _acted(plan: Plan, task: Task, texts: Mapping[str, str]) -> Trajectory:
    """The trajectory of a workflow in which every role says its one text; tools answer nothing, and
    find no calls."""
    run = plan.run

    async def generate(call: Call) -> Generation:
        return Generation((0,), (0.0,), "stop", call.policy, 0)  # the role's one answer

    roles = {
        name: scripted_role(run, name, ScriptedChat([texts[name]])) for name in run.recipe.roles
    }
    tools = {
        tool.name: Tool(tool.name, answer_nothing, lambda text: [], functions=())
        for tool in tools_of(plan.plugins, run).values()
    }
    workflow = plan.plugins.call_while_planning("marl_workflow", run=run)
    return await run_workflow(
        workflow, task, 0, step=0, run_seed=0, roles=roles, tools=tools, generate=generate
    )
