"""Gradients of one step that are computed during its rollout: what has been accumulated, and
whether it still holds.

    add         the gradients of a policy's rows of whole tasks, of advantages as far as they are
                known with these tasks (`Estimator.shape_within_tasks`, `estimate`)
    prepared    after the estimator's last stage: what the update takes along, and with what mean
                and deviation

The advantages that were accumulated are compared with those that the step gives the same sequences.
They differ where a plugin or an estimator needs more of a step than it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from marl_plugins import Action, Estimator, Row, RunEnded

# inside: works in the training processes
from marl_plugins.core.advantages import Moments
from marl_plugins.core.sequences import TokenSequence
from marl_plugins.engine.runtime.experience import (
    Experience,
    ExtensionCall,
    ForwardedExperience,
    PreparedExperience,
    actions_of,
    before_statistics,
    items_of,
)
from marl_plugins.streaming.accumulators import resolved
from marl_plugins.streaming.batches import gradient_batches
from marl_plugins.streaming.worker import AccumulatedGradients

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""What `--ds.param_dtype` means, where gradients are computed during a rollout."""
WORKER = AccumulatedGradients.__name__


@dataclass(frozen=True)
class AccumulatedSequence:
    """A sequence whose gradient has been added.

    Args:
        advantages: (tokens,), those that were accumulated.
        groups: (tokens,), an index of `names` at each sampled token, -1 elsewhere.
        names: Normalisation groups of the estimator.
    """

    advantages: Tensor
    groups: Tensor
    names: Sequence[str]

    def moments(self) -> Iterator[tuple[str, Moments]]:
        """Yields each group that it has tokens of, with the moments of their advantages."""
        for number, name in enumerate(self.names):
            if (mine := self.groups == number).any():
                yield name, Moments.of(self.advantages, mine)

    def matches(
        self, item: Experience, last: Mapping[str, tuple[float, float]], largest: float
    ) -> bool:
        """Returns whether the step gives it the same advantages, after the estimator's last stage.

        Args:
            last: By group, the mean and the deviation of that stage.
            largest: The largest |advantage| of the policy's rows: a ten-thousandth of it is no
                difference, nor is rounding.
        """
        means, deviations = torch.zeros(2, *self.groups.shape)
        for number, name in enumerate(self.names):
            mine = self.groups == number
            means[mine], deviations[mine] = last.get(name, (0.0, 1.0))
        off = ((self.advantages - means) / deviations - item.advantages).abs()
        size = (self.advantages.abs() + means.abs()) / deviations
        return bool((off <= 1e-4 * largest + 1e-5 * size)[self.groups >= 0].all())


class GradientAccumulation:
    """The gradients of one step, of all policies.

    Args:
        means: By normalisation group, the mean of the version before; those of this one take their
            place at its end.
    """

    def __init__(self, estimator: Estimator, policies: Mapping[str, Any], means: dict[str, float]):
        self.estimator, self.policies, self.means = estimator, policies, means
        self.affine = estimator.accumulators == 2  # else advantages are final with their tasks
        self.added: dict[str, dict[tuple[Action, ...], AccumulatedSequence]] = {}
        """By policy, each sequence by its actions."""
        self._returns: dict[Action, float] = {}
        """By action, its row's return and what other rows of the task make of it."""

    def note_returns(self, rows: Sequence[Row]) -> None:
        """Takes the returns of the credited rows of whole tasks, of all policies, before `add`."""
        if rows:
            rewards = torch.tensor([row.reward for row in rows], dtype=torch.float32)
            shaped = self.estimator.shape_within_tasks(rows, rewards).tolist()
            self._returns |= {row.action: value for row, value in zip(rows, shaped, strict=True)}

    async def add(self, f: ForwardedExperience) -> None:
        """Computes the gradients of a policy's credited rows and adds them to those before. One
        call after the other for each policy, in the order of the step, and for every row once."""
        estimator, policy = self.estimator, self.policies[f.policy]
        shaped = torch.tensor([self._returns[row.action] for row in f.rows], dtype=torch.float32)
        reward, advantages, returns = before_statistics(f, shaped, estimator)
        if not self.affine:
            advantages = estimator.apply(
                f.rows, advantages, estimator.statistics([(f.rows, advantages, f.tokens.mask)])
            )
        items = items_of(f, advantages, returns, (reward * f.tokens.mask).sum(-1))
        names = sorted({estimator.normalisation_group(row) for row in f.rows})
        accumulated = [
            AccumulatedSequence(item.advantages, self._groups(sequence, item, names), names)
            for sequence, item in zip(f.sequences, items, strict=True)
        ]
        if f.policy not in self.added:
            await policy.extension(WORKER, "begin", dict(self.means), self.affine)
        added = self.added.setdefault(f.policy, {})
        of_ranks, trees = gradient_batches(
            policy, f.sequences, items, [each.groups for each in accumulated]
        )
        kl_coef = policy.trainer.kl_ctl.value
        answers = await policy.extension(WORKER, "add", names, kl_coef, each=of_ranks)
        good = (each for answer in answers for each in answer)
        linear = {n: each for tree, each in zip(trees, good, strict=True) for n in tree}
        for number, (sequence, each) in enumerate(zip(f.sequences, accumulated, strict=True)):
            if linear[number]:
                added[actions_of(sequence)] = each

    def _groups(self, sequence: TokenSequence, item: Experience, names: Sequence[str]) -> Tensor:
        """The number of the normalisation group at each sampled token, (tokens,)."""
        groups = torch.full(item.action_mask.shape, -1)
        for row, places in sequence.predicted:
            groups[places] = names.index(self.estimator.normalisation_group(row))
        return groups

    def prepared(self, prepared: Sequence[PreparedExperience]) -> list[PreparedExperience]:
        """Returns the rows of all policies with what their updates take along.

        Raises:
            RunEnded: The step gives a sequence other advantages than it was accumulated with.
        """
        updated = [self._of_policy(p) for p in prepared]
        if self.affine:
            self.means |= {name: mean for p in prepared for name, (mean, _) in p.last.items()}
        return updated

    def _of_policy(self, p: PreparedExperience) -> PreparedExperience:
        """A policy's rows with all that was accumulated, or without anything where that is not
        exact enough."""
        added = self.added.get(p.policy)
        if not added:
            return p
        places = {actions_of(sequence): n for n, sequence in enumerate(p.sequences)}
        largest = max(item.advantages.abs().max().item() for item in p.items)
        for actions, each in added.items():
            if actions not in places or not each.matches(p.items[places[actions]], p.last, largest):
                raise RunEnded(self._difference(p, places.get(actions)))
        if self.affine and not self._resolved(p, added.values()):
            return p
        excluded, policy = frozenset(places[actions] for actions in added), self.policies[p.policy]
        tokens = float(sum(p.items[n].action_mask.sum().item() for n in excluded))
        carry = ExtensionCall(WORKER, "carry", (dict(p.last), tokens, len(excluded)))
        metrics = {
            **p.metrics,
            "carried": float(len(excluded)),
            **means_over_rows(p, policy.args.algo.kl.use_loss),
        }
        return replace(p, excluded=excluded, calls=(*p.calls, carry), metrics=metrics)

    def _resolved(self, p: PreparedExperience, added: Iterable[AccumulatedSequence]) -> bool:
        """See `resolved` in accumulators.py."""
        moments: dict[str, Moments] = {}
        for name, of_sequence in (pair for each in added for pair in each.moments()):
            moments[name] = moments.get(name, Moments()) + of_sequence
        means = {name: mean for name, (mean, _) in p.last.items()}
        return resolved(
            moments, self.means, means, DTYPES[self.policies[p.policy].args.ds.param_dtype]
        )

    def _difference(self, p: PreparedExperience, place: int | None) -> str:
        which = (
            "is left out at the step's end"
            if place is None
            else "has other advantages at the step's end"
        )
        name = "a sequence" if place is None else f"row {p.sequences[place].name}"
        return (
            f"policy {p.policy!r}: --streaming.gradients: the gradient of {name} was taken during "
            f"the rollout, and it {which}: "
            f"{type(self.estimator).__name__}, or a plugin with marl_credit, needs more of a step "
            "than it says (scope, affine, "
            "marl_credit_step); nothing of this step was trained on. Correct what it says, or "
            "remove --streaming.gradients"
        )


def means_over_rows(p: PreparedExperience, kl_in_loss: bool) -> dict[str, float]:
    """Returns upstream's metrics that are means over rows, of all rows: upstream sees only those
    whose gradients are not carried.

    Args:
        kl_in_loss: Whether upstream takes its metrics of the KL from the loss, over tokens.
    """
    rows = [item.info["rows"] for item in p.items]
    names = ["reward", "return", *([] if kl_in_loss else ["kl", "logprobs_diff"])]
    values = {name: [item.info[name] for item in p.items] for name in names}
    values |= {
        f: [float(getattr(item, f)) for item in p.items]
        for f in ("response_length", "truncated", "total_length")
    }
    return {name: fmean(each, weights=rows) for name, each in values.items()}
