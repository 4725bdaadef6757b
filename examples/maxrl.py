"""MaxRL: a group's advantages divided by its mean reward, so that hard tasks weigh as in maximum
likelihood.

A = (R - mean of the group) / mean of the group, 0 where nobody in the group has any reward (arXiv
2602.02710)

openrlhf train --recipe mathchat --plugin examples/maxrl.py --maxrl.by task+role+turn
"""

from dataclasses import dataclass

from marl_plugins import GroupMean, hookimpl, mean_by


@dataclass(frozen=True)
class MaxRL(GroupMean):
    """For rewards of at least 0. A group with one success among n samples gives it the advantage n
    - 1."""

    def centre(self, rows, groups, returns):
        mean = mean_by(groups, returns)
        return ((returns - mean) / mean).where(mean > 0, 0.0)


@hookimpl
def marl_options(parser):
    choices = ["task", "task+role", "task+role+turn"]
    parser.add_argument(
        "--maxrl.by", choices=choices, default="task+role+turn", help="which rows are compared"
    )


@hookimpl
def marl_estimator(run):
    return MaxRL(group_by=run.args.maxrl.by)
