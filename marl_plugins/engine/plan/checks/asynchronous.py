"""Checks of `--train.async_enable`: engines sample while policies are trained, and rows train later
weights than sampled them."""

from __future__ import annotations

from collections.abc import Iterator

from marl_plugins.core.problems import Problem, at
from marl_plugins.core.run import Run, is_partial, queue_size
from marl_plugins.engine.hosts.devices import engine_gpus, training_gpus
from marl_plugins.engine.manager import Plugins, applies
from marl_plugins.engine.plan.describe import flag_value

FLAG = "train.async_enable"
QUEUE = "train.async_queue_size"
CORRECTION = "algo.advantage.is_correction_level"
PARTIAL, MAX_LAG = "train.partial_rollout_enable", "async.max_lag"
SHARING = ("train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep")
"""Flags with which engines and training processes have their devices in turn."""


def check_async(run: Run) -> Iterator[Problem]:
    """Yields what does not go together with rollouts during updates, and what is worth knowing of
    them."""
    queue = run.args.train.async_queue_size
    if not queue_size(run.args):
        return
    trained = [policy.name for policy in run.policies if policy.trainable]
    for name in trained:
        if flags := [flag for flag in SHARING if flag_value(run.policy_args[name], flag)]:
            a = run.policy_args[name]
            yield Problem(
                "async.shared_devices",
                at(flag=FLAG, policy=name),
                "engines sample while it is trained, and "
                f"{', '.join(f'--{flag}' for flag in flags)} gives both the same devices",
                f"{engine_gpus(a)} for engines and {training_gpus(a)} for training",
                fix="leave these flags out (--train.colocate_actor_ref shares devices with the "
                "reference alone)",
                flags=tuple(flags),
            )
    if queue > 1:
        got = (
            f"{queue}: rows are {queue} versions old, and a step takes as long as with 1, "
            "because every sync waits for both"
        )
        yield Problem("async.queue", at(flag=QUEUE), got, fix="leave it out", severity="warning")
    if uncorrected := [
        name for name in trained if flag_value(run.policy_args[name], CORRECTION) in (None, "off")
    ]:
        got = (
            f"rows are {'up to ' * is_partial(run.args)}{queue} version{'s' if queue > 1 else ''} "
            "old, and their ratio is that of the weights in an update and before it, both by the "
            "trainer: it is 1 at first, whatever weights sampled the row"
        )
        fix = (
            f"set --{CORRECTION} token to weigh each token by the weights before the update over "
            "those that sampled it"
        )
        all_of_them = len(uncorrected) == len(trained)
        where = at(flag=FLAG) if all_of_them else at(flag=FLAG, policy=uncorrected)
        yield Problem(
            "async.uncorrected", where, got, fix=fix, flags=(CORRECTION,), severity="warning"
        )


def check_partial(run: Run) -> Iterator[Problem]:
    """Yields what is worth knowing of weights that change in the middle of answers, and of the
    bound of what is trained."""
    if not is_partial(run.args):
        return
    got = (
        "which weights sample a token depends on timing, so a run cannot be repeated, and one "
        "that is resumed is another one"
    )
    yield Problem(
        "async.partial",
        at(flag=PARTIAL),
        got,
        fix="leave it out where that matters",
        severity="warning",
    )


def check_batches(plugins: Plugins, run: Run) -> Iterator[Problem]:
    """Yields plugins that choose a step's tasks, which would be chosen before it is known what the
    step before has learned."""
    choosing = [impl.plugin_name for impl in plugins.in_order("marl_batch") if applies(impl, run)]
    if choosing and queue_size(run.args):
        got = (
            "it chooses a step's tasks by what was sampled before, and a rollout begins before "
            "that has been trained"
        )
        yield Problem(
            "async.batch", at(plugin=choosing, flag=FLAG), got, fix="leave out one of the two"
        )


def check_queue(run: Run, steps: int | None) -> list[Problem]:
    """Returns what is wrong with a queue that is as long as the run.

    Args:
        steps: Of the run; None where that is not known yet.
    """
    queue = queue_size(run.args)
    if steps is None or queue < max(2, steps):
        return []
    got = (
        f"{queue}: the run has {steps} steps, so that all of its rollouts would be sampled by "
        "the first weights"
    )
    return [
        Problem(
            "async.queue_too_long",
            at(flag=QUEUE),
            got,
            "less than the number of steps",
            fix="leave it out",
        )
    ]
