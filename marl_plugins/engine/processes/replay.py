"""Upstream's replay buffer in a training process, handing out the micro-batches of a layout
(engine/runtime/layout.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Installs the host support, before upstream is imported below.
from marl_plugins.engine.hosts import cpu

cpu.install()  # before anything of upstream

from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch  # noqa: E402
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer  # noqa: E402


class MicroBatchBuffer(NaiveReplayBuffer):  # type: ignore[misc]
    """A replay buffer whose items for upstream's dataloader are whole micro-batches, of any number
    of sequences.

    The dataloader draws every index once per epoch, in an order of its own; what it is given is the
    next micro-batch of the layout, whatever the index, because the layout has decided already what
    belongs to which optimiser step. Without a layout, as in upstream's own loop, it is upstream's
    buffer.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._epochs: list[Sequence[Sequence[int]]] = []
        self._given = 0

    def lay_out(self, epochs: Sequence[Sequence[Sequence[int]]]) -> None:
        """Sets the micro-batches of each epoch, as indices of the sequences that have been
        appended."""
        self._epochs, self._given, self.sample_batch_size = list(epochs), 0, 1

    def clear(self) -> None:
        super().clear()
        self._epochs = []

    def __len__(self) -> int:
        return len(self._epochs[0]) if self._epochs else super().__len__()

    def __getitem__(self, index: int) -> Sequence[Experience]:
        if not self._epochs:
            items: Sequence[Experience] = super().__getitem__(index)
            return items
        epoch, number = divmod(self._given, len(self))
        self._given += 1
        return [self.items[i] for i in self._epochs[epoch][number]]

    def collate_fn(self, batch: Sequence[Sequence[Experience]]) -> Experience:
        if not self._epochs:
            return super().collate_fn(batch)
        (micro_batch,) = batch
        return make_experience_batch(micro_batch, self.packing_samples)
