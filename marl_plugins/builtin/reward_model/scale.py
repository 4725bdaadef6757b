"""The scale of scores: a reward model's numbers as scores in [0, 1], and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from marl_plugins.core.run import Run


@dataclass(frozen=True)
class Scale:
    """The numbers that become 0 and 1: the bounds to which upstream clips a reward
    (`--reward.clip_range`)."""

    low: float
    high: float

    @classmethod
    def of(cls, run: Run) -> Scale:
        """Returns a run's."""
        return cls(*run.args.reward.clip_range)

    def score(self, reward: float) -> float:
        """Returns what a reward counts as, in [0, 1].

        Raises:
            ValueError: It is not finite.
        """
        if not math.isfinite(reward):
            raise ValueError(f"the reward model gave {reward}")
        return (min(max(reward, self.low), self.high) - self.low) / (self.high - self.low)

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """Returns the mean of the rewards that gave these scores, and the share of them at a bound
        or beyond it."""
        if not scores:
            return {}
        return {
            "reward_model/reward": self.low + (self.high - self.low) * fmean(scores),
            "reward_model/clipped": sum(score in (0.0, 1.0) for score in scores) / len(scores),
        }

    def __str__(self) -> str:
        """Returns the score of a reward r, as a formula."""
        minus = f"+ {-self.low:g}" if self.low < 0 else f"- {self.low:g}"
        return f"(r {minus}) / {self.high - self.low:g}, within [0, 1] (--reward.clip_range)"
