"""The rows of one update with their tensors, as one value: forward, advantages, update.

    forwarded = await policy.forward(rows)               log-probs, KL and values of one policy's rows
    prepared, ... = estimate([forwarded, ...], estimator)     advantages of all policies together
    await policy.update(prepared, steps, step)

Nothing of a step waits anywhere else, so any number of such values may exist at a time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Installs the host support, before upstream is imported below.
import marl_plugins.runtime.policy_actor  # isort: skip  # noqa: F401
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience import Experience, split_experience_batch
from openrlhf.trainer.ppo_utils.replay_buffer import remove_padding_in_sequences

from marl_plugins.core.estimators import Estimator
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.rows import Row


@dataclass(frozen=True)
class Forwarded:
    """Rows of one policy after their forward passes.

    Args:
        policy: Its name.
        rows: In the order in which they were given.
        micro_batches: The rows and upstream's `Experience` of each forward pass: log-probs and KL (rows, tokens), values where
            there is a critic, rewards (rows,).
        kl_coef: Coefficient of the KL penalty at the time of the forward passes.
        clip_range: Bounds of rewards, upstream's `--reward.clip_range`.
    """

    policy: str
    rows: Sequence[Row]
    micro_batches: Sequence[tuple[Sequence[Row], Experience]]
    kl_coef: float = 0.0
    clip_range: Sequence[float] | None = None

    @property
    def drift(self) -> float:
        """Mean absolute difference of the trainer's and the engine's log-probs over all sampled tokens."""
        total = tokens = 0.0
        for _, e in self.micro_batches:
            total += ((e.action_log_probs - e.rollout_log_probs).abs() * e.action_mask).sum().item()
            tokens += e.action_mask.sum().item()
        return total / tokens if tokens else 0.0

    def rows_not_finite(self, name: str) -> list[str]:
        """Names of the rows of which a tensor (`action_log_probs`, `kl`, `values`) is not finite."""
        return [
            row.name
            for rows, e in self.micro_batches
            for row, good in zip(rows, torch.isfinite(getattr(e, name)).all(-1).tolist(), strict=True)
            if not good
        ]

    def outside_clip_range(self, returns: torch.Tensor) -> int:
        """How many of the returns (rows,), their baselines subtracted, upstream clips."""
        if not self.clip_range:
            return 0
        low, high = self.clip_range
        return int(((returns < low) | (returns > high)).sum())

    def estimate_returns(self, e: Experience, estimator: Estimator) -> None:
        """Write returns and advantages per token, from the KL penalty at every token and the reward at the last."""
        rewards = compute_reward(
            e.rewards.float(), self.kl_coef, e.kl, action_mask=e.action_mask, reward_clip_range=self.clip_range
        )
        e.advantages, e.returns = estimator.estimate(rewards, e.action_mask, e.values)
        e.info = {**e.info, "return": (rewards * e.action_mask).sum(-1)}


@dataclass(frozen=True)
class Prepared:
    """Rows of one policy with their advantages, ready for an update.

    Args:
        items: One experience per row, without padding.
        drift: Of the forward passes.
        clipped: Number of rows whose return `--reward.clip_range` changed.
    """

    policy: str
    rows: Sequence[Row]
    items: Sequence[Experience]
    drift: float
    clipped: int = 0


def estimate(forwarded: Sequence[Forwarded], estimator: Estimator) -> list[Prepared]:
    """Advantages of the rows of all policies together: baselines and statistics span all of them.

    What was given stays as it is; each action is told its advantages, for the records.

    Raises:
        RunEnded: The estimator cannot compare the rows, or gave advantages that are not finite.
    """
    batches = [(f, rows, copy.copy(e)) for f in forwarded for rows, e in f.micro_batches]
    if not batches:
        return []
    rewards = torch.cat([e.rewards.float() for _, _, e in batches])
    shaped = estimator.shape([row for _, rows, _ in batches for row in rows], rewards)
    clipped = dict.fromkeys((f.policy for f in forwarded), 0)
    for (f, _, e), mine in zip(batches, torch.split(shaped, [len(rows) for _, rows, _ in batches]), strict=True):
        e.rewards = mine
        clipped[f.policy] += f.outside_clip_range(mine)
        f.estimate_returns(e, estimator)
    statistics = estimator.statistics([(rows, e.advantages, e.action_mask) for _, rows, e in batches])
    for _, rows, e in batches:
        e.advantages = estimator.apply(rows, e.advantages, statistics)
        note_advantages(rows, e)
        e.kl = None
    if broken := [row for _, rows, _ in batches for row in rows if not all(map(math.isfinite, row.action.advantages))]:
        raise RunEnded(
            f"{type(estimator).__name__}: {len(broken)} rows have advantages that are not finite, the first {broken[0].name}, "
            f"whose return is {broken[0].reward}; nothing of this step was trained on"
        )
    made = []
    for f in forwarded:
        items = [item for g, _, e in batches if g is f for item in split_experience_batch(e)]
        remove_padding_in_sequences(items)
        made.append(Prepared(f.policy, f.rows, items, f.drift, clipped[f.policy]))
    return made


def note_advantages(rows: Sequence[Row], e: Experience) -> None:
    """Write the advantages of a micro-batch onto its actions: one per sampled token, and their mean."""
    sampled = e.action_mask.bool()
    means = (e.advantages * e.action_mask).sum(-1) / e.action_mask.sum(-1)
    per_row = torch.split(e.advantages[sampled], sampled.sum(-1).tolist())
    for row, mean, values in zip(rows, means.tolist(), per_row, strict=True):
        row.action.advantage, row.action.advantages = mean, tuple(values.tolist())


def row_experience(row: Row) -> Experience:
    """One row as upstream has it: (1, T) ids and mask, (1, T-1) action mask and sampled log-probs, (1,) the rest."""
    context, generation = row.action.context_ids, row.action.generation
    ids = torch.tensor([*context, *generation.ids], dtype=torch.long)[None]
    shown, sampled = len(context), len(generation.ids)
    mask = torch.zeros_like(ids)
    mask[:, shown:] = 1
    logprobs = torch.zeros(ids.shape, dtype=torch.float32)
    logprobs[:, shown:] = torch.tensor(generation.logprobs, dtype=torch.float32)
    reward = torch.tensor([row.reward], dtype=torch.float32)
    return Experience(
        sequences=ids,
        attention_mask=torch.ones_like(ids),
        action_mask=mask[:, 1:],
        rollout_log_probs=logprobs[:, 1:],
        prompts=[row.name],
        labels=[""],
        images=[None],
        mm_train_inputs=[None],
        rewards=reward,
        scores=reward.clone(),
        response_length=torch.tensor([sampled]),
        truncated=torch.tensor([generation.finish == "length"]),
        total_length=torch.tensor([float(shown + sampled)]),
        info={"reward": reward.clone()},
    )


def weightless(item: Experience) -> Experience:
    """A copy of a row that weighs nothing: no token of it is in any mask."""
    blank = copy.copy(item)
    blank.action_mask = torch.zeros_like(item.action_mask)
    blank.advantages = torch.zeros_like(item.advantages)
    blank.returns = torch.zeros_like(item.returns)
    return blank
