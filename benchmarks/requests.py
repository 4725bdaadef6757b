"""What a request to an engine costs the controller, on its way through Ray: `python -m
benchmarks.requests [--requests 2000] [--rounds 5]`.

    call       a call of the engine's actor for each request, as before 27 November 2026
    mailbox    all requests of one turn of the event loop in one message, and so their answers

The engine is simulated: an actor that answers 200 tokens to 1,000 after 10 ms. Milliseconds of the
controller's CPU a request, median over rounds that alternate, with the least and the most.
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

from marl_plugins.engine.processes.mailbox import Answer, Mailbox, Postbox

CONTEXT, SAMPLED = [*range(1000)], [*range(200)]
FLIGHTS = (1, 8, 64, 400)


class Engine:
    """Answers after 10 ms."""

    def __init__(self) -> None:
        self.postbox = Postbox(self.sample)

    async def sample(self, ids: list[int], params: Any, policy: str) -> tuple[Any, ...]:
        await asyncio.sleep(0.01)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ray.init(address="local", include_dashboard=False, num_cpus=2, log_to_driver=False)
    engine = ray.remote(Engine).options(max_concurrency=2000, num_cpus=0).remote()
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
    ray.shutdown()


if __name__ == "__main__":
    main()
