"""Upstream's reward actor, with the host support installed before it. Imported first in every process of a reward model."""

from __future__ import annotations

from marl_plugins.processes.policy_actor import ON_CPU as ON_CPU  # isort: skip  # first: it installs the host support

import ray
from openrlhf.trainer.ray.launcher import RewardModelActor


class RewardActor(RewardModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """One process of a reward model."""


RemoteRewardActor = ray.remote(num_gpus=1)(RewardActor)
