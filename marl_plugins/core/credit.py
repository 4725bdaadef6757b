"""From scores to one reward per action, and from rewards to what an action is credited with.

    score (an action's own, else its role's outcome)  ->  reward  ->  return over a scope

Scores lie in [0, 1]; rewards and returns are real numbers and no stage rescales what another produced. Upstream's
`--reward.clip_range` bounds the returns; how many it changed is a metric (`rows/clipped`).
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Literal

from marl_plugins.core.failures import RunPaused
from marl_plugins.core.trajectory import Trajectory

Scope = Literal["action", "policy", "trajectory"]
"""Which rewards an action's return sums: its own; those of its descendants by the same policy; those of all descendants.
Descendants are taken along the dependency graph (the action included), never by time (MAPPA eq. 3 with the graph)."""


def rewards_from_scores(trajectories: Iterable[Trajectory]) -> None:
    """The built-in credit: an action's reward is its score; where nobody scored any action, it is the outcome of its role.

    Where somebody scores actions, a missing score stays missing (the action is left out): it is not filled with the outcome.
    "Somebody" means anywhere in the step: else a role that nobody scores would learn from those trajectories alone that ended
    before the scored role acted.
    """
    trajectories = list(trajectories)
    actions_scored = any(t.actions_scored for t in trajectories)
    for trajectory in trajectories:
        if trajectory.infrastructure_failure:
            continue
        for action in trajectory.actions:
            action.reward = action.score if actions_scored else trajectory.outcome_of(action.role)


LARGEST = 3.4e38
"""Rewards become 32-bit numbers."""


def check_rewards(plugin: str, trajectories: Iterable[Trajectory]) -> None:
    """A plugin gave each action a finite reward, or none.

    Raises:
        RunPaused: It did not; nothing of the step has been trained on.
    """
    for trajectory in trajectories:
        for action in trajectory.actions:
            reward = action.reward
            if reward is not None and not (isinstance(reward, Real) and abs(reward) <= LARGEST):
                raise RunPaused(
                    f"plugin {plugin}: marl_credit gave action {trajectory.task.id}/{trajectory.sample}/{action.path} the "
                    f"reward {reward!r:.80}; expected a finite number, or None to leave the action out"
                )


def sum_over_scope(trajectories: Iterable[Trajectory], scope: Scope) -> None:
    """Write `returns` of every action that has a reward.

    With scope `policy` or `trajectory`, actions without a reward add nothing to their ancestors. The KL penalty is not part
    of these sums: it stays with the tokens and the policy that caused it.
    """
    for trajectory in trajectories:
        rewards = {a.path: a.reward for a in trajectory.actions}
        policies = {a.path: a.policy for a in trajectory.actions}
        for action in trajectory.actions:
            if action.reward is None:
                action.returns = None
            elif scope == "action":
                action.returns = action.reward
            else:
                action.returns = sum(
                    rewards[path] or 0.0
                    for path in trajectory.descendants(action.path)
                    if scope == "trajectory" or policies[path] == action.policy
                )
