"""What vLLM itself makes of a multi-agent run's requests, measured on its CPU build with a random
tiny model:

    python -m benchmarks.engine_traffic [--repeats 3] [--json]

    schedule    graphs of twelve calls (each names up to two earlier ones): a call starts when what
                it names is there, in whole rounds, or one after another; with 1, 4 and 16
                trajectories in flight
    slots       eight adapters asked by a Zipf law, with nine, four and two slots (`max_loras`), and
                with the hottest pinned, of which vLLM 0.29 dies: its scheduler hands out four
                slots, whatever is pinned
    prefixes    share of prompt tokens that prefix caching finds, for samples of one task, for three
                roles of one model that share a text, for the turns of a conversation, and for the
                same samples by adapters of their own

However calls are scheduled, they are asserted to be the same calls with answers of the same
lengths, which are drawn, up to 24 tokens; the words may differ, because in one batch with others
the last bit of a log-prob does. Times are seconds of the whole traffic, medians with their range.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_plugins.engine.hosts import cpu

os.environ["MARL_PLUGINS_DEVICE"] = "cpu"
os.environ.update(cpu.environment())

from marl_plugins.builtin.graph.checks import RecipeParts
from marl_plugins.builtin.graph.compiler import Compiler
from marl_plugins.builtin.graph.files import Files
from marl_plugins.builtin.graph.workflow import GraphWorkflow
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.roles import Call, RoleSpec, Sampling
from marl_plugins.core.trajectory import Generation, Task
from marl_plugins.core.workflow import run_workflow
from marl_plugins.engine.runtime import tiny_model

NODES, TRAJECTORIES, LONGEST = 12, 16, 24
ADAPTERS, REQUESTS, IN_FLIGHT, ZIPF = 8, 200, 16, 1.2
RANK, POSITIONS = 8, 1024
PASSAGE = "The harbour is closed in winter. " * 8


class Engine:
    """A vLLM engine of the tiny model, in this process."""

    def __init__(self, model: Path, **settings: Any):
        import vllm

        defaults = {
            "enforce_eager": True,
            "dtype": "float32",
            "max_model_len": POSITIONS,
            "max_num_seqs": 64,
        }
        defaults |= {
            "kv_cache_memory_bytes": 2**28,
            "enable_chunked_prefill": False,
            "enable_prefix_caching": False,
        }
        self.llm = vllm.AsyncLLMEngine.from_engine_args(
            vllm.AsyncEngineArgs(
                model=str(model), seed=0, max_num_batched_tokens=2048, **defaults | settings
            )
        )
        self.asked = 0

    async def answer(
        self, ids: Sequence[int], tokens: int, adapter: Any = None
    ) -> tuple[tuple[int, ...], int]:
        """Returns the most likely tokens, and how many of the prompt's were found in the cache."""
        from vllm import SamplingParams, TokensPrompt

        self.asked += 1
        params = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        prompt = TokensPrompt(prompt_token_ids=list(ids))
        answers = [
            each
            async for each in self.llm.generate(
                prompt, params, request_id=str(self.asked), lora_request=adapter
            )
        ]
        return tuple(answers[-1].outputs[0].token_ids), answers[-1].num_cached_tokens or 0

    def end(self) -> None:
        self.llm.shutdown()


# --- when calls of a graph start
# ------------------------------------------------------------------------------------------


class Bytes:
    """One token per byte."""

    tools = ()

    def opening(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        return tuple("".join(message["content"] for message in messages).encode())

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


ROLES = [f"r{n}" for n in range(NODES)]
SCHEDULES = ("as soon as ready", "in rounds", "one after another")


def graph_of(schedule: str, folder: Path) -> GraphWorkflow:
    """The same twelve calls and what they show; only when they start differs."""
    draw = random.Random(7)
    lines = ["budget: {calls: 1000}"] if schedule == "in rounds" else []
    lines.append("nodes:")
    for n in range(NODES):
        named = sorted(draw.sample(range(n), min(n, draw.randrange(3))))
        shown = " + ' ' + ".join(["task.prompt", *(f"n{k}.text" for k in named)])
        more = ", cost: {calls: 1}" if schedule == "in rounds" else ""
        more += f", after: [n{n - 1}]" if schedule == "one after another" and n else ""
        lines.append(f'  n{n}: {{role: r{n}, with: {{text: "{shown}"}}{more}}}')
    lines.append(f"give: n{NODES - 1}")
    (folder / "graph.yaml").write_text("\n".join(lines))
    files = Files(folder)
    compiler = Compiler(RecipeParts(ROLES, {}), files)
    graph = compiler.compile("graph.yaml")
    assert graph is not None, compiler.problems
    return GraphWorkflow(graph, files.names)


def schedules(model: Path, repeats: int) -> list[list[str]]:
    engine = Engine(model)
    sampling = Sampling(1, 1, LONGEST, 10**6)
    render = prompt_renderer("{text}", None)
    chat: Any = Bytes()
    roles = {role: RoleSpec(role, "agent", render, chat, sampling) for role in ROLES}

    async def generate(call: Call) -> Generation:
        tokens = random.Random(f"{call.task} {call.role}").randrange(4, LONGEST)
        ids, _ = await engine.answer(call.context_ids[-POSITIONS + LONGEST :], tokens)
        return Generation(ids, (0.0,) * len(ids), "stop", call.policy, 0)

    async def all_of(workflow: GraphWorkflow, in_flight: int) -> dict[str, Any]:
        free, found = asyncio.Semaphore(in_flight), {}

        async def one(number: int) -> None:
            async with free:
                task = Task(str(number), f"Task {number}.", "")
                found[task.id] = await run_workflow(
                    workflow, task, 0, step=0, run_seed=0, roles=roles, tools={}, generate=generate
                )

        await asyncio.gather(*map(one, range(TRAJECTORIES)))
        return {
            name: sorted((a.role, len(a.generation.ids)) for a in t.actions)
            for name, t in found.items()
        }

    async def measured() -> list[list[str]]:
        with tempfile.TemporaryDirectory() as folder:
            graphs = {schedule: graph_of(schedule, Path(folder)) for schedule in SCHEDULES}
        rows = []
        for in_flight in (1, 4, TRAJECTORIES):
            seconds: dict[str, list[float]] = {schedule: [] for schedule in SCHEDULES}
            answers = []
            for _ in range(repeats):
                for schedule, graph in graphs.items():
                    began = time.perf_counter()
                    answers.append(await all_of(graph, in_flight))
                    seconds[schedule].append(time.perf_counter() - began)
            assert all(each == answers[0] for each in answers), "what is asked depends on when"
            rows += [
                [f"{in_flight} in flight", schedule, *spread(found, seconds[SCHEDULES[0]])]
                for schedule, found in seconds.items()
            ]
        engine.end()
        return rows

    return asyncio.run(measured())


# --- fewer slots than adapters
# --------------------------------------------------------------------------------------------


def made_adapters(model: Path, folder: Path) -> list[Path]:
    """Adapters as PEFT saves them, each of which changes what the model says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    made = []
    for number in range(ADAPTERS):
        torch.manual_seed(number)
        adapted = get_peft_model(
            AutoModelForCausalLM.from_pretrained(model),
            LoraConfig(r=RANK, target_modules="all-linear"),
        )
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
        made.append(folder / str(number))
        adapted.save_pretrained(made[-1])
    return made


def slots(model: Path, folder: Path, repeats: int) -> list[list[str]]:
    """Eight adapters with fewer and fewer slots; what has none is loaded from memory when it is
    asked."""
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.exceptions import EngineDeadError

    adapters = [
        LoRARequest(f"a{n}", n + 1, str(path))
        for n, path in enumerate(made_adapters(model, folder))
    ]
    draw = random.Random(3)
    chances = [1 / (rank + 1) ** ZIPF for rank in range(ADAPTERS)]
    traffic = [
        (n, draw.choices(adapters, chances)[0], draw.randrange(4, LONGEST)) for n in range(REQUESTS)
    ]

    async def asked(engine: Engine) -> tuple[float, dict[int, tuple[int, ...]]]:
        free, answers = asyncio.Semaphore(IN_FLIGHT), {}

        async def one(number: int, adapter: Any, tokens: int) -> None:
            async with free:
                answers[number], _ = await engine.answer(
                    f"Question {number}?".encode(), tokens, adapter
                )

        began = time.perf_counter()
        await asyncio.gather(*(one(*request) for request in traffic))
        return time.perf_counter() - began, answers

    async def of(count: int, pinned: int) -> tuple[list[float], dict[int, tuple[int, ...]]] | None:
        """Returns seconds and answers; None where vLLM's process has died of it."""
        engine = Engine(
            model, enable_lora=True, max_loras=count, max_cpu_loras=ADAPTERS + 1, max_lora_rank=RANK
        )
        for adapter in adapters:
            await engine.llm.add_lora(adapter)
        for adapter in adapters[:pinned]:
            await engine.llm.engine_core.pin_lora_async(adapter.lora_int_id)
        try:
            found = [await asked(engine) for _ in range(repeats + 1)][1:]
        except EngineDeadError:  # whose stack it has printed
            return None
        finally:
            engine.end()
        return [seconds for seconds, _ in found], found[-1][1]

    kinds = {
        "9 slots": (ADAPTERS + 1, 0),
        "4 slots": (4, 0),
        "4 slots, the hottest 2 pinned": (4, 2),
        "2 slots": (2, 0),
    }
    measured = {name: asyncio.run(of(*kind)) for name, kind in kinds.items()}
    base = measured["9 slots"]
    assert base is not None
    rows = []
    for name, found in measured.items():
        if found is None:
            rows.append([f"{ADAPTERS} adapters", name, "the engine died", ""])
            continue
        seconds, answers = found
        other = sum(answers[n] != base[1][n] for n in answers)
        rows.append(
            [
                f"{ADAPTERS} adapters",
                name + (f" ({other} answers differ)" if other else ""),
                *spread(seconds, base[0]),
            ]
        )
    return rows


# --- what prefix caching finds
# --------------------------------------------------------------------------------------------


def prefixes(model: Path, folder: Path) -> list[list[str]]:
    """Prompts of 264 bytes and more: whole blocks of them are found, where an earlier request had
    the same beginning."""
    from vllm.lora.request import LoRARequest

    adapters = [
        LoRARequest(f"a{n}", n + 1, str(path))
        for n, path in enumerate(made_adapters(model, folder)[:3])
    ]

    async def measured() -> list[list[str]]:
        rows = []
        caching = {
            "enable_prefix_caching": True,
            "enable_lora": True,
            "max_loras": 4,
            "max_lora_rank": RANK,
        }
        engine = Engine(model, **caching)

        async def count(name: str, requests: Sequence[tuple[str, Any]], in_turn: bool) -> None:
            await engine.llm.reset_prefix_cache()
            found, tokens = 0, 0
            work = [engine.answer(text.encode(), 8, adapter) for text, adapter in requests]
            answers = [await one for one in work] if in_turn else await asyncio.gather(*work)
            for (text, _), (_, cached) in zip(requests, answers, strict=True):
                found, tokens = found + cached, tokens + len(text.encode())
            rows.append(["prefixes", name, f"{found / tokens:.2f}", ""])

        samples = [f"Task {n}. {PASSAGE}" for n in range(8)]
        eight = [(text, None) for text in samples for _ in range(8)]
        await count("8 tasks x 8 samples, asked at once", eight, in_turn=False)
        await count("the same, one after another", eight, in_turn=True)
        roles = [f"{PASSAGE}{word} it." for word in ("Solve", "Check", "Judge")]
        await count(
            "3 roles of one model, the text first", [(text, None) for text in roles], in_turn=True
        )
        behind = [f"{word} it. {PASSAGE}" for word in ("Solve", "Check", "Judge")]
        await count(
            "3 roles of one model, the text last", [(text, None) for text in behind], in_turn=True
        )
        turns = [
            (PASSAGE + "".join(f"Turn {k}: {'so. ' * 12}" for k in range(n + 1)), None)
            for n in range(6)
        ]
        await count("6 turns of a conversation", turns, in_turn=True)
        three = [(f"{PASSAGE}Say it.", adapter) for adapter in adapters]
        await count("3 adapters, the same prompt", three, in_turn=True)
        await count("1 adapter, 3 times the same prompt", [three[0]] * 3, in_turn=True)
        engine.end()
        return rows

    return asyncio.run(measured())


def spread(seconds: Sequence[float], base: Sequence[float]) -> tuple[str, str]:
    middle = statistics.median(seconds)
    return (
        f"{middle:.2f} s ({min(seconds):.2f}-{max(seconds):.2f})",
        f"{middle / statistics.median(base):.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine_traffic", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--repeats", type=int, default=3, help="times of every row")
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        tiny_model.build(model, seed=0, hidden=128, layers=2, heads=2, positions=POSITIONS)
        rows = schedules(model, options.repeats)
        rows += slots(model, Path(folder, "slots"), options.repeats)
        rows += prefixes(model, Path(folder, "prefixes"))
    if options.json:
        print(json.dumps(rows))
        return
    print("| traffic | | measured | of the first |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
