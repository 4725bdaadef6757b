"""Tests that any plugin has to pass, for its author to run: pytest runs every method of a subclass.

    # test_brevity.py
    from marl_plugins.contracts import PluginContract

    class TestBrevity(PluginContract):
        plugin = "brevity.py"                      # as after --plugin: a dotted name, an entry
            point or a file
        flags = ["--brevity.limit", "8"]           # what it needs to be given, if anything

No engines, no GPU and no network; some twenty seconds. A contract of a hook that the plugin does
not implement passes. The trajectories are made up: tasks with several samples, each a chain of the
recipe's roles, with scores and outcomes. A plugin that brings tools gives example calls of them
(tools.py).

Tests of what the plugin itself means stand in the same class:

        def test_a_token_over_the_limit_costs_a_hundredth(self):
            long = made_up_action("solver", tokens=10)
            self.credit(made_up_trajectory(long))
            assert long.terms == {"brevity": pytest.approx(-0.02)}
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from marl_plugins.contracts.subject import skipped_if_refused
from marl_plugins.contracts.tools import ToolContract
from marl_plugins.core.credit import check_rewards, rewards_from_scores, sum_over_scope
from marl_plugins.core.estimators import Estimator, check_estimator, group_key
from marl_plugins.core.exchange import RefusedRecord, TrajectoryWords
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunEnded
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.plugin_names import BUILTINS
from marl_plugins.core.rows import Row, rows_of
from marl_plugins.core.sampled import SampledActions
from marl_plugins.core.scoring import Seen, answer_of, checked_score, set_outcome
from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory
from marl_plugins.engine.hook_faults import DEBUG
from marl_plugins.engine.manager import chosen_tasks

if TYPE_CHECKING:
    from torch import Tensor

    from marl_plugins.core.hookspecs import Purpose
    from marl_plugins.core.run import Run
    from marl_plugins.engine.plan.plan import Plan

HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "openrlhf")
TASKS, SAMPLES = 3, 4
SAME = (0.0, 0.5, 1.0, 0.7)
"""Rewards that all rows have; float32 holds all but the last, so that their deviation is 0 and not
its rounding."""


class PluginContract(ToolContract):
    """The promises that a plugin makes by the hooks that it implements
    (marl_plugins/core/hookspecs.py)."""

    def test_it_is_active_in_a_run(self) -> None:
        """Found, its hooks known, its configuration accepted, and nothing opened by planning. Where
        this fails the other contracts are skipped: what is wrong is said once."""
        assert self.plugin_name in [*self.planned().run.plugins, *BUILTINS]

    def credit(self, *trajectories: Trajectory) -> None:
        """Writes the rewards and terms that a run with the plugin gives these trajectories, for
        tests of your own.

        Raises:
            AssertionError: What a run would be ended by.
        """
        _credited(self.plan, list(trajectories))

    def test_it_starts_and_stops(self) -> None:
        """Also where the run fails, or a service is unavailable."""
        purposes: tuple[Purpose, ...] = ("train", "evaluate")
        for purpose in purposes:
            for fails in (False, True):
                asyncio.run(_started(self.plan, purpose, fails))

    def test_importing_it_is_light(self) -> None:
        """`--help` and `--dry-run` import every plugin that is named; torch and the engines take
        seconds."""
        assert self.module
        script = (
            "import sys; from marl_plugins.core.loading import load; load(sys.argv[1]); "
            f"print([m for m in {HEAVY!r} if m in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, self.plugin], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "[]", (
            f"imported with the plugin: {done.stdout}; import them in functions"
        )

    def test_a_batch_is_of_the_runs_tasks_and_the_same_again(self) -> None:
        """`marl_batch` gives as many tasks as it is given, none twice, and for the same state the
        same."""
        plan, every = self.plan, [Task(f"t{n}", "p", "l") for n in range(4 * TASKS)]
        state = _states(plan)
        with failing():
            known = {task.id: task for task in every}
            first = chosen_tasks(plan.plugins, plan.run, 1, every[:TASKS], known)
            plan.plugins.restore(plan.run, state)
            assert chosen_tasks(plan.plugins, plan.run, 1, every[:TASKS], known) == first

    def test_exchange_keeps_what_was_sampled(self) -> None:
        """A step with nothing to read: what `marl_exchange` returns and leaves out with a reason is
        what it was given."""
        plan = self.plan
        trajectories = _trajectories(plan.run)
        before, sampled = _scores(trajectories), _arrived(trajectories)
        exchange = EmptyExchange(trajectories)

        def check(plugin: str, received: Sequence[Trajectory], answer: object) -> None:
            sampled.check_exchange(plugin, received, answer, ())

        answer = _chained(plan, "marl_exchange", trajectories, check, exchange=exchange)
        assert _scores(trajectories) == before, (
            "marl_exchange may leave trajectories out, and not change them"
        )
        assert answer == [t for t in trajectories if t in answer], (
            "marl_exchange has to return trajectories in their order"
        )
        lost = [t.name for t in trajectories if t not in answer and t not in exchange.left]
        assert not lost, (
            f"marl_exchange left out {lost[0]} without a reason; call "
            "exchange.leave_out(trajectory, reason)"
        )

    def test_credit_keeps_what_was_sampled(self) -> None:
        """Rewards are numbers or None; the trajectories stay, and what was sampled, seen and scored
        in them."""
        plan = self.plan
        trajectories = _trajectories(plan.run)
        before = _scores(trajectories)
        _credited(plan, trajectories)
        assert _scores(trajectories) == before, (
            "marl_credit may change reward, terms, notes and unscored only"
        )
        json.dumps([[a.terms, a.notes] for t in trajectories for a in t.actions])  # recorded

    def test_credit_does_not_depend_on_the_order_of_arrival(self) -> None:
        plan = self.plan
        state, rewards = _states(plan), []
        for order in (1, -1, 1):
            rewards.append(_rewards(_credited(plan, _trajectories(plan.run)[::order])))
            plan.plugins.restore(plan.run, state)
        first, other, again = rewards
        assert _close(first, again), (
            "the same trajectories in the same order are credited otherwise the second time: the "
            "plugin draws at random, or keeps what marl_state does not return and marl_restore "
            "does not bring back, so that a resumed run would differ"
        )
        assert _close(first, other), "the rewards of the same trajectories in another order differ"

    def test_marl_credit_works_on_one_trajectory_at_a_time(self) -> None:
        """Trajectories that are credited one by one get what they get together; what needs the
        whole step is `marl_credit_step`."""
        plan, single = self.plan, self.plan
        if not plan.plugins.implements(self.plugin_name, "marl_credit"):
            return
        trajectories, one_by_one = _trajectories(plan.run), _trajectories(single.run)
        together = self._credit_alone(plan, trajectories)
        apart = {
            k: v for t in reversed(one_by_one) for k, v in self._credit_alone(single, [t]).items()
        }
        assert together == apart, (
            "marl_credit is given one trajectory or more, and makes something else of a whole step "
            "than of its trajectories; write marl_credit_step"
        )
        assert _states(plan) == _states(single), (
            "after marl_credit the plugin's state depends on how a step is handed to it"
        )

    def _credit_alone(self, plan: Plan, trajectories: list[Trajectory]) -> dict[str, Any]:
        rewards_from_scores(trajectories)
        credited = {"trajectories": trajectories, "run": plan.run}
        asyncio.run(answer_of(self._own, plan, "marl_credit", **credited))
        with failing():
            check_rewards(self.plugin_name, "marl_credit", trajectories)
        return {
            f"{t.task.id}/{t.sample}/{a.path}": (a.reward, a.terms, a.notes, a.unscored)
            for t in trajectories
            for a in t.actions
        }

    def test_scores_lie_between_0_and_1(self) -> None:
        """Scores lie between 0 and 1, or are None where they are missing; an outcome may be one per
        role. An unavailable scorer raises `InfrastructureFailure`."""
        plan, hooks = self.plan, ("marl_score_outcome", "marl_score_action")
        if any(plan.plugins.implements(self.plugin_name, hook) for hook in hooks):
            with skipped_if_refused():  # a service is unavailable here
                asyncio.run(self._scored(plan))

    async def _scored(self, plan: Plan) -> None:
        run, roles = plan.run, list(plan.run.recipe.roles)
        async with plan.plugins.started(run, "train"):
            for trajectory in _trajectories(run):
                with suppress(InfrastructureFailure):
                    of = {"run": run, "trajectory": trajectory}
                    outcome = await answer_of(self._own, plan, "marl_score_outcome", **of)
                    set_outcome(trajectory, outcome, roles)
                for action in trajectory.actions:
                    acted = {"run": run, "action": action, "seen": Seen.of(trajectory, action)}
                    with suppress(InfrastructureFailure):
                        score = await answer_of(self._own, plan, "marl_score_action", **acted)
                        checked_score(score, of=f"action of {action.role!r}")

    def test_select_chooses_among_the_rows(self) -> None:
        """Every kept row is one that was given, once; every other says why it is left out."""
        plan = self.plan
        rows = _rows(plan.run)
        trajectories = list(dict.fromkeys(row.trajectory for row in rows))
        check = _arrived(trajectories).check_selection
        kept = _chained(plan, "marl_select", rows, check, steps=1)
        with failing():
            Ledger.of(1, trajectories, kept)

    def test_advantages_do_not_depend_on_the_order_of_rows(self) -> None:
        rows = _rows(self.plan.run)
        shuffled = random.Random(0).sample(rows, len(rows))
        assert _close(
            _advantages(_estimator(self.plan), rows), _advantages(_estimator(self.plan), shuffled)
        )

    def test_advantages_do_not_depend_on_batches(self) -> None:
        """Statistics span the rows of all policies, however they are cut into micro-batches."""
        rows = _rows(self.plan.run)
        assert _close(
            _advantages(_estimator(self.plan), rows),
            _advantages(_estimator(self.plan), rows, size=5),
        )

    def test_advantages_are_finite_where_all_rewards_are_the_same(self) -> None:
        for reward in SAME:
            plan = self.plan
            rows = [dataclasses.replace(row, reward=reward) for row in _rows(plan.run)]
            wrong = [
                name
                for name, value in _advantages(_estimator(plan), rows).items()
                if not math.isfinite(value)
            ]
            assert not wrong, (
                f"all rewards are {reward}, and the advantages of {len(wrong)} of {len(rows)} rows "
                "are not finite"
            )

    def test_an_advantage_reaches_no_further_than_its_scope(self) -> None:
        """`scope` action: no other row's reward matters; group: none of another group."""
        plan = self.plan
        estimator, rows = _estimator(plan), _rows(plan.run)
        if estimator.scope == "batch":
            return
        other = [dataclasses.replace(rows[0], reward=rows[0].reward + 1.0), *rows[1:]]
        group = group_key(rows[0], estimator.group_by) if estimator.group_by else rows[0].name
        near = {
            r.name for r in rows if estimator.group_by and group_key(r, estimator.group_by) == group
        } | {rows[0].name}
        fresh = [
            _advantages(_estimator(self.plan), r) for r in (rows, other)
        ]  # of two runs: an estimator may have a state
        far = [{n: v for n, v in advantages.items() if n not in near} for advantages in fresh]
        assert _close(*far), (
            f"{type(estimator).__name__} says scope {estimator.scope!r}, and a row of another one "
            "matters"
        )

    def test_what_is_affine_is_made_of_a_mean_and_a_deviation(self) -> None:
        """`affine`: advantages are those of `shape_within_tasks` and `estimate`, less the mean and
        over the deviation of their normalisation group."""
        plan = self.plan
        estimator, rows = _estimator(plan), _rows(plan.run)
        if not estimator.affine:
            return
        early = _advantages(_estimator(self.plan), rows, early=True)
        whole = _advantages(estimator, rows)
        assert _close(early, whole), (
            f"{type(estimator).__name__} says that it is affine, and its advantages are something "
            "else"
        )

    def test_metrics_are_numbers(self) -> None:
        plan = self.plan
        metrics: dict[str, float] = {}
        with failing():
            plan.plugins.hook.marl_log(run=plan.run, step=1, metrics=metrics)
        estimator, rows = _estimator(plan), _rows(plan.run)
        _advantages(estimator, rows)
        metrics |= estimator.metrics(rows)
        wrong = {
            name: value
            for name, value in metrics.items()
            if not (isinstance(name, str) and isinstance(value, int | float) and value == value)
        }
        assert not wrong, f"marl_log or the estimator's metrics gave what no tracker takes: {wrong}"

    def test_state_comes_back_from_json(self) -> None:
        """State that was saved after a step comes back in another process; the next step has the
        advantages that it would have had."""
        plan = self.plan
        estimator, rows = _estimator(plan), _rows(plan.run)
        _credited(plan, _trajectories(plan.run))
        _advantages(estimator, rows)
        state = _states(plan)
        fresh = self.plan  # a resumed run is another process
        fresh.plugins.restore(fresh.run, json.loads(json.dumps(state)))
        assert _states(fresh) == state, (
            "marl_restore of what marl_state returned gives another state"
        )
        after, resumed = _advantages(estimator, rows), _advantages(_estimator(fresh), rows)
        assert _close(after, resumed), (
            "after marl_restore, the next step has other advantages than without a resumption"
        )


async def _started(plan: Plan, purpose: Purpose, fails: bool) -> None:
    try:
        async with plan.plugins.started(plan.run, purpose):
            if fails:
                raise RunEnded("a training process died")
    except ConfigurationError:  # a service is unavailable here
        return
    except RunEnded as error:
        if not fails or str(error) != "a training process died":
            raise AssertionError(f"{purpose}: instead of the run's own failure: {error}") from error
    except RuntimeError as error:  # of `marl_stop`
        raise AssertionError(f"{purpose}: {error}") from error


class EmptyExchange:
    """An `Exchange` with nothing to read: every record is refused.

    Args:
        trajectories: Of the step.
    """

    step = 1

    def __init__(self, trajectories: Sequence[Trajectory]):
        self.tasks = {t.task.id: t.task for t in trajectories}
        self.current = list(self.tasks.values())
        self.left: dict[Trajectory, str] = {}

    def write(self, trajectory: Trajectory) -> Mapping[str, object]:
        """See `Exchange.write`; the words are those of no role."""
        return {
            "schema": 1,
            "task": trajectory.task.id,
            "prompt": trajectory.task.prompt,
            "sample": trajectory.sample,
            "tokenizers": {},
            "answers": [],
        }

    async def read(
        self,
        record: Mapping[str, object] | TrajectoryWords,
        origin: str,
        policy: str | None = None,
        task: Task | None = None,
    ) -> Trajectory:
        """See `Exchange.read`."""
        raise RefusedRecord("task", "nothing can be read in a contract test")

    async def again(self, trajectory: Trajectory, origin: str) -> Trajectory:
        """See `Exchange.again`."""
        raise RefusedRecord("task", "nothing can be read in a contract test")

    def leave_out(self, trajectory: Trajectory, reason: str) -> None:
        """See `Exchange.leave_out`."""
        assert reason, "exchange.leave_out needs a reason"
        self.left[trajectory] = reason


@contextmanager
def failing() -> Iterator[None]:
    """Fails the test by what would end a run (`with`)."""
    try:
        yield
    except RunEnded as error:
        raise AssertionError(str(error).removesuffix(DEBUG)) from error.__cause__


def _chained(
    plan: Plan, hook: str, value: Sequence[Any], check: Callable[..., None], **arguments: Any
) -> list[Any]:
    """Passes a value through a hook, with the checks of a run after each plugin."""
    with failing():
        return list(asyncio.run(plan.plugins.chain(hook, value, check, run=plan.run, **arguments)))


def _arrived(trajectories: Sequence[Trajectory]) -> SampledActions:
    sampled = SampledActions()
    for trajectory in trajectories:
        sampled.arrived(trajectory)
    return sampled


def _credited(plan: Plan, trajectories: list[Trajectory]) -> list[Trajectory]:
    sampled = _arrived(trajectories)
    rewards_from_scores(trajectories)
    for hook in ("marl_credit", "marl_credit_step"):

        def check(
            plugin: str, received: Sequence[Trajectory], answer: object, of: str = hook
        ) -> None:
            sampled.check_credit(plugin, of, received, answer)
            check_rewards(plugin, of, received)

        _chained(plan, hook, trajectories, check)
    return trajectories


def _trajectories(run: Run) -> list[Trajectory]:
    """`SAMPLES` of each of `TASKS` tasks: the recipe's roles one after the other, of which one
    missed its score."""
    draw, made = random.Random(0), []
    for task in range(TASKS):
        for sample in range(SAMPLES):
            trajectory = made_up_trajectory(
                outcome=float(draw.random() < 0.5), task=f"t{task}", sample=sample
            )
            for role in run.recipe.roles:
                parents = tuple(a.path for a in trajectory.actions[-1:])
                members = run.recipe.policies_of(role)
                action = made_up_action(
                    role,
                    policy=members[task % len(members)],
                    parents=parents,
                    tokens=draw.randint(1, 12),
                    score=draw.random(),
                    finish=draw.choice(["stop", "length"]),
                    draw=draw,
                )
                trajectory.actions = [*trajectory.actions, action]
            made.append(trajectory)
    missing = made[0].actions[0]
    missing.score, missing.unscored = None, "coach_busy"
    return made


def made_up_trajectory(
    *actions: Action, outcome: float | None = 1.0, task: str = "t0", sample: int = 0
) -> Trajectory:
    """Makes up a trajectory for a test: a sample of the task "2+2=" with these actions, parents
    first."""
    answer = "4" if outcome else "5"
    trajectory = Trajectory(Task(task, "2+2=", "4"), sample, 1, [*actions], actions_scored=True)
    trajectory.outcome, trajectory.answer = outcome, answer
    return trajectory


def made_up_action(
    role: str,
    text: str = "4",
    *,
    policy: str = "",
    tokens: int = 4,
    score: float | None = 0.5,
    finish: str = "stop",
    parents: Sequence[str] = (),
    path: str = "",
    draw: random.Random | None = None,
) -> Action:
    """Makes up an action for a test.

    Args:
        policy, path: Default: as the role is called. Two actions of a trajectory have two paths.
        tokens: Number of its tokens; their ids and log-probs are drawn.
        finish: `stop`, or `length` where it is truncated.
        parents: Paths of the actions that it saw.
    """
    draw = draw or random.Random(0)
    ids = tuple(draw.randrange(3, 250) for _ in range(tokens))
    logprobs, policy = tuple(-draw.random() for _ in ids), policy or role
    return Action(
        path or role,
        role,
        policy,
        0,
        (1, 2, 3),
        Generation(ids, logprobs, finish, policy, 0),
        text,
        (("user", "2+2="),),
        parents=tuple(parents),
        score=score,
    )


def _scores(trajectories: Sequence[Trajectory]) -> list[tuple[Any, ...]]:
    return [
        (t.outcome, dict(t.outcomes), [(a.path, a.score) for a in t.actions]) for t in trajectories
    ]


def _rewards(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    return {f"{t.task.id}/{t.sample}/{a.path}": a.reward for t in trajectories for a in t.actions}


def _states(plan: Plan) -> dict[str, Any]:
    return json.loads(json.dumps(plan.plugins.state(plan.run)))  # type: ignore[no-any-return]


def _rows(run: Run) -> list[Row]:
    trajectories = _trajectories(run)
    rewards_from_scores(trajectories)
    sum_over_scope(trajectories, "action")
    return rows_of(
        trajectories, frozenset(policy.name for policy in run.policies if policy.trainable)
    )


def _estimator(plan: Plan) -> Estimator:
    estimator: Estimator = plan.plugins.hook.marl_estimator(run=plan.run)
    assert isinstance(estimator, Estimator), check_estimator(
        estimator, SAMPLES, len(plan.run.recipe.roles)
    )[0]
    return estimator


def _advantages(
    estimator: Estimator, rows: Sequence[Row], size: int | None = None, early: bool = False
) -> dict[str, float]:
    """Mean advantage of each row's tokens, through the four stages, in batches of `size` rows;
    `early`: as those of an affine estimator are made where rows are learned from before the step is
    complete."""
    import torch

    shaped = (estimator.shape_within_tasks if early else estimator.shape)(
        rows, torch.tensor([row.reward for row in rows])
    )
    batches: list[tuple[Sequence[Row], Tensor, Tensor]] = []
    for start in range(0, len(rows), size or len(rows)):
        part = rows[start : start + (size or len(rows))]
        lengths = [len(row.action.generation.ids) for row in part]
        mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        rewards = torch.zeros(mask.shape)
        for number, length in enumerate(lengths):
            rewards[number, length - 1] = shaped[start + number]
        advantages, _ = estimator.estimate(
            rewards, mask.long(), torch.zeros(mask.shape) if estimator.needs_critic else None
        )
        batches.append((part, advantages, mask.long()))
    statistics = estimator.statistics(batches)
    means = {}
    for part, advantages, mask in batches:
        if early:
            late = [
                estimator.mean_and_std(statistics, estimator.normalisation_group(row))
                for row in part
            ]
            applied = torch.stack(
                [
                    (a - mean) / deviation
                    for a, (mean, deviation) in zip(advantages, late, strict=True)
                ]
            )
        else:
            applied = estimator.apply(part, advantages, statistics)
        for row, values, real in zip(part, applied, mask.bool(), strict=True):
            means[row.name] = float(values[real].mean())
    return means


def _close(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Returns whether the same names have the same numbers, but for the last digits of float32;
    None is like None only."""

    def same(a: float | None, b: float | None) -> bool:
        return a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5)

    return one.keys() == two.keys() and all(same(value, two[name]) for name, value in one.items())
