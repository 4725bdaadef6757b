"""The first hour on GPUs: `make gpu`, or
`python -m benchmarks.gpu [--models FOLDER] [--minutes 10] [--rehearse N]`.

On a machine with one GPU or more and upstream's own requirements; without a network. Each row of
the table is a question, in the order of what is learnt per minute, and is written as soon as it is
known. A row that fails names its log, and the next one goes on; what the machine cannot do is a row
that says so. The table is written to docs/gpu_results.md.

`--models` names a folder with a causal language model (config.json, weights, tokenizer); without it
random ones of a few million parameters are made, whose numbers say nothing of speed. `--rehearse N`
runs everything on N devices of the stand-in for CUDA (tests/gpu/stand_in), on a machine without
GPUs; its table goes to runs/gpu/results.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu_runs import ROOT, Failed, Hour, Machine, Result
from marl_plugins.commands.doctor.gpus import query_gpus

TINY = "tiny:hidden=512,layers=4,heads=8,positions=2048"
VERSIONS = ("openrlhf", "torch", "vllm", "deepspeed", "ray", "transformers", "flash-attn")


@dataclass(frozen=True)
class Row:
    """A question, the devices that it takes, and what answers it."""

    question: str
    devices: int
    answer: Callable[[Hour], str]


def beside_upstream(hour: Hour) -> str:
    def shown(result: Result) -> str:
        each = [later - earlier for earlier, later in itertools.pairwise(result.steps)]
        return (
            f"{statistics.median(each):.2f} s a step, the first after {result.steps[0]:.0f} s"
            if each
            else "no two steps"
        )

    return f"ours {shown(hour.run('ours'))}; upstream {shown(hour.run('upstream'))}"


def whole_run(name: str) -> Callable[[Hour], str]:
    """That a run has ended well, and what it took."""

    def answer(hour: Hour) -> str:
        result = hour.run(name)
        last = result.metrics[-1]
        phases = ", ".join(
            f"{p} {last[f'seconds/{p}']:.1f} s" for p in ("rollout", "advantages", "update", "sync")
        )
        norm = last["grad_norm/max"]
        return (
            f"{len(result.metrics)} steps in {result.seconds:.0f} s; the last: {phases}; "
            f"largest gradient {norm:.3g}"
        )

    return answer


def sync(name: str) -> Callable[[Hour], str]:
    def answer(hour: Hour) -> str:
        seconds = hour.run(name).observed.seconds
        return f"into Ray's store {seconds['collect']:.2f} s, to the engine {seconds['sync']:.2f} s"

    return answer


def drift(hour: Hour) -> str:
    found = [m["drift/max"] for m in hour.run("shared").metrics]
    return (
        f"mean absolute difference of log-probs {', '.join(f'{value:.4f}' for value in found)} "
        "nats, by step"
    )


def sleep(hour: Hour) -> str:
    seen = hour.run("shared").observed
    freed = (
        "memory unknown (no nvidia-smi)"
        if seen.freed is None
        else f"{seen.freed / 1024:.1f} GiB of a device given back"
    )
    return (
        f"asleep after {seen.seconds['sleep']:.2f} s, awake after {seen.seconds['wake']:.2f} s; "
        f"{freed}"
    )


def memory(hour: Hour) -> str:
    result = hour.run("shared")
    peak = max(result.of_policies("peak_gb"), default=None)
    plan = (
        json.loads((result.output / "plan.json").read_text()).get("estimate", {}).get("memory", {})
    )
    most = result.observed.most
    return "; ".join(
        [
            f"training {peak:.2f} GB at most"
            if peak is not None
            else "training: unknown without CUDA",
            f"a device {most / 1024:.1f} GiB at most"
            if most is not None
            else "device: unknown without nvidia-smi",
            f"the plan's estimate: {next(iter(plan.values()))}"
            if plan
            else "the plan has no estimate for this model",
        ]
    )


def speed(hour: Hour) -> str:
    return (
        ", ".join(f"{m['tokens_per_second']:.0f}" for m in hour.run("shared").metrics)
        + " tokens a second, by step"
    )


def packing(name: str) -> Callable[[Hour], str]:
    def answer(hour: Hour) -> str:
        plain, other = hour.run("shared").metrics[0], hour.run(name).metrics[0]
        norms = [m["grad_norm/max"] for m in (plain, other)]
        seconds = [m["seconds/update"] for m in (plain, other)]
        update = f"update {seconds[1]:.1f} s, without {seconds[0]:.1f} s"
        return f"gradient norm of step 1: {norms[1]:.5g}, without {norms[0]:.5g}; {update}"

    return answer


def tree(hour: Hour) -> str:
    saved = max(hour.run("tree").of_policies("tokens_saved"), default=0.0)
    return f"{packing('tree')(hour)}; {saved:.2f} tokens of rows for each through the model"


def repeat(hour: Hour) -> str:
    plain, packed = (hour.run(name).sampled_ids() for name in ("shared", "packed"))
    counts = [
        f"step {step}: {sum(ids == packed[step].get(key) for key, ids in plain[step].items())} of "
        f"{len(plain[step])}"
        for step in sorted(plain.keys() & packed.keys())
    ]
    return f"trajectories with equal ids, {', '.join(counts)}"


def resume(hour: Hour) -> str:
    result = hour.run("resumed")
    steps = [m["step"] for m in result.metrics]
    return (
        f"killed after step 1 was saved; resumed in {result.seconds:.0f} s to step {steps[-1]}, "
        f"steps on record {steps}"
    )


def separate(hour: Hour) -> str:
    three, shared = hour.run("three").metrics[-1], hour.run("shared").metrics[-1]

    def shown(m: dict[str, Any]) -> str:
        return (
            f"{sum(m[f'seconds/{p}'] for p in ('rollout', 'advantages', 'update', 'sync')):.1f} "
            "s a step"
        )

    return f"three policies on three devices {shown(three)}, one shared on one {shown(shared)}"


def ways(hour: Hour) -> str:
    """What a weight's way through the host's memory takes, part by part, without an engine."""
    rates = json.loads(hour.run("ways").log.read_text().splitlines()[-1])
    return "GB/s: " + ", ".join(f"{name} {value:g}" for name, value in rates.items())


def deterministic(name: str) -> Callable[[Hour], str]:
    """That a run's engines gave the same bits alone and among other requests."""

    def answer(hour: Hour) -> str:
        result = hour.run(name)
        tried = [line["equal"] for line in result.lines("run/determinism.jsonl") if "equal" in line]
        drift = max(m["drift/max"] for m in result.metrics)
        return (
            f"{whole_run(name)(hour)}; drift {drift:.4f} nats at most; {sum(tried)} of "
            f"{len(tried)} probes alone and among others equal"
        )

    return answer


def same_as_lora(name: str) -> Callable[[Hour], str]:
    """How much of a run has the bits of the run `lora`."""

    def answer(hour: Hour) -> str:
        results = hour.run("lora"), hour.run(name)
        pairs = list(zip(*(result.actions() for result in results), strict=True))
        equal = {
            key: sum(one[key] == other[key] for one, other in pairs) for key in COMPARED_OF_ACTIONS
        }
        first, second = (result.metrics for result in results)
        metrics = [
            before[key] == after[key]
            for before, after in zip(first, second, strict=True)
            for key in before
            if key.startswith("policy/") and key.rpartition("/")[2] in COMPARED_METRICS
        ]
        counts = ", ".join(f"{key} {count}" for key, count in equal.items())
        replaced = second[-1]["engines/restarted"]
        return (
            f"of {len(pairs)} actions equal: {counts}; {sum(metrics)} of {len(metrics)} metrics; "
            f"{replaced:.0f} engines replaced"
        )

    return answer


def groups(hour: Hour) -> str:
    """Three policies whose training processes come and go on the device of their engines."""
    result = hour.run("groups")
    last, most = result.metrics[-1], result.observed.most
    changes = last.get("process_groups/changes", 0)
    seconds = last.get("process_groups/seconds", 0.0)
    used = "unknown" if most is None else f"{most / 1024:.1f} GiB at most"
    return (
        f"{whole_run('groups')(hour)}; {changes:.0f} changes in {seconds:.1f} s; "
        f"memory of the device {used}"
    )


COMPARED_OF_ACTIONS = ("ids", "shown_ids", "reward", "advantage", "logprobs")
COMPARED_METRICS = ("policy_loss", "kl", "actor_grad_norm", "return", "optimiser_steps")
ROWS = {
    "upstream": Row("one policy beside upstream's own trainer, the same flags", 1, beside_upstream),
    "colocated": Row(
        "three policies, each with training, reference and engine on one device",
        3,
        whole_run("three"),
    ),
    "sync": Row("weight sync on shared devices", 1, sync("shared")),
    "apart": Row("weight sync between devices", 2, sync("apart")),
    "drift": Row("engine and trainer in bfloat16", 1, drift),
    "sleep": Row("sleeping and waking", 1, sleep),
    "memory": Row("memory, beside the plan's estimate", 1, memory),
    "speed": Row("generation", 1, speed),
    "zero3": Row("ZeRO 3", 1, whole_run("zero3")),
    "packing": Row("packed sequences", 1, packing("packed")),
    "tree": Row("sequences as trees, by flex attention", 1, tree),
    "repeat": Row("one seed, sampled twice (packed and not)", 1, repeat),
    "ring": Row("packed sequences that two devices share (ring attention)", 2, packing("ring")),
    "ways": Row("the host's memory as the way of weights, without an engine", 1, ways),
    "invariant": Row(
        "one policy, its engine batch-invariant, training deterministic",
        1,
        deterministic("invariant"),
    ),
    "lora": Row(
        "three adapters and their engine on one device, deterministic, one request at a time",
        1,
        deterministic("lora"),
    ),
    "lora_killed": Row("the same, with kill -9 of the engine", 1, same_as_lora("lora_killed")),
    "groups": Row(
        "three policies, whose processes come and go, and their engines on one device", 1, groups
    ),
    "lora_again": Row("the adapters' run again", 1, same_as_lora("lora_again")),
    "resume": Row("kill -9, and resumed", 1, resume),
    "separate": Row("three policies, or one for all roles", 3, separate),
}
"""In the order of what is learnt per minute."""


def answered(row: Row, hour: Hour) -> tuple[str, str]:
    """What is known of a question, and how it went."""
    if hour.machine.devices < row.devices:
        return (
            "-",
            f"takes {row.devices} devices, and there "
            f"{'is' if hour.machine.devices == 1 else 'are'} {hour.machine.devices}",
        )
    try:
        return "ok", row.answer(hour)
    except Failed as failure:
        return "FAILED", str(failure)
    except (
        KeyError,
        IndexError,
        ValueError,
    ) as error:  # the run has ended well, and lacks what was expected of it
        return "FAILED", f"its records lack {error!r}"


def table(
    machine: Machine, known: Sequence[tuple[str, str, str]], words: Sequence[str] = ()
) -> str:
    """The page.

    Args:
        words: The options of the command that has made it.
    """
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    made = (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine.shown}; model {machine.model}; "
        f"{versions}"
    )
    lines = [
        "# What was seen on GPUs",
        "",
        f"`{' '.join(['python -m benchmarks.gpu', *words])}`, {made}.",
        "",
        "| question | | answer |",
        "|---|---|---|",
    ]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in known]
    return (
        "\n".join(
            [*lines, *(f"| {question} | {how} | {answer} |" for question, how, answer in cells)]
        )
        + "\n"
    )


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def machine_of(options: argparse.Namespace) -> Machine:
    """The machine that the options are for.

    Raises:
        SystemExit: It has no GPU.
    """
    if options.rehearse:
        return Machine(
            options.rehearse,
            f"a rehearsal on {options.rehearse} devices of the stand-in",
            options.models or "tiny",
            True,
        )
    found = query_gpus()
    if not found.visible:
        sys.exit(
            f"no GPU: {found.problem or 'nvidia-smi lists none'}; --rehearse 3 runs everything on "
            "a stand-in"
        )
    names = "; ".join(
        f"{card.name}, {card.memory / 1024:.0f} GiB, driver {card.driver}"
        for card in found.cards[:1]
    )
    return Machine(found.visible, f"{found.visible} x {names}", options.models or TINY, False)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--models", metavar="FOLDER", help="a causal language model; default: a random tiny one"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="no run begins later (default 10; a rehearsal 60)",
    )
    parser.add_argument(
        "--rows", nargs="+", choices=list(ROWS), default=list(ROWS), help="only these"
    )
    parser.add_argument(
        "--rehearse", type=int, metavar="N", help="on N devices of the stand-in, without GPUs"
    )
    parser.add_argument("--out", type=Path, help="where the table is written")
    words = sys.argv[1:] if words is None else words
    options = parser.parse_args(words)
    machine = machine_of(options)
    folder = (ROOT / "runs" / "gpu").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    out = options.out or (
        folder / "results.md" if machine.rehearsal else ROOT / "docs" / "gpu_results.md"
    )
    hour = Hour(
        machine, folder, max(60.0, options.minutes) if machine.rehearsal else options.minutes
    )
    known: list[tuple[str, str, str]] = []
    for name in options.rows:
        how, answer = answered(ROWS[name], hour)
        known.append((ROWS[name].question, how, answer))
        out.write_text(table(machine, known, words))
        print(f"{how:6} {ROWS[name].question}: {answer}", flush=True)
    return int(any(how == "FAILED" for _, how, _ in known))


if __name__ == "__main__":
    sys.exit(main())
