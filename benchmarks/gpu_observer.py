"""What `python -m benchmarks.gpu` needs to know of a run beside its records: a plugin of
`openrlhf train`, which changes nothing.

    <output>/observed.jsonl     seconds of every sleep, wake and weight sync of every policy, and
                                the memory in use before and after
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marl_plugins import hookimpl
from marl_plugins.core.run import Run
from marl_plugins.engine.processes.extension import Extension

NAMES = ("wake", "sleep", "collect", "sync")


@hookimpl
def marl_extensions(run: Run) -> Sequence[str]:
    return [f"{__name__}:Observer"]


@hookimpl
def marl_start(run: Run, purpose: str) -> None:
    from marl_plugins.engine.runtime.policy_engines import PolicyEngines

    file = Path(run.output) / "observed.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        setattr(PolicyEngines, name, observed(getattr(PolicyEngines, name), name, file))


def observed(
    method: Callable[..., Awaitable[Any]], name: str, file: Path
) -> Callable[..., Awaitable[Any]]:
    """A method of a policy's engines that notes how long it takes, and the memory around it."""

    async def timed(self: Any, *arguments: Any) -> Any:
        before, started = used_memory(), time.perf_counter()
        result = await method(self, *arguments)
        seconds = time.perf_counter() - started
        line = {
            "what": name,
            "policy": self.name,
            "seconds": seconds,
            "before": before,
            "after": used_memory(),
        }
        with file.open("a") as out:
            out.write(json.dumps(line) + "\n")
        return result

    return timed


def used_memory() -> list[int]:
    """MiB in use on each device, according to the driver; none where there is no nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return [
            int(line)
            for line in subprocess.run(
                query, capture_output=True, text=True, timeout=30
            ).stdout.split()
        ]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []


class Observer(Extension):
    """In every training process: memory of an update."""

    def fitted(self, status: dict[str, Any]) -> None:
        import torch

        if torch.cuda.is_available():
            status["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9


def summary(output: Path) -> SimpleNamespace:
    """What was observed in a run: medians of seconds by what was done, and MiB that a sleep gave
    back on one device, at most."""
    import statistics

    file = output / "observed.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    seconds = {name: [line["seconds"] for line in lines if line["what"] == name] for name in NAMES}
    freed = [
        before - after
        for line in lines
        if line["what"] == "sleep"
        for before, after in zip(line["before"], line["after"], strict=True)
    ]
    most = [value for line in lines for value in (*line["before"], *line["after"])]
    return SimpleNamespace(
        seconds={name: statistics.median(found) for name, found in seconds.items() if found},
        freed=max(freed, default=None),
        most=max(most, default=None),
    )
