"""Checks whether streaming, and with it gradients during the rollout, fit a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

from marl_plugins import Policy, Problem, at

# inside: works in the training processes
from marl_plugins.core.run import queue_size
from marl_plugins.engine.plan.describe import flag_value
from marl_plugins.engine.plan.estimate import gb, parameters
from marl_plugins.engine.plan.models import dropout_of

if TYPE_CHECKING:
    from marl_plugins import Run

WHO = "marl_plugins.streaming"
SHARING = ("train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep")
"""Flags with which training processes have no devices of their own during a rollout."""


OF_A_STEP = ("rollout.batch_size", "rollout.n_samples_per_prompt", "train.batch_size")
"""Flags that say how many optimiser steps a step has."""


def check(run: Run) -> list[Problem]:
    """Returns what is wrong with streaming in this run, and what is worth knowing."""
    sharing = {
        p.name: [flag for flag in SHARING if flag_value(run.policy_args[p.name], flag)]
        for p in run.policies
        if p.trainable
    }
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
    if run.processes is not None and not run.processes.lasting:
        got = (
            "training processes come and go (marl_processes): they would do so for every group of "
            "tasks"
        )
        fix = "leave out the plugin that shares devices between policies"
        problems.append(Problem("streaming.seats", at(plugin=WHO), got, fix=fix))
    if queue_size(run.args):
        got = (
            "forward passes during a rollout would be by weights that another step's update "
            "changes (--train.async_enable)"
        )
        problems.append(
            Problem(
                "streaming.async",
                at(plugin=WHO),
                got,
                fix="leave out the plugin: the whole of a step's training is during a rollout "
                "already",
                flags=("train.async_enable",),
            )
        )
    if run.args.algo.dynamic_filtering_enable:
        got = "which tasks a step has is known only when the last one has arrived"
        where = at(plugin=WHO, flag="algo.dynamic_filtering_enable")
        problems.append(Problem("streaming.filtering", where, got, fix="leave out one of the two"))
    remarks = []
    if run.device == "cpu":
        got = "on CPU engines and training processes share the cores, so it hides nothing"
        remarks.append(Problem("streaming.cpu", at(plugin=WHO), got, severity="warning"))
    if run.args.streaming.gradients and not problems:
        problems = refused(run)
        remarks += [memory(run, policy) for policy in run.policies if policy.trainable]
    return problems or remarks


def refused(run: Run) -> list[Problem]:
    """Returns why the gradients of this run's rows cannot be taken before its rollouts have
    ended."""
    of_one = [
        replace(problem, where=at(policy=p.name) + problem.where)
        for p in run.policies
        if p.trainable
        for problem in _of_a_policy(run.policy_args[p.name], p.name, run)
    ]
    without = (
        "or leave out --streaming.gradients: forward passes are made during the rollout "
        "without it too"
    )
    return [
        replace(
            problem,
            where=at(flag="streaming.gradients") + problem.where,
            fix=f"{problem.fix}, {without}",
        )
        for problem in [*_of_the_run(run), *of_one]
    ]


def _of_the_run(run: Run) -> Iterator[Problem]:
    """Returns what rules it out for all policies."""
    estimator, k = run.advantages, run.optimiser_steps
    if k > 1:
        got = (
            f"a step has {k} optimiser steps (--rollout.batch_size x "
            f"--rollout.n_samples_per_prompt = {run.trajectories} "
            f"trajectories, --train.batch_size {run.args.train.batch_size}), and the second is "
            "taken at other weights"
        )
        yield Problem(
            "streaming.optimiser_steps",
            got=got,
            fix=f"set --train.batch_size {run.trajectories}",
            flags=OF_A_STEP,
        )
    if estimator is not None and not estimator.accumulators:
        name = type(estimator).__name__
        got = (
            f"{name} has scope 'batch' and is not affine, so that an advantage may depend on all "
            "rows in any way"
        )
        yield Problem("streaming.estimator", got=got, fix="use another estimator")
    for name in run.need_step:
        fix = "leave it out, or set its flags so that it works on one trajectory at a time"
        yield Problem(
            "streaming.whole_step", got=f"the whole step is needed by plugin {name}", fix=fix
        )


def _of_a_policy(args: SimpleNamespace, name: str, run: Run) -> Iterator[Problem]:
    """Returns what rules it out for one policy."""
    own = f"--policy.{name}."

    if args.train.max_epochs > 1:
        got = (
            f"{args.train.max_epochs}, and the second epoch's gradients are taken at other weights"
        )
        yield Problem(
            "streaming.epochs", at(flag="train.max_epochs"), got, fix=f"set {own}train.max_epochs 1"
        )
    if args.ds.zero_stage == 3:
        got = "3, with which a rank has no whole parameters outside DeepSpeed's engine"
        yield Problem(
            "streaming.zero_stage", at(flag="ds.zero_stage"), got, fix=f"set {own}ds.zero_stage 2"
        )
    if args.ds.param_dtype == "fp16":
        got = "fp16, with which DeepSpeed scales losses; these gradients are taken without it"
        yield Problem(
            "streaming.dtype", at(flag="ds.param_dtype"), got, fix=f"set {own}ds.param_dtype bf16"
        )
    if args.actor.gradient_checkpointing_enable and args.actor.gradient_checkpointing_reentrant:
        where = at(flag="actor.gradient_checkpointing_reentrant")
        yield Problem(
            "streaming.checkpointing", where, "it forbids torch.autograd.grad", fix="remove it"
        )
    if dropout := ", ".join(dropout_of(args.actor.model_name_or_path)):
        got = (
            f"model {args.actor.model_name_or_path} has {dropout} in its config.json: which rows "
            "are carried would depend on what "
            "it drops"
        )
        yield Problem("streaming.dropout", got=got, fix="set it to 0")
    if (
        args.actor.policy_loss_type == "gspo"
        and getattr(args.algo.advantage, "is_correction_level", "off") != "off"
    ):
        got = (
            "gspo: its ratio is taken against the engine's log-probs and leaves the clip interval "
            "nearly always with "
            "--algo.advantage.is_correction_level"
        )
        fix, flags = (
            f"set {own}algo.advantage.is_correction_level off",
            ("algo.advantage.is_correction_level",),
        )
        yield Problem(
            "streaming.gspo", at(flag="actor.policy_loss_type"), got, fix=fix, flags=flags
        )
    if run.estimator == "flash_reinforce" and args.reward.clip_range is not None:
        where, got = (
            at(flag="reward.clip_range"),
            "flash_reinforce clips what the mean of all rows leaves",
        )
        flags = ("algo.advantage.estimator",)
        yield Problem(
            "streaming.clip_range", where, got, fix="remove --reward.clip_range", flags=flags
        )
    if args.ds.ring_attn_size > 1:
        got = f"{args.ds.ring_attn_size}: ranks share a sequence; tried is one rank for each"
        yield Problem(
            "streaming.ring", at(flag="ds.ring_attn_size"), got, fix=f"set {own}ds.ring_attn_size 1"
        )


def memory(run: Run, policy: Policy) -> Problem:
    """Returns what the accumulators of a policy take on each of its ranks, which do not share
    them."""
    args, roles = run.policy_args[policy.name], run.recipe.roles_of(policy.name)
    by_role = getattr(run.args, "reinforce_pp", None) and run.args.reinforce_pp.normalise == "role"
    keys = len(roles) if by_role and run.estimator == "reinforce" else 1
    sums = keys * (run.advantages.accumulators if run.advantages else 2)
    sums += bool(args.actor.entropy_coef or (args.algo.kl.use_loss and args.algo.kl.init_coef > 0))
    size = (
        None if args.ds.lora.rank else parameters(policy.model)
    )  # of an adapter only what is trained
    together = f", {gb(4 * sums * size)} altogether" if size else ""
    got = (
        f"keeps {4 * sums} bytes of float32 a trained parameter{together} on each of its ranks, "
        "whatever its ZeRO stage"
    )
    return Problem(
        "streaming.memory",
        at(policy=policy.name, plugin=WHO, flag="streaming.gradients"),
        got,
        severity="warning",
    )
