"""A training process with one model and an adapter of it for each policy; upstream's own LoRA path,
but for the model.

Upstream's `Actor` looks its model class up in its module (models/actor.py:157). Here that name
answers with another tree of modules over the same tensors, so that PEFT's layers are in one
adapter's tree alone, and the model's weights are in memory once.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

# Installs the host support, before upstream is imported below.
# inside: works in the training processes
from marl_plugins.engine.processes.policy_actor import PolicyActor  # isort: skip
import numpy
import openrlhf.models.actor as upstream_model
import ray
import torch
from openrlhf.trainer.ray.launcher import BaseDistributedActor
from peft import get_peft_model_state_dict
from transformers import AutoModelForCausalLM

from marl_plugins.adapters.blob import packed
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.processes.master_port import MasterPort
from marl_plugins.engine.processes.pieces import Piece

if TYPE_CHECKING:
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from ray.actor import ActorHandle


class SharedModel:
    """Answers in the place of transformers' `AutoModelForCausalLM`, always with the same
    weights."""

    def __init__(self) -> None:
        self.model: torch.nn.Module | None = None

    def from_pretrained(self, *arguments: Any, **named: Any) -> torch.nn.Module:
        """Loads the model, once, and returns modules of their own over its tensors."""
        if self.model is None:
            self.model = AutoModelForCausalLM.from_pretrained(*arguments, **named)
            folder = Path(str(self.model.name_or_path))  # which adapters are saved with
            self.model.name_or_path = str(folder.absolute() if folder.is_dir() else folder)
        tensors = (*self.model.parameters(), *self.model.buffers())
        return copy.deepcopy(self.model, {id(tensor): tensor for tensor in tensors})


def check_targets(model: torch.nn.Module, targets: str | Sequence[str] | None) -> None:
    """Looks for each module that was named in a model with its adapter. PEFT passes over a name
    that no module has, as long as another name has one.

    Args:
        targets: Names, as of `--ds.lora.target_modules`; a text is PEFT's own to check.

    Raises:
        ConfigurationError: A name has no adapter.
    """
    names = [f".{name}" for name, module in model.named_modules() if hasattr(module, "lora_A")]
    given = [] if isinstance(targets, str) else targets or []
    missing = [target for target in given if not any(n.endswith(f".{target}") for n in names)]
    if missing:
        linear = {
            name.removesuffix(".base_layer").rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and ".lora_" not in name
        }
        problem = Problem(
            "adapters.no_module",
            at(flag="ds.lora.target_modules"),
            f"the model has no module {', '.join(missing)}",
            fix=f"its linear modules are called {', '.join(sorted(linear))}",
        )
        raise ConfigurationError(problem)


class AdapterActor(PolicyActor):
    """One adapter in one training process.

    Args:
        shared: The model of all adapters in this process.
        place: Number of ranks, rank, and where the ranks meet.
    """

    def __init__(self, shared: SharedModel, *place: Any):
        super().__init__(*place)
        self.shared = shared

    def init_model_from_pretrained(
        self,
        strategy: DeepspeedStrategy,
        pretrain: str,
        max_steps: int,
        vllm_engines: Sequence[ActorHandle] | None = None,
        with_reference: bool = False,
        extensions: Sequence[str] = (),
    ) -> None:
        """Makes the adapter over the model that is there; checkpoints have nothing of the
        latter.

        Raises:
            ConfigurationError: The model has not all modules that were to have an adapter.
        """
        lora = strategy.args.ds.lora
        if lora.target_modules == [
            "all-linear"
        ]:  # on a command line; PEFT knows the word alone, not in a list
            lora.target_modules = "all-linear"
        strategy.load_ckpt = functools.partial(strategy.load_ckpt, load_module_strict=False)
        with patch.object(upstream_model, "AutoModelForCausalLM", self.shared):
            super().init_model_from_pretrained(
                strategy, pretrain, max_steps, None, False, extensions
            )
        check_targets(self.engine.module, lora.target_modules)
        self.engine.save_checkpoint = functools.partial(
            self.engine.save_checkpoint, exclude_frozen_parameters=True
        )
        if with_reference:
            self.reference = SimpleNamespace(model=self.actor, strategy=strategy)

    def reference_forward(self, **named: torch.Tensor | None) -> torch.Tensor:
        """Returns the log-probs of the model without the adapter."""
        self.actor.eval()
        with self.engine.module.disable_adapter():
            return super().reference_forward(**named)

    def _pieces(self, limit: int) -> Iterator[Piece]:
        """Yields the adapter with PEFT's configuration, whatever its size."""
        if torch.distributed.get_rank() == 0:
            model = self.engine.module
            tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
            blob = packed(tensors, model.peft_config["default"].to_dict())
            yield [numpy.frombuffer(blob, numpy.uint8)]


class SharedActor(MasterPort, BaseDistributedActor):  # type: ignore[misc]
    """A training process of a model: a member for each adapter, made when it is first asked for
    something."""

    def __init__(self, ranks: int, rank: int, address: str | None, port: int | None):
        super().__init__(ranks, rank, address, port)
        self.shared = SharedModel()
        self.members: dict[str, AdapterActor] = {}

    def call(self, policy: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method of an adapter's member."""
        if policy not in self.members:
            place = self._world_size, self._rank, self._master_addr, self._master_port
            self.members[policy] = AdapterActor(self.shared, *place)
        return getattr(self.members[policy], method)(*arguments, **named)


RemoteSharedActor = ray.remote(num_gpus=1)(SharedActor)
