"""A reward model as a scorer: upstream's own reward actors, for the outcome or for every action of
some roles. Built in.

    openrlhf train --recipe R --reward.model_name_or_path MODEL [--reward.normalize_enable]
    [--reward_model.roles ROLE ...]

The model reads messages in its own chat template, with its own tokenizer: a task's prompt and the
system's answer, or a role's conversation up to the action. With low and high of
`--reward.clip_range` (-10 and 10) its reward r becomes a score in [0, 1]:

    score = (clip(r, low, high) - low) / (high - low)

That is affine, so what an estimator divides by a standard deviation is the same as with r; the
scores' scale is that of every other scorer, with 0 for agents that failed. With
`--reward.normalize_enable` r is (r - mean) / std first, by the mean and std of the model's
config.json, as upstream does.

Outcomes of evaluations stay with the recipe's grader, where it has one: what is trained on and what
is counted can be told apart. The processes have devices of their own (backend.py), and compute
every sequence by itself, so that a score does not depend on what arrives together (scorer.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Generator

from marl_plugins import applies_if, hookimpl
from marl_plugins.builtin.reward_model.backend import BesideRewardModel, ScorerConnection
from marl_plugins.builtin.reward_model.checks import FLAG, check_model
from marl_plugins.builtin.reward_model.scale import Scale
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.process_backend import ProcessBackend
from marl_plugins.core.run import Run
from marl_plugins.core.scoring import Outcome, Seen
from marl_plugins.core.steps import Step, StepPart
from marl_plugins.core.trajectory import Action, Trajectory

ROLES = "reward_model.roles"
SIZES = ("reward.num_nodes", "reward.num_gpus_per_node")
ONLY_WITH = (*SIZES, "reward.offload", "reward.normalize_enable", ROLES)


def is_enabled(run: Run) -> bool:
    """Returns whether the run has a reward model."""
    return bool(run.args.reward.model_name_or_path)


def scores_actions(run: Run) -> bool:
    """Returns whether it scores actions."""
    return is_enabled(run) and bool(run.args.reward_model.roles)


def scores_outcomes(run: Run) -> bool:
    """Returns whether it scores outcomes."""
    return is_enabled(run) and not run.args.reward_model.roles


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a reward model (with --reward.model_name_or_path)")
    group.add_argument(
        "--reward_model.roles",
        nargs="+",
        default=[],
        metavar="ROLE",
        help="score every action of these roles, instead of the outcome",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    if not is_enabled(run):
        return run.idle_flags(ONLY_WITH, FLAG)
    problems = [
        Problem(
            "reward_model.no_role",
            at(flag=ROLES),
            f"there is no role {r!r}",
            fix=meant(r, run.recipe.roles),
        )
        for r in run.args.reward_model.roles
        if r not in run.recipe.roles
    ]
    if scores_outcomes(run) and run.args.reward.remote_url:
        got = "both score the outcome; upstream asks the function alone, and starts no reward model"
        fix = f"remove one of the two, or give the model actions to score: --{ROLES} ROLE"
        problems.append(
            Problem(
                "reward_model.twice", at(flag=FLAG), got, fix=fix, flags=(FLAG, "reward.remote_url")
            )
        )
    return problems + check_model(run)


@hookimpl
def marl_describe(run: Run) -> dict[str, str]:
    if not is_enabled(run):
        return {}
    roles = run.args.reward_model.roles
    what = f"every action of {' and '.join(roles)}" if roles else "the outcome"
    return {
        "reward model": f"{run.args.reward.model_name_or_path} scores {what}: a reward r counts as "
        f"{Scale.of(run)}"
    }


@hookimpl(wrapper=True)
def marl_processes(run: Run) -> Generator[None, ProcessBackend, ProcessBackend]:
    backend = yield
    return BesideRewardModel(backend) if is_enabled(run) else backend


@hookimpl(tryfirst=True)
@applies_if(scores_actions)
def marl_score_action(run: Run, action: Action, seen: Seen) -> Awaitable[float | None] | None:
    scorer = run.state(ScorerConnection).scorer
    if scorer is None or action.role not in run.args.reward_model.roles:
        return None
    return scorer.action(action)


@hookimpl(wrapper=True)
@applies_if(scores_outcomes)
def marl_score_outcome(
    run: Run, trajectory: Trajectory
) -> Generator[None, Awaitable[Outcome] | None, Awaitable[Outcome] | None]:
    others = yield
    scorer = run.state(ScorerConnection).scorer
    if (
        scorer is None
        or not scores_outcomes(run)
        or (trajectory.is_evaluation and others is not None)
    ):
        return others
    if (close := getattr(others, "close", None)) is not None:
        close()  # a coroutine that nobody awaits
    return scorer.outcome(trajectory)


class RewardsOfStep(StepPart):
    """The rewards of a step, as the numbers that the model gave."""

    def __init__(self, run: Run, step: Step):
        self.run, self.step = run, step

    def metrics(self) -> dict[str, float]:
        roles, scale = self.run.args.reward_model.roles, Scale.of(self.run)
        mine = [
            t
            for t in self.step.trajectories
            if not (t.origin or t.agent_failure or t.infrastructure_failure)
        ]
        scores = (
            [a.score for t in mine for a in t.actions if a.role in roles]
            if roles
            else [t.outcome for t in mine]
        )
        return scale.metrics([score for score in scores if score is not None])


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart | None:
    return RewardsOfStep(run, step) if is_enabled(run) else None
