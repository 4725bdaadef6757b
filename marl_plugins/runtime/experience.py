"""The rows of one update with their tensors, as one value: forward, advantages, update.

    prepared = await policy.forward(rows)            log-probs, KL and values of one policy's rows
    estimate([prepared, ...], estimator)             advantages of all policies together
    await policy.update(prepared, steps, step)

Nothing of a step waits anywhere else, so any number of such values may exist at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# Installs the host support, before upstream is imported below.
import marl_plugins.runtime.policy_actor  # isort: skip  # noqa: F401
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience import Experience, split_experience_batch
from openrlhf.trainer.ppo_utils.replay_buffer import remove_padding_in_sequences

from marl_plugins.core.estimators import Batch, Estimator
from marl_plugins.core.rows import Row


@dataclass
class Prepared:
    """Rows of one policy after their forward passes.

    Args:
        policy: Its name.
        rows: In the order in which they were given.
        micro_batches: The rows and upstream's `Experience` of each forward pass: log-probs and KL (rows, tokens), values where
            there is a critic, rewards (rows,).
        kl_coef: Coefficient of the KL penalty at the time of the forward passes.
        clip_range: Bounds of rewards, upstream's `--reward.clip_range`.
        items: One experience per row, without padding, once advantages are known.
    """

    policy: str
    rows: Sequence[Row]
    micro_batches: list[tuple[Sequence[Row], Experience]]
    kl_coef: float = 0.0
    clip_range: Sequence[float] | None = None
    items: list[Experience] = field(default_factory=list)

    @property
    def drift(self) -> float:
        """Mean absolute difference of the trainer's and the engine's log-probs over all sampled tokens."""
        total = tokens = 0.0
        for _, e in self.micro_batches:
            total += ((e.action_log_probs - e.rollout_log_probs).abs() * e.action_mask).sum().item()
            tokens += e.action_mask.sum().item()
        return total / tokens if tokens else 0.0

    def not_finite(self, name: str) -> list[str]:
        """Names of the rows of which a tensor (`action_log_probs`, `kl`, `values`) is not finite."""
        return [
            row.name
            for rows, e in self.micro_batches
            for row, good in zip(rows, torch.isfinite(getattr(e, name)).all(-1).tolist(), strict=True)
            if not good
        ]

    def _estimated(self, estimator: Estimator) -> list[Batch]:
        """Returns and advantages per token, from the KL penalty at every token and the reward at the last."""
        batches: list[Batch] = []
        for rows, e in self.micro_batches:
            rewards = compute_reward(
                e.rewards.float(), self.kl_coef, e.kl, action_mask=e.action_mask, reward_clip_range=self.clip_range
            )
            e.advantages, e.returns = estimator.estimate(rewards, e.action_mask, e.values)
            e.info["return"] = (rewards * e.action_mask).sum(-1)
            batches.append((rows, e.advantages, e.action_mask))
        return batches

    def _finish(self, estimator: Estimator, statistics: Any) -> None:
        """Normalise the advantages, note them on the actions, and cut the micro-batches into rows."""
        for rows, e in self.micro_batches:
            e.advantages = estimator.apply(rows, e.advantages, statistics)
            e.kl = None
            sampled = e.action_mask.bool()
            means = (e.advantages * e.action_mask).sum(-1) / e.action_mask.sum(-1)
            per_row = torch.split(e.advantages[sampled], sampled.sum(-1).tolist())
            for row, mean, values in zip(rows, means.tolist(), per_row, strict=True):
                row.action.advantage, row.action.advantages = mean, tuple(values.tolist())
            self.items += split_experience_batch(e)
        remove_padding_in_sequences(self.items)


def estimate(prepared: Sequence[Prepared], estimator: Estimator) -> None:
    """Advantages of the rows of all policies together: baselines and statistics span all of them.

    Raises:
        RunEnded: The estimator cannot compare the rows.
    """
    batches = [batch for p in prepared for batch in p.micro_batches]
    if not batches:
        return
    rewards = torch.cat([e.rewards.float() for _, e in batches])
    shaped = estimator.shape([row for rows, _ in batches for row in rows], rewards)
    for (_, e), mine in zip(batches, torch.split(shaped, [len(rows) for rows, _ in batches]), strict=True):
        e.rewards = mine
    statistics = estimator.statistics([batch for p in prepared for batch in p._estimated(estimator)])
    for p in prepared:
        p._finish(estimator, statistics)


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
