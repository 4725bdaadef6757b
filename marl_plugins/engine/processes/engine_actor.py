"""Upstream's rollout actor with a few methods more. Imported first in every engine process; never
imports DeepSpeed."""

from __future__ import annotations

from marl_plugins.engine.hosts import cpu

cpu.install()  # before anything of upstream

import asyncio  # noqa: E402
import contextlib  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import AsyncIterator, Callable, Iterator, Sequence  # noqa: E402
from copy import deepcopy  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

import ray  # noqa: E402
import safetensors.torch  # noqa: E402
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor as _Upstream  # noqa: E402
from ray import cloudpickle  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.envs import VLLM_V1_OUTPUT_PROC_CHUNK_SIZE  # noqa: E402
from vllm.inputs import TokensPrompt  # noqa: E402
from vllm.model_executor.model_loader.reload import (  # noqa: E402
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.utils import random_uuid  # noqa: E402

from marl_plugins.engine.processes.mailbox import EVENT_LOOP_TURNS, Answer, Postbox  # noqa: E402
from marl_plugins.engine.processes.pieces import joined, mapped  # noqa: E402
from marl_plugins.sandbox.pool import die_with_parent  # noqa: E402

if TYPE_CHECKING:
    from ray import ObjectRef
    from vllm import RequestOutput
    from vllm.lora.request import LoRARequest
    from vllm.v1.worker.worker_base import WorkerBase

if cpu.without_accelerator():
    cpu.fork_engine_processes()
    cpu.inspect_models_here()
    cpu.rank_without_compiling()

KV_BYTES = (64 * 2**20, 4 * 2**30)
"""Bounds of the key-value cache on CPU; room for 64 sequences of full length in between. vLLM's own
unit is a whole GiB, whose pages take two seconds to touch."""


ALIVE_SECONDS = 1.0
"""Seconds between two looks at whether vLLM's own process still runs."""
PARTS = ("weights", "kv_cache")
"""vLLM's names for what sleeps."""
PREFILL_TOKENS = 8192
"""Prompt tokens of one engine step on CPU."""


def load_piece(worker: WorkerBase, path: str) -> bool:
    """Runs inside a vLLM worker: take over the weights in a piece that is mapped (`mapped`);
    whether it is on this host."""
    if not os.path.exists(path):
        return False
    with set_current_vllm_config(worker.vllm_config):
        worker.model_runner.model.load_weights(weights=safetensors.torch.load_file(path).items())
    return True


def load_file(worker: WorkerBase, file: bytes) -> None:
    """Runs inside a vLLM worker on a GPU: take over the weights in a safetensors file."""
    worker.model_runner.model.load_weights(weights=[*safetensors.torch.load(file).items()])


def begin_reload(worker: WorkerBase) -> None:
    """Runs inside a vLLM worker on CPU: expect all weights, until `end_reload`.

    These two are vLLM's `reload_weights`, which takes everything in one call: the backend has
    prepacked its matrices, and packs those of a layer once the last piece of it is there.
    """
    with set_current_vllm_config(worker.vllm_config):
        initialize_layerwise_reload(worker.model_runner.model)


def end_reload(worker: WorkerBase) -> None:
    """Runs inside a vLLM worker on CPU: all weights are there.

    One matrix is stale then: an output head that is tied to the embedding shares its weight but
    keeps a packed copy of its own (vocab_parallel_embedding.py:62-66), so heads and embeddings are
    packed again.
    """
    with set_current_vllm_config(worker.vllm_config):
        finalize_layerwise_reload(worker.model_runner.model, worker.model_config)
        for module in worker.model_runner.model.modules():
            if (
                hasattr(module, "cpu_linear") and module.weight.numel()
            ):  # linear layers keep nothing but the packed copy
                module.quant_method.process_weights_after_loading(module)


def call_unpickled(worker: WorkerBase, pickled: bytes) -> object:
    """Runs inside a vLLM worker: call a function with arguments as they were. vLLM's own transport
    makes dicts of dataclasses."""
    function, arguments = cloudpickle.loads(pickled)
    return function(worker, *arguments)


def end_with_actor(worker: WorkerBase) -> None:
    """Runs inside a vLLM worker, in the process that the engine's actor has started: end with the
    actor.

    vLLM's process does not notice that an actor was killed (v1/engine/core.py of 0.29), and would
    keep its device's memory after the run.
    """
    die_with_parent()


def leave_no_files() -> None:
    """Puts vLLM's temporary files into the run's own folder: it never removes the one by which its
    workers meet (`vllm_dist_*`, network_utils.py:136). Compiled code stays where later runs find
    it."""
    if folder := os.environ.get("VLLM_RPC_BASE_PATH"):
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
        tempfile.tempdir = folder


@contextlib.contextmanager
def with_root_cause() -> Iterator[None]:
    """Adds to what vLLM says of its own process what that process has written: "See root cause
    above" is all that its caller is told (v1/engine/utils.py:1320 of 0.29), and above nobody reads.

    Raises:
        RuntimeError: That process could not start; the last line is the error that ended it.
    """
    log = Path(
        "/proc/self/fd/2"
    ).resolve()  # Ray's file of this process, which vLLM's has inherited
    begin = log.stat().st_size if log.is_file() else 0
    try:
        yield
    except RuntimeError as error:
        if "root cause" not in str(error) or not log.is_file():
            raise
        with log.open(errors="replace") as lines:
            lines.seek(begin)
            errors = re.findall(r"\b(?:\w+\.)*(\w*(?:Error|Exception): .*)", lines.read())
        causes = [line for line in errors if "root cause" not in line]
        if not causes:
            raise
        raise RuntimeError(f"{error}\n{causes[-1]}") from error


@dataclass
class HeldWeights:
    """The weights that an engine holds: whose they are, of which version, and how often they have
    changed."""

    policy: str = ""
    version: int = -1
    """-1: while they change, what is sampled belongs to no version."""
    epoch: int = 0
    """Versions alone do not tell that weights have changed: another policy's may have the same."""


class RunningRequest:
    """A request in flight: the weights that have sampled its tokens so far.

    Args:
        held: The weights that sample it.
    """

    def __init__(self, held: HeldWeights):
        self.held, self.policy, self.version, self.epoch = (
            held,
            held.policy,
            held.version,
            held.epoch,
        )
        self.tokens = 0
        """That have been sampled."""
        self.changes: list[tuple[int, int]] = []
        """As of `Generation.changes`."""

    def go_on(self) -> None:
        """Notes that the next token is by the weights that are held now.

        A request that came while they changed has their epoch already, and no version.
        """
        if not self.tokens:
            self.version = self.held.version
        elif self.epoch != self.held.epoch:
            self.changes = [change for change in self.changes if change[0] < self.tokens]
            self.changes.append((self.tokens, self.held.version))
        self.epoch = self.held.epoch

    @property
    def known(self) -> bool:
        """Returns whether it is known of each token which weights have sampled it."""
        return self.epoch == self.held.epoch


class RolloutActor(_Upstream.__ray_metadata__.modified_class):  # type: ignore[misc]
    """An engine that knows whose weights it holds, so that a sample can never be trained by the
    wrong policy."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        self.held = HeldWeights()
        self.requests: set[RunningRequest] = set()
        self.asleep: set[str] = set()
        self.postbox = Postbox(self.sample)
        if cpu.device() == "cpu":
            kwargs["dtype"] = cpu.engine_dtype()
            kwargs["kv_cache_memory_bytes"] = _kv_bytes(kwargs)
            # A prompt cut into chunks kills the CPU engine when its request has a seed: vLLM
            # rewinds the request's generator, which CPU generators cannot do
            # (gpu_model_runner.py:3785).
            kwargs["enable_chunked_prefill"] = False
            kwargs["max_num_batched_tokens"] = max(PREFILL_TOKENS, kwargs["max_model_len"])
            leave_no_files()
        with with_root_cause():
            await super().__init__(*args, **kwargs)
        if (
            cpu.device() == "cpu"
        ):  # compiles what the first sample needs, while the training processes still load
            await self.sample(
                [0], SamplingParams(max_tokens=1, seed=0, logprobs=0, detokenize=False)
            )
        elif (
            kwargs["tensor_parallel_size"] == 1
        ):  # the workers of several devices are processes of Ray's
            await self.llm.collective_rpc(end_with_actor)
        self._watch = asyncio.create_task(self._end_with_vllm())

    async def _end_with_vllm(self) -> None:
        """Ends this process when vLLM's own has died: what that one was asked is never answered
        (core_client.py:720 of 0.29)."""
        while not self.llm.errored:  # noqa: ASYNC110  # a flag, without an event
            await asyncio.sleep(ALIVE_SECONDS)
        os._exit(1)

    async def identify(self, policy: str, version: int) -> int:
        """Says whose weights the engine holds from now on, and returns its process id."""
        self.held.epoch += (policy, version) != (self.held.policy, self.held.version)
        self.held.policy, self.held.version = policy, version
        return os.getpid()

    async def sleep(self, level: int = 1) -> None:
        """Gives the device's memory to others; does nothing where it has been given."""
        if not self.asleep:
            await super().sleep(level)
        self.asleep = set(PARTS)

    async def wake_up(self, tags: Sequence[str] = PARTS) -> None:
        """Takes back the memory of those parts that are asleep."""
        asleep = [tag for tag in tags if tag in self.asleep]
        await super().wake_up(asleep)
        self.asleep -= set(asleep)

    async def load_state(self, pieces: Sequence[ObjectRef], policy: str, version: int) -> None:
        """Takes over a policy's weights, awake or asleep, one piece after the other."""
        self.held.epoch += 1
        self.held.version = -1
        await self.wake_up(["weights"])
        on_cpu = cpu.device() == "cpu"
        async with self._still():
            if on_cpu:
                await self.llm.collective_rpc(begin_reload)
            for reference in pieces:
                piece = await reference
                with mapped(piece) as path:
                    here = await self.llm.collective_rpc(load_piece, args=(path,))
                if not all(here):  # an engine of more devices than this host has
                    await self.llm.collective_rpc(load_file, args=(joined([piece]),))
            if on_cpu:
                await self.llm.collective_rpc(end_reload)
        await self.llm.reset_prefix_cache()
        self.held.policy, self.held.version = policy, version

    @contextlib.asynccontextmanager
    async def _still(self) -> AsyncIterator[None]:
        """Has the engine sample nothing meanwhile: between two pieces it has no whole weights."""
        core = self.llm.engine_core
        paused = await core.is_scheduler_paused_async()
        if not paused:
            await core.pause_scheduler_async(mode="keep", clear_cache=False)
        try:
            yield
        finally:
            if not paused:
                await core.resume_scheduler_async()

    async def in_workers(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Calls `function(worker, *arguments)` in every vLLM worker of this engine, and returns
        their answers.

        The function is in an installed module or inside another function: engines cannot import the
        file of a plugin.
        """
        answers: list[Any] = await self.llm.collective_rpc(
            call_unpickled, args=(cloudpickle.dumps((function, arguments)),)
        )
        return answers

    async def post(
        self, requests: Sequence[tuple[int, Sequence[Any]]], given_up: Sequence[int]
    ) -> None:
        """See `Postbox`; what is asked is `sample`."""
        self.postbox.post(requests, given_up)

    async def collect(self) -> list[Answer]:
        """See `Postbox`."""
        return await self.postbox.collect()

    async def sample(
        self, ids: list[int], params: SamplingParams, asked: str = ""
    ) -> tuple[list[int], list[float], str, tuple[tuple[int, int], ...], str, int]:
        """Generates, and returns the sampled ids, their log-probs, why it stopped, where the
        weights changed (as of `Generation.changes`), and whose weights of which version were used
        at first.

        Args:
            asked: The policy that is to answer. An engine with the weights of one policy answers
                with these.
        """
        request = RunningRequest(self.held_for(asked))
        self.requests.add(request)
        try:
            answer = (
                await self.complete(ids, params, request, self.adapter_of(request.held))
            ).outputs[0]
        finally:
            self.requests.remove(request)
        sampled = list(answer.token_ids)
        logprobs = [
            entry[token].logprob for entry, token in zip(answer.logprobs, sampled, strict=True)
        ]
        changes = tuple(change for change in request.changes if change[0] < len(sampled))
        version = request.version if request.known else -1
        return sampled, logprobs, answer.finish_reason, changes, request.policy, version

    async def resume_generation(self) -> None:
        """Goes on after `pause_generation`, and notes for each request in flight how many of its
        tokens are by weights of before.

        Paused, vLLM has forgotten what these weights had computed of a request (`clear_cache` of
        its `pause_generation`): it computes the whole context again, so that each later token is by
        the new weights alone.
        """
        await self._settle()
        for request in self.requests:
            request.go_on()
        await super().resume_generation()

    async def _settle(self) -> None:
        """Waits until what vLLM's process has sampled has reached its requests; all of it had been
        sent when the pause began."""
        queue, parts = (
            self.llm.engine_core.outputs_queue,
            len(self.requests) // VLLM_V1_OUTPUT_PROC_CHUNK_SIZE,
        )
        while not queue.empty():  # noqa: ASYNC110  # vLLM's own task takes them
            await asyncio.sleep(0)
        for _ in range(parts + EVENT_LOOP_TURNS):
            await asyncio.sleep(0)

    def held_for(self, asked: str) -> HeldWeights:
        """Returns the weights by which this engine answers for a policy."""
        return self.held

    def adapter_of(self, held: HeldWeights) -> LoRARequest | None:
        """Returns vLLM's name for weights that are an adapter of the engine's model; None: they are
        the model's."""
        return None

    async def complete(
        self,
        ids: list[int],
        params: SamplingParams,
        request: RunningRequest,
        adapter: LoRARequest | None,
    ) -> RequestOutput:
        """Returns vLLM's answer, by an adapter where one is given, and counts its tokens while they
        are sampled."""
        prompt, last = TokensPrompt(prompt_token_ids=ids), None
        async for last in self.llm.generate(
            prompt, deepcopy(params), request_id=random_uuid(), lora_request=adapter
        ):
            request.tokens = len(last.outputs[0].token_ids)
        assert last is not None, "vLLM has ended a request without an answer"
        return last


def _kv_bytes(settings: dict[str, Any]) -> int:
    from transformers import AutoConfig

    # What upstream gives the engine; without --trust_remote_code, models that bring code do not get
    # here (session.py).
    trusted = settings["trust_remote_code"]
    config = AutoConfig.from_pretrained(
        settings["model"], trust_remote_code=trusted
    ).get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size = 4 if settings["dtype"] == "float32" else 2
    needed = int(
        2 * size * config.num_hidden_layers * heads * head * settings["max_model_len"] * 64
    )
    return max(KV_BYTES[0], min(KV_BYTES[1], needed))


RemoteRolloutActor = ray.remote(RolloutActor)
