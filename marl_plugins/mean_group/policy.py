"""The policy of a group: its control by what the group observes (Sandbox-RL, A.5).

    a = exp(w o + sigma e)        o = (1, share of budget left, mean v, share of the stage to go)
    A = r + gamma V(o') - V(o)    V(o) = u o;    r = mean reward of the group's members in a step
    w <- w + rate A / rms(A) sigma e o           u <- u + rate A o / |o|^2

e is drawn from a normal distribution. It is an actor and a critic that are linear in four numbers,
and takes one decision in a step, at which PPO's ratio is 1 and its clipping does nothing. log a is
kept within `RANGE` of 0, and is -`RANGE` where nothing is left of a budget. A step costs one pass
over the members, whatever their number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

SIGMA, RANGE, FORGETTING = 0.2, 1.5, 0.05


@dataclass
class GroupPolicy:
    """Actor, critic, and the decision whose reward is to come."""

    actor: list[float] = field(default_factory=lambda: [0.0] * 4)
    critic: list[float] = field(default_factory=lambda: [0.0] * 4)
    observed: list[float] = field(default_factory=list)
    noise: float = 0.0
    log_control: float = 0.0
    square: float = 0.0
    """Slow mean of squared advantages."""
    used: int = 0
    """Tokens that the group has said."""

    def learn(self, reward: float, observed: list[float], rate: float, discount: float) -> None:
        """Learns from what the last decision has led to.

        Args:
            reward: Of the step in which it held.
            observed: After that step.
        """
        if not self.observed:
            return
        advantage = (
            reward + discount * product(self.critic, observed) - product(self.critic, self.observed)
        )
        self.square += (advantage**2 - self.square) * (FORGETTING if self.square else 1.0)
        direction = rate * advantage / (self.square**0.5 or 1.0) * SIGMA * self.noise
        length = product(self.observed, self.observed)
        for place, value in enumerate(self.observed):
            self.actor[place] += direction * value
            self.critic[place] += rate * advantage * value / length

    def decide(self, observed: list[float], rng: random.Random) -> None:
        """Draws the control of the next step."""
        self.observed, self.noise = observed, rng.gauss(0.0, 1.0)
        drawn = product(self.actor, observed) + SIGMA * self.noise
        self.log_control = max(-RANGE, min(drawn, RANGE)) if observed[1] > 0 else -RANGE


def product(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
