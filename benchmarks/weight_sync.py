"""Weight sync through one vLLM engine: the whole state at once, and one call per parameter,
alternating.

    python -m benchmarks.weight_sync

A random model of 33 layers (about 400 tensors). A parameter is one of the engine's: vLLM fuses q, k
and v, and gate and up, and cannot take over a part of a fused one alone. Both ways end with the
same weights in the engine, which is asserted by the log-probs of a fixed prompt.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import time
from typing import Any

from marl_plugins.engine.hosts import cpu

os.environ.update(cpu.environment())
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")

RUNS = 3
MODEL = "tiny:layers=33,hidden=64"


async def measure() -> None:
    import safetensors.torch
    import torch
    import vllm
    from transformers import AutoModelForCausalLM

    from marl_plugins.engine.processes.engine_actor import load_weights
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

    flat, single = [], []
    for _ in range(RUNS):
        weights = state()
        started = time.perf_counter()
        for group in parameters(weights):
            await engine.collective_rpc(load_weights, args=(safetensors.torch.save(group),))
        single.append(time.perf_counter() - started)
        one_by_one = await logprobs()
        await engine.collective_rpc(
            load_weights, args=(safetensors.torch.save(state()),)
        )  # something else in between
        started = time.perf_counter()
        await engine.collective_rpc(load_weights, args=(safetensors.torch.save(weights),))
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


def main() -> Any:
    return asyncio.run(measure())


if __name__ == "__main__":
    sys.exit(main())
