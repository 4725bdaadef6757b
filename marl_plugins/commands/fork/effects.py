"""The effect of an action: how much better the outcome is with its recorded words than with others,
everything after it being live in both arms.

    as recorded    forks whose action says its recorded words
    sampled anew   forks whose action is sampled; or `as said`, with words of the user's

The n-th forks of the two arms are a pair: their live answers have the same seeds, one by one. What
is lost, unlike the record, or never reaches the action is counted, and in no mean.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from marl_plugins.commands.fork.originals import numbered
from marl_plugins.core.trajectory import Action, Generation, Trajectory
from marl_plugins.engine.records.intervals import (
    Bounds,
    correlation_of_pairs,
    difference,
    interval,
    p_value,
    wilson,
)
from marl_plugins.engine.runtime.forking import Original, fork

LEAST_ALIKE = 0.9
"""Share of an arm's forks that must have become one. Fewer are a selection: what is common to those
that did not is not known."""
RECORDED, ANEW, SAID = "as recorded", "sampled anew", "as said"


@dataclass(frozen=True, eq=False)
class Arm:
    """The forks of one action with the same words, or with new ones.

    Args:
        forks: In the order of their numbers.
        role: Whose outcome counts.
        fixed: Nothing in it is live, so that there is one of them.
    """

    name: str
    forks: Sequence[Trajectory]
    role: str
    fixed: bool

    @cached_property
    def outcomes(self) -> dict[int, float]:
        """The outcomes of the forks that count, by number within the arm."""
        known = ((n, f.outcome_of(self.role)) for n, f in enumerate(self.forks))
        return {n: outcome for n, outcome in known if outcome is not None}

    @property
    def left_out(self) -> Counter[str]:
        """Returns how many forks do not count, by reason."""
        return Counter(
            f.infrastructure_failure or "no outcome"
            for f in self.forks
            if f.outcome_of(self.role) is None
        )

    @property
    def mean(self) -> float:
        return fmean(self.outcomes.values())

    def interval(self, binary: bool, z: float = 1.96) -> Bounds:
        """Returns the interval of the mean."""
        return (self.mean,) * 2 if self.fixed else interval([*self.outcomes.values()], binary, z)

    def values(self, path: str, binary: bool) -> dict[str, Any]:
        """Returns the arm of the action at a path as JSON values."""
        said = Counter(a.text for f in self.forks for a in f.actions if a.path == path)
        return {
            "counted": len(self.outcomes),
            "left_out": dict(self.left_out),
            "fixed": self.fixed,
            "outcome": self.mean if self.outcomes else None,
            "interval": self.interval(binary) if self.outcomes else None,
            "said": dict(said.most_common()),
        }


@dataclass(frozen=True, eq=False)
class Effect:
    """What an action has caused.

    Args:
        original: Its trajectory.
        arms: With its recorded words, and with others.
    """

    original: Trajectory
    action: Action
    arms: tuple[Arm, Arm]

    @cached_property
    def binary(self) -> bool:
        """Whether every outcome is 0 or 1."""
        return {o for arm in self.arms for o in arm.outcomes.values()} <= {0.0, 1.0}

    @property
    def refused(self) -> str:
        """Returns why there is no number; empty where there is one."""
        for arm in self.arms:
            if len(arm.outcomes) < max(1.0, LEAST_ALIKE * len(arm.forks)):
                reasons = ", ".join(f"{n} {why}" for why, n in arm.left_out.most_common())
                detail = next((f.detail for f in arm.forks if f.detail), "")
                return f"{arm.name}: of {len(arm.forks)} forks {reasons}" + (
                    f" ({detail})" if detail else ""
                )
        return ""

    @property
    def value(self) -> float:
        """Returns the difference of the arms' mean outcomes."""
        return self.arms[0].mean - self.arms[1].mean

    def interval(self, z: float = 1.96, correlation: float = 0.0) -> Bounds:
        """Returns its interval, as of independent arms or with the correlation of pairs."""
        of = [(arm.mean, arm.interval(self.binary, z)) for arm in self.arms]
        return difference(*of[0], *of[1], correlation)

    @property
    def paired(self) -> Bounds | None:
        """Returns its interval as of pairs; None where an arm is fixed, or pairs are missing."""
        first, second = (arm.outcomes for arm in self.arms)
        numbers = first.keys() & second.keys()
        if any(arm.fixed for arm in self.arms) or len(numbers) < len(first) + len(second) >> 1:
            return None
        r = correlation_of_pairs([(first[n], second[n]) for n in sorted(numbers)])
        return self.interval(correlation=r)

    @property
    def p(self) -> float:
        """Returns the probability of so large a difference where there is none."""
        if all(arm.fixed for arm in self.arms):
            return 1.0 if self.value == 0 else 0.0
        return p_value(self.interval)

    @property
    def smallest(self) -> float:
        """Returns the smallest difference that so many forks can show, with outcomes of 0 and 1
        about one half, where they vary most."""
        count = min((len(arm.forks) for arm in self.arms if not arm.fixed), default=1)
        fixed = any(arm.fixed for arm in self.arms)
        for k in range(1, count + 1):
            d = k / count
            first, second = (1.0, 1.0 - d) if fixed else ((1 + d) / 2, (1 - d) / 2)
            of_first = (1.0, 1.0) if fixed else wilson(first, count)
            if difference(first, of_first, second, wilson(second, count))[0] > 0:
                return d
        return 1.0

    @property
    def values(self) -> dict[str, Any]:
        """Returns the effect as JSON values."""
        t, a, told = self.original, self.action, not self.refused
        return {
            "step": t.step,
            "task": t.task.id,
            "sample": t.sample,
            "action": a.path,
            "name": numbered(t, a),
            "score": a.score,
            "outcome_then": t.outcome_of(a.role),
            "arms": {arm.name: arm.values(a.path, self.binary) for arm in self.arms},
            "refused": self.refused,
            "effect": self.value if told else None,
            "interval": self.interval() if told else None,
            "paired": self.paired if told else None,
            "p": self.p if told else None,
            "smallest_shown": self.smallest,
        }


async def effect_of(
    original: Original,
    action: Action,
    count: int,
    words: Generation | None,
    free: asyncio.Semaphore,
    tick: Callable[[], None] = lambda: None,
) -> Effect:
    """Forks a trajectory at one action in both arms.

    Args:
        count: Forks of each arm.
        words: What the action says in the second arm; None: it is sampled anew.
        free: Is held by every fork.
        tick: Called when one has ended.
    """

    async def one(number: int, words: Generation | None) -> Trajectory:
        async with free:
            ended = await fork(original, action.path, number, words, pairs=count)
        tick()
        return ended

    async def arm(name: str, first: int, words: Generation | None) -> Arm:
        begun = await one(first, words)
        live = any(not a.replayed for a in begun.actions)
        fixed = words is not None and not live and not begun.infrastructure_failure
        more = () if fixed else range(first + 1, first + count)
        others = await asyncio.gather(*(one(number, words) for number in more))
        return Arm(name, [begun, *others], action.role, fixed)

    arms = await asyncio.gather(
        arm(RECORDED, 0, action.generation),
        arm(SAID if words else ANEW, count, words),
    )
    return Effect(original.trajectory, action, (arms[0], arms[1]))
