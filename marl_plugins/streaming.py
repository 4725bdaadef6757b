"""Forward passes of trajectories that have arrived, while the late ones of a rollout still run; and, with
`--streaming.gradients`, their gradients.

Log-probs, those of the reference and the critic's values depend on a row's tokens alone. They are computed in micro-batches of
fixed membership: all rows of a policy of `--streaming.tasks` consecutive tasks of the step, as soon as all samples of these have
arrived, whichever are first. After the rollout they are taken as they are (`forward(rows, known)` in runtime/policy.py); computed
again is only a sequence of which a turn is not trained on after all, because credit or selection has left it out.

The step is the same as without it. On CPU, with eager attention and without packing, it is so bit for bit: there a row's log-probs
do not depend on what it shares a micro-batch with, if it has at least 16 tokens with its context. Pays where training processes
have devices of their own, which would wait for the rollout, and where `--streaming.tasks` gives every rank some of a policy's rows.

Gradients need credit as well, so every plugin that takes part in it has to do with a trajectory at a time, and the estimator with
whole tasks but for a mean and a deviation (`Estimator.accumulators`). They are added up in the order of the step, the same
micro-batches whatever arrives first, and carried by upstream's own optimiser step (runtime/early.py, processes/gradients.py). A row
whose ratio leaves the clip interval is trained after the rollout. So are all rows of a run's first step where somebody may score
actions, and of a step whose mean advantage is further from the one before than its deviation. A row costs two forward and two
backward passes in place of two and one, of which the late rows leave little to be done after the rollout. Equal to the full batch
but for the rounding of sums in another order.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from marl_plugins import hookimpl
from marl_plugins.core.concurrency import all_of
from marl_plugins.core.estimators import Centres
from marl_plugins.core.options import at_least
from marl_plugins.core.policy import Policy
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.rows import rows_to_be
from marl_plugins.plan.estimate import gb, parameters
from marl_plugins.plan.models import dropout_of

if TYPE_CHECKING:
    from marl_plugins.core.processes import PolicyProcesses, RunningRollout
    from marl_plugins.core.trajectory import Trajectory
    from marl_plugins.run import Run

WHO = "marl_plugins.streaming"
SHARING = ("train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep")
"""Flags with which training processes have no devices of their own during a rollout."""


OF_A_STEP = ("rollout.batch_size", "rollout.n_samples_per_prompt", "train.batch_size")
"""Flags that say how many optimiser steps a step has."""


@dataclass
class Streamed:
    """What a run keeps of its last rollout: rows that were computed here, and those of them that were done before its end."""

    rows: int = 0
    hidden: int = 0


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("forward passes beside the rollout (--plugin marl_plugins.streaming)")
    group.add_argument(
        "--streaming.tasks",
        type=at_least(1),
        default=1,
        help="consecutive tasks of a step whose rows are computed together, once all of their samples have arrived",
    )
    group.add_argument(
        "--streaming.until",
        choices=["all", "rollout"],
        default="all",
        help="until when that goes on: until all rows are done, in the same micro-batches whatever arrives first; or until the "
        "rollout ends, and the rest is done at once, in micro-batches that depend on timing",
    )
    group.add_argument(
        "--streaming.gradients",
        action="store_true",
        help="take the gradients of these rows as well, for the one optimiser step of the update",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    sharing = {p.name: [flag for flag in SHARING if _given(run, p.name, flag)] for p in run.policies if p.trainable}
    problems = [
        Problem(
            "streaming.shared_devices",
            at(policy=name, plugin=WHO),
            "its training processes have no devices of their own while engines generate "
            f"({', '.join(f'--{flag}' for flag in flags)})",
            fix="switch that off for it, or leave out the plugin",
            flags=tuple(flags),
        )
        for name, flags in sharing.items()
        if flags
    ]
    remarks = []
    if run.device == "cpu":
        got = "on CPU engines and training processes share the cores, so it hides nothing"
        remarks.append(Problem("streaming.cpu", at(plugin=WHO), got, severity="warning"))
    if run.args.streaming.gradients and not problems:
        problems = refused(run)
        remarks += [memory(run, policy) for policy in run.policies if policy.trainable]
    return problems or remarks


def refused(run: Run) -> list[Problem]:
    """Why the gradients of this run's rows cannot be taken before its rollouts have ended."""
    of_one = [
        replace(problem, where=at(policy=p.name) + problem.where)
        for p in run.policies
        if p.trainable
        for problem in _of_a_policy(run.policy_args[p.name], p.name, run)
    ]
    without = "or leave out --streaming.gradients: forward passes are made during the rollout without it too"
    return [
        replace(problem, where=at(flag="streaming.gradients") + problem.where, fix=f"{problem.fix}, {without}")
        for problem in [*_of_the_run(run), *of_one]
    ]


def _of_the_run(run: Run) -> Iterator[Problem]:
    """What rules it out for all policies."""
    estimator, k = run.advantages, run.optimiser_steps
    if k > 1:
        got = (
            f"a step has {k} optimiser steps (--rollout.batch_size x --rollout.n_samples_per_prompt = {run.trajectories} "
            f"trajectories, --train.batch_size {run.args.train.batch_size}), and the second is taken at other weights"
        )
        yield Problem(
            "streaming.optimiser_steps", got=got, fix=f"set --train.batch_size {run.trajectories}", flags=OF_A_STEP
        )
    if estimator is not None and not estimator.accumulators:
        name = type(estimator).__name__
        got = f"{name} has scope 'batch' and is not affine, so that an advantage may depend on all rows in any way"
        yield Problem("streaming.estimator", got=got, fix="use another estimator")
    for name in run.need_step:
        fix = "leave the plugin out" if ": " in name else "leave it out, or declare MARL_REACH where a trajectory is enough"
        yield Problem("streaming.whole_step", got=f"the whole step is needed by plugin {name}", fix=fix)
    if run.seating is not None:
        got = "training processes take turns at devices, and what they have accumulated would end with them"
        yield Problem("streaming.seats", got=got, fix="leave out marl_plugins.process_groups")


def _of_a_policy(args: SimpleNamespace, name: str, run: Run) -> Iterator[Problem]:
    """What rules it out for one policy."""
    own = f"--policy.{name}."

    if args.train.max_epochs > 1:
        got = f"{args.train.max_epochs}, and the second epoch's gradients are taken at other weights"
        yield Problem("streaming.epochs", at(flag="train.max_epochs"), got, fix=f"set {own}train.max_epochs 1")
    if args.ds.zero_stage == 3:
        got = "3, with which a rank has no whole parameters outside DeepSpeed's engine"
        yield Problem("streaming.zero_stage", at(flag="ds.zero_stage"), got, fix=f"set {own}ds.zero_stage 2")
    if args.ds.param_dtype == "fp16":
        got = "fp16, with which DeepSpeed scales losses; these gradients are taken without it"
        yield Problem("streaming.dtype", at(flag="ds.param_dtype"), got, fix=f"set {own}ds.param_dtype bf16")
    if args.actor.gradient_checkpointing_enable and args.actor.gradient_checkpointing_reentrant:
        where = at(flag="actor.gradient_checkpointing_reentrant")
        yield Problem("streaming.checkpointing", where, "it forbids torch.autograd.grad", fix="remove it")
    if dropout := ", ".join(dropout_of(args.actor.model_name_or_path)):
        got = (
            f"model {args.actor.model_name_or_path} has {dropout} in its config.json: which rows are carried would depend on what "
            "it drops"
        )
        yield Problem("streaming.dropout", got=got, fix="set it to 0")
    if args.actor.policy_loss_type == "gspo" and getattr(args.algo.advantage, "is_correction_level", "off") != "off":
        got = (
            "gspo: its ratio is taken against the engine's log-probs and leaves the clip interval nearly always with "
            "--algo.advantage.is_correction_level"
        )
        fix, flags = f"set {own}algo.advantage.is_correction_level off", ("algo.advantage.is_correction_level",)
        yield Problem("streaming.gspo", at(flag="actor.policy_loss_type"), got, fix=fix, flags=flags)
    if run.estimator == "flash_reinforce" and args.reward.clip_range is not None:
        where, got = at(flag="reward.clip_range"), "flash_reinforce clips what the mean of all rows leaves"
        flags = ("algo.advantage.estimator",)
        yield Problem("streaming.clip_range", where, got, fix="remove --reward.clip_range", flags=flags)
    if (size := getattr(args.ds, "ring_attn_size", 1)) > 1:
        got = f"{size}: ranks share a sequence; tried is one rank for each"
        yield Problem("streaming.ring", at(flag="ds.ring_attn_size"), got, fix=f"set {own}ds.ring_attn_size 1")


def memory(run: Run, policy: Policy) -> Problem:
    """What the accumulators of a policy take on each of its ranks, which do not share them."""
    args, roles = run.policy_args[policy.name], run.recipe.roles_of(policy.name)
    by_role = getattr(run.args, "reinforce_pp", None) and run.args.reinforce_pp.normalise == "role"
    keys = len(roles) if by_role and run.estimator == "reinforce" else 1
    sums = keys * (run.advantages.accumulators if run.advantages else 2)
    sums += bool(args.actor.entropy_coef or (args.algo.kl.use_loss and args.algo.kl.init_coef > 0))
    size = parameters(policy.model)
    together = f", {gb(4 * sums * size)} altogether" if size else ""
    got = f"keeps {4 * sums} bytes of float32 a parameter{together} on each of its ranks, whatever its ZeRO stage"
    return Problem(
        "streaming.memory", at(policy=policy.name, plugin=WHO, flag="streaming.gradients"), got, severity="warning"
    )


def _given(run: Run, policy: str, flag: str) -> bool:
    group, name = flag.split(".")
    return bool(getattr(getattr(run.policy_args[policy], group), name))


@hookimpl
async def marl_beside(run: Run, rollout: RunningRollout) -> None:
    streamed = run.state(Streamed)
    streamed.rows = streamed.hidden = 0
    trained = [policy for policy in rollout.policies.values() if policy.spec.trainable]
    await all_of(forward_early(run, policy, rollout, streamed) for policy in trained)


@hookimpl
def marl_state(run: Run) -> dict[str, float]:
    return dict(run.state(Centres))


@hookimpl
def marl_restore(run: Run, state: Mapping[str, float]) -> None:
    centres = run.state(Centres)
    centres.clear()
    centres.update(state)


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    streamed = run.state(Streamed)
    metrics |= {"streaming/rows": float(streamed.rows), "streaming/hidden": float(streamed.hidden)}


async def forward_early(run: Run, policy: PolicyProcesses, rollout: RunningRollout, streamed: Streamed) -> None:
    """One policy's forward passes, one after the other: ranks that were asked in different orders would wait for each other."""
    options, samples = run.args.streaming, run.args.rollout.n_samples_per_prompt
    learning = options.gradients and rollout.step > run.policy_args[policy.name].critic.freezing_steps
    in_turn = InTurn()

    def enough() -> bool:
        return bool(options.until == "rollout" and rollout.ended.is_set())

    async for trajectories in arriving(rollout, options.tasks, samples):
        if enough():
            return
        rows = await rollout.credited(trajectories) if learning else None
        final = rows is not None
        mine = [r for r in rows if r.action.policy == policy.name] if rows else []
        mine = mine if final else rows_to_be(trajectories, policy.name)
        known = await policy.forward(mine) if mine else None
        if known:
            rollout.keep(known)
            streamed.rows += len(mine)
            streamed.hidden += 0 if rollout.ended.is_set() else len(mine)
        for each in in_turn.next(trajectories[0].place // options.tasks, known if final else None):
            if enough():
                return
            await rollout.accumulate(each)


class InTurn:
    """What becomes ready in any order, in that of its numbers."""

    def __init__(self) -> None:
        self.due = 0
        self.ready: dict[int, Any] = {}

    def next(self, number: int, value: Any) -> Iterator[Any]:
        """All that is due now that one more is ready, without those that are None."""
        self.ready[number] = value
        while self.due in self.ready:
            self.due += 1
            if (due := self.ready.pop(self.due - 1)) is not None:
                yield due


async def arriving(rollout: RunningRollout, tasks: int, samples: int) -> AsyncIterator[list[Trajectory]]:
    """The trajectories of so many consecutive tasks each, in the order of the step, once the last of them has arrived."""
    there: dict[int, list[Trajectory]] = defaultdict(list)
    async for trajectory in rollout.arrived():
        number = trajectory.place // tasks
        there[number].append(trajectory)
        if len(there[number]) == samples * min(tasks, len(rollout.tasks) - number * tasks):
            yield sorted(there.pop(number), key=lambda t: (t.place, t.sample))
