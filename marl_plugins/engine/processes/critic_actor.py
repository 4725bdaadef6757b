"""Upstream's critic process with what several policies need. Imported first in every critic's
process.

A critic is trained on the rows of its policy, by upstream's own loss, in the same number of
optimiser steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.processes.optimiser_settings import keep_settings_when_loading

# Installs the host support, before upstream is imported below.
from marl_plugins.engine.processes.policy_actor import ON_CPU  # isort: skip
import openrlhf.trainer.ray.ppo_critic as upstream_critic
import ray

from marl_plugins.engine.processes.replay import MicroBatchBuffer
from marl_plugins.engine.processes.training_process import TrainingProcess
from marl_plugins.engine.processes.trees import see_trees

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.utils.deepspeed import DeepspeedStrategy


class CriticTrainer(upstream_critic.CriticPPOTrainer):  # type: ignore[misc]
    """Upstream's trainer, whose metrics count only what there is.

    Its mean of the values over a micro-batch of weightless rows is NaN (ppo_critic.py:184,
    models/utils.py:199-202), and between optimiser steps its gradient norm is the last step's, of
    the fit before at first. The loss is fine: a sum over no token, divided by the window's count.
    """

    def training_step(self, experience: Experience, *args: Any, **kwargs: Any) -> dict[str, float]:
        status: dict[str, float] = super().training_step(experience, *args, **kwargs)
        counted = {
            "values": experience.action_mask.any().item(),
            "critic_grad_norm": self.critic.micro_steps % self.critic.gradient_accumulation_steps()
            == 0,
        }
        for name, counts in counted.items():
            status[name] = status[name] if counts else 0.0
            status[f"{name} counted"] = float(counts)
        return status


upstream_critic.CriticPPOTrainer = (
    CriticTrainer  # looked up there by `init_model_from_pretrained` (ppo_critic.py:250)
)
upstream_critic.NaiveReplayBuffer = MicroBatchBuffer  # and there by the trainer (ppo_critic.py:52)


class CriticActor(
    TrainingProcess,
    upstream_critic.CriticModelActor.__ray_metadata__.modified_class,  # type: ignore[misc]
):
    """One training process of a policy's critic."""

    def init_model_from_pretrained(
        self, strategy: DeepspeedStrategy, pretrain: str, max_steps: int
    ) -> None:
        keep_settings_when_loading(strategy)
        super().init_model_from_pretrained(strategy, pretrain, max_steps)
        self.engine = self.critic
        see_trees(self.critic)
        if ON_CPU:
            cpu.make_adam_resumable(self.engine.basic_optimizer)

    def fit(self) -> dict[str, float]:
        """Does upstream's fit; its metrics are called `critic_*`."""
        status = self.in_whole_windows(super().fit)
        for name in (
            "values",
            "critic_grad_norm",
        ):  # means over all micro-batches of all ranks: made means over the counted
            status[name] /= status.pop(f"{name} counted")
        return {
            name if name.startswith("critic_") else f"critic_{name}": value
            for name, value in status.items()
        }


RemoteCriticActor = ray.remote(num_gpus=1)(CriticActor)
