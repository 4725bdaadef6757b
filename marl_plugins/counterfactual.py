"""Credit by forks: an action is compared with what else its role would have said in the very same
context, each continued live.

Every action of the chosen roles is forked (`Step.fork`): the trajectory and K - 1 forks of it are
siblings, which have all in common that the action did not reach. The samples of a task are siblings
too, which have nothing but the task in common. With R a role's outcome,

    A_i(x) = sum over the groups of x of (R_i - mean of R over the others of the group) / c(x)
    c(x)   = K times the forked actions among x and its ancestors, and 1 for the samples of the task

for every action x that was sampled, and not said again, in its group. In expectation the siblings
of one action add up to K times the gradient at x, whatever their words, and the samples of a task
to it once; each group counts by how many trajectories it has made of one (C3, arXiv 2603.06859,
without its division by the deviation of siblings; benchmarks.arena measures both).

It costs sampled answers: at equally many, plain `rloo` has more signal (docs/credit.md). It pays
where what comes before the forked roles is dear, and what comes after them is cheap.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Sequence

from marl_plugins import (
    Action,
    Estimator,
    Problem,
    Run,
    Step,
    StepPart,
    Task,
    Trajectory,
    all_of,
    at,
    at_least,
    hookimpl,
    meant,
)


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("credit by forks (--plugin marl_plugins.counterfactual)")
    group.add_argument(
        "--counterfactual.siblings",
        type=at_least(2),
        default=4,
        help="trajectories that are compared at an action: the sampled one, and its forks from "
        "there",
    )
    group.add_argument(
        "--counterfactual.roles",
        nargs="+",
        metavar="ROLE",
        help="roles whose actions are forked; default: all with a policy that is trained",
    )


BRING_OTHERS = ("marl_plugins.replay", "marl_plugins.swarm", "marl_plugins.transfer")


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    where, roles = at(flag="counterfactual.roles"), run.recipe.roles
    problems = [
        Problem("counterfactual.roles", where, f"{name!r} is no role", fix=meant(name, roles))
        for name in run.args.counterfactual.roles or ()
        if name not in roles
    ]
    if run.args.algo.dynamic_filtering_enable:
        got = "a step's tasks are taken as they are; --algo.dynamic_filtering_enable would add some"
        problems.append(Problem("counterfactual.filtering", got=got, fix="leave one out"))
    for name in [n for n in run.plugins if n in BRING_OTHERS]:
        got = f"own trajectories alone are compared: none that {name} brings would be trained on"
        problems.append(Problem("counterfactual.received", got=got, fix="leave one out"))
    return [*problems, *run.replaced_rewards(__name__)]


def forked_roles(run: Run) -> Collection[str]:
    """Returns the roles whose actions are forked."""
    named: Collection[str] | None = run.args.counterfactual.roles
    return named or run.trained_roles


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart:
    return Forks(run, step)


class Forks(StepPart):
    """The rollout of a step, each trajectory with its forks."""

    def __init__(self, run: Run, step: Step):
        self.run, self.step = run, step
        self.tasks = list(step.tasks)

    async def source(self) -> AsyncGenerator[Sequence[Trajectory], None]:
        work = [
            asyncio.ensure_future(self.of_task(task, place))
            for place, task in enumerate(self.tasks)
        ]
        try:
            for trajectories in work:
                yield await trajectories
        finally:
            for trajectories in work:
                trajectories.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def of_task(self, task: Task, place: int) -> list[Trajectory]:
        """Returns the samples of a task, each followed by its forks."""
        samples = range(self.run.args.rollout.n_samples_per_prompt)
        families = await all_of(self.family(task, place, sample) for sample in samples)
        return [trajectory for family in families for trajectory in family]

    async def family(self, task: Task, place: int, sample: int) -> list[Trajectory]:
        """Returns a trajectory and its forks."""
        original = await self.step.trajectory(task, place, sample)
        if original.infrastructure_failure:
            return [original]
        roles, numbers = forked_roles(self.run), range(1, self.run.args.counterfactual.siblings)
        forks = await all_of(
            self.step.fork(original, action.path, number)
            for action in original.actions
            if action.role in roles
            for number in numbers
        )
        return [original, *forks]


Group = tuple[str, int, str]
"""Task, sample and path of the action; a task's samples have -1 and no path."""


def groups_of(
    trajectories: Sequence[Trajectory], roles: Collection[str]
) -> dict[Group, list[Trajectory]]:
    """Returns the siblings of every group of a step; who has no outcome is none."""
    groups = defaultdict[Group, list[Trajectory]](list)
    for t in (t for t in trajectories if t.outcome is not None and not t.origin):
        if t.forked:
            groups[t.task.id, t.sample, t.forked[0]].append(t)
            continue
        groups[t.task.id, -1, ""].append(t)
        for action in t.actions:
            if action.role in roles:
                groups[t.task.id, t.sample, action.path].append(t)
    return {key: siblings for key, siblings in groups.items() if len(siblings) > 1}


@hookimpl
def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    roles, sums = forked_roles(run), defaultdict[Action, float](float)
    made = run.args.counterfactual.siblings
    groups = groups_of(trajectories, roles)
    for (_, _, path), siblings in groups.items():
        for t in siblings:
            reached = t.descendants(path) if path and not t.forked else {a.path for a in t.actions}
            for action in t.actions:
                outcomes = [other.outcome_of(action.role) or 0.0 for other in siblings]
                if not action.replayed and action.path in reached:
                    own = t.outcome_of(action.role) or 0.0
                    others = (sum(outcomes) - own) / (len(siblings) - 1)
                    sums[action] += own - others
    for t in trajectories:
        tasks = int((t.task.id, -1, "") in groups)
        for action in t.actions:
            before = [*t.ancestors(action.path), action] if action in sums else []
            count = tasks + made * sum(a.role in roles for a in before)
            action.reward = sums[action] / count if action in sums else None
            action.terms = {} if action.reward is None else {"counterfactual": action.reward}
    return trajectories


@hookimpl
def marl_estimator(run: Run) -> Estimator:
    return Estimator()  # what is compared is in the rewards
