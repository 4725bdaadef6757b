"""A moving average of the weights of every policy that is trained (Polyak and Juditsky 1992;
`--train.enable_ema`). Built in.

    a <- beta a + (1 - beta) w        after every optimiser step, in float32; a begins as the
                                      weights

beta is `--train.ema_beta`. The average lies in the host's memory, each rank's share of it, and is
part of checkpoints. It is evaluated after the weights (`ema/outcome` beside `eval/outcome`), and is
saved where they are: `<ckpt.output_dir>/ema/POLICY`.

    openrlhf eval --recipe RECIPE --models RUN/ema
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marl_plugins import hookimpl
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.run import Run
from marl_plugins.engine.plan.checks.numbers import with_policies_named

FLAG = "train.ema_beta"


def is_enabled(run: Run) -> bool:
    """Returns whether weights are averaged."""
    return bool(run.args.train.enable_ema)


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    if not is_enabled(run):
        return run.idle_flags([FLAG], "train.enable_ema")
    betas = {
        policy.name: run.policy_args[policy.name].train.ema_beta
        for policy in run.policies
        if policy.trainable
    }
    return with_policies_named({name: unusable(beta) for name, beta in betas.items()})


def unusable(beta: float) -> list[Problem]:
    """Returns why a factor makes no average."""
    if 0 < beta < 1:
        return []
    fix = "give one between the two: 1 / (1 - beta) optimiser steps are averaged"
    return [Problem("ema.beta", at(flag=FLAG), f"{beta:g}", "a number between 0 and 1", fix)]


@hookimpl
def marl_extensions(run: Run) -> Sequence[str]:
    return [f"{__name__}.worker:WeightAverage"] if is_enabled(run) else []


@hookimpl
def marl_weights(run: Run) -> Mapping[str, str]:
    return {"ema": "WeightAverage"} if is_enabled(run) else {}
