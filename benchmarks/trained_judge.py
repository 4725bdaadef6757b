"""What a judge learns from its reward (marl_plugins/coach/training.py), without engines: a small
network in the judge's place.

    python -m benchmarks.trained_judge [--seeds 0 1 2 3 4] [--steps 150] [--ease -1]

A trajectory has a chance of success that depends on what its two members did; the judge sees a
noisy sign of each member's part and draws one of eleven scores for each. It begins generous: around
8 of 10, a little higher where the sign is good. Every step is 128 fresh trajectories, whose
verdicts become rewards by the package's own code and advantages by its own estimator, and one Adam
step.

    reward                    as shipped
    calibration, ranking      either half alone
    mean                      Brier's score of the mean of a trajectory's scores, the same for all
                              its verdicts
    frozen                    learning rate 0

On 4,000 held-out trajectories, of single scores: calibration error (the mean distance of score and
share of successes, in ten bins of equal size), Brier's score and the area under the ROC curve;
`oracle` is the chance of success given the sign, which is the best there is. Means over seeds, with
the least and the most.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from marl_plugins.builtin.reinforce_pp import ReinforcePlusPlus
from marl_plugins.coach.training import rewards, shares_in_tau
from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory

ROLES = ("planner", "coder")
WEIGHTS = torch.tensor([1.2, 2.4])
"""How much each member's part decides."""
EASE = -1.0
"""One success in three; -5: one in sixteen."""
NOISE = 0.6
STEP, HELD_OUT = 128, 4000
Reward = Callable[[Tensor, Tensor], Tensor]
"""Scores (trajectories, roles) in [0, 1] and outcomes (trajectories,) to rewards (trajectories,
roles)."""


def draw(count: int, generator: torch.Generator, ease: float) -> tuple[Tensor, Tensor]:
    """Signs (trajectories, roles) and outcomes (trajectories,)."""
    parts = torch.randn(count, len(ROLES), generator=generator)
    chances = torch.sigmoid(parts @ WEIGHTS + ease)
    signs = parts + NOISE * torch.randn(parts.shape, generator=generator)
    return signs, torch.bernoulli(chances, generator=generator)


def by_role(reward: Callable[[list[float], list[float]], list[float]]) -> Reward:
    """A reward that compares the verdicts on one role."""

    def of(scores: Tensor, outcomes: Tensor) -> Tensor:
        columns = [reward(column.tolist(), outcomes.tolist()) for column in scores.T]
        return torch.tensor(columns).T

    return of


REWARDS: dict[str, Reward] = {
    "reward": by_role(lambda s, o: rewards(list(zip(s, o, strict=True)))),
    "calibration": by_role(lambda s, o: [1 - (a - b) ** 2 for a, b in zip(s, o, strict=True)]),
    "ranking": by_role(lambda s, o: shares_in_tau(list(zip(s, o, strict=True)))),
    "mean": lambda s, o: (1 - (s.mean(1) - o) ** 2)[:, None].expand_as(s),
    "frozen": by_role(lambda s, o: [0.0] * len(s)),
}


class Judge(torch.nn.Module):
    """A sign and whose it is, to the logits of eleven scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 11)
        )

    def forward(self, signs: Tensor) -> Tensor:
        whose = torch.eye(len(ROLES)).expand(len(signs), -1, -1)
        logits: Tensor = self.layers(torch.cat([signs[..., None], whose], -1))
        return logits


def generous(judge: Judge, generator: torch.Generator, ease: float) -> None:
    """Teach it to say about 8, a little more for a good sign."""
    optimiser = torch.optim.Adam(judge.parameters(), 1e-2)
    for _ in range(200):
        signs, _ = draw(STEP, generator, ease)
        wanted = (
            torch.clamp(8 + 0.5 * signs + torch.randn(signs.shape, generator=generator), 0, 10)
            .round()
            .long()
        )
        loss = torch.nn.functional.cross_entropy(judge(signs).flatten(0, 1), wanted.flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def advantages(given: Tensor) -> Tensor:
    """Advantages (trajectories, roles) of rewards, each verdict a row of one token."""
    estimator = ReinforcePlusPlus(normalise="role")
    generation = Generation((0,), (0.0,), "stop", "judge", 0)
    trajectory = Trajectory(Task("t", ""), 0, 1)
    rows = [
        Row(trajectory, Action("", f"judge/{r}", "judge", 0, (), generation, ""), 0.0)
        for _ in given
        for r in ROLES
    ]
    tokens, mask = given.flatten()[:, None], torch.ones(given.numel(), 1)
    raw, _ = estimator.estimate(tokens, mask, None)
    return estimator.apply(rows, raw, estimator.statistics([(rows, raw, mask)])).view_as(given)


def learn(
    judge: Judge, reward: Reward, steps: int, rate: float, generator: torch.Generator, ease: float
) -> None:
    """Train on fresh trajectories."""
    optimiser = torch.optim.Adam(judge.parameters(), rate)
    for _ in range(steps):
        signs, outcomes = draw(STEP, generator, ease)
        logprobs = judge(signs).log_softmax(-1)
        chosen = torch.multinomial(
            logprobs.detach().exp().flatten(0, 1), 1, generator=generator
        ).view(signs.shape)
        taken = logprobs.gather(-1, chosen[..., None])[..., 0]
        loss = -(taken * advantages(reward(chosen / 10, outcomes))).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def measured(scores: Tensor, outcomes: Tensor) -> tuple[float, float, float]:
    """Calibration error, Brier's score and area under the ROC curve, each the mean over the
    roles."""
    from sklearn.metrics import roc_auc_score

    found = []
    for column in scores.T:
        order = column.argsort(stable=True)
        bins = [(column[part].mean() - outcomes[part].mean()).abs() for part in order.chunk(10)]
        brier = (column - outcomes).square().mean()
        found.append(
            (torch.stack(bins).mean().item(), brier.item(), float(roc_auc_score(outcomes, column)))
        )
    each = [statistics.fmean(values) for values in zip(*found, strict=True)]
    return each[0], each[1], each[2]


def said(judge: Judge, signs: Tensor, generator: torch.Generator) -> Tensor:
    """Scores in [0, 1], drawn as in a step."""
    with torch.no_grad():
        return (
            torch.multinomial(judge(signs).softmax(-1).flatten(0, 1), 1, generator=generator).view(
                signs.shape
            )
            / 10
        )


def oracle(signs: Tensor, generator: torch.Generator, ease: float) -> Tensor:
    """The chance of success given the sign of one part, by simulation."""
    scores = torch.empty_like(signs)
    shrink = 1 / (1 + NOISE**2)
    for role, weight in enumerate(WEIGHTS):
        draws = torch.randn(len(signs), 400, generator=generator)
        part = signs[:, role, None] * shrink + draws * (shrink * NOISE**2) ** 0.5
        other = torch.randn(len(signs), 400, generator=generator) * WEIGHTS[1 - role]
        scores[:, role] = torch.sigmoid(weight * part + other + ease).mean(1)
    return scores


def cell(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trained_judge", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument(
        "--ease",
        type=float,
        default=EASE,
        help="log-odds of success of two average members (default: %(default)s)",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in options.seeds:
        held_out = draw(HELD_OUT, torch.Generator().manual_seed(10**6 + seed), options.ease)
        signs, outcomes = held_out
        found.setdefault("oracle", []).append(
            measured(oracle(signs, torch.Generator().manual_seed(seed), options.ease), outcomes)
        )
        for arm, reward in REWARDS.items():
            torch.manual_seed(seed)
            generator = torch.Generator().manual_seed(seed)
            judge = Judge()
            generous(judge, generator, options.ease)
            learn(
                judge,
                reward,
                options.steps,
                0.0 if arm == "frozen" else 1e-2,
                generator,
                options.ease,
            )
            found.setdefault(arm, []).append(measured(said(judge, signs, generator), outcomes))
    shares = [
        draw(HELD_OUT, torch.Generator().manual_seed(10**6 + seed), options.ease)[1].mean().item()
        for seed in options.seeds
    ]
    print(f"success: {cell(shares)}\n")
    print("| arm | seeds | calibration error | Brier | area under ROC |\n|---|---|---|---|---|")
    for arm, values in found.items():
        cells = [cell(column) for column in zip(*values, strict=True)]
        print(f"| {arm} | {len(values)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
