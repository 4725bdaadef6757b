"""The weights of the last versions in one training process: the rank's share of every parameter
that is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from marl_plugins import Extension

# inside: works in the training processes
from marl_plugins.engine.processes.weights_in_place import (
    put_back,
    put_in_place,
    share,
    trained_parameters,
)

if TYPE_CHECKING:
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

NEWEST = -1
"""The version under which the newest weights are kept while older ones are in their place."""


class OldWeights(Extension):
    """The weights of earlier versions, in their own precision in the host's memory."""

    def __init__(self, trainer: ActorPPOTrainer):
        super().__init__(trainer)
        self.by_version: dict[int, dict[str, Tensor]] = {}

    def keep(self, version: int, oldest: int) -> None:
        """Keeps the weights as they are as those of a version, and forgets all that are older than
        `oldest`."""
        self.by_version = {
            known: weights for known, weights in self.by_version.items() if known >= oldest
        }
        if version not in self.by_version:
            self.by_version[version] = {
                name: share(p).cpu().clone() for name, p in trained_parameters(self.trainer).items()
            }

    def put(self, version: int) -> bool:
        """Puts the weights of a version in the place of the newest ones, and returns whether they
        are there. A collective operation."""
        if version not in self.by_version:
            return False
        self.by_version[NEWEST] = put_in_place(
            trained_parameters(self.trainer), self.by_version[version]
        )
        return True

    def put_back(self) -> None:
        """Brings the newest weights back."""
        put_back(trained_parameters(self.trainer), self.by_version.pop(NEWEST))

    def state(self) -> Mapping[int, Mapping[str, Tensor]]:
        return self.by_version

    def restore(self, state: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Takes back the weights, as copies: the others may be views of Ray's object store, which
        has room for them only until the next process has them (`marl_plugins.process_groups`)."""
        self.by_version = {
            version: {name: weight.clone() for name, weight in weights.items()}
            for version, weights in state.items()
        }
