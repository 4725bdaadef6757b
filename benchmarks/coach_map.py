"""When does a coach pay? A map over how often the system succeeds at the start, and how many
trajectories a step sees.

    python -m benchmarks.coach_map [--seeds 12] [--picture docs/coach_map.png] [--calibrate]
        (five minutes, no engine)

A model of recipes/dsbench/tiny.yaml, not the recipe: ten decisions of four words, drawn by a linear
softmax policy that sees the card of a task. Which words are right is the recipe's own (pipeline.py,
tables.py); which programs a wrong word makes fail is what the real ones do (the table in the
recipe's README); no program runs. REINFORCE with one mean and deviation for all actions of a step,
a gradient norm of at most 1, and Adam, one update a step. One number is fitted, the learning rate:
`--calibrate` shows it beside the arm `strict` of benchmarks.dsbench, and `RATE` is the best. All
else is predicted. What benchmarks/recorded has of the real loop is drawn into the picture as
crosses.

    outcome       every action is rewarded with the outcome
    rubric        a coach that knows the right word of every decision (the last is also judged by
                  the outcome): `strict`
    to go         the same scores, summed over what comes later, and normalised by role
    shared        the same scores, of which every action gets the trajectory's mean
    wrong blame   the same scores, each given to the action before it
    symptom       a coach that sees only whether an action's own program ran
    traced        the same coach, with failures traced back by the files
    constant      the same score for every action
    own to go     the strict scores, summed over what the same role does later, and normalised over
                  all (MAPPA, equation 3)

Steps to one half are those after which the held-out success, which is computed and not sampled, is
a half for the first time; a run that does not get there counts as more than the last step. Spread:
the least and the most of the seeds. The difference at step 40 is that to `outcome`, with the 95 %
t-interval over seeds; what arms of a seed have in common does not show in it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.demo import points
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.records.read import RunReader

Array = NDArray[Any]
RECIPE = recipes_root() / "dsbench"
pipeline = load_file(RECIPE / "pipeline.py")
tables = load_file(RECIPE / "tables.py")
RECORDED = Path(__file__).with_name("recorded") / "dsbench"

STAGES = [stage.name for stage in pipeline.STAGES]
PLACE = {name: n for n, name in enumerate(STAGES)}
LAST = len(STAGES) - 1
ROLES = [PLACE["scale"], PLACE["predict"]]
"""Where the second and third role begin."""
WORDS = [list(stage.options) for stage in pipeline.STAGES]
RATE = 0.025
STARTS, BATCHES = (0.05, 0.01, 0.004), (32, 128)
STEPS, COMPARED = 400, 40
ANSWERS = {"accuracy": "class", "f1_macro": "class", "roc_auc": "chance", "rmsle": "count"}
"""By metric; of all others a number."""
REAL = {
    "outcome": "outcome",
    "rubric": "strict",
    "to go": "to_go",
    "shared": "shared",
    "wrong blame": "shifted",
    "own to go": "own_to_go",
} | {name: name for name in ("symptom", "traced")}
"""Arms of benchmarks.dsbench."""


@dataclass(frozen=True)
class Cards:
    """Kinds of task.

    Args:
        features: (cards, features), of ones and zeros: always, metric, shape, how gaps are meant.
        right: (cards, decisions), the index of the right word.
        answers: (cards,), what is to be said: a class by its name, a chance, a count, or a number.
    """

    features: Array
    right: Array
    answers: Array

    @classmethod
    def of(cls, held_out: bool) -> Cards:
        """The generated tasks of one split, each card as often as it occurs."""
        names = [
            (name, number)
            for name, kind in tables.KINDS.items()
            for number in range(tables.EACH)
            if (kind.held_out and number == tables.EACH - 1) == held_out
        ]
        cards = [tables.words(*name).split()[:3] for name in names]
        seen = ["always", *sorted({tables.KINDS[n].metric for n in tables.KINDS}), "bent", "absent"]
        return cls(
            np.array(
                [[word == "always" or word in card for word in seen] for card in cards], float
            ),
            np.array(
                [
                    [
                        WORDS[n].index(pipeline.right(s, " ".join(card)))
                        for n, s in enumerate(STAGES)
                    ]
                    for card in cards
                ]
            ),
            np.array([ANSWERS.get(card[0], "number") for card in cards]),
        )


def what_ran(said: Array, answers: Array) -> tuple[Array, Array]:
    """Which programs ran, and whose fault it is by the files that one did not, both (...,
    decisions).

    Args:
        said: (..., decisions), indices of words.
        answers: (...), see `Cards`.
    """

    def says(stage: str, *words: str) -> Array:
        return np.isin(said[..., PLACE[stage]], [WORDS[PLACE[stage]].index(word) for word in words])

    number, name = np.isin(answers, ["number", "count"]), answers == "class"
    classifier = says("model", "logit", "near", "stump")
    own = (
        says("target", "log") & (answers != "count")
        | says("target", "rank") & ~number
        | np.where(number, classifier, name & ~classifier)
    )
    unfit = {
        "impute": says("impute", "none"),
        "encode": says("encode", "none"),
        "save": says("save", "train", "noids", "swapped"),
        "keep": says("keep", "params", "scores", "elsewhere"),
        "predict": np.where(
            number, says("predict", "class", "proba"), name & says("predict", "value", "sign")
        )
        | ~classifier & ~number & says("predict", "class", "proba")
        | says("model", "near") & says("size", "dozen", "eight", "four"),
        "write": says("write", "index", "answer", "head"),
    }
    gaps = unfit["impute"] | unfit["encode"]
    unfit["size"] = own & ~gaps & ~says("save", "swapped")
    ran = np.ones(said.shape, bool)
    ran[..., PLACE["size"]] = ~(gaps | says("save", "swapped") | own)
    ran[..., PLACE["keep"]] = ran[..., PLACE["size"]]
    ran[..., PLACE["predict"]] = (
        ran[..., PLACE["keep"]] & ~says("save", "train") & ~unfit["keep"] & ~unfit["predict"]
    )
    ran[..., PLACE["write"]] = ran[..., PLACE["predict"]] & ~says("save", "noids")
    fault = np.zeros(said.shape, bool)
    for stage, wrong in unfit.items():
        fault[..., PLACE[stage]] = wrong
    fault[..., PLACE["predict"]] &= (
        ran[..., PLACE["keep"]] & ~says("save", "train") & ~unfit["keep"]
    )
    fault[..., PLACE["keep"]] &= ran[..., PLACE["keep"]]
    fault[..., PLACE["write"]] &= ran[..., PLACE["write"]]
    return ran, fault


@dataclass(frozen=True)
class Step:
    """What the trajectories of a step have come to; `right`, `ran` and `fault` are (seeds,
    trajectories, decisions)."""

    right: Array
    ran: Array
    fault: Array
    solved: Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "solved", self.right.all(-1).astype(float)[..., None])

    def judged(self, scores: Array) -> Array:
        """Scores, of which the last is half the outcome."""
        scores = scores.astype(float)
        scores[..., LAST] = (scores[..., LAST] + self.solved[..., 0]) / 2
        return scores

    def traced(self) -> Array:
        """The outcome in [-1, 1], charged to who is at fault, or to all (`conserve` of
        reward_backprop/backward.py)."""
        at_fault = self.fault & (self.solved == 0)
        shares = np.where(at_fault.any(-1, keepdims=True), at_fault, 1.0)
        return np.asarray((2 * self.solved - 1) * shares / shares.sum(-1, keepdims=True))


def later(scores: Array) -> Array:
    """Each score with all that follow it, summed."""
    return scores[..., ::-1].cumsum(-1)[..., ::-1]


ARMS: dict[str, Callable[[Step], Array]] = {
    "outcome": lambda step: np.broadcast_to(step.solved, step.right.shape),
    "rubric": lambda step: step.judged(step.right),
    "to go": lambda step: later(step.judged(step.right)),
    "shared": lambda step: np.broadcast_to(
        step.judged(step.right).mean(-1, keepdims=True), step.right.shape
    ),
    "wrong blame": lambda step: np.roll(step.judged(step.right), -1, axis=-1),
    "symptom": lambda step: step.judged(step.ran),
    "traced": lambda step: step.judged(step.ran) + step.traced(),
    "constant": lambda step: np.ones(step.right.shape),
    "own to go": lambda step: np.concatenate(
        [later(part) for part in np.split(step.judged(step.right), ROLES, -1)], -1
    ),
}


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


class Adam:
    """PyTorch's, with the betas of OpenRLHF."""

    def __init__(self, weights: Array, rate: float) -> None:
        self.weights, self.rate, self.count = weights, rate, 0
        self.first, self.second = np.zeros_like(weights), np.zeros_like(weights)

    def step(self, gradient: Array) -> None:
        self.count += 1
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.05 * (gradient**2 - self.second)
        mean, spread = self.first / (1 - 0.9**self.count), self.second / (1 - 0.95**self.count)
        self.weights -= self.rate * mean / (np.sqrt(spread) + 1e-8)


def started(success: float, cards: Cards, seeds: int, generator: np.random.Generator) -> Array:
    """Weights (seeds, decisions, features, words) after supervised steps on words of which so many
    are wrong that
    `success` of the trajectories have ten right ones; a little different for every seed, as warm
    starts are."""
    right = success ** (1 / len(STAGES))
    wanted = np.full((len(cards.right), len(STAGES), 4), (1 - right) / 3)
    np.put_along_axis(wanted, cards.right[..., None], right, -1)
    adam = Adam(generator.normal(0, 0.15, (seeds, len(STAGES), cards.features.shape[1], 4)), 0.05)
    for _ in range(150):
        chances = softmax(np.einsum("cf,sdfw->scdw", cards.features, adam.weights))
        adam.step(np.einsum("cf,scdw->sdfw", cards.features, chances - wanted) / len(cards.right))
    return adam.weights


def learn(
    arm: str, start: float, batch: int, seeds: int, steps: int = STEPS, rate: float = RATE
) -> Array:
    """Held-out success (steps + 1, seeds)."""
    generator = np.random.default_rng(0)
    train, test = Cards.of(held_out=False), Cards.of(held_out=True)
    adam = Adam(started(start, train, seeds, generator), rate)
    curve = [success(adam.weights, test)]
    for _ in range(steps):
        drawn = generator.integers(0, len(train.right), (seeds, batch))
        seen, right = train.features[drawn], train.right[drawn]
        chances = softmax(np.einsum("sbf,sdfw->sbdw", seen, adam.weights))
        said = (chances.cumsum(-1) < generator.random((*chances.shape[:-1], 1))).sum(-1).clip(0, 3)
        rewards = ARMS[arm](Step(said == right, *what_ran(said, train.answers[drawn])))
        advantages = np.concatenate(
            [normalised(part) for part in np.split(rewards, ROLES if arm == "to go" else [], -1)],
            -1,
        )
        pushed = (chances - np.eye(4)[said]) * advantages[..., None] / (batch * len(STAGES))
        gradient = np.einsum("sbf,sbdw->sdfw", seen, pushed)
        norm = np.sqrt((gradient**2).sum((1, 2, 3), keepdims=True))
        adam.step(gradient / np.maximum(norm, 1.0))
        curve.append(success(adam.weights, test))
    return np.array(curve)


def normalised(rewards: Array) -> Array:
    """Rewards (seeds, trajectories, decisions) as upstream normalises advantages."""
    centred = rewards - rewards.mean((1, 2), keepdims=True)
    return np.asarray(centred / np.sqrt(np.maximum((centred**2).mean((1, 2), keepdims=True), 1e-8)))


def success(weights: Array, cards: Cards) -> Array:
    """The chance of ten right words, mean over cards (seeds,)."""
    chances = softmax(np.einsum("cf,sdfw->scdw", cards.features, weights))
    right: Array = (
        np.take_along_axis(chances, cards.right[None, ..., None], -1)[..., 0].prod(-1).mean(-1)
    )
    return right


def steps_to(curve: Array, wanted: float = 0.5) -> Array:
    """The first step with that success (seeds,); infinity where there is none."""
    there = curve >= wanted
    return np.where(there.any(0), there.argmax(0), np.inf)


def recorded(arm: str) -> dict[int, list[float]]:
    """Held-out success of the real loop's runs by step, as benchmarks.dsbench has recorded it."""
    found: dict[int, list[float]] = {}
    for run in sorted(RECORDED.glob(f"{arm}-*")):
        for line in RunReader(run).metrics():
            found.setdefault(int(line["step"]), []).append(line["eval/outcome"])
    return found


def calibrate(seeds: int) -> None:
    """How near the model's `rubric` comes to the real loop's `strict`, by learning rate."""
    real = {step: statistics.fmean(values) for step, values in recorded("strict").items()}
    print(
        f"| learning rate | {' | '.join(f'step {step}' for step in real)} "
        f"|\n|---{'|---' * len(real)}|"
    )
    print(f"| strict, recorded | {' | '.join(f'{value:.3f}' for value in real.values())} |")
    for rate in (0.02, 0.03, 0.04, 0.05, 0.06, 0.08):
        curve = learn("rubric", STARTS[-1], BATCHES[0], seeds, max(real), rate)
        print(
            f"| {rate} | {' | '.join(f'{curve[step].mean():.3f}' for step in real)} |", flush=True
        )


def half(reached: Array, steps: int) -> str:
    """Median of the steps to one half, and their spread."""
    low, middle, high = (
        f"{value:g}" if np.isfinite(value) else f"> {steps}" for value in spread(reached)
    )
    return f"{middle} ({low} to {high})"


def spread(values: Array) -> tuple[float, float, float]:
    """The least, the median and the most; a median between a step and none is none."""
    ordered = np.sort(values)
    return float(ordered[0]), statistics.median(map(float, ordered)), float(ordered[-1])


def draw(curves: dict[tuple[str, float, int], Array], picture: Path) -> None:
    """Both ends of the map as curves, and the map."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
    for axis, start, batch in ((axes[0], STARTS[-1], BATCHES[0]), (axes[1], STARTS[0], BATCHES[1])):
        for n, arm in enumerate(ARMS):
            curve = curves[arm, start, batch][:121]
            axis.plot(curve.mean(1), label=arm, color=f"C{n}")
            axis.fill_between(
                range(len(curve)),
                curve.min(1),
                curve.max(1),
                color=f"C{n}",
                alpha=0.12,
                linewidth=0,
            )
        axis.set(xlabel="step", ylabel="held-out success", ylim=(0, 1))
        axis.set_title(f"{100 * start:g} % at the start, {batch} trajectories a step")
    for arm, real in REAL.items():
        found = [(step, value) for step, values in recorded(real).items() for value in values]
        label = f"{arm}, real loop" if found else None
        axes[0].plot(
            *np.array(found).reshape(-1, 2).T, "x", color=f"C{[*ARMS].index(arm)}", label=label
        )
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(ARMS), fontsize=8)
    draw_map(curves, axes[2])
    figure.savefig(picture, dpi=110)


def draw_map(curves: dict[tuple[str, float, int], Array], axis: Any) -> None:
    for n, batch in enumerate(BATCHES):
        sooner = [
            spread(steps_to(curves["outcome", s, batch]) / steps_to(curves["rubric", s, batch]))
            for s in STARTS
        ]
        places = [start * batch for start in STARTS]
        low, middle, high = (np.array(column) for column in zip(*sooner, strict=True))
        axis.errorbar(
            places,
            middle,
            [middle - low, high - middle],
            fmt="o-",
            color=f"C{n}",
            label=f"{batch} trajectories a step",
        )
        for start, place, ratio in zip(STARTS, places, middle, strict=True):
            axis.annotate(
                f"{100 * start:g} %",
                (place, ratio),
                (4, 5 - 14 * n),
                textcoords="offset points",
                fontsize=8,
            )
    axis.axhline(1, color="grey", linewidth=0.8)
    axis.set(
        xscale="log",
        xlabel="successes in the first step (mean)",
        ylabel="steps to one half: outcome / rubric",
    )
    axis.set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"], minor=False)
    axis.minorticks_off()
    axis.set_title("how much sooner with a coach")
    axis.legend(fontsize=8)


def table(
    start: float, batch: int, curves: dict[tuple[str, float, int], Array], arms: Sequence[str]
) -> None:
    first = curves["outcome", start, batch]
    print(f"\n{100 * start:g} %, {batch} trajectories a step\n")
    print(
        f"| arm | step 20 | {COMPARED} | 80 | steps to one half | {COMPARED}: points beside "
        "outcome |\n|---|---|---|---|---|---|"
    )
    for arm in arms:
        curve = curves[arm, start, batch]
        beside = points((curve[COMPARED] - first[COMPARED]).tolist()) if arm != "outcome" else ""
        means = " | ".join(f"{curve[step].mean():.3f}" for step in (20, COMPARED, 80))
        print(
            f"| {arm} | {means} | {half(steps_to(curve), len(curve) - 1)} | {beside} |", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coach_map", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=STEPS, help="80 or more")
    parser.add_argument("--picture", type=Path)
    parser.add_argument(
        "--calibrate", action="store_true", help="the fit of the learning rate, and nothing else"
    )
    options = parser.parse_args()
    if options.calibrate:
        calibrate(options.seeds)
        return
    curves: dict[tuple[str, float, int], Array] = {}
    for start in STARTS:
        for batch in BATCHES:
            curves.update(
                {
                    (arm, start, batch): learn(arm, start, batch, options.seeds, options.steps)
                    for arm in ARMS
                }
            )
            table(start, batch, curves, list(ARMS))
    if options.picture:
        draw(curves, options.picture)


if __name__ == "__main__":
    main()
