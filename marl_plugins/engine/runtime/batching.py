"""Turns a policy's rows into sequences and micro-batches, and gives each rank its own for a fit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch

from marl_plugins.core.failures import RunEnded
from marl_plugins.core.sequences import TokenSequence, TokenTree, grouped, tree_of
from marl_plugins.engine.runtime.experience import (
    Experience,
    PreparedExperience,
    make_experience_batch,
    tree_experience,
    weightless,
)
from marl_plugins.engine.runtime.layout import (
    Layout,
    Limit,
    MicroBatch,
    Order,
    plan_layout,
)

if TYPE_CHECKING:
    from types import SimpleNamespace

    from openrlhf.trainer.ppo_utils.experience import Experience


class BatchBuilder:
    """Groups what goes through a policy's model together.

    Args:
        args: The policy's flags. `--train.dynamic_batch_enable` is switched off in them: upstream's
            own counts sequences per optimiser step, of which there is any number here.
        merge: Whether the rows of one conversation are to be one sequence, where the loss allows
            it.
        trees: Whether sequences are to be trees, where it does.
    """

    def __init__(self, args: SimpleNamespace, merge: bool, trees: bool = False):
        self.args = args
        self.token_sized = bool(args.train.dynamic_batch_enable)
        self.merge = merge and mergeable(args)
        self.trees = trees and mergeable(args)
        args.train.dynamic_batch_enable = False

    def limit(self, stage: Literal["rollout", "train"]) -> Limit:
        """Returns what fits into a micro-batch of the forward passes (`rollout`), or of the
        update."""
        flags = getattr(self.args, stage)
        if not self.token_sized:
            size = flags.micro_batch_size
            return Limit(size, tree=size * self.args.data.max_len if self.trees else None)
        tokens = flags.max_tokens_per_gpu or self.args.train.max_tokens_per_gpu
        return Limit(
            tokens=tokens,
            packed=self.args.ds.packing_samples,
            tree=tokens if self.trees else None,
        )

    @property
    def longest(self) -> int:
        """Tokens of a sequence that can be trained on, at most."""
        longest: int = self.args.data.max_len
        return min(longest, self.limit("train").tokens or longest)

    def forward_batches(
        self, sequences: Sequence[TokenSequence], ranks: int
    ) -> list[tuple[list[TokenTree], bool]]:
        """Returns the micro-batches of the forward passes, rank by rank, the same number for each;
        False: computed for its rank's number alone, and to be discarded."""
        layout = lay_out(sequences, ranks, 1, self.limit("rollout"))
        trees = [tree_of([sequences[i] for i in tree]) for tree in layout.trees]
        shortest = tree_of([min(sequences, key=lambda sequence: len(sequence.ids))])
        return [
            ([trees[share[i]] for i in batch], True) if batch else ([shortest], False)
            for share, batches in zip(layout.ranks, layout.epochs[0], strict=True)
            for batch in batches
        ]


def mergeable(args: SimpleNamespace) -> bool:
    """Returns whether merged rows have the loss of single ones: where it is a sum over tokens, not
    of means over sequences."""
    means = (
        args.actor.policy_loss_type == "gspo"
        or getattr(args.actor, "loss_agg_mode", "token-mean") != "token-mean"
    )
    return not means and getattr(args.algo.advantage, "is_correction_level", "off") != "seq"


def lay_out(
    sequences: Sequence[TokenSequence],
    ranks: int,
    steps: int,
    limit: Limit,
    order: Order | None = None,
    epochs: int = 1,
) -> Layout:
    """Lays out at least one sequence, as `plan_layout` says.

    Raises:
        RunEnded: A sequence alone has more tokens than a micro-batch may have.
    """
    lengths, grouping = [len(s.ids) for s in sequences], partial(grouped, sequences)
    try:
        return plan_layout(lengths, ranks, steps, limit, order, epochs, grouping)
    except ValueError as error:
        longest = sequences[error.args[1]]
        raise RunEnded(
            f"row {longest.name} has {len(longest.ids)} tokens with its context, more than fit "
            "into a micro-batch "
            f"(--train.max_tokens_per_gpu, --rollout.max_tokens_per_gpu: {limit.tokens}); raise "
            "it, or lower --data.max_len"
        ) from None


@dataclass(frozen=True)
class RankBatches:
    """The batches that each rank of a policy or a critic is given for a fit.

    Args:
        parts: The sequences of each rank as one batch; the last one weighs nothing.
        epochs: By rank, the micro-batches of each epoch, as indices of its sequences.
    """

    layout: Layout
    parts: list[Experience]
    epochs: list[list[list[MicroBatch]]]


def rank_batches(
    prepared: PreparedExperience,
    ranks: int,
    steps: int,
    limit: Limit,
    seed: int,
    epochs: int,
) -> RankBatches:
    """Divides the sequences of rows into micro-batches of each rank."""
    order = upstream_order(seed, epochs)
    layout = lay_out(prepared.sequences, ranks, steps, limit, order, epochs)
    filler = weightless(min(prepared.items, key=lambda item: len(item.sequences)))
    items = [
        tree_experience(
            tree_of([prepared.sequences[i] for i in tree]), [prepared.items[i] for i in tree]
        )
        for tree in layout.trees
    ]
    parts = [
        make_experience_batch([copy.copy(i) for i in (*(items[n] for n in share), filler)])
        for share in layout.ranks
    ]
    batches = [
        [[batch or (len(share),) for batch in epoch[rank]] for epoch in layout.epochs]
        for rank, share in enumerate(layout.ranks)
    ]
    return RankBatches(layout, parts, batches)


def upstream_order(seed: int, epochs: int) -> Callable[[int, int], list[int]]:
    """Returns the order in which upstream's dataloader shuffles the rows of a rank, were `seed` set
    before the fit.

    Each epoch draws two numbers: one for the workers' seeds, one for the sampler's generator
    (torch/utils/data/dataloader.py and sampler.py).
    """
    draw = torch.Generator().manual_seed(seed)
    seeds = [
        int(torch.empty(2, dtype=torch.int64).random_(generator=draw)[1]) for _ in range(epochs)
    ]

    def order(epoch: int, count: int) -> list[int]:
        shuffled: list[int] = torch.randperm(
            count, generator=torch.Generator().manual_seed(seeds[epoch])
        ).tolist()
        return shuffled

    return order


def check_steps(
    policy: str, layouts: Mapping[str, Layout], metrics: Mapping[str, float], epochs: int
) -> None:
    """Checks that every fit took the planned number of optimiser steps, over all micro-batches of
    its layout.

    Args:
        layouts: Of the policy (``) and its critic (`critic_`), the prefixes of their metrics.

    Raises:
        AssertionError: Upstream's fit did something else.
    """
    for name, layout in layouts.items():
        taken, planned = metrics[f"{name}optimiser_steps"], layout.steps * epochs
        seen, laid_out = metrics[f"{name}micro_batches"], layout.steps * layout.accumulation
        if (taken, seen) != (planned, laid_out):
            who = f"policy {policy!r}" + (", its critic," if name else "")
            raise AssertionError(
                f"{who} took {taken:g} optimiser steps instead of {planned}, over {seen:g} "
                "micro-batches an epoch instead of "
                f"{laid_out}"
            )
