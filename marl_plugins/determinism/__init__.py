"""The same bits again, whatever else an engine computes at the same time.

    openrlhf train --recipe R --plugin marl_plugins.determinism

An engine's batch decides the last bits of its sums, and timing decides the batch. On GPUs engines
then compute in an order that no batch changes (vLLM's `VLLM_BATCH_INVARIANT`), and training
processes use deterministic kernels (`--train.full_determinism_enable`, which leaves engines as they
are). On CPU training repeats anyway, and an engine has one request at a time
(`--balance.in_flight 1`).

It is tried (probe.py): what an engine is asked first is asked alone, and then twice among eight
others. Other bits end the run (`determinism.off`), and so does a process that did not get what was
set. `OUTPUT/run/determinism.jsonl` has what each process has seen, and what was tried.

Not promised: equal bits on other devices, with another number of them, other drivers or other
releases of the stack; that engine and trainer agree, whose kernels differ; and an adapter's kernels
are tried as its weights are at the start, where they change nothing yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from marl_plugins import Problem, Run, StepPart, at, hookimpl

# inside: works in the training processes
from marl_plugins.core.run import ProcessEnvironment
from marl_plugins.determinism.probe import Probes, TrainingRecord

if TYPE_CHECKING:
    from marl_plugins import Call, Engines, Generation, Step

ON_GPUS = {
    "VLLM_BATCH_INVARIANT": "1",
    # of training processes with several ranks; vLLM sets its own
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
}
ASYNC, IN_FLIGHT, CACHE = (
    "train.async_enable",
    "balance.in_flight",
    "vllm.enable_prefix_caching",
)


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    who, every = at(plugin="marl_plugins.determinism"), [run.args, *run.policy_args.values()]
    if run.args.train.async_enable:
        got = "nothing of it has been tried with engines that sample while training runs"
        return [Problem("determinism.async", who, got, fix=f"leave out --{ASYNC}", flags=(ASYNC,))]
    if run.device != "cpu":
        run.state(ProcessEnvironment).update(ON_GPUS)
        for args in every:
            args.train.full_determinism_enable = True
        return []
    if any(args.vllm.enable_prefix_caching for args in every):
        got = "which prompt filled the cache is a matter of timing, and so is what is computed anew"
        return [Problem("determinism.cache", who, got, fix=f"leave out --{CACHE}", flags=(CACHE,))]
    for args in every:
        args.balance.in_flight = args.balance.in_flight if IN_FLIGHT in run.given else 1
    return []


@hookimpl
def marl_extensions(run: Run) -> Sequence[str]:
    return [f"{__name__}.worker:Seen"]


@hookimpl(wrapper=True)
def marl_generate(
    run: Run, call: Call, engines: Engines
) -> Generator[None, Any, Awaitable[Generation]]:
    answer = yield
    return probed(run, call, engines, answer)


async def probed(run: Run, call: Call, engines: Engines, answer: Any) -> Generation:
    """Returns an answer of engines that repeat theirs."""
    with contextlib.closing(answer):  # where it is never asked for
        await run.state(Probes).of(run, call, engines)
        generation: Generation = await answer
        return generation


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart:
    return TrainingRecord(run, step)
