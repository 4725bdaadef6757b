"""Upstream's trainer of one policy, with what several policies and ragged rows need."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

# Installs the host support, before upstream is imported below.
import marl_plugins.engine.processes.policy_actor  # isort: skip  # noqa: F401
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

if TYPE_CHECKING:
    from openrlhf.trainer.ray.launcher import RayActorGroup
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from ray import ObjectRef
    from transformers import PreTrainedTokenizerBase


class ExperienceMaker(RemoteExperienceMaker):  # type: ignore[misc]
    """Upstream's maker of experiences, for any number of batches."""

    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        """Computes log-probs, KL and values of the batches, in place.

        The dispatch list is padded to a multiple of the ranks and the extra is discarded: upstream
        gives the last ranks fewer batches or none (launcher.py:354-365), and a collective in the
        forward would then wait forever.
        """
        groups = (self.actor_model_group, self.critic_model_group, self.initial_model_group)
        ranks = [ranks_of(group) for group in groups if group is not None]
        extra = -len(samples_list) % math.lcm(*ranks)
        padded = samples_list + [copy.copy(samples_list[-1]) for _ in range(extra)]
        for sample in padded[len(samples_list) :]:
            sample.info = dict(sample.info)
        made: list[Experience] = super().make_experience(padded)
        return made[: len(samples_list)]


class ReferenceInPolicy:
    """Upstream's view of a reference group, where the reference model lives in the policy's own
    processes."""

    def __init__(self, group: RayActorGroup):
        self.group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)

    def async_run_method_batch(self, method_name: str, **arguments: Any) -> list[ObjectRef]:
        assert method_name == "forward"
        references: list[ObjectRef] = self.group.async_run_method_batch(
            "reference_forward", **arguments
        )
        return references


class UpstreamTrainer(BasePPOTrainer):  # type: ignore[misc]
    """Upstream's trainer of one policy: KL controller, experience maker and update are its
    own."""

    def __init__(
        self,
        strategy: DeepspeedStrategy,
        group: RayActorGroup,
        reference: RayActorGroup | ReferenceInPolicy | None,
        tokenizer: PreTrainedTokenizerBase,
        critic: RayActorGroup | None = None,
    ):
        super().__init__(strategy, group, critic, None, reference, [], tokenizer)
        self.experience_maker = ExperienceMaker(
            group, critic, None, reference, self.kl_ctl, strategy, tokenizer
        )


def ranks_of(group: RayActorGroup) -> int:
    """Returns the data-parallel ranks of a group of training processes."""
    return len(group._actor_handlers) // int(group.duplicate_actors)
