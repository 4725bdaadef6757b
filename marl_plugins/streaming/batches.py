"""Micro-batches of sequences whose gradients are computed during a rollout."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

# inside: works in the training processes
from marl_plugins.core.sequences import TokenSequence
from marl_plugins.engine.processes.upstream_trainer import ranks_of
from marl_plugins.engine.runtime.batching import lay_out
from marl_plugins.engine.runtime.experience import Experience, make_experience_batch
from marl_plugins.streaming.worker import GradientBatch


@dataclass(frozen=True)
class GradientBatches:
    """The batches of rows that each rank is given.

    Args:
        of_ranks: The micro-batches of each rank.
        places: The sequences in the order of all of them, as indices of those that were given.
    """

    of_ranks: list[list[GradientBatch]]
    places: list[int]


def gradient_batches(
    policy: Any,
    sequences: Sequence[TokenSequence],
    items: Sequence[Experience],
    groups: Sequence[torch.Tensor],
) -> GradientBatches:
    """Divides sequences into micro-batches of each rank.

    Args:
        policy: An `UpstreamPolicy`.
        items: One experience each, of advantages before the estimator's last stage.
        groups: For each the number of the normalisation group at each sampled token, (tokens,); -1
            elsewhere.
    """
    layout = lay_out(sequences, ranks_of(policy.group), 1, policy.batching.limit("train"))
    places: list[int] = []
    of_ranks: list[list[GradientBatch]] = []
    for share, batches in zip(layout.ranks, layout.epochs[0], strict=True):
        mine = [[share[i] for i in batch] for batch in batches if batch]
        places += [n for batch in mine for n in batch]
        of_ranks.append(
            [
                GradientBatch(
                    make_experience_batch([copy.copy(items[n]) for n in batch]),
                    pad_sequence([groups[n] for n in batch], batch_first=True, padding_value=-1),
                )
                for batch in mine
            ]
        )
    return GradientBatches(of_ranks, places)
