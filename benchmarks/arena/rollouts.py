"""Rollouts of a game, drawn at random or all of them: the same function estimates a gradient and
has its exact expectation taken.

A way of credit is a function of a policy, a `Draw` and a number of samples a task, and makes every
random choice through the draw.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from benchmarks.arena.games import Array, Integers, Leaf, Node, Policy


class Draw(Protocol):
    def choose(self, chances: Sequence[float]) -> int:
        """Returns a number with these chances, which add up to 1."""


class Estimate(NamedTuple):
    """An estimate of a policy's gradient (rows, choices), the actions that were sampled for it, and
    the outcomes that had to be evaluated."""

    gradient: Array
    answers: int
    outcomes: int


class Estimator(Protocol):
    """A way of credit."""

    def __call__(self, policy: Policy, draw: Draw, samples: int) -> Estimate: ...


class Random:
    def __init__(self, seed: int):
        self._random = random.Random(seed).random

    def choose(self, chances: Sequence[float]) -> int:
        left = self._random()
        for number, chance in enumerate(chances):
            left -= chance
            if left < 0:
                return number
        return len(chances) - 1


class _Fixed:
    """Draws that fall in one way: as `choices` says, then always the first that can."""

    def __init__(self, choices: tuple[int, ...]):
        self.choices, self.place, self.chance = choices, 0, 1.0
        self.others: list[tuple[int, ...]] = []
        """Ways that part from this one where it was free to choose."""

    def choose(self, chances: Sequence[float]) -> int:
        if self.place == len(self.choices):
            possible = [number for number, chance in enumerate(chances) if chance > 0]
            self.others += [(*self.choices, other) for other in possible[1:]]
            self.choices = *self.choices, possible[0]
        choice = self.choices[self.place]
        self.place += 1
        self.chance *= chances[choice]
        return choice


def expectation(function: Callable[[Draw], Array]) -> Array:
    """Returns the exact expectation of a function of draws, over all ways in which they can
    fall."""
    total, pending = np.zeros(()), list[tuple[int, ...]]([()])
    while pending:
        draw = _Fixed(pending.pop())
        value = function(draw)
        total = total + draw.chance * value
        pending += draw.others
    return total


def walk(
    policy: Policy, task: int, draw: Draw, base: Leaf | None = None, keep: Iterable[int] = ()
) -> tuple[int, int]:
    """Plays a task; returns the number of the leaf, and how many actions were sampled.

    Args:
        keep: Numbers of actions of `base` that are said again, whatever is asked by then, where the
            same role is asked.
    """
    following, sampled, place = policy.game.roots[task], 0, 0
    kept = set(keep)
    while isinstance(following, Node):
        if base and place in kept and base.nodes[place].role == following.role:
            choice = base.choices[place]
        else:
            choice = draw.choose(policy.chances_by_row[following.row])
            sampled += 1
        following, place = following.children[choice], place + 1
    return following, sampled


@dataclass(frozen=True)
class Batch:
    """Plain rollouts, those of a task next to each other."""

    policy: Policy
    samples: int
    leaves: Integers

    @classmethod
    def drawn(cls, policy: Policy, draw: Draw, samples: int) -> Batch:
        tasks = range(policy.game.tasks)
        leaves = [walk(policy, task, draw)[0] for task in tasks for _ in range(samples)]
        return cls(policy, samples, np.array(leaves))

    def estimate(self, advantages: Array) -> Estimate:
        """Returns the policy gradient of advantages (N, D)."""
        answers = int(self.policy.game.acts[self.leaves].sum())
        gradient = self.policy.scores(self.leaves, advantages) / len(self.leaves)
        return Estimate(gradient, answers, len(self.leaves))


@dataclass(frozen=True)
class OnRollouts:
    """A way of credit that needs plain rollouts alone.

    Args:
        advantages: A batch to (N, D); what belongs to no action is not looked at.
    """

    advantages: Callable[[Batch], Array]

    def __call__(self, policy: Policy, draw: Draw, samples: int) -> Estimate:
        return self.of(Batch.drawn(policy, draw, samples))

    def of(self, batch: Batch) -> Estimate:
        return batch.estimate(self.advantages(batch))
