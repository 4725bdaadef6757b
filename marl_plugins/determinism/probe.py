"""Whether answers repeat: a question alone, and among eight others."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins import ConfigurationError, Problem, Run, StepPart, at
from marl_plugins.determinism.worker import seen_by_worker

if TYPE_CHECKING:
    from marl_plugins import Call, Engine, Engines, Generation, PreparedRows, Step

OTHERS, TOKENS = 8, 32
"""Questions beside the first one, and tokens of each answer, at most."""


class Probes:
    """The probes of a run's engines, each made once, before an engine answers for a policy."""

    def __init__(self) -> None:
        self.made: dict[tuple[Engine, str], asyncio.Task[None]] = {}
        self.trained = False
        """Whether it is recorded what training processes have seen."""

    async def of(self, run: Run, call: Call, engines: Engines) -> None:
        """Waits until the engines of a policy have been probed.

        Raises:
            ConfigurationError: One of them does not repeat its answer.
        """
        for engine in [*engines.engines]:  # one may be replaced meanwhile
            if (key := (engine, call.policy)) not in self.made:
                self.made[key] = asyncio.create_task(probe(run, call, engines, engine))
            await asyncio.shield(self.made[key])


async def probe(run: Run, call: Call, engines: Engines, engine: Any) -> None:
    """Asks one engine what a request asks, alone and among others.

    Raises:
        ConfigurationError: The answers differ, or the engine's processes have not what was set.
    """
    ask = functools.partial(
        engines.generate, choose=lambda free: engine if engine in free else free[0]
    )
    first, *others = (question(call, number) for number in range(OTHERS + 1))
    alone = await ask(first)
    # As the first of a batch, and as one that joins it.
    ahead, *_, behind = await asyncio.gather(*map(ask, (first, *others, first)))
    wrong = [answer for answer in (ahead, behind) if said(answer) != said(alone)]
    for worker in await engine.handle.in_workers.remote(seen_by_worker):
        note(run, call.policy, "engine", worker, equal=not wrong)
        if run.device != "cpu" and worker["environment"]["VLLM_BATCH_INVARIANT"] != "1":
            raise off(call.policy, "an engine was started without VLLM_BATCH_INVARIANT=1")
    if wrong:
        raise off(call.policy, f"among {OTHERS} others {difference(alone, wrong[0])}")


def said(answer: Generation) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Returns what of an answer is to repeat."""
    return answer.ids, answer.logprobs


def question(call: Call, number: int) -> Call:
    """Returns a short question that shares its last tokens with a request; the first one is all
    of it."""
    ids = call.context_ids[len(call.context_ids) * number // (OTHERS + 1) :]
    return replace(
        call, context_ids=ids, max_tokens=min(call.max_tokens, TOKENS), seed=call.seed + number
    )


def difference(alone: Generation, among: Generation) -> str:
    """Returns how an answer differs from the same one alone."""
    if alone.ids != among.ids:
        return "an engine sampled other tokens than alone"
    pairs = zip(alone.logprobs, among.logprobs, strict=True)
    largest = max(abs(one - other) for one, other in pairs)
    return f"an engine's log-probs differ by up to {largest:.2g} from those alone"


class TrainingRecord(StepPart):
    """Records once what the training processes have seen."""

    def __init__(self, run: Run, step: Step):
        self.run, self.step = run, step

    async def prepared(self, prepared: Sequence[PreparedRows]) -> Sequence[PreparedRows]:
        probes = self.run.state(Probes)
        trained = [p for p in self.step.policies.values() if p.spec.trainable]
        for policy in () if probes.trained else trained:
            for process in await policy.extension("Seen", "seen"):
                note(self.run, policy.name, "training", process)
                if self.run.device != "cpu" and not process["deterministic_algorithms"]:
                    raise off(policy.name, "a training process uses other kernels")
        probes.trained = True
        return prepared


def note(run: Run, policy: str, kind: str, process: Mapping[str, Any], **more: bool) -> None:
    """Adds a line to the run's record."""
    file = Path(run.output, "run", "determinism.jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"policy": policy, "process": kind, **more, "seen": process}) + "\n")


def off(policy: str, got: str) -> ConfigurationError:
    fix = (
        "--balance.in_flight 1 gives each engine one request at a time; or leave out the plugin: "
        "without it records say what repeats (openrlhf docs resume)"
    )
    return ConfigurationError(
        Problem(
            "determinism.off", at(plugin="marl_plugins.determinism", policy=policy), got, fix=fix
        )
    )
