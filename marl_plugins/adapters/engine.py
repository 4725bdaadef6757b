"""An engine that answers for the adapters of a model, each with weights and a version of its own,
and for the model itself.

A request goes to vLLM as adapter `POLICY@EPOCH`: prefixes are cached by that name, and a version
may be pushed again after other weights were in its place. A push replaces an adapter in the
worker's memory, while the others go on sampling; what an adapter has sampled over its own push
belongs to no version and is asked again.

There is one slot more than adapters, and it stays empty: vLLM 0.29 answers a request without an
adapter, beside others with one, by the last slot on CPU (vLLM pull requests 48421 and 49656). Fewer
slots than adapters would make it evict one that is in use (issue 47724).
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# inside: works in the training processes
from marl_plugins.engine.processes.engine_actor import (  # isort: skip  # installs the host support
    PARTS,
    HeldWeights,
    RolloutActor,
    RunningRequest,
)

import ray
import torch
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.v1.engine.exceptions import EngineDeadError

from marl_plugins import RunEnded
from marl_plugins.adapters import on_cpu
from marl_plugins.adapters.blob import packed, packed_folder, unpacked
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.processes.pieces import joined

if TYPE_CHECKING:
    from ray import ObjectRef
    from vllm import RequestOutput
    from vllm.v1.worker.worker_base import WorkerBase

PROBE = SamplingParams(
    temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0, prompt_logprobs=0, detokenize=False
)
PROBE_IDS = tuple(range(1, 33))
PROBE_STD = 0.5
"""Of B in the adapter that an engine is probed with: no answer is like the model's own. A new
adapter's B is 0, and it answers as the model does."""


def set_adapter(worker: WorkerBase, blob: bytes, number: int) -> None:
    """Puts, inside a vLLM worker, an adapter into its slot, in the place of the one that was
    there; names of modules become vLLM's as in its own `WorkerLoRAManager._load_adapter`.

    Raises:
        ValueError: It has weights for modules that the engine has no adapters for, or a rank above
            the engine's.
    """
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    outer = worker.model_runner.lora_manager
    manager = outer._adapter_manager
    tensors, config = unpacked(bytes(blob))
    helper = PEFTHelper.from_dict(config)
    helper.validate_legal(outer.lora_config)
    dtype = outer.lora_config.lora_dtype
    mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
    adapter = LoRAModel.from_lora_tensors(
        number,
        tensors,
        helper,
        device="cpu",
        dtype=dtype,
        weights_mapper=mapper and mapper.get_rename_mapper(),
        skip_prefixes=getattr(manager.model, "lora_skip_prefixes", None),
    )
    known = {
        *manager.modules,
        *(name for parts in manager.packed_modules.values() for name in parts),
    }
    if unknown := sorted(adapter.loras.keys() - known):
        raise ValueError(
            f"the engine has no adapters for modules {', '.join(unknown[:3])} "
            "(--ds.lora.target_modules)"
        )
    manager.remove_adapter(number)
    manager.add_adapter(adapter)
    manager.activate_adapter(number)


class AdapterEngine(RolloutActor):
    """An engine of a model and its adapters.

    Args:
        adapters: The number of each policy's adapter, from 1. Any other policy is the model itself.
        rank: The largest rank that it takes.
        saved: Folders (PEFT's) of the adapters that it begins with, by policy.
        args, kwargs: As upstream's.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self,
        *args: Any,
        adapters: Mapping[str, int],
        rank: int,
        saved: Mapping[str, str],
        **kwargs: Any,
    ) -> None:
        self.numbers = dict(adapters)
        self.held_by: dict[str, HeldWeights] = {}
        self.adapters = {name: packed_folder(Path(folder)) for name, folder in saved.items()}
        """What is to be in each policy's slot; the others answer as the model, which a new adapter
        equals."""
        self.loaded: set[str] = set()
        """The policies whose adapters are there, since the engine has started or woken."""
        if cpu.without_accelerator():
            on_cpu.install()
        slots = len(adapters) + 1
        kwargs |= {
            "enable_lora": True,
            "max_loras": slots,
            "max_cpu_loras": slots,
            "max_lora_rank": rank,
        }
        await super().__init__(*args, **kwargs)
        for policy in self.adapters:
            await self._put(policy)

    def held_for(self, asked: str) -> HeldWeights:
        return self.held_by.setdefault(asked, HeldWeights(asked))

    async def identify(self, policy: str, version: int) -> int:
        """Says which version a policy has from now on, and returns the engine's process id."""
        held = self.held_for(policy)
        held.epoch += version != held.version
        held.version = version
        return os.getpid()

    async def load_state(self, pieces: Sequence[ObjectRef], policy: str, version: int) -> None:
        """Takes over a policy's adapter (`blob.packed`), which is one piece; asleep, when it wakes.

        Raises:
            RunEnded: As of `_put`; or the policy has no adapter here.
        """
        if policy not in self.numbers:
            raise RunEnded(
                f"policy {policy!r} is the model itself in this engine, and has no adapter"
            )
        held = self.held_for(policy)
        self.adapters[policy] = joined([await pieces[0]])
        held.epoch += 1
        held.version = -1
        if not self.asleep:
            await self._put(policy)
        held.version = version

    async def sleep(self, level: int = 1) -> None:
        await super().sleep(level)
        self.loaded.clear()

    async def wake_up(self, tags: Sequence[str] = PARTS) -> None:
        """Takes back memory; once all is there, puts every adapter into its slot again, and tries
        whether it has an effect there. vLLM has lost adapters in sleep (issue 39934)."""
        await super().wake_up(tags)
        if not self.asleep:
            for policy in self.adapters:
                if policy not in self.loaded:
                    await self._put(policy)

    async def _put(self, policy: str) -> None:
        """Puts a policy's adapter into its slot.

        Raises:
            RunEnded: The engine cannot take it, or does not answer as it should beside it.
        """
        blob = self.adapters[policy]
        try:
            if policy not in self.loaded:
                await self._probe(blob, policy)
            await self.llm.collective_rpc(set_adapter, args=(blob, self.numbers[policy]))
        except EngineDeadError:  # it is replaced
            raise
        except Exception as error:  # of vLLM's worker, as whatever its transport makes of it
            raise RunEnded(
                f"policy {policy!r}: its engine cannot take its adapter: {error}"
            ) from error
        self.loaded.add(policy)

    def adapter_of(self, held: HeldWeights) -> LoRARequest | None:
        """Returns the policy's adapter; None for the model."""
        return self._adapter(held.policy, str(held.epoch)) if held.policy in self.loaded else None

    def _adapter(self, policy: str, name: str) -> LoRARequest:
        return LoRARequest(
            lora_name=f"{policy}@{name}", lora_int_id=self.numbers[policy], lora_path="memory"
        )

    async def _probe(self, blob: bytes, policy: str) -> None:
        """Asks for an adapter whose answers differ from the model's, and for the model beside it.

        Raises:
            RuntimeError: The adapter changes nothing, or changes what the model says.
        """
        tensors, config = unpacked(blob)
        draw = torch.Generator().manual_seed(self.numbers[policy])
        for name, tensor in tensors.items():
            if "lora_B" in name:
                tensors[name] = PROBE_STD * torch.randn(tensor.shape, generator=draw)
        number = self.numbers[policy]
        await self.llm.collective_rpc(set_adapter, args=(packed(tensors, config), number))
        ask = functools.partial(
            self.complete, list(PROBE_IDS), PROBE, RunningRequest(HeldWeights())
        )
        alone = await ask(None)
        beside, adapted = await asyncio.gather(ask(None), ask(self._adapter(policy, "probe")))
        effect, leak = distance(alone, adapted), distance(alone, beside)
        if effect < 0.05:
            raise RuntimeError(
                f"an adapter of {config['r']} ranks changes nothing of what it answers"
            )
        if leak > effect / 10:
            got = f"log-probs that are off by {leak:.2g} (the adapter's: {effect:.2g})"
            raise RuntimeError(f"beside an adapter it answers for the model with {got}")


def distance(one: RequestOutput, other: RequestOutput) -> float:
    """Returns the mean absolute difference of the log-probs of the prompt's tokens, which are the
    same in both, and of the answers' up to the first in which they differ.

    Answers alone do not show an effect: where all tokens are about as likely, two different ones
    have nearly the same log-prob.
    """
    (ids, of_ids), (others, of_others) = (
        (
            [*each.prompt_token_ids[1:], *each.outputs[0].token_ids],
            [*each.prompt_logprobs[1:], *each.outputs[0].logprobs],
        )
        for each in (one, other)
    )
    differences = list[float]()
    for a, b, of_a, of_b in zip(ids, others, of_ids, of_others, strict=True):
        differences.append(abs(of_a[a].logprob - of_b[b].logprob))
        if a != b:
            break
    return sum(differences) / len(differences)


RemoteAdapterEngine = ray.remote(AdapterEngine)
