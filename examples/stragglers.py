"""How long a step waits for its slowest trajectories, by a part of the step.

    openrlhf train --recipe mathchat/tiny.yaml --plugin examples/stragglers.py --stragglers.share
    0.9

`stragglers/seconds` is the time from the arrival of the first 90 % of a step's trajectories to the
last one: what asynchronous or partial rollouts could save.
"""

import time

from marl_plugins import StepPart, between, hookimpl


class Stragglers(StepPart):
    """Notes when trajectories arrive."""

    def __init__(self, run, step):
        self.many = (
            run.args.stragglers.share * len(step.tasks) * run.args.rollout.n_samples_per_prompt
        )
        self.arrivals = []

    def arrived(self, trajectory):
        self.arrivals.append(time.monotonic())

    def metrics(self):
        before = [at for number, at in enumerate(self.arrivals, start=1) if number >= self.many]
        return {"stragglers/seconds": self.arrivals[-1] - before[0]} if before else {}


@hookimpl
def marl_options(parser):
    group = parser.add_argument_group("slowest trajectories (examples/stragglers.py)")
    group.add_argument(
        "--stragglers.share",
        type=between(0, 1),
        default=0.9,
        help="share of a step that is not slow",
    )


@hookimpl
def marl_step(run, step):
    return Stragglers(run, step)
