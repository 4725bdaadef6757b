"""Forward passes of trajectories that have arrived, while the late ones of a rollout still run;
and, with `--streaming.gradients`, their gradients.

Log-probs, those of the reference and the critic's values depend on a row's tokens alone. They are
computed in micro-batches of
fixed membership: all rows of a policy of `--streaming.tasks` consecutive tasks of the step, as soon
as all samples of these have arrived, whichever are first. After the rollout they are taken as they
are (`forward(rows, known)` in engine/runtime/policy.py); computed again is only a sequence of which
a turn is not trained on after all, because credit or selection has left it out.

The step is the same as without it. On CPU, with eager attention and without packing, it is so bit
for bit: there a row's log-probs do not depend on what it shares a micro-batch with, if it has at
least 16 tokens with its context. Pays where training processes have devices of their own, which
would wait for the rollout, and where `--streaming.tasks` gives every rank some of a policy's rows.

Gradients depend on credit as well, so every plugin involved must work on one trajectory at a time
(`marl_credit`, not `marl_credit_step`), and the estimator on whole tasks but for a mean and a
deviation (`Estimator.accumulators`). They are added up in the order of the step, the same
micro-batches whatever arrives first, and upstream's own optimiser step takes them along
(gradients.py, worker.py). A row whose ratio leaves the clip interval is trained after the rollout.
So are all rows of a run's first step where actions may be scored, and of a step whose mean
advantage is further from the one before than its deviation. A row costs two forward and two
backward passes in place of two and one, of which the late rows leave little to be done after the
rollout. Equal to the full batch but for the rounding of sums in another order.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from marl_plugins import at_least, hookimpl
from marl_plugins.streaming.checks import check

if TYPE_CHECKING:
    from marl_plugins import Problem, Run, Step, StepPart


class PreviousMeans(dict[str, float]):
    """The mean, by normalisation group, of the last version's advantages; those of the next one are
    near it (accumulators.py)."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "forward passes during the rollout (--plugin marl_plugins.streaming)"
    )
    group.add_argument(
        "--streaming.tasks",
        type=at_least(1),
        default=1,
        help="consecutive tasks of a step whose rows are computed together, once all of their "
        "samples have arrived",
    )
    group.add_argument(
        "--streaming.gradients",
        action="store_true",
        help="take the gradients of these rows as well, for the one optimiser step of the update",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    return check(run)


@hookimpl
def marl_extensions(run: Run) -> Sequence[str]:
    return [f"{__name__}.worker:AccumulatedGradients"] if run.args.streaming.gradients else []


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart:
    from marl_plugins.streaming.part import StreamingPart

    return StreamingPart(run, step, run.state(PreviousMeans))


@hookimpl
def marl_state(run: Run) -> dict[str, float]:
    return dict(run.state(PreviousMeans))


@hookimpl
def marl_restore(run: Run, state: Mapping[str, float]) -> None:
    run.state(PreviousMeans).update(state)
