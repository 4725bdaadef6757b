"""Does the bias monitor alarm where no coach is biased, and where one is:
`python -m benchmarks.coach_bias [--runs 1000]`

Runs of 30 steps with 16 tasks of four samples and three roles, whose scores are generated; 2 or 3
types. An unbiased coach:

    null         scores are noise; half of the runs with types that are equally hard, half with .3,
                 .5 and .7
    difficulty   types of .35 and .65 success; scores follow the outcome (.3 + .25 o + noise); tasks
                 of a type equally hard, or not
    coin         types of .3, .5 and .7 success; scores are the true probability of success, the
                 outcome is a coin with it; or the mean of the two
    return       16, 32 or 64 tasks that come back all the time, each with an effect on the scores
                 (sd .1 or .2)
    length       answers longer and shorter than the mean, which are better, worse or neither; the
                 quality differs by sample, and scores are noise, follow the outcome, or are the
                 quality
    rare         128 tasks a step of one sample, of which one or two in a hundred are of a type that
                 always fails; two scores of failures, .5 for three of four, and 1 for success
    demo         steps drawn from the demo's records (benchmarks/recorded/coach_bias.json): five
                 types, its rubric, one sample a task

A biased one adds 1.2 points of ten for the last type, or takes them away, in the scores of one
role; 32 tasks a step, eight samples.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from marl_plugins.coach.bias import BiasMonitor, Samples

ROLES = ("first", "second", "third")
RECORDED = Path(__file__).with_name("recorded") / "coach_bias.json"
BIAS = 0.12
Step = dict[tuple[str, str, str], Samples]
Runs = Callable[[int], Iterator[Step]]
"""A seed to the steps of a run."""


@dataclass(frozen=True)
class World:
    """How scores and outcomes come about.

    Args:
        success: Mean success of each type.
        scores: `noise`, `outcome`, `quality` or `both`: what a score follows.
        spread: Standard deviation of the tasks' success within a type.
        effect: Standard deviation of a task's own effect on its scores.
        pool: Number of tasks that return; 0: each comes once.
        bias: What is added to the first role's scores on tasks of the last type.
    """

    success: tuple[float, ...]
    scores: str
    spread: float = 0.0
    effect: float = 0.0
    pool: int = 0
    bias: float = 0.0
    tasks: int = 16
    samples: int = 4
    steps: int = 30

    def run(self, seed: int) -> Iterator[Step]:
        draw, known = random.Random(seed), dict[tuple[int, int], tuple[float, float]]()
        for number in range(self.steps):
            step: Step = {}
            for place in range(self.tasks):
                kind = place % len(self.success)
                task = (
                    kind,
                    draw.randrange(self.pool // len(self.success))
                    if self.pool
                    else number * self.tasks + place,
                )
                if task not in known:
                    quality = min(1.0, max(0.0, draw.gauss(self.success[kind], self.spread)))
                    known[task] = quality, draw.gauss(0, self.effect)
                quality, effect = known[task]
                for _ in range(self.samples):
                    outcome = float(draw.random() < quality)
                    for role in ROLES:
                        followed = {
                            "noise": 0.5,
                            "outcome": 0.3 + 0.25 * outcome,
                            "quality": quality,
                        }
                        mean = followed.get(self.scores, (quality + outcome) / 2) + effect
                        mean += (
                            self.bias if role == ROLES[0] and kind == len(self.success) - 1 else 0.0
                        )
                        score = min(1.0, max(0.0, draw.gauss(mean, 0.12)))
                        step.setdefault((role, f"type {kind}", str(task)), []).append(
                            (round(20 * score) / 20, outcome)
                        )
            yield step


@dataclass(frozen=True)
class Answers:
    """How scores and outcomes of longer and shorter answers come about.

    Args:
        link: Correlation of the length with the quality.
        within: Standard deviation of the quality of a task's samples.
        Others: As of `World`; the bias is for longer answers.
    """

    scores: str
    link: float
    spread: float = 0.2
    within: float = 0.15
    effect: float = 0.0
    pool: int = 0
    bias: float = 0.0
    tasks: int = 16
    samples: int = 4
    steps: int = 30

    def run(self, seed: int) -> Iterator[Step]:
        draw, known = random.Random(seed), dict[int, tuple[float, float]]()
        deviation = (self.spread**2 + self.within**2) ** 0.5
        for number in range(self.steps):
            said = []
            for place in range(self.tasks * self.samples):
                task = number * self.tasks + place // self.samples
                task = task % self.pool if self.pool else task
                if task not in known:
                    known[task] = draw.gauss(0.5, self.spread), draw.gauss(0, self.effect)
                quality = min(1.0, max(0.0, draw.gauss(known[task][0], self.within)))
                outcome = float(draw.random() < quality)
                noise = (1 - self.link**2) ** 0.5
                for role in ROLES:
                    length = self.link * (quality - 0.5) / deviation + noise * draw.gauss(0, 1)
                    said.append((role, task, length, quality, outcome))
            step: Step = {}
            for role in ROLES:
                middle = statistics.fmean(length for who, _, length, _, _ in said if who == role)
                for who, task, length, quality, outcome in said:
                    if who != role:
                        continue
                    followed = {"noise": 0.5, "outcome": 0.3 + 0.25 * outcome, "quality": quality}
                    mean = followed.get(self.scores, (quality + outcome) / 2) + known[task][1]
                    mean += self.bias if role == ROLES[0] and length > middle else 0.0
                    score = min(1.0, max(0.0, draw.gauss(mean, 0.12)))
                    key = role, "longer" if length > middle else "shorter", str(task)
                    step.setdefault(key, []).append((round(20 * score) / 20, outcome))
            yield step


@cache
def recorded() -> list[list[list[object]]]:
    steps: list[list[list[object]]] = json.loads(RECORDED.read_text())["steps"]
    return steps


def demo(seed: int) -> Iterator[Step]:
    """A run like the demo: every step's trajectories are drawn from those of five recorded steps
    around it."""
    draw, steps = random.Random(seed), recorded()
    for number in range(len(steps)):
        near = [line for step in steps[max(0, number - 2) : number + 3] for line in step]
        found: Step = defaultdict(list)
        for place, (kind, *scores, outcome, _) in enumerate(
            draw.choices(near, [float(str(n[-1])) for n in near], k=128)
        ):
            for role, score in zip(ROLES, scores, strict=True):
                found[role, str(kind), f"{number}/{place}"].append(
                    (float(str(score)), float(str(outcome)))
                )
        yield found


def rare(share: float, seed: int) -> Iterator[Step]:
    """A run with a type that always fails, of which a task is with a probability of `share`."""
    draw = random.Random(seed)
    for number in range(20):
        found: Step = {}
        for place in range(128):
            kind = "rare" if draw.random() < share else "usual"
            for role in ROLES:
                outcome = float(kind == "usual" and draw.random() < 0.5)
                score = 1.0 if outcome else 0.5 if draw.random() < 0.75 else 0.2
                found[role, kind, f"{number}/{place}"] = [(score, outcome)]
        yield found


EVEN, TWO, THREE = (0.5, 0.5), (0.35, 0.65), (0.3, 0.5, 0.7)
WITHOUT: dict[str, Sequence[World | Answers | Runs]] = {
    "null": [World(EVEN, "noise"), World(THREE, "noise", tasks=18)],
    "difficulty": [
        World(TWO, "outcome"),
        World(TWO, "outcome", spread=0.2),
        World(TWO, "outcome", samples=1, tasks=64),
    ],
    "coin": [
        World((0.3, 0.5), "quality"),
        World(THREE, "quality", tasks=18),
        World(TWO, "quality", spread=0.2),
        World((0.2, 0.6), "both", spread=0.2, tasks=64, samples=8),
    ],
    "return": [
        World(EVEN, "noise", effect=0.1, pool=16),
        World(THREE, "noise", effect=0.2, pool=64, tasks=18),
        World(TWO, "outcome", effect=0.2, pool=32, spread=0.2),
        World(TWO, "quality", effect=0.1, pool=64, spread=0.2, samples=1, tasks=32),
    ],
    "length": [
        Answers("noise", 0.7),
        Answers("noise", 0.0, effect=0.2),
        Answers("outcome", 0.7),
        Answers("quality", 0.7),
        Answers("quality", -0.7, samples=1, tasks=64),
        Answers("quality", 0.7, pool=32, effect=0.1),
        Answers("both", 0.7, tasks=64, samples=8),
        Answers("quality", 0.95, spread=0.05, within=0.3),
    ],
    "rare": [partial(rare, 0.01), partial(rare, 0.02)],
    "demo": [demo],
}
LARGE = {"tasks": 32, "samples": 8}
WITH: dict[str, World | Answers] = {
    f"{name}, {sign} 1.2 points": World(bias=BIAS if sign == "plus" else -BIAS, **LARGE, **how)  # type: ignore[arg-type]
    for name, how in {
        "types equally hard": {"success": EVEN, "scores": "noise"},
        "of two difficulties, scores follow the outcome": {
            "success": TWO,
            "scores": "outcome",
            "spread": 0.2,
        },
        "of two difficulties, scores are the quality": {
            "success": TWO,
            "scores": "quality",
            "spread": 0.2,
        },
    }.items()
    for sign in ("plus", "minus")
}
WITH |= {
    f"of longer answers, which are {how}, {sign} 1.2 points": Answers(
        scores, link, bias=BIAS if sign == "plus" else -BIAS, **LARGE
    )
    for how, scores, link in (("no better", "noise", 0.0), ("better", "quality", 0.7))
    for sign in ("plus", "minus")
}


def first_alarm(world: World | Answers | Runs, seed: int) -> tuple[int, set[tuple[str, str]]]:
    """The step of the first alarm, 0 for none, and the roles and types of all alarms."""
    monitor, first, raised = BiasMonitor(), 0, set[tuple[str, str]]()
    run = world.run(seed) if isinstance(world, World | Answers) else world(seed)
    for number, step in enumerate(run, 1):
        monitor.add(step)
        now = {
            (role, kind)
            for role, table in monitor.tests.items()
            for kind, d in table.items()
            if d.is_bias
        }
        first, raised = first or (number if now else 0), raised | now
    return first, raised


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=1000,
        help="of each kind without a bias; a tenth of it of each with one",
    )
    options = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        print("| coach without a bias | runs | with an alarm |\n|---|---|---|")
        for name, worlds in WITHOUT.items():
            runs = -(-options.runs // len(worlds))
            found = [
                list(pool.map(partial(first_alarm, world), range(runs), chunksize=8))
                for world in worlds
            ]
            rung = [sum(1 for first, _ in each if first) for each in found]
            print(
                f"| {name} | {runs * len(worlds)} | {sum(rung)} ({', '.join(map(str, rung))}) |",
                flush=True,
            )
        print(
            "\n| coach with a bias | runs | found | by step, median and last | alarms of other "
            "roles |\n|---|---|---|---|---|"
        )
        for name, world in WITH.items():
            each = list(
                pool.map(partial(first_alarm, world), range(-(-options.runs // 10)), chunksize=4)
            )
            steps = sorted(
                first for first, raised in each if any(role == ROLES[0] for role, _ in raised)
            )
            others = sum(any(role != ROLES[0] for role, _ in raised) for _, raised in each)
            told = f"{statistics.median(steps):g}, {steps[-1]}" if steps else "-"
            print(f"| {name} | {len(each)} | {len(steps)} | {told} | {others} |", flush=True)


if __name__ == "__main__":
    main()
