"""What a team's members earn, and what they learn from it: two small games of agents that are
tables, and Sandbox-RL's grid.

    python -m benchmarks.population [--seeds 10] [--games spread trading] [--estimators plain
        normalised] [--json]   (ten minutes)

The credit is that of `marl_plugins.cooperation`, `.competence` and `.mean_group`: their own hooks,
on trajectories of one action for each agent. An agent is a table of logits, trained by REINFORCE
without a critic: `plain` takes the credited rewards as they are, `normalised` takes the batch's
mean and deviation out of them, as the package does by default. 32 samples an epoch, 100 epochs.

    spread    two teams of four on a graph of 24 people: each agent chooses whom of eight it speaks
              to, opinions spread by majority. An agent's reward is the number of people it holds;
              whoever is held by several of a team counts for each in part. The first team learns
              with the method, the second by PG. Performance is dominance: the first team's share of
              the people who have an opinion.
    trading   six agents with signals of their own hold -1, 0 or 1 of one asset, whose return falls
              with what all of them hold. 20 days a sample, four markets an epoch, new ones in every
              epoch; volatility 0.15 a year, cost 0.001 a trade. A reward is the return in percent
              plus the days' Sharpe ratio. Performance is the team's mean return a year, in percent.

The paper has factors for cooperation x and competition y from 0 to 1, and does not say what they
are. Here x is `--cooperation.factor`, `--cooperation.tau` is 1 / y, and `--competence.eta` is y
times its decay, so that the baseline is y times the mean reward. Hence (0, 0) is plain policy
gradient, (1, 0) shares evenly, (0, 1) is the own reward with a baseline, as in docs/populations.md.
Adaptive-OM goes from (0.5, 0.5) to (0.8, 0.2), in even steps.

Performance is the mean of the last ten epochs, all of fresh samples. Convergence is the first epoch
at which the mean of ten epochs has made 95 % of the way from the first ten to the last ten.
Everything is a mean over seeds with a 95 % t-interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from marl_plugins import competence, cooperation, mean_group
from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory
from marl_plugins.engine.records.intervals import t_quantile

Array = NDArray[Any]
EPOCHS, SAMPLES, WINDOW = 100, 32, 10
FACTORS = [n / 10 for n in range(11)]
PRESETS = {
    "PG": (0.0, 0.0),
    "AP": (0.0, 1.0),
    "AC": (1.0, 0.0),
    "ACP": (1.0, 1.0),
    "paper's best": (0.8, 0.7),
}
PAPER = {  # table 3: performance, by task; the last is Sandbox-RL
    "spread": {
        "PG": 0.432,
        "AP": 0.552,
        "AC": 0.781,
        "ACP": 0.861,
        "Adaptive-OM": 0.903,
        "paper's best": 0.982,
    },
    "trading": {
        "PG": 3.2,
        "AP": 5.1,
        "AC": 8.2,
        "ACP": 12.3,
        "Adaptive-OM": 15.7,
        "paper's best": 24.8,
    },
}
TABLE_14 = np.array(
    [
        [0.608, 0.644, 0.668, 0.691, 0.729, 0.746, 0.762, 0.799, 0.808, 0.832, 0.868],
        [0.658, 0.655, 0.707, 0.728, 0.734, 0.772, 0.790, 0.818, 0.850, 0.861, 0.863],
        [0.661, 0.684, 0.708, 0.735, 0.766, 0.771, 0.816, 0.810, 0.843, 0.857, 0.867],
        [0.697, 0.718, 0.732, 0.744, 0.763, 0.800, 0.833, 0.852, 0.875, 0.886, 0.912],
        [0.693, 0.740, 0.746, 0.772, 0.802, 0.809, 0.840, 0.877, 0.895, 0.905, 0.920],
        [0.716, 0.738, 0.767, 0.786, 0.809, 0.848, 0.852, 0.892, 0.916, 0.922, 0.945],
        [0.736, 0.764, 0.770, 0.817, 0.829, 0.868, 0.884, 0.934, 0.991, 0.964, 0.963],
        [0.768, 0.767, 0.788, 0.826, 0.842, 0.869, 0.886, 0.964, 0.996, 0.990, 0.958],
        [0.777, 0.795, 0.834, 0.836, 0.858, 0.881, 0.891, 0.953, 0.986, 0.985, 0.955],
        [0.785, 0.827, 0.817, 0.853, 0.844, 0.886, 0.912, 0.931, 0.967, 0.953, 0.948],
        [0.788, 0.819, 0.846, 0.883, 0.883, 0.893, 0.924, 0.939, 0.938, 0.942, 0.937],
    ]
)
"""The paper's final performance, by competition (rows) and cooperation."""
# table 13: axis of table 14, rows or columns that give the paper's number, the paper's number in
# percent
DELTAS = {
    "cooperation 0.8-0.9": (1, (8, 9), 8.1),
    "cooperation 0.5-0.6": (1, (5, 6), -0.7),
    "cooperation 0.2-0.4": (1, (2, 3, 4), -7.4),
    "competition 0.7-0.8": (0, (7, 8), 4.0),
    "competition 0.5": (0, (5,), -1.5),
    "competition 0.3-0.4": (0, (3, 4), -4.5),
}
"""The mean over whole rows or columns against the cell (0.5, 0.5). The paper calls two of these
ranges 0.5-0.7 and 0.5-0.6, which would give +1.1 and +0.3."""


class Game(Protocol):
    agents: int
    team: int
    """How many of them, the first ones, learn with the method; the others learn by PG."""
    contexts: int
    choices: int
    tasks: int
    """Of an epoch; their samples are compared with each other."""
    rates: ClassVar[dict[str, float]]
    """Learning rate by estimator. Of 0.01, 0.03, 0.1, 0.3, 1 and 3 the smallest with which PG ends
    as well as with any, over other seeds than the benchmark's; in `spread` against a team that does
    not learn."""

    def observe(self, rng: np.random.Generator) -> Array:
        """What the agents of an epoch see, (samples, decisions, agents): indices of contexts."""

    def play(self, seen: Array, chosen: Array) -> tuple[Array, float]:
        """The rewards (samples, agents) and the performance of an epoch."""


class Spread:
    """See the module; a ring where each knows the two next on both sides, with `CHORDS` further
    ties drawn by the seed."""

    PEOPLE, CHORDS, ROUNDS = 24, 6, 3
    agents, team, contexts, choices, tasks = 8, 4, 1, 8, 1
    rates: ClassVar = {"plain": 1.0, "normalised": 3.0}

    def __init__(self, seed: int):
        rng = np.random.default_rng([seed, 1])
        ties = np.zeros((self.PEOPLE, self.PEOPLE), int)
        for person in range(self.PEOPLE):
            for other in (person + 1, person + 2):
                ties[person, other % self.PEOPLE] = 1
        for _ in range(self.CHORDS):
            ties[tuple(rng.choice(self.PEOPLE, 2, replace=False))] = 1
        self.heard = (ties | ties.T) + np.eye(self.PEOPLE, dtype=int)
        """Whose opinions a person hears, its own among them."""
        self.sites = np.arange(self.choices) * (self.PEOPLE // self.choices)
        self.steps = np.full((self.PEOPLE, self.PEOPLE), self.PEOPLE)
        reached = np.eye(self.PEOPLE, dtype=bool)
        for steps in range(self.PEOPLE):
            self.steps = np.where(reached & (self.steps == self.PEOPLE), steps, self.steps)
            reached = reached @ self.heard > 0

    def observe(self, rng: np.random.Generator) -> Array:
        return np.zeros((SAMPLES, 1, self.agents), int)

    def play(self, seen: Array, chosen: Array) -> tuple[Array, float]:
        addressed = self.sites[chosen[:, 0]]
        voices = np.zeros((SAMPLES, self.PEOPLE), int)
        side = np.where(np.arange(self.agents) < self.team, 1, -1)
        np.add.at(voices, (np.arange(SAMPLES)[:, None], addressed), side)
        opinions = np.sign(voices)
        for _ in range(self.ROUNDS):
            opinions = np.where(heard := np.sign(opinions @ self.heard), heard, opinions)
        rewards = np.empty((SAMPLES, self.agents))
        for mine, opinion in ((slice(None, self.team), 1), (slice(self.team, None), -1)):
            steps = self.steps[addressed[:, mine]]  # (samples, agents of the team, people)
            nearest = steps == steps.min(1, keepdims=True)
            rewards[:, mine] = (
                nearest / nearest.sum(1, keepdims=True) * (opinions == opinion)[:, None]
            ).sum(2)
        held, decided = (opinions == 1).sum(1), (opinions != 0).sum(1)
        return rewards, float(np.where(decided > 0, held / np.maximum(decided, 1), 0.5).mean())


class Trading:
    """See the module. A signal of strength 0, 1 or 2 names the sign of the day's return with
    probability 0.5, 0.55 or 0.7."""

    DAYS, YEAR, VOLATILITY, COST, IMPACT = 20, 252, 0.15, 0.001, 0.002
    RIGHT = np.array([0.5, 0.55, 0.7])
    agents, team, contexts, choices, tasks = 6, 6, 5, 3, 4
    rates: ClassVar = {"plain": 0.3, "normalised": 1.0}

    def __init__(self, seed: int):
        self.returns = np.empty(0)

    def observe(self, rng: np.random.Generator) -> Array:
        markets = rng.normal(0, self.VOLATILITY / self.YEAR**0.5, (self.tasks, self.DAYS))
        self.returns = np.repeat(markets, SAMPLES // self.tasks, 0)
        strength = rng.integers(3, size=(self.tasks, self.DAYS, self.agents))
        told = (
            np.where(rng.random(strength.shape) < self.RIGHT[strength], 1, -1)
            * np.sign(markets)[..., None]
        )
        return np.repeat((strength * told).astype(int) + 2, SAMPLES // self.tasks, 0)

    def play(self, seen: Array, chosen: Array) -> tuple[Array, float]:
        held = chosen - 1
        traded = np.abs(np.diff(held, axis=1, prepend=0))
        earned = (
            held * (self.returns[..., None] - self.IMPACT * held.mean(2, keepdims=True))
            - self.COST * traded
        )
        deviation = earned.std(1)
        sharpe = np.where(deviation > 0, earned.mean(1) / np.maximum(deviation, 1e-9), 0.0)
        return 100 * earned.sum(1) + sharpe, float(100 * earned.mean() * self.YEAR)


GAMES: dict[str, Callable[[int], Game]] = {"spread": Spread, "trading": Trading}


class Credit:
    """The plugins' hooks, on the rewards of one team: the same trajectories in every epoch, with
    other rewards."""

    def __init__(self, team: int, tasks: int, words: Sequence[str]):
        parser = argparse.ArgumentParser()
        for plugin in (cooperation, competence, mean_group):
            plugin.marl_options(parser)
        args: dict[str, dict[str, Any]] = defaultdict(dict)
        for flag, value in vars(parser.parse_args(words)).items():
            plugin_name, _, name = flag.partition(".")
            args[plugin_name][name] = value
        states: dict[type, Any] = {}
        self.run: Any = SimpleNamespace(
            args=SimpleNamespace(
                **{name: SimpleNamespace(**flags) for name, flags in args.items()}
            ),
            state=lambda kind: states.setdefault(kind, kind()),
        )
        names = [word.lstrip("-").partition(".")[0] for word in words]
        used = [
            p for p in (cooperation, competence, mean_group) if p.__name__.split(".")[1] in names
        ]
        self.hooks = [p.marl_credit_step for p in used]
        self.ends = [p.marl_log for p in used if hasattr(p, "marl_log")]
        said = Generation((0,), (0.0,), "stop", "", 0)
        self.trajectories = [
            Trajectory(
                Task(str(sample * tasks // SAMPLES), ""),
                sample,
                0,
                [Action(f"a{n}", f"a{n}", f"a{n}", 0, (), said, "") for n in range(team)],
            )
            for sample in range(SAMPLES)
        ]

    def __call__(self, rewards: Array, epoch: int) -> Array:
        """Rewards (samples, agents of the team) as they are trained on."""
        if not self.hooks:
            return rewards
        for trajectory, own in zip(self.trajectories, rewards.tolist(), strict=True):
            trajectory.step = epoch
            for action, reward in zip(trajectory.actions, own, strict=True):
                action.reward, action.terms = reward, {}
        for hook in self.hooks:
            hook(self.trajectories, self.run)
        for end in self.ends:
            end(self.run, {})
        return np.array([[action.reward for action in t.actions] for t in self.trajectories])


def words(x: float, y: float) -> list[str]:
    """The plugins' flags for the factors of cooperation and competition."""
    shared = (
        ["--cooperation.factor", str(x), "--cooperation.tau", str(1 / y) if y else "inf"]
        if x
        else []
    )
    return shared + (
        ["--competence.eta", str(0.1 * y), "--competence.decay", "0.1", "--competence.most", "1e9"]
        if y
        else []
    )


@dataclass(frozen=True)
class Method:
    """How a team is credited: factors of cooperation and competition from the start to the end, and
    further flags."""

    start: tuple[float, float]
    end: tuple[float, float] | None = None
    more: tuple[str, ...] = ()

    def credit(self, game: Game, epoch: int, before: Credit | None) -> Credit:
        """The credit of an epoch; one that stays the same keeps its state, and one that changes
        too."""
        if before and not self.end:
            return before
        end, part = self.end or self.start, epoch / EPOCHS
        x, y = ((1 - part) * a + part * b for a, b in zip(self.start, end, strict=True))
        credit = Credit(game.team, game.tasks, [*words(x, y), *self.more])
        if before:
            credit.run.state = before.run.state
        return credit


def curve(game: Game, method: Method, estimator: str, seed: int) -> Array:
    """Performance by epoch."""
    rng = np.random.default_rng([seed, 2])
    logits = np.zeros((game.agents, game.contexts, game.choices))
    agents, performances, credit = np.arange(game.agents), np.empty(EPOCHS), None
    for epoch in range(EPOCHS):
        seen = game.observe(rng)
        odds = np.exp(logits - logits.max(-1, keepdims=True))
        odds = (odds / odds.sum(-1, keepdims=True))[
            agents, seen
        ]  # (samples, decisions, agents, choices)
        chosen = (rng.random((*seen.shape, 1)) > odds.cumsum(-1)[..., :-1]).sum(-1)
        rewards, performances[epoch] = game.play(seen, chosen)
        credit = method.credit(game, epoch, credit)
        rewards[:, : game.team] = credit(rewards[:, : game.team], epoch)
        if estimator == "normalised":
            for mine in (slice(None, game.team), slice(game.team, None)):
                if rewards[:, mine].size:
                    rewards[:, mine] = (rewards[:, mine] - rewards[:, mine].mean()) / (
                        rewards[:, mine].std() + 1e-9
                    )
        pull = rewards[:, None, :, None] * (np.eye(game.choices)[chosen] - odds)
        for context in range(game.contexts):
            logits[:, context] += (
                game.rates[estimator] * (pull * (seen == context)[..., None]).sum((0, 1)) / SAMPLES
            )
    return performances


def final(performances: Array) -> float:
    return float(performances[-WINDOW:].mean())


def converged(performances: Array) -> float:
    """The epoch of convergence; see the module."""
    means = np.convolve(performances, np.ones(WINDOW) / WINDOW, "valid")
    way = (means - means[0]) / (means[-1] - means[0] or 1.0)
    return float((way >= 0.95).argmax() + WINDOW)


def interval(values: Sequence[float], digits: int = 3) -> str:
    """Mean and 95 % t-interval over seeds."""
    mean, half = statistics.fmean(values), 0.0
    if len(values) > 1:
        half = t_quantile(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.{digits}f} [{mean - half:.{digits}f}, {mean + half:.{digits}f}]"


def presets(name: str, estimator: str, seeds: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """The methods of the paper's table 3, and its best factors with one control for the group."""
    team = GAMES[name](0).team
    group = ("--mean_group.groups", "+".join(f"a{n}" for n in range(team)))
    methods = {each: Method(factors) for each, factors in PRESETS.items()}
    methods["Adaptive-OM"] = Method((0.5, 0.5), (0.8, 0.2))
    methods["paper's best, mean_group"] = Method(PRESETS["paper's best"], more=group)
    found = {}
    print(
        f"\n{name}, {estimator}\n\n| method | performance | against PG | convergence | in the "
        "paper |\n|---|---|---|---|---|"
    )
    first: list[float] = []
    for method, rule in methods.items():
        curves = [curve(GAMES[name](seed), rule, estimator, seed) for seed in seeds]
        found[method] = {
            "final": [final(c) for c in curves],
            "converged": [converged(c) for c in curves],
        }
        last = found[method]["final"]
        first = first or last
        beside = interval([a - b for a, b in zip(last, first, strict=True)])
        print(
            f"| {method} | {interval(last)} | {beside if method != 'PG' else ''} | "
            f"{interval(found[method]['converged'], 0)} | "
            f"{PAPER[name].get(method, '')} |",
            flush=True,
        )
    return found


def grid(name: str, estimator: str, seeds: Sequence[int]) -> Array:
    """Final performance by seed, competition and cooperation, and what the paper says of its
    own."""
    found = np.array(
        [
            [
                [final(curve(GAMES[name](seed), Method((x, y)), estimator, seed)) for x in FACTORS]
                for y in FACTORS
            ]
            for seed in seeds
        ]
    )
    mean = found.mean(0)
    print(
        f"\n| competition \\ cooperation | {' | '.join(map(str, FACTORS))} "
        f"|\n|---|{'---|' * len(FACTORS)}"
    )
    for y, line in zip(FACTORS, mean, strict=True):
        print(f"| {y} | {' | '.join(f'{cell:.3f}' for cell in line)} |")
    ranks = [float(spearmanr(each.ravel(), TABLE_14.ravel()).statistic) for each in found]
    together = float(spearmanr(mean.ravel(), TABLE_14.ravel()).statistic)
    row, column = np.unravel_index(mean.argmax(), mean.shape)
    print(
        f"\nrank correlation with table 14: {interval(ranks)} by seed, {together:.3f} of the means "
        "over seeds"
    )
    print(f"best cell: cooperation {FACTORS[column]}, competition {FACTORS[row]}, {mean.max():.3f}")
    print("\n| range against (0.5, 0.5), percent | here | table 14 | table 13 |\n|---|---|---|---|")
    for what, (axis, lines, paper) in DELTAS.items():
        above = (found.take(lines, axis + 1).mean((1, 2)) - found[:, 5, 5]) / abs(mean[5, 5])
        here = interval((100 * above).tolist(), 1)
        print(
            f"| {what} | {here} | "
            f"{100 * (TABLE_14.take(lines, axis).mean() / TABLE_14[5, 5] - 1):+.1f} | {paper:+.1f} "
            "|",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.population", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=10, help="runs of each cell, 10 by default")
    parser.add_argument("--games", nargs="+", choices=[*GAMES], default=[*GAMES])
    parser.add_argument(
        "--estimators", nargs="+", choices=["plain", "normalised"], default=["plain", "normalised"]
    )
    parser.add_argument("--presets", action="store_true", help="without the grid")
    parser.add_argument("--json", action="store_true", help="everything by seed, as a last line")
    options = parser.parse_args()
    seeds, found = range(options.seeds), {}
    for name in options.games:
        for estimator in options.estimators:
            found[f"{name}, {estimator}"] = {"presets": presets(name, estimator, seeds)}
            if not options.presets:
                found[f"{name}, {estimator}"]["grid"] = grid(name, estimator, seeds).tolist()
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
