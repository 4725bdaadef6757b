"""Upstream's own trainer on a machine without an accelerator: its command, its loop, our actor
classes underneath.

Upstream's command looks its actor classes up in their modules when it is imported
(train_ppo_ray.py:8-16, 145-148), so the subclasses that install the CPU support are put there
first.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence

from marl_plugins.engine.processes import engine_actor, policy_actor  # isort: skip  # first: they install the host support

import openrlhf.trainer.ppo_trainer as ppo_trainer
import openrlhf.trainer.ray.launcher as launcher
import openrlhf.trainer.ray.ppo_actor as ppo_actor
import openrlhf.trainer.ray.ppo_critic as ppo_critic
import openrlhf.trainer.ray.vllm_engine as vllm_engine
import ray

from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.processes.master_port import MasterPort


class Controller(ppo_trainer.PPOTrainer.__ray_metadata__.modified_class):  # type: ignore[misc]
    """Upstream's trainer, subclassed so that the host support is installed before upstream is
    imported."""


class Critic(MasterPort, ppo_critic.CriticModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """Upstream's critic, subclassed for the same reason."""


class Reward(MasterPort, launcher.RewardModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """Upstream's reward model, subclassed for the same reason."""


PROCESSES = {
    "actor.num_gpus_per_node": 8,
    "ref.num_gpus_per_node": 8,
    "reward.num_gpus_per_node": 8,
    "critic.num_gpus_per_node": 8,
    "vllm.num_engines": 1,
}
"""Flags that say how many processes upstream will start, with its defaults."""


def run_upstream(words: Sequence[str]) -> None:
    """Runs upstream's command in this process."""
    from marl_plugins.engine.processes.cluster import quiet

    ppo_actor.PolicyModelActor = policy_actor.RemotePolicyActor
    launcher.ReferenceModelActor = policy_actor.RemoteReferenceActor
    launcher.RewardModelActor = ray.remote(num_gpus=1)(Reward)
    ppo_critic.CriticModelActor = ray.remote(num_gpus=1)(Critic)
    vllm_engine.RolloutRayActor = engine_actor.RemoteRolloutActor
    ppo_trainer.PPOTrainer = ray.remote(Controller)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, default in PROCESSES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    processes = sum(vars(parser.parse_known_args(words)[0]).values())
    ray.init(
        address="local",
        include_dashboard=False,
        num_gpus=processes,
        num_cpus=processes + 4,
        object_store_memory=2**30,
        runtime_env={"env_vars": {**quiet(False), **cpu.environment()}},
    )
    sys.argv = ["openrlhf train", *words]
    try:
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    finally:
        ray.shutdown()
