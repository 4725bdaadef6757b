"""How a policy's rows become sequences and micro-batches, and how each rank gets its own for a fit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

# Installs the host support, before upstream is imported below.
import marl_plugins.processes.policy_actor  # isort: skip  # noqa: F401
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch

from marl_plugins.core.failures import RunEnded
from marl_plugins.core.layout import Layout, Limit, MicroBatch, beside, plan_layout
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.sequences import TokenSequence
from marl_plugins.processes.corrections import (
    NO_CORRECTIONS,
    Corrections,
    corrected_in,
    correction_experience,
    weights_of,
)
from marl_plugins.processes.gradients import MicroBatch as GradientBatch
from marl_plugins.processes.launch import TrainingProcesses
from marl_plugins.processes.upstream_trainer import ranks_of
from marl_plugins.runtime.experience import Prepared, sequence_experience, weightless


class Batching:
    """What goes through a policy's model together.

    Args:
        args: The policy's flags. `--train.dynamic_batch_enable` is switched off in them: upstream's own counts sequences per
            optimiser step, of which there is any number here.
        merge: Whether the rows of one conversation are to be one sequence, where the loss allows it.
    """

    def __init__(self, args: Any, merge: bool):
        self.args = args
        self.token_sized = bool(args.train.dynamic_batch_enable)
        self.merge = merge and mergeable(args)
        args.train.dynamic_batch_enable = False

    def limit(self, stage: Literal["rollout", "train"]) -> Limit:
        """What fits into a micro-batch of the forward passes (`rollout`), or of the update."""
        flags = getattr(self.args, stage)
        if not self.token_sized:
            return Limit(flags.micro_batch_size)
        return Limit(
            tokens=flags.max_tokens_per_gpu or self.args.train.max_tokens_per_gpu, packed=self.args.ds.packing_samples
        )

    @property
    def longest(self) -> int:
        """Tokens of a sequence that can be trained on, at most."""
        longest: int = self.args.data.max_len
        return min(longest, self.limit("train").tokens or longest)

    def of_forward(self, sequences: Sequence[TokenSequence], ranks: int) -> list[tuple[list[TokenSequence], bool]]:
        """The micro-batches of the forward passes, rank by rank, the same number for each; False: computed for its rank's
        number alone, and to be discarded."""
        layout = lay_out(sequences, ranks, 1, self.limit("rollout"))
        shortest = min(sequences, key=lambda sequence: len(sequence.ids))
        return [
            ([sequences[share[i]] for i in batch], True) if batch else ([shortest], False)
            for share, batches in zip(layout.ranks, layout.epochs[0], strict=True)
            for batch in batches
        ]

    def padded(self, sequences: Sequence[TokenSequence], padding: int) -> Experience:
        """Sequences as one batch of upstream's.

        Args:
            padding: Id of the tokens that fill the shorter ones up.
        """
        return Experience.concat_experiences([sequence_experience(sequence) for sequence in sequences], padding)


def mergeable(args: Any) -> bool:
    """Whether merged rows have the loss of single ones: where it is a sum over tokens, not of means over sequences."""
    means = args.actor.policy_loss_type == "gspo" or getattr(args.actor, "loss_agg_mode", "token-mean") != "token-mean"
    return not means and getattr(args.algo.advantage, "is_correction_level", "off") != "seq"


def lay_out(sequences: Sequence[TokenSequence], ranks: int, steps: int, limit: Limit, **more: Any) -> Layout:
    """The layout of at least one sequence; see `plan_layout`.

    Raises:
        RunEnded: A sequence alone has more tokens than a micro-batch may have.
    """
    try:
        layout = plan_layout([len(s.ids) for s in sequences], ranks, steps, limit, **more)
    except ValueError as error:
        if len(error.args) != 2:
            raise
        longest = sequences[error.args[1]]
        raise RunEnded(
            f"row {longest.name} has {len(longest.ids)} tokens with its context, more than fit into a micro-batch "
            f"(--train.max_tokens_per_gpu, --rollout.max_tokens_per_gpu: {limit.tokens}); raise it, or lower --data.max_len"
        ) from None
    assert layout is not None, "there are rows"
    return layout


@dataclass(frozen=True)
class Handed:
    """What the ranks of a policy or a critic are given for a fit.

    Args:
        parts: The sequences of each rank as one batch; the last one weighs nothing.
        epochs: By rank, the micro-batches of each epoch, as indices of its sequences.
        corrections: The corrected actions among the rows, and what all their tokens weigh together.
    """

    layout: Layout
    parts: list[Experience]
    epochs: list[list[list[MicroBatch]]]
    corrections: Corrections
    weight: float

    def metrics(self, update: Mapping[str, float]) -> dict[str, float]:
        """The weightless micro-batches, the number of corrected actions and the mean cross-entropy of their tokens.

        Args:
            update: The metrics of the update, with their loss.
        """
        metrics = {"fill_rows": float(self.layout.fill)}
        if self.corrections.fit or self.corrections.too_long:
            metrics["corrections"] = float(len(self.corrections.fit))
            metrics["corrections_too_long"] = float(self.corrections.too_long)
        return metrics | ({"corrections_loss": update["corrections_loss"] / self.weight} if self.weight else {})


def handed(
    prepared: Prepared,
    ranks: int,
    steps: int,
    limit: Limit,
    seed: int,
    epochs: int,
    corrections: Corrections = NO_CORRECTIONS,
) -> Handed:
    """The sequences of each rank, and in which micro-batches they go through the model."""
    order = upstream_order(seed, epochs)
    layout = lay_out(prepared.sequences, ranks, steps, limit, order=order, epochs=epochs)
    filler = weightless(min(prepared.items, key=lambda item: len(item.sequences)))
    corrected, items = corrections.fit, list(prepared.items)
    weights: list[float] = []
    more = plan_layout([len(c.ids) for c in corrected], ranks, layout.steps, limit, epochs=epochs)
    if more is not None:
        weights = weights_of(corrected, more)
        items += [correction_experience(c, weight, filler) for c, weight in zip(corrected, weights, strict=True)]
        layout = beside(layout, more)
    parts = [make_experience_batch([copy.copy(i) for i in (*(items[n] for n in share), filler)]) for share in layout.ranks]
    batches = [
        [[batch or (len(share),) for batch in epoch[rank]] for epoch in layout.epochs]
        for rank, share in enumerate(layout.ranks)
    ]
    total = epochs * sum(weight * c.tokens for c, weight in zip(corrected, weights, strict=True))
    return Handed(layout, parts, batches, corrections, total)


def micro_batches(
    sequences: Sequence[TokenSequence], items: Sequence[Experience], keys: Sequence[torch.Tensor], ranks: int, limit: Limit
) -> tuple[list[int], list[list[GradientBatch]]]:
    """The micro-batches of each rank whose gradients are taken beside a rollout, and the sequences in the order of all of them."""
    layout = lay_out(sequences, ranks, 1, limit)
    places: list[int] = []
    parts: list[list[GradientBatch]] = []
    for share, batches in zip(layout.ranks, layout.epochs[0], strict=True):
        mine = [[share[i] for i in batch] for batch in batches if batch]
        places += [n for batch in mine for n in batch]
        parts.append(
            [
                GradientBatch(
                    make_experience_batch([copy.copy(items[n]) for n in batch]),
                    pad_sequence([keys[n] for n in batch], batch_first=True, padding_value=-1),
                )
                for batch in mine
            ]
        )
    return places, parts


async def hand_out(
    processes: TrainingProcesses,
    group: Any,
    prepared: Prepared,
    steps: int,
    step: int,
    batching: Batching,
    of_policy: bool,
) -> Handed:
    """Give each rank of the policy's or the critic's processes its part of the sequences for the next fit.

    Args:
        of_policy: The critic has no corrected actions, and nothing carried.
    """
    args, doing = processes.args, f"was given its rows in step {step}"
    seed = derive_seed(args.train.seed, "fit", step, processes.policy)
    corrections = NO_CORRECTIONS
    if of_policy:
        corrections = corrected_in(prepared.rows, processes.tokenizer, batching.longest)
    carried = of_policy and bool(prepared.carried)
    rest = prepared.not_carried if carried else prepared
    given = handed(rest, ranks_of(group), steps, batching.limit("train"), seed, args.train.max_epochs, corrections)
    await processes.await_work(doing, *group.async_run_method_batch("append", experience=given.parts))
    await processes.await_work(doing, *group.async_run_method_batch("lay_out", epochs=given.epochs))
    await processes.await_work(doing, *group.async_run_method("prepare_fit", given.layout.accumulation, seed))
    if given.weight:
        await processes.await_work(doing, *group.async_run_method("expect_corrections"))
    if carried:
        counts = (prepared.tokens_carried, len(prepared.carried), prepared.version)
        await processes.await_work(doing, *group.async_run_method("carry", prepared.last, *counts))
    return given


def upstream_order(seed: int, epochs: int) -> Callable[[int, int], list[int]]:
    """The order in which upstream's dataloader shuffles the rows of a rank, were `seed` set before the fit.

    Each epoch draws two numbers: one for the workers' seeds, one for the sampler's generator (torch/utils/data/dataloader.py
    and sampler.py).
    """
    draw = torch.Generator().manual_seed(seed)
    seeds = [int(torch.empty(2, dtype=torch.int64).random_(generator=draw)[1]) for _ in range(epochs)]

    def order(epoch: int, count: int) -> list[int]:
        shuffled: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seeds[epoch])).tolist()
        return shuffled

    return order


def check_steps(policy: str, given: Mapping[str, Handed], metrics: Mapping[str, float], epochs: int) -> None:
    """Every fit took the planned number of optimiser steps, over all micro-batches of its layout.

    Args:
        given: Of the policy (``) and its critic (`critic_`), the prefixes of their metrics.

    Raises:
        AssertionError: Upstream's fit did something else.
    """
    for name, layout in ((name, each.layout) for name, each in given.items()):
        taken, planned = metrics[f"{name}optimiser_steps"], layout.steps * epochs
        seen, laid_out = metrics[f"{name}micro_batches"], layout.steps * layout.accumulation
        if (taken, seen) != (planned, laid_out):
            who = f"policy {policy!r}" + (", its critic," if name else "")
            raise AssertionError(
                f"{who} took {taken:g} optimiser steps instead of {planned}, over {seen:g} micro-batches an epoch instead of "
                f"{laid_out}"
            )
