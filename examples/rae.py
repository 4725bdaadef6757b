"""RAE, role-conditioned advantage estimation: reward minus the running mean reward of the action's role (arXiv 2506.24119).

A = R - b,  then b <- decay b + (1 - decay) (mean R of the role in this step);  kept in checkpoints

openrlhf train --recipe mathchat --plugin examples/rae.py --rae.decay 0.9
"""

from collections import defaultdict
from statistics import fmean

from marl_plugins import hookimpl
from marl_plugins.core.estimators import Estimator
from marl_plugins.core.options import between


class Baselines(defaultdict):
    """By role, from 0."""

    def __init__(self):
        super().__init__(float)


@hookimpl
def marl_options(parser):
    parser.add_argument("--rae.decay", type=between(0, 1), default=0.95, help="weight of the past in a role's baseline")


@hookimpl
def marl_credit(trajectories, run):
    baselines, decay, by_role = run.state(Baselines), run.args.rae.decay, defaultdict(list)
    for action in (a for t in trajectories for a in t.actions if a.reward is not None):
        by_role[action.role].append(action.reward)
        action.add_reward("baseline", -baselines[action.role])
    for role, rewards in by_role.items():
        baselines[role] = decay * baselines[role] + (1 - decay) * fmean(rewards)
    return trajectories


@hookimpl
def marl_estimator(run):
    return Estimator()  # the advantage is the reward: what is left of it has a mean of 0 already


@hookimpl
def marl_state(run):
    return dict(run.state(Baselines))


@hookimpl
def marl_restore(run, state):
    baselines = run.state(Baselines)
    baselines.clear()
    baselines.update(state)
