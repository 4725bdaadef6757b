"""Micro-batches of sequences whose gradients are computed during a rollout."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

# inside: works in the training processes
from marl_plugins.core.sequences import TokenSequence, tree_of
from marl_plugins.engine.processes.upstream_trainer import ranks_of
from marl_plugins.engine.runtime.batching import lay_out
from marl_plugins.engine.runtime.experience import (
    Experience,
    make_experience_batch,
    on_tree,
    tree_experience,
)
from marl_plugins.streaming.worker import GradientBatch


def gradient_batches(
    policy: Any,
    sequences: Sequence[TokenSequence],
    items: Sequence[Experience],
    groups: Sequence[torch.Tensor],
) -> tuple[list[list[GradientBatch]], list[Sequence[int]]]:
    """Divides sequences into micro-batches.

    Args:
        policy: An `UpstreamPolicy`.
        items: One experience each, of advantages before the estimator's last stage.
        groups: For each the number of the normalisation group at each sampled token, (tokens,); -1
            elsewhere.

    Returns:
        The micro-batches of each rank; and what goes through the model, in the order of all of it,
        each as indices of the sequences that were given.
    """
    layout = lay_out(sequences, ranks_of(policy.group), 1, policy.batching.limit("train"))
    trees: list[Sequence[int]] = []
    of_ranks: list[list[GradientBatch]] = []
    for share, batches in zip(layout.ranks, layout.epochs[0], strict=True):
        mine = [[layout.trees[share[i]] for i in batch] for batch in batches if batch]
        trees += [tree for batch in mine for tree in batch]
        of_ranks.append([_batch(sequences, items, groups, batch) for batch in mine])
    return of_ranks, trees


def _batch(
    sequences: Sequence[TokenSequence],
    items: Sequence[Experience],
    groups: Sequence[torch.Tensor],
    batch: Sequence[Sequence[int]],
) -> GradientBatch:
    """Some trees as one micro-batch."""
    experiences, numbered = [], []
    for numbers in batch:
        tree = tree_of([sequences[n] for n in numbers])
        experiences.append(copy.copy(tree_experience(tree, [items[n] for n in numbers])))
        numbered.append(on_tree(tree, [groups[n] + 1 for n in numbers]) - 1)
    padded = pad_sequence(numbered, batch_first=True, padding_value=-1)
    return GradientBatch(make_experience_batch(experiences), padded)
