"""Weights of what peers have made by how capable they are (HACPO, arXiv 2603.02604).

    advantage   A = R - mean over own and foreign samples of the task and role of (P_own / P_source)
                R
    weight      of foreign rows: (P_source / P_own) s^(1 + alpha), s = exp(mean log-prob here - the
                sender's); 0 where s is not in [1 - delta, 1]; up to 1 + ROUNDING counts as 1

P is a mean outcome over the last five rounds, of the run's own groups and of those taken from a
source, by the graders here; both are chosen in the same way (`--swarm.sampler`). A ratio lies in
[0.1, 10]. alpha is `--swarm.alpha`, delta `--swarm.delta`. The
sender's log-prob is what it says it is: a lie changes s, and the bound of the weight stays.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from marl_plugins import PreparedRows, Row, Run, StepPart, Trajectory
from marl_plugins.swarm.peers import Swarm, member_of, members_of

CAPABILITY_ROUNDS = 5
LEAST_RATIO, MOST_RATIO = 0.1, 10.0
CAPABILITY_ROUNDING = 4e-3
"""Engine and trainer round differently: of the same weights in bfloat16 their log-probs differ by
1e-3 in the mean and by 3.9e-3 at most. Without room for that, half of the rows of a peer with equal
weights would weigh nothing."""


def source_of(trajectory: Trajectory, members: list[str]) -> str:
    """Returns who made a trajectory, whatever the round: a peer with its run, or a member of this
    run; empty: this run."""
    return (
        trajectory.origin.partition(" ")[0] if trajectory.origin else member_of(trajectory, members)
    )


def note_round(
    outcomes: dict[str, list[float]], trajectories: Sequence[Trajectory], members: list[str]
) -> None:
    """Adds the mean outcome of each source in a round, and forgets what is older than
    `CAPABILITY_ROUNDS`."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for t in trajectories:
        if t.outcome is not None:
            by_source[source_of(t, members)].append(t.outcome)
    for source, values in by_source.items():
        outcomes[source] = [*outcomes.get(source, []), fmean(values)][-CAPABILITY_ROUNDS:]


def ratio(outcomes: Mapping[str, Sequence[float]], source: str, learner: str) -> float:
    """Returns P_source / P_own, within bounds; 1 as long as one of them is not known.

    Args:
        learner: The member of this run that is trained; empty: the run.
    """
    theirs, own = outcomes.get(source), outcomes.get(learner)
    if source == learner or not theirs or not own:
        return 1.0
    above, below = fmean(theirs), fmean(own)
    return (
        min(max(above / below, LEAST_RATIO), MOST_RATIO)
        if below > 0
        else (MOST_RATIO if above > 0 else 1.0)
    )


def weight(ratio: float, difference: float, alpha: float, delta: float) -> float:
    """Returns the weight of a foreign row.

    Args:
        difference: Mean log-prob of its tokens here, minus the sender's.
    """
    s = math.exp(min(difference, 1.0))
    s = 1.0 if 1.0 < s <= 1.0 + CAPABILITY_ROUNDING else s
    return ratio * s ** (1.0 + alpha) if 1.0 - delta <= s <= 1.0 else 0.0


def subtract_baselines(
    trajectories: Sequence[Trajectory], outcomes: Mapping[str, Sequence[float]], members: list[str]
) -> None:
    """Takes the baseline of its task, role and learner off every action's reward."""
    rewards: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    rewarded = []
    for t in trajectories:
        learner = t.learner if t.origin else member_of(t, members)
        of_source = ratio(outcomes, source_of(t, members), learner)
        for a in t.actions:
            if a.reward is not None:
                key = t.task.id, a.role, learner
                rewards[key].append(a.reward / of_source)
                rewarded.append((a, key))
    for a, key in rewarded:
        a.add_reward("baseline", -math.fsum(rewards[key]) / len(rewards[key]))


class CapabilityWeights(StepPart):
    """Multiplies the advantages of foreign rows, once their log-probs are known."""

    def __init__(self, run: Run):
        self.swarm, self.options, self.members = run.state(Swarm), run.args.swarm, members_of(run)
        self.given: list[float] = []

    async def prepared(self, prepared: Sequence[PreparedRows]) -> Sequence[PreparedRows]:
        reweighed = []
        for p in prepared:
            weights = {
                row: self._weight(row)
                for row in p.rows
                if row.trajectory.origin and not row.trajectory.replayed
            }
            self.given += weights.values()
            reweighed.append(p.reweighed(weights) if weights else p)
        return reweighed

    def _weight(self, row: Row) -> float:
        action = row.action
        difference = fmean(action.trainer_logprobs) - fmean(action.generation.logprobs)
        t = row.trajectory
        of_source = ratio(self.swarm.outcomes, source_of(t, self.members), t.learner)
        return weight(of_source, difference, self.options.alpha, self.options.delta)

    def metrics(self) -> Mapping[str, float]:
        if not self.given:
            return {}
        return {
            "swarm/weight": fmean(self.given),
            "swarm/weightless": float(sum(each == 0.0 for each in self.given)),
        }
