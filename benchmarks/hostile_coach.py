"""What a coach's endpoint can do to a run: `python -m benchmarks.hostile_coach [KIND ...]` (a
quarter of an hour)

Every kind of answer of tests/hostile_answers.py, given by a real HTTP server on loopback (a
separate process), with the default
settings of the coach: --coach.timeout 60, --coach.deadline 300, --coach.retries 6,
--coach.concurrency 32.

    judgements   one of each kind, 32 at a time: a missing verdict, the right one, or a pause of the
                 run; nothing else
    starts       the question before a run, of each kind: refused or answered within twice the time
                 of a request
    floods       64 judgements of one kind at one endpoint, 32 in flight, without repeats: the kinds
                 that are large or never end

Memory is the driver's above what it has after one ordinary judgement. The event loop is stalled
from when it should have run something to when it does; beside that, how much of this it computed
itself: on a machine in use other processes add to the first.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from hostile_answers import IN_TEXT, KINDS, Kind, hostile_server

from marl_plugins.asking.asker import Asker, endpoint_asker
from marl_plugins.asking.endpoint import CoachEndpoint
from marl_plugins.asking.marked_answers import kept_as
from marl_plugins.asking.request import JudgeRequest
from marl_plugins.coach import verdict
from marl_plugins.coach.model import trial_request
from marl_plugins.coach.verdict import Verdict
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused

KEY = "sk-not-to-be-seen-0123456789"
TICK = 0.01
FLOODS = (
    *(
        "endless",
        "endless_string",
        "endless_chunks",
        "endless_headers",
        "chunks_of_one_byte",
        "chunk_extensions",
    ),
    *(
        "status_100_forever",
        "gzip_bomb",
        "gzip_bomb_endless",
        "deflate_bomb",
        "body_of_5_MB",
        "error_of_2_MB",
    ),
    *(
        "right_after_2_MB_of_spaces",
        "values",
        "objects",
        "keys",
        "nested_lists",
        "digits",
        "fences",
        "line_feeds",
    ),
    *("objects_in_a_text", "explanation_of_300_KB", "many_criteria"),
)


@dataclass
class Measured:
    """A phase: how long things took, the longest stall of the event loop, and the most memory."""

    outcomes: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    longest: float = 0.0
    stall: float = 0.0
    computed: float = 0.0
    memory: float = 0.0


def resident() -> float:
    """Resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def watch(measured: Measured, before: float) -> None:
    """Measure the loop and the memory until it is cancelled."""
    last, used = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep(TICK)
        now, computed = time.perf_counter(), time.thread_time()
        if now - last - TICK > measured.stall:
            measured.stall = now - last - TICK
        measured.computed = max(measured.computed, computed - used)
        measured.memory = max(measured.memory, resident() - before)
        last, used = time.perf_counter(), time.thread_time()


def asker_of(url: str, kind: Kind, form: str, retries: int = 6) -> Asker:
    """Asks as a run does by default (coach/flags.py)."""
    return endpoint_asker(
        CoachEndpoint(
            "coach",
            f"{url}/{kind.name}/v1",
            "m",
            form=form,  # type: ignore[arg-type]
            retries=retries,
        )
    )


def question(number: int) -> JudgeRequest:
    """One of many different questions for a score of 7."""
    trial = trial_request()
    return JudgeRequest(
        lambda nonce, form: f"{number}. {trial.prompt(nonce, form)}",
        trial.parse,
        trial.again,
        verdict.schema(False),
    )


async def judged(asker: Asker, request: JudgeRequest) -> tuple[str, str]:
    """What became of a judgement, and what is said about it."""
    try:
        found = kept_as(Verdict, await asker.judge(request))
        return ("verdict" if found.score == 7 else f"WRONG {found.score}"), found.model_dump_json()
    except InfrastructureFailure as failure:
        return "missing", str(failure)
    except RunPaused as failure:
        return "paused", str(failure)
    except Exception as error:  # the finding of this benchmark
        return f"CRASH {type(error).__name__}", str(error)


async def judge_one(url: str, kind: Kind, measured: Measured) -> None:
    asker = asker_of(url, kind, "json")
    what, said = await judged(asker, trial_request())
    await asker.close()
    measured.outcomes[what] += 1
    if what != kind.becomes or KEY in said:
        measured.unexpected.append(f"{kind.name}: {what}, expected {kind.becomes}: {said[:200]}")


async def start_one(url: str, kind: Kind, measured: Measured) -> None:
    asker = asker_of(url, kind, "auto")
    try:
        await asker.probe(trial_request())
        what, said = "started", ""
    except ConfigurationError as error:
        what, said = "refused", str(error)
    except Exception as error:  # the finding of this benchmark
        what, said = f"CRASH {type(error).__name__}", str(error)
    measured.outcomes[what] += 1
    expected = "started" if kind.becomes == "verdict" or kind.name in IN_TEXT else "refused"
    if what != expected or KEY in said:
        measured.unexpected.append(f"{kind.name}: {what}: {said[:200]}")


async def of_all(
    url: str,
    kinds: Sequence[Kind],
    one: Callable[[str, Kind, Measured], Awaitable[None]],
    before: float,
) -> Measured:
    """A phase over all kinds, 32 at a time."""
    measured, free = Measured(), asyncio.Semaphore(32)

    async def timed(kind: Kind) -> None:
        async with free:
            started = time.perf_counter()
            await one(url, kind, measured)
            measured.longest = max(measured.longest, time.perf_counter() - started)

    with watched(measured, before):
        await asyncio.gather(*map(timed, kinds))
    return measured


async def flood(url: str, kind: Kind, before: float) -> Measured:
    """64 judgements of one kind at once."""
    measured, asker = Measured(), asker_of(url, kind, "json", retries=0)

    async def timed(number: int) -> None:
        started = time.perf_counter()
        what, said = await judged(asker, question(number))
        measured.longest = max(measured.longest, time.perf_counter() - started)
        measured.outcomes[what] += 1
        if what != kind.becomes:
            measured.unexpected.append(
                f"{kind.name}: {what}, expected {kind.becomes}: {said[:200]}"
            )

    with watched(measured, before):
        await asyncio.gather(*map(timed, range(64)))
    await asker.close()
    return measured


@contextmanager
def watched(measured: Measured, before: float) -> Iterator[None]:
    watching = asyncio.create_task(watch(measured, before))
    try:
        yield
    finally:
        watching.cancel()


def show(name: str, measured: Measured) -> None:
    outcomes = ", ".join(f"{count} {what}" for what, count in sorted(measured.outcomes.items()))
    numbers = (
        f"{measured.longest:.1f} | {measured.memory:+.0f} | {measured.stall:.2f} | "
        f"{measured.computed:.2f}"
    )
    print(f"| {name} | {outcomes} | {len(measured.unexpected)} | {numbers} |", flush=True)
    for line in measured.unexpected[:20]:
        print(f"  {line}", file=sys.stderr)


async def run(url: str, kinds: Sequence[Kind]) -> None:
    asker = asker_of(url, KINDS["right"], "json")
    await asker.judge(trial_request())
    await asker.close()
    await asyncio.sleep(1)
    before = resident()
    print(
        "| | outcomes | unexpected | longest s | MB | stall s | of it computed s "
        "|\n|---|---|---|---|---|---|---|"
    )
    show(f"judgements, {len(kinds)} kinds", await of_all(url, kinds, judge_one, before))
    show(f"starts, {len(kinds)} kinds", await of_all(url, kinds, start_one, before))
    for kind in kinds:
        if kind.name in FLOODS:
            show(f"64 of `{kind.name}`", await flood(url, kind, before))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hostile_coach", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="only these; default: all")
    options = parser.parse_args()
    if unknown := set(options.kinds) - KINDS.keys():
        parser.error(f"unknown kinds: {', '.join(sorted(unknown))}")
    os.environ["OPENAI_API_KEY"] = KEY
    logging.disable(logging.WARNING)
    with hostile_server() as url:
        asyncio.run(run(url, [KINDS[name] for name in options.kinds or KINDS]))


if __name__ == "__main__":
    main()
