"""Turns scores into one reward per action, and rewards into what an action is credited with.

    score (an action's own, else its role's outcome)  ->  reward  ->  return over a scope

Scores lie in [0, 1]; rewards and returns are real numbers and no stage rescales what another
produced. Upstream's
`--reward.clip_range` bounds the returns; how many it changed is a metric (`rows/clipped`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from marl_plugins.core.failures import RunPaused
from marl_plugins.core.trajectory import Trajectory, depths_of

Scope = Literal["action", "policy", "trajectory"]
"""Which rewards an action's return sums: its own; those of its descendants by the same policy;
those of all descendants. Descendants are taken along the dependency graph (the action included),
never by time (MAPPA eq. 3 with the graph)."""
Distance = Literal["shortest", "longest", "depth"]
"""The way in which the distance of an action to one that depends on it is counted: edges of the
shortest or the longest way along the dependency graph, or the difference of depths, where an
action's depth is the number of edges of the longest way to it."""
Origin = Literal["action", "start"]
"""The point from which a return is discounted: from the action itself, or from the beginning of the
trajectory."""


@dataclass
class ActionScores:
    """Knows whether somebody scores single actions in this run.

    The first step that shows it says it of the whole run: a step in which an action was scored, or
    in which every role acted and none was. So what rewards are made of is known when a trajectory
    arrives alone, and does not change between steps.
    """

    known: bool | None = None
    """None as long as no step has shown it."""
    shown_in: int = 0
    """The step that did."""
    scorers: tuple[str, ...] = ()
    """Who can score actions. With others, as in a run that is resumed with another coach, it is
    shown anew."""

    def of(
        self, trajectories: Sequence[Trajectory], roles: Collection[str], scorers: Sequence[str]
    ) -> bool:
        """Returns whether actions are scored in the step of these trajectories.

        Args:
            roles: Those of the recipe.
            scorers: Who can score actions.

        Raises:
            RunPaused: The step shows the contrary of what an earlier one has shown.
        """
        if self.scorers != tuple(scorers):
            self.known, self.scorers = None, tuple(scorers)
        alive = [t for t in trajectories if not t.infrastructure_failure]
        scored = any(t.actions_scored for t in alive)
        shown = scored or {a.role for t in alive for a in t.actions} >= set(roles)
        if self.known is None and shown:
            self.known, self.shown_in = scored, alive[0].step
        elif shown and scored is not self.known:
            raise RunPaused(self._contradiction(alive[0].step))
        return scored if self.known is None else self.known

    def settled(self, scorers: Sequence[str]) -> bool | None:
        """Returns whether actions are scored, where that is known before a step has ended; else
        None."""
        return (self.known if self.scorers == tuple(scorers) else None) if scorers else False

    def _contradiction(self, step: int) -> str:
        who = " or ".join(self.scorers)
        now, then = ("no action was", "some were") if self.known else ("actions were", "none was")
        return (
            f"step {step}: {now} scored by {who} (marl_score_action), and in step {self.shown_in} "
            f"{then}, so that rewards would change from scores to outcomes or back; score actions "
            "in every step or in none, and where a verdict is missing return None from an awaitable"
        )


def rewards_from_scores(
    trajectories: Iterable[Trajectory], actions_scored: bool | None = None
) -> None:
    """Gives the built-in credit: an action's reward is its score; where nobody scores actions, it
    is the outcome of its role.

    Where somebody does, a missing score stays missing (the action is left out): it is not filled
    with the outcome. "Somebody"
    means anywhere in the run: else a role that nobody scores would learn from those trajectories
    alone that ended before the scored role acted.

    Args:
        actions_scored: Whether somebody does (`ActionScores`); None: as these trajectories show.
    """
    trajectories = list(trajectories)
    if actions_scored is None:
        actions_scored = any(t.actions_scored for t in trajectories)
    for trajectory in trajectories:
        if trajectory.infrastructure_failure:
            continue
        for action in trajectory.actions:
            action.reward = action.score if actions_scored else trajectory.outcome_of(action.role)


LARGEST_FLOAT32 = 3.4e38
"""Rewards become 32-bit numbers."""


def check_rewards(plugin: str, hook: str, trajectories: Iterable[Trajectory]) -> None:
    """Checks that a plugin gave each action a finite reward, or none.

    Raises:
        RunPaused: It did not; nothing of the step has been trained on.
    """
    for trajectory in trajectories:
        for action in trajectory.actions:
            reward = action.reward
            if reward is not None and not (
                isinstance(reward, Real) and abs(reward) <= LARGEST_FLOAT32
            ):
                raise RunPaused(
                    f"plugin {plugin}: {hook} gave action "
                    f"{trajectory.task.id}/{trajectory.sample}/{action.path} the reward "
                    f"{reward!r:.80}; expected a finite number, or None to leave the action out"
                )


def sum_over_scope(
    trajectories: Iterable[Trajectory],
    scope: Scope,
    discount: float = 1.0,
    distance: Distance = "longest",
    origin: Origin = "action",
) -> None:
    """Writes `returns` of every action that has a reward.

        G_a = gamma^o(a) sum over b that depends on a, a included, of gamma^d(a, b) r_b

    d is 0 for a itself; o(a) is 0, or with origin `start` the depth of a. With distance `depth` and
    origin `start` this is what multiplies the gradient of a's log-probability in UnityMAS-O's eq.
    14 (arXiv 2605.26646: the sum over t of gamma^(t-1) r_t, with depth as t; without rewards of
    what does not depend on a, which add variance alone); with `shortest` it is the return along the
    task graph of Sandbox-RL's eq. 9. A discount of 1 is the plain sum, whatever the distance; 0
    with origin `action` is scope `action`. For every pair, shortest <= longest <= depth.

    With scope `policy` or `trajectory`, actions without a reward add nothing to their ancestors.
    The KL penalty is not part
    of these sums: it stays with the tokens and the policy that caused it.

    Args:
        discount: gamma, from 0 to 1, per edge of the dependency graph.
    """
    for trajectory in trajectories:
        depths = depths_of(trajectory.actions) if discount != 1.0 else {}
        for action in trajectory.actions:
            if action.reward is None:
                action.returns = None
                continue
            weight = (
                discount ** depths[action.path] if discount != 1.0 and origin == "start" else 1.0
            )
            if scope == "action":
                action.returns = action.reward if weight == 1.0 else weight * action.reward
                continue
            far = distances(trajectory, action.path, distance, depths) if discount != 1.0 else None
            reached = trajectory.descendants(action.path) if far is None else far
            total = sum(
                (other.reward or 0.0)
                if far is None
                else discount ** far[other.path] * (other.reward or 0.0)
                # in their order, which a set of paths does not have
                for other in trajectory.actions
                if other.path in reached
                and (scope == "trajectory" or other.policy == action.policy)
            )
            action.returns = total if weight == 1.0 else weight * total


def distances(
    trajectory: Trajectory, path: str, distance: Distance, depths: Mapping[str, int]
) -> dict[str, int]:
    """Returns how far every action that depends on the one at `path` is from it, itself
    included."""
    choose, lengths = min if distance == "shortest" else max, {path: 0}
    for action in trajectory.actions:  # parents come first
        if action.path != path and (
            ways := [lengths[parent] + 1 for parent in action.parents if parent in lengths]
        ):
            lengths[action.path] = choose(ways)
    return (
        {other: depths[other] - depths[path] for other in lengths}
        if distance == "depth"
        else lengths
    )
