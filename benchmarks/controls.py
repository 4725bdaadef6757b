"""A plugin for benchmarks.dsbench: a coach's scores, put where they do not belong.

--plugin benchmarks/controls.py --controls.scores shared     every action gets the mean of its
    trajectory's
--plugin benchmarks/controls.py --controls.scores shifted    every action gets that of the next one,
    the last that of the first
--plugin benchmarks/controls.py --controls.scores constant   every action gets the same
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from marl_plugins import hookimpl
from marl_plugins.core.run import Run
from marl_plugins.core.trajectory import Trajectory


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--controls.scores", choices=["shared", "shifted", "constant"], default="shared"
    )


@hookimpl(trylast=True)
def marl_credit(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    for trajectory in trajectories:
        scored = [action for action in trajectory.actions if action.reward is not None]
        rewards = [action.reward or 0.0 for action in scored]
        if not scored:
            continue
        match run.args.controls.scores:
            case "shared":
                rewards = [statistics.fmean(rewards)] * len(rewards)
            case "shifted":
                rewards = [*rewards[1:], rewards[0]]
            case "constant":
                rewards = [0.5] * len(rewards)
        for action, reward in zip(scored, rewards, strict=True):
            action.reward = reward
    return trajectories
