"""Learning from rows while the rollout that they are of still runs: what of a step has been accumulated, and whether it holds.

    credited      rows of trajectories that have arrived, credited and selected as they will be at the end
    accumulate    their gradients, of advantages as far as they are known with their tasks (`Estimator.shape_early`, `estimate`)
    carried       after the estimator's last stage: what the update takes along, and with what mean and deviation

The advantages that were accumulated are compared with those that the step gives the same sequences. They differ where a plugin or
an estimator needs more of a step than it says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from marl_plugins.core.accumulators import resolved
from marl_plugins.core.advantages import Moments
from marl_plugins.core.estimators import Centres, Estimator
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.rows import Row
from marl_plugins.core.sequences import TokenSequence
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.runtime.batching import micro_batches
from marl_plugins.runtime.crediting import Crediting
from marl_plugins.runtime.experience import Forwarded, Prepared, actions_of, before_statistics, items_of
from marl_plugins.runtime.policy import UpstreamPolicy

from openrlhf.trainer.ppo_utils.experience import Experience  # isort: skip  # after the host support

Named = tuple[tuple[int, ...], int]
"""A sequence by its actions, and how many of a step before it have the same: a plugin may select a row several times."""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
"""What `--ds.param_dtype` means, where gradients are taken beside a rollout."""


@dataclass(frozen=True)
class Added:
    """A sequence whose gradient is in the accumulators.

    Args:
        advantages: (tokens,), those that were accumulated.
        keys: (tokens,), an index of `names` at each sampled token, -1 elsewhere.
        names: Keys of the estimator.
    """

    advantages: Tensor
    keys: Tensor
    names: Sequence[str]

    def moments(self) -> Iterator[tuple[str, Moments]]:
        """Each key that it has, and the moments of its tokens' advantages."""
        for number, name in enumerate(self.names):
            if (mine := self.keys == number).any():
                yield name, Moments.of(self.advantages, mine)

    def is_now(self, item: Experience, last: Mapping[str, tuple[float, float]], largest: float) -> bool:
        """Whether the step gives it the same advantages, after the estimator's last stage.

        Args:
            largest: The largest |advantage| of the policy's rows: a ten-thousandth of it is no difference, nor is rounding.
        """
        found, size = torch.zeros_like(self.advantages), torch.zeros_like(self.advantages)
        for number, name in enumerate(self.names):
            if name in last:
                mean, deviation = last[name]
                found = torch.where(self.keys == number, (self.advantages - mean) / deviation, found)
                size = torch.where(self.keys == number, (self.advantages.abs() + abs(mean)) / deviation, size)
        now = torch.where(self.keys >= 0, item.advantages, 0.0)
        return bool(((found - now).abs() <= 1e-4 * largest + 1e-5 * size).all())


class Early:
    """That of one step.

    Args:
        centres: Means of the version before; those of this one take their place at its end.
    """

    def __init__(
        self, crediting: Crediting, estimator: Estimator, policies: Mapping[str, UpstreamPolicy], centres: Centres
    ):
        self.crediting, self.estimator, self.policies, self.centres = crediting, estimator, policies, centres
        self.late = estimator.accumulators == 2
        self.added: dict[str, dict[Named, Added]] = {}
        """By policy, each sequence."""
        self._shaped: dict[int, float] = {}
        """By action, its row's return and what other rows of the task make of it."""

    async def credited(self, trajectories: Sequence[Trajectory]) -> list[Row] | None:
        """See `RunningRollout.credited`."""
        rows = await self.crediting.early(trajectories)
        if rows:
            rewards = torch.tensor([row.reward for row in rows], dtype=torch.float32)
            shaped = self.estimator.shape_early(rows, rewards).tolist()
            self._shaped |= {id(row.action): value for row, value in zip(rows, shaped, strict=True)}
        return rows

    async def accumulate(self, f: Forwarded) -> None:
        """See `RunningRollout.accumulate`."""
        estimator, policy = self.estimator, self.policies[f.policy]
        shaped = torch.tensor([self._shaped[id(row.action)] for row in f.rows], dtype=torch.float32)
        reward, advantages, returns = before_statistics(f, shaped, estimator)
        if not self.late:
            advantages = estimator.apply(f.rows, advantages, estimator.statistics([(f.rows, advantages, f.tokens.mask)]))
        items = items_of(f, advantages, returns, (reward * f.tokens.mask).sum(-1))
        names = sorted({estimator.key(row) for row in f.rows})
        given = [
            Added(item.advantages, self._keys(sequence, item, names), names)
            for sequence, item in zip(f.sequences, items, strict=True)
        ]
        if f.policy not in self.added:
            await begin(policy, self.late)
        added = self.added.setdefault(f.policy, {})
        keys = [each.keys for each in given]
        good = await add(policy, f.sequences, items, keys, names, dict(self.centres))
        added |= {name: each for name, each, ok in zip(named(f.sequences), given, good, strict=True) if ok}

    def _keys(self, sequence: TokenSequence, item: Experience, names: Sequence[str]) -> Tensor:
        """The number of the key at each sampled token, (tokens,)."""
        keys = torch.full(item.action_mask.shape, -1)
        for row, start in zip(sequence.rows, sequence.starts, strict=True):
            keys[start - 1 : start - 1 + len(row.action.generation.ids)] = names.index(self.estimator.key(row))
        return keys

    def carried(self, prepared: Prepared) -> Prepared:
        """A policy's rows with what its update takes along: all that was accumulated, or nothing where that is not exact enough.

        Raises:
            RunEnded: The step gives a sequence other advantages than it was accumulated with.
        """
        added, items = self.added.get(prepared.policy, {}), prepared.items
        places = {name: n for n, name in enumerate(named(prepared.sequences))}
        largest = max(item.advantages.abs().max().item() for item in items)
        for name, each in added.items():
            if name not in places or not each.is_now(items[places[name]], prepared.last, largest):
                raise RunEnded(self._other(prepared, places.get(name)))
        if self.late and not self._resolved(prepared, added.values()):
            return prepared
        carried = frozenset(places[name] for name in added)
        return replace(prepared, carried=carried, version=self.policies[prepared.policy].version) if carried else prepared

    def _resolved(self, prepared: Prepared, added: Iterable[Added]) -> bool:
        """See `resolved` in accumulators.py."""
        moments: dict[str, Moments] = {}
        for name, of_sequence in (pair for each in added for pair in each.moments()):
            moments[name] = moments.get(name, Moments()) + of_sequence
        means = {key: mean for key, (mean, _) in prepared.last.items()}
        return resolved(moments, self.centres, means, DTYPES[self.policies[prepared.policy].args.ds.param_dtype])

    def note(self, prepared: Iterable[Prepared]) -> None:
        """The step's means are the next one's centres."""
        if self.late:
            for p in prepared:
                self.centres |= {key: mean for key, (mean, _) in p.last.items()}

    def _other(self, prepared: Prepared, place: int | None) -> str:
        which = "is left out at the step's end" if place is None else "has other advantages at the step's end"
        name = "a sequence" if place is None else f"row {prepared.sequences[place].name}"
        return (
            f"policy {prepared.policy!r}: --streaming.gradients: {name} was learned from beside the rollout and {which}: "
            f"{type(self.estimator).__name__}, or a plugin with marl_credit or marl_select, needs more of a step than it says "
            "(scope, affine, MARL_REACH); nothing of this step was trained on. Correct what it says, or remove "
            "--streaming.gradients"
        )


def named(sequences: Iterable[TokenSequence]) -> list[Named]:
    """The names of sequences."""
    seen: Counter[tuple[int, ...]] = Counter()
    found = []
    for actions in map(actions_of, sequences):
        found.append((actions, seen[actions]))
        seen[actions] += 1
    return found


async def begin(policy: UpstreamPolicy, late: bool) -> None:
    """Before the first `add` of a step; see `Gradients` in gradients.py."""
    async with policy.processes.active():
        work = policy.group.async_run_method("begin_gradients", policy.version, late)
        await policy.processes.await_work("began to accumulate gradients", *work)


async def add(
    policy: UpstreamPolicy,
    sequences: Sequence[TokenSequence],
    items: Sequence[Experience],
    keys: Sequence[Tensor],
    names: Sequence[str],
    centres: Mapping[str, float],
) -> list[bool]:
    """Take the gradients of sequences in the policy's processes; which of them are in the accumulators now.

    Args:
        items: One experience each, of advantages before the estimator's last stage.
        keys: For each the number of the key at each sampled token, (tokens,), an index of `names`; -1 elsewhere.
        centres: See `Gradients.add` in gradients.py.
    """
    async with policy.processes.active():
        handles, limit = policy.group._actor_handlers, policy.batching.limit("train")
        places, parts = micro_batches(sequences, items, keys, len(handles), limit)
        given = (names, centres, policy.trainer.kl_ctl.value)
        asked = [handle.accumulate.remote(part, *given) for handle, part in zip(handles, parts, strict=True)]
        answers = await policy.processes.await_work("was accumulating gradients", asyncio.gather(*asked))
    added = dict(zip(places, (good for answer in answers for good in answer), strict=True))
    return [added[n] for n in range(len(sequences))]
