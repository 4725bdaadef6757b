"""What teaches a judge which actions help, at equally many sampled answers? Without engines: a
small network in the judge's place.

    python -m benchmarks.judged_effects [--seeds 0 1 2 3] [--steps 300] [--spread 0 1.5 3]

Two members act one after the other, and a trajectory's chance of success depends on what both did
and on its task. The judge sees a noisy sign of the member's own part and of what was done before,
and the task's ease; it draws one of eleven scores for each member, and begins generous
(benchmarks/trained_judge.py). Every step it is trained on 256 answers, by the package's own rewards
and estimator, with one Adam step. Its scores are held against

    outcome   the outcomes of 16 tasks with eight samples (`--coach.learn outcome`)
    effect    of the same samples, less the mean outcome of the task's others (`--coach.learn
              effect`)
    forks     of 51 trajectories, each outcome less that of a fork of the action: it and what
              follows are drawn again

Pearson's correlation of single scores with the true effect, which is the chance of success with the
action less that before it, by member, on 500 held-out tasks with eight samples: means over seeds,
with the least and the most. `the outcome itself` is that of the outcomes with the effect. --spread
is the standard deviation of the tasks' log-odds.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from benchmarks.trained_judge import EASE, NOISE, WEIGHTS, advantages, cell
from marl_plugins.coach.training import rewards

SAMPLES, TASKS, FORKED = 8, 16, 51
"""A step: samples of a task, tasks, and trajectories whose two actions are forked."""
HELD_OUT, DRAWS = 500, 100
"""Tasks, and draws of what is not yet done."""
ARMS = ("outcome", "effect", "forks")


class World:
    """Trajectories of tasks.

    Args:
        spread: Standard deviation of the tasks' log-odds.
    """

    def __init__(self, spread: float, seed: int):
        self.spread = spread
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def draw(self, tasks: int, samples: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns parts (trajectories, members), signs of the same shape and ease
        (trajectories,)."""
        ease = EASE + self.spread * self.normal(tasks).repeat_interleave(samples)
        parts = self.normal(tasks * samples, len(WEIGHTS))
        return parts, parts + NOISE * self.normal(*parts.shape), ease

    def outcomes(self, parts: Tensor, ease: Tensor) -> Tensor:
        return torch.bernoulli(chance(parts, ease), generator=self.generator)

    def redrawn(self, parts: Tensor, member: int) -> Tensor:
        """Returns the parts with that of a member, and of who follows, drawn again."""
        again = parts.clone()
        again[:, member:] = self.normal(len(parts), len(WEIGHTS) - member)
        return again

    def effects(self, parts: Tensor, ease: Tensor) -> Tensor:
        """Returns true effects (trajectories, members)."""
        before = [
            torch.stack([chance(self.redrawn(parts, member), ease) for _ in range(DRAWS)]).mean(0)
            for member in range(len(WEIGHTS))
        ]
        after = [*before[1:], chance(parts, ease)]
        return torch.stack(after, 1) - torch.stack(before, 1)


def chance(parts: Tensor, ease: Tensor) -> Tensor:
    return torch.sigmoid(parts @ WEIGHTS + ease)


class Judge(torch.nn.Module):
    """Signs and ease to the logits of eleven scores for each member."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(5, 32), torch.nn.Tanh(), torch.nn.Linear(32, 11)
        )

    def forward(self, signs: Tensor, ease: Tensor) -> Tensor:
        none, one = torch.zeros_like(ease), torch.ones_like(ease)
        first = torch.stack([signs[:, 0], none, one, none, ease], -1)
        second = torch.stack([signs[:, 1], signs[:, 0], none, one, ease], -1)
        logits: Tensor = self.layers(torch.stack([first, second], 1))
        return logits

    def said(
        self, signs: Tensor, ease: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns drawn scores in [0, 1] and their log-probabilities, (trajectories, members)."""
        logprobs = self(signs, ease).log_softmax(-1)
        chances = logprobs.detach().exp().flatten(0, 1)
        drawn = torch.multinomial(chances, 1, generator=generator).view(signs.shape)
        return drawn / 10, logprobs.gather(-1, drawn[..., None])[..., 0]


def update(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def generous(judge: Judge, world: World) -> None:
    """Teaches it to say about 8, a little more for a good sign."""
    optimiser = torch.optim.Adam(judge.parameters(), 1e-2)
    for _ in range(200):
        _, signs, ease = world.draw(TASKS * SAMPLES, 1)
        wanted = torch.clamp(8 + 0.5 * signs + world.normal(*signs.shape), 0, 10).round().long()
        logits = judge(signs, ease - EASE).flatten(0, 1)
        update(optimiser, torch.nn.functional.cross_entropy(logits, wanted.flatten()))


def learn(judge: Judge, world: World, arm: str, steps: int) -> None:
    """Trains it on fresh trajectories."""
    optimiser = torch.optim.Adam(judge.parameters(), 1e-2)
    for _ in range(steps):
        parts, signs, ease = world.draw(*((FORKED, 1) if arm == "forks" else (TASKS, SAMPLES)))
        outcomes = world.outcomes(parts, ease)[:, None].expand_as(parts)
        if arm == "effect":
            own = outcomes.view(TASKS, SAMPLES, -1)
            others = (own.sum(1, keepdim=True) - own) / (SAMPLES - 1)
            outcomes = ((1 + own - others) / 2).view(parts.shape)
        elif arm == "forks":
            members = range(len(WEIGHTS))
            forks = [world.outcomes(world.redrawn(parts, member), ease) for member in members]
            outcomes = (1 + outcomes - torch.stack(forks, 1)) / 2
        scores, logprobs = judge.said(signs, ease - EASE, world.generator)
        update(optimiser, -(logprobs * advantages(reward_of(scores, outcomes))).mean())


def reward_of(scores: Tensor, outcomes: Tensor) -> Tensor:
    """Returns the rewards of verdicts, (trajectories, members)."""
    columns = zip(scores.T.tolist(), outcomes.T.tolist(), strict=True)
    return torch.tensor([rewards(list(zip(s, o, strict=True))) for s, o in columns]).T


def correlations(scores: Tensor, effects: Tensor) -> list[float]:
    """Returns Pearson's correlation by member."""
    each = zip(scores.T, effects.T, strict=True)
    return [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in each]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.judged_effects",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--spread", type=float, nargs="+", default=[0.0, 1.5, 3.0])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| spread of tasks | held against | seeds | first member | second member |")
    print("|---|---|---|---|---|", flush=True)
    for spread in options.spread:
        found: dict[str, list[list[float]]] = {}
        for seed in options.seeds:
            held_out = World(spread, 10**6 + seed)
            parts, signs, ease = held_out.draw(HELD_OUT, SAMPLES)
            effects = held_out.effects(parts, ease)
            outcomes = held_out.outcomes(parts, ease)[:, None].expand_as(parts)
            itself = correlations(outcomes, effects)
            found.setdefault("(the outcome itself)", []).append(itself)
            for arm in ("as it begins", *ARMS):
                torch.manual_seed(seed)
                judge, world = Judge(), World(spread, seed)
                generous(judge, world)
                learn(judge, world, arm, options.steps if arm in ARMS else 0)
                with torch.no_grad():
                    scores, _ = judge.said(signs, ease - EASE, world.generator)
                found.setdefault(arm, []).append(correlations(scores, effects))
        for arm, values in found.items():
            cells = [cell(column) for column in zip(*values, strict=True)]
            print(f"| {spread:g} | {arm} | {len(values)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
