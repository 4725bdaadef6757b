"""What a way of credit is worth on a game: its estimates beside the exact gradient, and how soon
tables of logits learn with it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from zlib import crc32

import numpy as np

from benchmarks.arena.games import Array, Game, Policy, games
from benchmarks.arena.rollouts import Batch, Estimate, Estimator, OnRollouts, Random
from benchmarks.arena.ways import ways

ANSWERS = 96
"""Sampled actions that an estimate may take, in the mean."""
SIGNIFICANT = 5.0
"""Standard deviations from which on a difference counts: there are hundreds of comparisons."""
LEAST = 0.1
"""Degrees. Rewards are 32-bit numbers: where hardly anything else is noise, their last bits are."""
RATE = 0.1
"""Of Adam."""


@dataclass(frozen=True)
class Beside:
    """Estimates beside the exact gradient.

    Args:
        angle: Of their mean with it, in degrees, without what noise adds.
        noise: The angle that noise alone would show.
        biased: Whether the angle is significant.
        scale: Of the mean, along the exact gradient.
        off: By how many standard errors the scale is from 1.
        per_answer, per_outcome: Signal to noise of a thousand sampled actions, or evaluated
            outcomes: the squared length of the mean along the exact gradient over the variance.
            Negative where it points the other way.
    """

    angle: float
    noise: float
    biased: bool
    scale: float
    off: float
    per_answer: float
    per_outcome: float


@dataclass(frozen=True)
class Learned:
    """Learning, the mean over seeds.

    Args:
        steps: Until half of what there is to gain has been gained; those that do not get there
            count with all their steps.
        reached: Share of the seeds that got there.
        area: The mean over all that was sampled of the share that had been gained.
        end: That share at the end.
    """

    steps: float
    reached: float
    area: float
    end: float


def samples_for(policy: Policy, estimator: Estimator, answers: int = ANSWERS) -> int:
    """Returns how many samples of each task come to so many sampled actions, in the mean.

    The number is fixed before, because to stop by what has been sampled is a bias.
    """
    least = 2 if isinstance(estimator, OnRollouts) else 1
    draw, trials = Random(0), 20
    used = sum(estimator(policy, draw, least).answers for _ in range(trials))
    return max(least, round(least * answers * trials / used))


def beside(policy: Policy, estimates: Sequence[Estimate]) -> Beside:
    """Compares independent estimates with the exact gradient."""
    mask = policy.game.mask
    true, each = policy.gradient[mask], np.array([e.gradient[mask] for e in estimates])
    count, mean = len(each), each.mean(0)
    length = float(np.linalg.norm(true))
    scale = float(mean @ true) / length**2
    aside = np.eye(len(true)) - np.outer(true, true) / length**2
    covariance = aside @ np.cov(each.T) @ aside / count
    expected = float(np.trace(covariance))
    side = float(np.square(mean - scale * true).sum())
    along, variance = abs(scale) * length, float(each.var(0, ddof=1).sum())
    angle = float(np.degrees(np.arctan2(np.sqrt(max(side - expected, 0.0)), along)))
    error = (each @ true / length**2).std(ddof=1) / np.sqrt(count)
    signal = np.sign(scale) * along**2 / variance * 1000
    return Beside(
        angle=angle if scale > 0 else 180 - angle,
        noise=float(np.degrees(np.arctan2(np.sqrt(expected), along))),
        biased=angle > LEAST
        and excess(side / expected, expected**2 / np.square(covariance).sum()) > SIGNIFICANT,
        scale=scale,
        off=float((scale - 1) / error),
        per_answer=float(signal / np.mean([e.answers for e in estimates])),
        per_outcome=float(signal / np.mean([e.outcomes for e in estimates])),
    )


def excess(ratio: float, freedom: float) -> float:
    """Returns by how many standard deviations a mean of squares is above what is expected of it
    (Wilson and Hilferty's cube root; degrees of freedom by Satterthwaite's rule)."""
    spread = 2 / 9 / freedom
    return float((ratio ** (1 / 3) - 1 + spread) / spread**0.5)


def learn(game: Game, estimator: Estimator, steps: int, seed: int) -> tuple[Array, Array]:
    """Trains the game's logits with Adam until what `steps` estimates may take has been sampled;
    returns the actions sampled by each step, and the success after it."""
    draw, logits = Random(1000 + seed), game.start
    policy = Policy(game, logits)
    samples = samples_for(policy, estimator)
    first, second = np.zeros_like(policy.chances), np.zeros_like(policy.chances)
    spent, successes = list[int](), list[float]()
    while sum(spent) < steps * ANSWERS:
        gradient, answers, _ = estimator(policy, draw, samples)
        spent.append(answers)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        bias = 1 - 0.9 ** len(spent), 1 - 0.999 ** len(spent)
        step = first / bias[0] / (np.sqrt(second / bias[1]) + 1e-8)
        logits = np.where(game.mask, logits + RATE * step, -np.inf)
        policy = Policy(game, logits)
        successes.append(policy.success)
    return np.array(spent), np.array(successes)


def learned(game: Game, way: int, steps: int, seeds: int) -> Learned:
    """Learns with the way of this number, of `ways()`, over some seeds."""
    start = Policy(game, game.start).success
    until, areas, ends = [], [], []
    for seed in range(seeds):
        spent, successes = learn(game, ways()[way].estimate, steps, seed)
        gained = (successes - start) / (game.best - start)
        there = np.nonzero(gained >= 0.5)[0]
        until.append(spent[: there[0] + 1].sum() / ANSWERS if len(there) else np.inf)
        areas.append(float(spent @ gained / spent.sum()))
        ends.append(float(gained[-1]))
    numbers = np.array(until)
    return Learned(
        steps=float(np.minimum(numbers, steps).mean()),
        reached=float(np.isfinite(numbers).mean()),
        area=float(np.mean(areas)),
        end=float(np.mean(ends)),
    )


def slope(game: Game) -> float:
    """Returns how far the exact gradient is from finite differences, at most."""
    exact, worst, step = Policy(game, game.start).gradient, 0.0, 1e-5
    for at in zip(*np.nonzero(game.mask), strict=True):
        up, down = game.start.copy(), game.start.copy()
        up[at] += step
        down[at] -= step
        difference = Policy(game, up).success - Policy(game, down).success
        worst = max(worst, abs(difference / 2 / step - float(exact[at])))
    return worst


def meet(name: str, repetitions: int, steps: int, seeds: int) -> dict[str, object]:
    """All ways on one game; what the record has of it."""
    import torch

    torch.set_num_threads(1)
    began = time.monotonic()
    game = next(game for game in games() if game.name == name)
    policy, draw, all_ways = Policy(game, game.start), Random(1), ways()
    draws = [Random(crc32(way.name.encode())) for way in all_ways]
    """Of the ways that need rollouts of their own: what one draws moves no other's."""
    samples = [samples_for(policy, way.estimate) for way in all_ways]
    estimates: list[list[Estimate]] = [[] for _ in all_ways]
    for _ in range(repetitions):
        batch = Batch.drawn(policy, draw, samples[0])
        for way, own, count, mine in zip(all_ways, draws, samples, estimates, strict=True):
            if isinstance(way.estimate, OnRollouts):
                mine.append(way.estimate.of(batch))
            else:
                mine.append(way.estimate(policy, own, count))
    results = {
        way.name: asdict(beside(policy, mine))
        | (asdict(learned(game, number, steps, seeds)) if seeds else {})
        for number, (way, mine) in enumerate(zip(all_ways, estimates, strict=True))
    }
    return {
        "leaves": len(game.leaves),
        "longest": game.acts.shape[1],
        "start": policy.success,
        "best": game.best,
        "finite differences": slope(game),
        "seconds": round(time.monotonic() - began),
        "ways": results,
    }
