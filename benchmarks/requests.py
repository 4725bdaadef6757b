"""What a request to an engine costs the controller, on its way through Ray: `python -m
benchmarks.requests [--requests 2000] [--rounds 5]`.

    call       a call of the engine's actor for each request, as before 27 November 2026
    mailbox    all requests of one turn of the event loop in one message, and so their answers

The engine is simulated: an actor that answers 200 tokens to 1,000 after 10 ms. Milliseconds of the
controller's CPU a request, median over rounds that alternate, with the least and the most. Then, on
each node of the Ray that RAY_ADDRESS names (else of one that is started), the time from a single
request to its answer, where the engine answers at once.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from marl_plugins.engine.processes.mailbox import Answer, Mailbox, Postbox

CONTEXT, SAMPLED = [*range(1000)], [*range(200)]
FLIGHTS = (1, 8, 64, 400)


class Engine:
    """Answers after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.postbox = Postbox(self.sample)

    async def sample(self, ids: list[int], params: Any, policy: str) -> tuple[Any, ...]:
        await asyncio.sleep(self.seconds)
        return SAMPLED, [-1.0] * len(SAMPLED), "stop", (), policy, 1

    async def post(self, requests: Any, given_up: Any) -> None:
        self.postbox.post(requests, given_up)

    async def collect(self) -> list[Answer]:
        return await self.postbox.collect()


def sampling() -> Any:
    """vLLM's parameters of a request, as the controller makes them."""
    from vllm import SamplingParams

    return SamplingParams(temperature=1.0, max_tokens=200, min_tokens=1, seed=1, logprobs=0)


async def milliseconds(ask: Callable[..., Awaitable[Any]], count: int, flight: int) -> float:
    """CPU of this process a request."""
    free = asyncio.Semaphore(flight)

    async def one() -> Any:
        async with free:
            return await ask([*CONTEXT], sampling(), "p")

    await asyncio.gather(*[one() for _ in range(flight)])
    started = time.process_time()
    await asyncio.gather(*[one() for _ in range(count)])
    return 1e3 * (time.process_time() - started) / count


async def latencies(ask: Callable[..., Awaitable[Any]], count: int) -> list[float]:
    """Milliseconds from each of some requests to its answer, one after the other."""
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        await ask([*CONTEXT], sampling(), "p")
        taken.append(1e3 * (time.perf_counter() - started))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False)
    else:
        ray.init(address="local", include_dashboard=False, num_cpus=2, log_to_driver=False)
    actor = ray.remote(max_concurrency=2000, num_cpus=0)(Engine)
    engine = actor.remote(0.01)
    ways = {"call": engine.sample.remote, "mailbox": Mailbox(engine).ask}
    print("| in flight | call | mailbox | ratio |\n|---|---|---|---|")
    for flight in FLIGHTS:
        count = options.requests if flight > 1 else max(1, options.requests // 10)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, ask in ways.items():
                taken[name].append(asyncio.run(milliseconds(ask, count, flight)))
        shown = [f"{median(t):.3f} ({min(t):.3f}-{max(t):.3f})" for t in taken.values()]
        ratio = median(taken["call"]) / median(taken["mailbox"])
        print(f"| {flight} | {shown[0]} | {shown[1]} | {ratio:.1f} |", flush=True)
    print("\n| engine on | call | mailbox |\n|---|---|---|")
    here = ray.get_runtime_context().get_node_id()
    for node in sorted(ray.nodes(), key=lambda node: node["NodeID"] != here):
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        engine = actor.options(scheduling_strategy=place).remote(0.0)
        shown = []
        for ask in (engine.sample.remote, Mailbox(engine).ask):
            asyncio.run(latencies(ask, 20))
            waits = sorted(asyncio.run(latencies(ask, options.requests // 4)))
            shown.append(f"{median(waits):.2f} ms (p95 {waits[int(0.95 * len(waits))]:.2f})")
        where = "the controller's node" if node["NodeID"] == here else "another node"
        print(f"| {where} | {' | '.join(shown)} |", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
