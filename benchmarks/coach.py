"""The coach's client: `python -m benchmarks.coach [--calls 2000] [--rounds 3] [--verifiers PYTHON]`

1. Judgements a second from a local server (a separate process: 50 ms, 5 % 429, 1 % broken answers),
   64 in flight, beside the official client kept open with repeats by hand and, with
   `--verifiers PYTHON` (an interpreter that has `verifiers`), its `Judge.evaluate`. All ask the
   same questions; every score that comes back has to be the right one.
2. The wall clock of a step whose verdicts take 2 to 5 s: scored while the rollout continues, as the
   runtime does, and one after the other, each action's verdict awaited before the next action.
   Generation is simulated (0.5 s an action).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.plain_chat import PlainChat
from marl_plugins.asking.asker import endpoint_asker
from marl_plugins.asking.endpoint import CoachEndpoint
from marl_plugins.coach.model import PROMPTS, ModelCoach, Questions, read_prompt
from marl_plugins.core.scoring import Seen
from marl_plugins.core.trajectory import Action, Generation, Task
from marl_plugins.core.workflow import Call, RoleSpec, Sampling, run_workflow

HERE = Path(__file__).parent
LIMIT = 64


@contextmanager
def server(latency: str, failures: dict[str, float]) -> Iterator[str]:
    words = [sys.executable, str(HERE / "coach_server.py"), latency, json.dumps(failures)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


def stats(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/stats") as answer:
        found: dict[str, int] = json.load(answer)
    return found


def model_coach(url: str, duties: Mapping[str, str]) -> ModelCoach:
    endpoint = CoachEndpoint("coach", f"{url}/v1", "m", concurrency=LIMIT, form="text")
    prompts = (
        read_prompt(PROMPTS / "action.md", with_label=False),
        read_prompt(PROMPTS / "last_action.md", with_label=True),
    )
    return ModelCoach(endpoint_asker(endpoint), Questions(prompts, duties))


def step(number: int) -> tuple[Action, Seen]:
    generation = Generation((1,), (0.0,), "stop", "p", 0)
    text = f"This is step #{number} [{number % 11}]. " + "The step says something. " * 40
    action = Action(f"solver.{number}", "solver", "p", 0, (1,), generation, text)
    return action, Seen("t", "What is it?", "solver", (("user", "What is it?"),), ())


async def ours(url: str, calls: int) -> dict[str, Any]:
    coach = model_coach(url, {"solver": "Solve it."})

    async def one(number: int) -> float | None:
        return (await coach.judge(*step(number))).score

    started = time.perf_counter()
    scores = await asyncio.gather(*(one(n) for n in range(calls)))
    seconds = time.perf_counter() - started
    await coach.asker.close()
    return {"seconds": seconds, "scores": scores, "each": coach.asker.tally.seconds, "lost": {}}


def peer(python: str, kind: str, url: str, calls: int) -> dict[str, Any]:
    words = [python, str(HERE / "coach_peers.py"), kind, f"{url}/v1", str(calls), str(LIMIT)]
    found: dict[str, Any] = json.loads(
        subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    )
    return found


def throughput(calls: int, verifiers: str | None, rounds: int) -> None:
    print(
        "| client | judgements/s (runs) | p50 s | p99 s | lost | most in flight | requests "
        "|\n|---|---|---|---|---|---|---|"
    )
    names = ["ours", "openai, by hand", *(["verifiers Judge.evaluate"] if verifiers else [])]
    rates: dict[str, list[float]] = {name: [] for name in names}
    worst: dict[str, list[float]] = {name: [0.0] * 5 for name in names}
    with server("0.05", {"429": 0.05, "broken": 0.005, "no verdict": 0.005}) as url:
        for _ in range(rounds):
            for name in names:
                if name == "ours":
                    found = asyncio.run(ours(url, calls))
                elif name.startswith("openai"):
                    found = peer(sys.executable, "openai", url, calls)
                else:
                    found = peer(str(verifiers), "verifiers", url, calls)
                seen = stats(url)
                wrong = [n for n, s in enumerate(found["scores"]) if s is not None and s != n % 11]
                assert not wrong, f"{name}: wrong scores for {wrong[:5]}"
                lost = found["scores"].count(None)
                rates[name].append((calls - lost) / found["seconds"])
                each = sorted(found["each"])
                p50, p99 = (each[int(q * (len(each) - 1))] for q in (0.5, 0.99))
                measured = (p50, p99, lost, seen["peak"], seen["requests"])
                worst[name] = [max(pair) for pair in zip(worst[name], measured, strict=True)]
    for name in names:
        spread = f"{min(rates[name]):.0f}-{max(rates[name]):.0f}"
        p50, p99, lost, peak, requests = worst[name]
        rest = f"{p50:.2f} | {p99:.2f} | {lost:.0f} | {peak:.0f} | {requests:.0f}"
        print(f"| {name} | {statistics.median(rates[name]):.0f} ({spread}) | {rest} |", flush=True)
    for name in names[1:]:
        ratios = [a / b for a, b in zip(rates["ours"], rates[name], strict=True)]
        print(
            f"ours / {name}: {statistics.median(ratios):.1f}x ({min(ratios):.1f}-{max(ratios):.1f})"
        )


# A step, overlapped and serial.


class Characters(PlainChat):
    def opening(self, messages: Any) -> tuple[int, ...]:
        return tuple(map(ord, messages[-1]["content"]))

    def text(self, ids: Any) -> str:
        return "".join(map(chr, ids))


async def a_step(url: str, overlapped: bool, trajectories: int) -> float:
    coach = model_coach(url, dict.fromkeys("abc", "Do your part."))

    async def generate(call: Call) -> Generation:
        await asyncio.sleep(0.5)
        ids = tuple(map(ord, f"This is step #{call.sample} [{call.sample % 11}]"))
        return Generation(ids, (0.0,) * len(ids), "stop", call.policy, 0)

    async def score(action: Action, seen: Seen) -> float:
        return (await coach.judge(action, seen)).share

    async def workflow(task: Task, roles: Any, tools: Any) -> Any:
        given = None
        for role in "abc":
            given = await getattr(roles, role)(given=given)
            if not overlapped:
                await score(given, Seen(task.id, task.prompt, role, (), ()))
        return given

    chat: Any = Characters()
    sampling = Sampling(1.0, 1.0, None, 10**6)
    specs = {
        role: RoleSpec(
            role,
            role,
            lambda fields: [{"role": "user", "content": f"{fields['given']}"}],
            chat,
            sampling,
        )
        for role in "abc"
    }
    started = time.perf_counter()
    found = await asyncio.gather(
        *(
            run_workflow(
                workflow,
                Task("t", "p", "l"),
                n,
                step=1,
                run_seed=0,
                roles={name: replace(spec) for name, spec in specs.items()},
                tools={},
                generate=generate,
                score_action=score if overlapped else None,
            )
            for n in range(trajectories)
        )
    )
    seconds = time.perf_counter() - started
    await coach.asker.close()
    if overlapped:
        assert all(a.score == t.sample % 11 / 10 for t in found for a in t.actions)
    return seconds


def overlap(verdict_seconds: str, rounds: int) -> None:
    with server(verdict_seconds, {}) as url:
        times = {
            way: [asyncio.run(a_step(url, way, 16)) for _ in range(rounds)] for way in (True, False)
        }
    serial, overlapped = times[False], times[True]
    ratios = [s / o for s, o in zip(serial, overlapped, strict=True)]
    print(
        f"step of 16 trajectories of 3 actions, verdicts of {verdict_seconds} s: "
        f"overlapped {statistics.median(overlapped):.1f} s, serial {statistics.median(serial):.1f} "
        "s: "
        f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coach", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--verdict_seconds", default="2-5", metavar="LOW-HIGH", help="of the second part"
    )
    parser.add_argument(
        "--verifiers", metavar="PYTHON", help="an interpreter that has `verifiers` installed"
    )
    options = parser.parse_args()
    throughput(options.calls, options.verifiers, options.rounds)
    overlap(options.verdict_seconds, options.rounds)


if __name__ == "__main__":
    main()
