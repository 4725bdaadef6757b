"""Weight sync through one vLLM engine: the whole state at once, and one call per parameter,
alternating; and a large one.

    python -m benchmarks.weight_sync
    python -m benchmarks.weight_sync --gb 1     a model of that size: seconds, and peaks of memory
    python -m benchmarks.weight_sync --gb 5 --no-model      so many bytes through Ray's store

A random model of 33 layers (about 400 tensors). A parameter is one of the engine's: vLLM fuses q, k
and v, and gate and up, and cannot take over a part of a fused one alone. Both ways end with the
same weights in the engine, which is asserted by the log-probs of a fixed prompt.

With `--no-model` vLLM's worker reads what it is given and keeps none: a training process, Ray's
store, and an engine with a model of 5 GB do not fit a small machine together.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import sys
import time
from typing import Any
from unittest.mock import patch

from marl_plugins.engine.hosts import cpu

os.environ.update(cpu.environment())
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")

RUNS = 3
MODEL = "tiny:layers=33,hidden=64"


async def measure() -> None:
    import torch
    import vllm
    from transformers import AutoModelForCausalLM

    from marl_plugins.engine.processes.engine_actor import begin_reload, end_reload, load_piece
    from marl_plugins.engine.processes.pieces import mapped, piece_of
    from marl_plugins.engine.runtime.tiny_model import resolve

    path = resolve(MODEL)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    engine = vllm.AsyncLLMEngine.from_engine_args(
        vllm.AsyncEngineArgs(
            model=path,
            enforce_eager=True,
            max_model_len=256,
            dtype="bfloat16",
            seed=1,
            kv_cache_memory_bytes=2**26,
            logprobs_mode="processed_logprobs",
            max_logprobs=1,
            distributed_executor_backend="uni",
            enable_chunked_prefill=False,
            max_num_batched_tokens=8192,
            enable_prefix_caching=False,
        )
    )
    count = 0

    async def logprobs() -> list[float]:
        nonlocal count
        count += 1
        params = vllm.SamplingParams(max_tokens=4, temperature=1.0, seed=3, logprobs=0)
        outputs = [
            o
            async for o in engine.generate(
                {"prompt_token_ids": [5, 6, 7, 8]}, params, request_id=str(count)
            )
        ]
        answer = outputs[-1].outputs[0]
        return [
            entry[token].logprob
            for entry, token in zip(answer.logprobs, answer.token_ids, strict=True)
        ]

    def state() -> dict[str, torch.Tensor]:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.01)
        return {name: p.detach().clone() for name, p in model.named_parameters()}

    async def load(weights: dict[str, torch.Tensor]) -> None:
        await engine.collective_rpc(begin_reload)
        with mapped(piece_of(weights)) as path:
            await engine.collective_rpc(load_piece, args=(path,))
        await engine.collective_rpc(end_reload)

    flat, single = [], []
    for _ in range(RUNS):
        weights = state()
        started = time.perf_counter()
        for group in parameters(weights):
            await load(group)
        single.append(time.perf_counter() - started)
        one_by_one = await logprobs()
        await load(state())  # something else in between
        started = time.perf_counter()
        await load(weights)
        flat.append(time.perf_counter() - started)
        assert await logprobs() == one_by_one
    engine.shutdown()
    ratios = [s / f for s, f in zip(single, flat, strict=True)]
    sizes = f"{len(weights)} tensors, {len(parameters(weights))} parameters"
    at_once = (
        f"{statistics.median(flat) * 1e3:.0f} ms ({min(flat) * 1e3:.0f}-{max(flat) * 1e3:.0f})"
    )
    each = f"{statistics.median(single):.1f} s ({min(single):.1f}-{max(single):.1f})"
    ratio = f"{statistics.median(ratios):.0f}x ({min(ratios):.0f}-{max(ratios):.0f})"
    print(f"weight sync, {sizes}: at once {at_once}; per parameter {each}; {ratio}")


def parameters(weights: dict[str, Any]) -> list[dict[str, Any]]:
    """The tensors of each parameter of the engine."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in weights.items():
        module = re.sub(
            r"\.(q|k|v)_proj\.", ".qkv_proj.", re.sub(r"\.(gate|up)_proj\.", ".gate_up_proj.", name)
        )
        groups.setdefault(module.rpartition(".")[0], {})[name] = value
    return list(groups.values())


async def large(gigabytes: float, with_model: bool) -> None:
    """One sync of a policy whose weights have that size."""
    import psutil
    import ray
    import torch

    from marl_plugins.core.policy import Policy
    from marl_plugins.engine.plan.build import build_plan
    from marl_plugins.engine.plan.estimate import store_bytes
    from marl_plugins.engine.processes import cluster
    from marl_plugins.engine.processes.engines import RestartBudget
    from marl_plugins.engine.processes.pieces import PIECE_BYTES, piece_of
    from marl_plugins.engine.runtime.policy import UpstreamPolicy, start
    from marl_plugins.engine.runtime.session import Session

    layers = max(1, round(gigabytes * 1e9 / 4 / (10 * 1024**2))) if with_model else 1
    model = f"tiny:hidden=1024,layers={layers},heads=8"
    words = ["--recipe", "vote/tiny.yaml", "--actor.model_name_or_path", model]
    run = build_plan(words)
    spec = run.run.policies[0] if with_model else Policy("still", model, trainable=False)
    count = round(gigabytes * 1e9 / PIECE_BYTES)
    needed = store_bytes(run.run)
    if not with_model:  # for pieces that no policy of the run has
        needed += int(gigabytes * 1e9)
    larger = patch.object(cluster, "store_bytes", lambda run: needed)
    with larger, cluster.ray_cluster(run.run, False, None):
        session = Session(run)
        name = run.run.policies[0].name
        args, tokenizer = session.args[name], session.chats[name].tokenizer
        policy = UpstreamPolicy(spec, args, "cpu", tokenizer, 100, RestartBudget(0), 600.0)
        start([policy], 600.0)
        place = policy.engines.engines[0].where
        assert place is not None
        processes = {"engine": place.pid, "vLLM": place.family[1][0]}
        if policy.training is not None:
            processes["training"] = policy.training.where[0].pid
        before = {name: psutil.Process(pid).memory_info() for name, pid in processes.items()}
        if with_model:
            await policy.sync(0)  # the first touches the store's memory
            started = time.perf_counter()
            await policy.collect()
        else:
            await policy.engines.engines[0].handle.in_workers.remote(count_bytes)
            size = PIECE_BYTES // 4
            pieces = [
                ray.put(piece_of({"same": torch.full((size,), float(n))})) for n in range(count)
            ]
            started = time.perf_counter()
        collected = time.perf_counter() - started
        await (policy.sync(1) if with_model else policy.give(pieces, 1))
        seconds = time.perf_counter() - started - collected
        peaks = ", ".join(
            f"{name} {before[name].rss / 1e9:.1f} -> {peak(pid) / 1e9:.1f} GB"
            for name, pid in processes.items()
        )
        policy.kill()
    took = f"into the store {collected:.1f} s, to the engine {seconds:.1f} s"
    print(f"{gigabytes:g} GB: {took}; {peaks}")


def count_bytes(worker: Any) -> None:
    """Runs inside a vLLM worker: read weights, and keep none."""

    def read(weights: Any) -> None:
        for _, value in weights:
            value.sum()

    worker.model_runner.model.load_weights = read


def peak(pid: int) -> int:
    """The largest resident memory that a process has had (bytes)."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def main() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, help="bytes of a large sync, in 1e9")
    parser.add_argument("--no-model", action="store_true", help="zeros that nobody keeps")
    options = parser.parse_args()
    return asyncio.run(large(options.gb, not options.no_model) if options.gb else measure())


if __name__ == "__main__":
    sys.exit(main())
