"""Upstream's reward actor, with the host support installed before it. Imported first in every
process of a reward model."""

from __future__ import annotations

from marl_plugins.engine.processes.policy_actor import ON_CPU as ON_CPU  # isort: skip  # first: it installs the host support

from typing import TYPE_CHECKING

import ray
from openrlhf.trainer.ray.launcher import RewardModelActor

from marl_plugins.engine.processes.master_port import MasterPort

if TYPE_CHECKING:
    from openrlhf.utils.deepspeed import DeepspeedStrategy


class RewardActor(MasterPort, RewardModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """One process of a reward model."""

    def init_model_from_pretrained(self, strategy: DeepspeedStrategy, pretrain: str) -> None:
        """Loads the model, and the mean and std of its config.json.

        Upstream writes these into buffers that are not saved (models/model.py:192), while
        transformers 5 has the model on the meta
        device: what was written is lost, and memory that nobody has set divides the rewards.
        """
        super().init_model_from_pretrained(strategy, pretrain)
        model = self.model.module
        model.mean.fill_(getattr(model.config, "mean", 0.0))
        model.std.fill_(getattr(model.config, "std", 1.0))


RemoteRewardActor = ray.remote(num_gpus=1)(RewardActor)
