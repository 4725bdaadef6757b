"""The runs of `python -m benchmarks.gpu`: a machine, the command lines, and what each run has
left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from benchmarks import upstream_loop
from benchmarks.gpu_observer import summary
from marl_plugins.core.recipe.shipped import recipes_root

ROOT = Path(__file__).resolve().parent.parent
COLOCATED = ("--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep")
SECONDS = 480.0
"""Of one run, at most (three engines that start one after the other take 250 of them); of a
rehearsal three times as many."""


@dataclass(frozen=True)
class Machine:
    """What the runs are made on.

    Args:
        devices: Number of GPUs.
        shown: Names and memory of the GPUs, for the table.
        model: A folder, or a `tiny` model.
        rehearsal: Whether the devices are those of the stand-in.
    """

    devices: int
    shown: str
    model: str
    rehearsal: bool

    @property
    def tiny(self) -> bool:
        return self.model.startswith("tiny")

    @property
    def environment(self) -> dict[str, str]:
        """Of every run."""
        own = {"MARL_PLUGINS_DEVICE": "cuda", "PYTHONUNBUFFERED": "1"}
        path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        if self.rehearsal:
            own |= {"MARL_STAND_IN_GPUS": str(self.devices)}
            path.insert(0, str(ROOT / "tests" / "gpu" / "stand_in"))
        return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, path))}


@dataclass
class Result:
    """A run: exit code, seconds, where it has written, and when it said that a step was done."""

    code: int
    seconds: float
    output: Path
    log: Path
    steps: list[float] = field(default_factory=list)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Of every training step."""
        return [line for line in self.lines("metrics.jsonl") if line["step"]]

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What a file of the run's folder holds; nothing where there is none."""
        file = self.output / name
        return (
            [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
        )

    def actions(self) -> list[dict[str, Any]]:
        """All that were recorded, in the order of steps, tasks and samples."""
        rows = sorted(
            self.lines("trajectories.jsonl"), key=lambda t: (t["step"], t["task"], t["sample"])
        )
        return [action for row in rows for action in row["actions"]]

    @property
    def observed(self) -> SimpleNamespace:
        return summary(self.output)

    def sampled_ids(self) -> dict[int, dict[tuple[str, int], list[list[int]]]]:
        """Of every step, trajectory (task and sample) and action: the ids that an engine has
        sampled."""
        found: dict[int, dict[tuple[str, int], list[list[int]]]] = {}
        for row in self.lines("trajectories.jsonl"):
            found.setdefault(row["step"], {})[row["task"], row["sample"]] = [
                action["ids"] for action in row["actions"]
            ]
        return found

    def of_policies(self, name: str) -> list[float]:
        """A metric of all policies and steps."""
        return [
            m[key] for m in self.metrics for key in m if re.fullmatch(rf"policy/\w+/{name}", key)
        ]

    def last_words(self) -> str:
        lines = [
            line.strip()
            for line in self.log.read_text(errors="replace").splitlines()
            if line.strip()
        ]
        return lines[-1][:160] if lines else "nothing was printed"


class Failed(Exception):
    """A run that a row needs has failed, or there was no time for it."""


class Hour:
    """The runs of one machine, each made once, when the first row needs it.

    Args:
        folder: Where the runs are.
        minutes: No run begins after so many.
    """

    def __init__(self, machine: Machine, folder: Path, minutes: float):
        self.machine, self.folder, self.until = machine, folder, time.monotonic() + 60 * minutes
        self.results: dict[str, Result] = {}
        self.recipes = write_recipes(machine, folder / "recipe")
        self.loop = folder / "loop"
        self.loop.mkdir(exist_ok=True)
        (self.loop / "reward.py").write_text(upstream_loop.REWARD)

    def run(self, name: str) -> Result:
        """The run of a name.

        Raises:
            Failed: It has failed, now or before, or there is no time left.
        """
        if name not in self.results:
            if time.monotonic() > self.until:
                raise Failed("not reached in the time that was given (--minutes)")
            self.results[name] = self._make(name)
        result = self.results[name]
        if result.code:
            raise Failed(
                f"run {name} ended with {result.code} after {result.seconds:.0f} s: "
                f"{result.last_words()} ({result.log})"
            )
        return result

    def _make(self, name: str) -> Result:
        if name in ("ours", "upstream"):
            return self._execute(name, self.words_of_loop(name), upstream_loop.LOOPS[name][1])
        if name == "ways":
            return self._execute(name, [])
        if name == "resumed":
            killed = self.kill("killed")
            return self._execute(name, ["--resume", str(killed.output)], output=killed.output)
        steps = "3" if RECIPE_OF.get(name) == "lora" else "2"
        return self._execute(
            name, [*self.words(name), "--max_steps", steps, "--ckpt.save_steps", "-1"]
        )

    def words(self, name: str) -> list[str]:
        """The command line of one of our runs."""
        words = [
            "--recipe",
            str(self.recipes / f"{RECIPE_OF.get(name, 'gpu')}.yaml"),
            "--plugin",
            "benchmarks.gpu_observer",
        ]  # by a name that engines know, too
        return [
            *words,
            "--ckpt.output_dir",
            str(self.folder / name),
            "--debug",  # a log that lacks the reason costs the machine once more
            *(word.format(recipes=self.recipes) for word in RUNS[name](self.machine)),
        ]

    def words_of_loop(self, name: str) -> list[str]:
        """The command line of one policy on one device, for upstream's own trainer and for ours."""
        more, _ = upstream_loop.LOOPS[name]
        model = self.machine.model
        if self.machine.tiny:
            from marl_plugins.engine.runtime.tiny_model import resolve

            model = resolve(model)
        own: dict[str, Any] = {
            "ds.attn_implementation": "flash_attention_2",
            "ds.zero_stage": 2,
            "vllm.gpu_memory_utilization": 0.5,
            "actor.model_name_or_path": model,
            "ckpt.output_dir": self.folder / name,
            "ckpt.path": self.folder / name / "checkpoints",
        }
        return [*more, *upstream_loop.words(self.loop, 4, **own), *COLOCATED]

    def _execute(
        self,
        name: str,
        words: Sequence[str],
        line: re.Pattern[str] | None = None,
        output: Path | None = None,
    ) -> Result:
        """Run `openrlhf train`, and note when it prints lines of a pattern."""
        process, log = self._start(name, words)
        started, steps = time.monotonic(), list[float]()
        limit = SECONDS * (3 if self.machine.rehearsal else 1)
        assert process.stdout is not None
        timer = threading.Timer(limit, end, [process])
        timer.start()
        with log.open("w") as out:
            for text in process.stdout:
                out.write(text)
                if line and line.search(text):
                    steps.append(time.monotonic() - started)
        timer.cancel()
        return Result(
            process.wait(), time.monotonic() - started, output or self.folder / name, log, steps
        )

    def _start(self, name: str, words: Sequence[str]) -> tuple[subprocess.Popen[str], Path]:
        own = {}
        if self.machine.rehearsal:
            own["MARL_STAND_IN"] = str(self.folder / f"{name}.stand_in")
            Path(own["MARL_STAND_IN"]).mkdir(exist_ok=True)
        module = ["benchmarks.host_copy"] if name == "ways" else ["marl_plugins", "train"]
        command = [sys.executable, "-u", "-m", *module, *words]
        (self.folder / f"{name}.sh").write_text(" ".join(command) + "\n")
        pipes: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
            "start_new_session": True,
        }
        return subprocess.Popen(
            command, env={**self.machine.environment, **own}, **pipes
        ), self.folder / f"{name}.log"

    def kill(self, name: str) -> Result:
        """A run whose driver is killed (SIGKILL) once its first step is saved.

        Raises:
            Failed: It has ended before.
        """
        words = [*self.words(name), "--max_steps", "3", "--ckpt.save_steps", "1"]
        process, log = self._start(name, words)
        started, output, started_by_it = (
            time.monotonic(),
            self.folder / name,
            list[psutil.Process](),
        )
        assert process.stdout is not None
        with log.open("w") as out:
            for text in process.stdout:
                out.write(text)
                if (output / "checkpoints" / "manifest.json").is_file():
                    started_by_it = psutil.Process(process.pid).children(recursive=True)
                    os.kill(process.pid, signal.SIGKILL)
                    break
        code = process.wait()
        psutil.wait_procs(started_by_it, timeout=SECONDS)  # they have the devices' memory
        if code != -signal.SIGKILL:
            raise Failed(f"run {name} ended with {code} before its first step was saved ({log})")
        return Result(0, time.monotonic() - started, output, log)


def end(process: subprocess.Popen[str]) -> None:
    """End a run that takes too long, with all that it has started."""
    os.killpg(process.pid, signal.SIGKILL)


def write_recipes(machine: Machine, folder: Path) -> Path:
    """A folder with a copy of MathChat with the machine's model, small enough for a minute: on
    shared devices (`gpu.yaml`), and with devices for training and for engines (`apart.yaml`)."""
    shutil.copytree(recipes_root() / "mathchat", folder)
    tokens = 24 if machine.tiny else 256
    roles = {
        name: {"prompt": f"prompts/{'tiny/' if machine.tiny else ''}{name}.md"}
        for name in ("solver", "coder", "verifier")
    }
    recipe = {
        "extends": "recipe.yaml",
        "roles": roles,
        "model": machine.model,
        "flags": {
            "rollout.batch_size": 16,
            "rollout.n_samples_per_prompt": 2 if machine.tiny else 4,
            "rollout.max_new_tokens": tokens,
            "train.batch_size": 32 if machine.tiny else 64,
            "data.max_len": 384 if machine.tiny else 2048,
            "data.max_samples": 64,
            "eval.steps": -1,
            "actor.adam.lr": 1e-4 if machine.tiny else 1e-6,
        },
    }
    apart = {
        "extends": "gpu.yaml",
        "flags": dict.fromkeys(
            ("train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep"), False
        ),
    }
    few = {} if machine.tiny else {"rollout.batch_size": 8, "train.batch_size": 32}
    fewer = {"rollout.batch_size": 2, "rollout.n_samples_per_prompt": 2, "train.batch_size": 4}
    short = {"rollout.max_new_tokens": 64, "data.max_len": 1024}
    lora = {
        "extends": "gpu.yaml",
        "plugins": ["marl_plugins.coach", "marl_plugins.adapters", "marl_plugins.determinism"],
        "flags": {
            "ds.lora.rank": 16,
            "ds.lora.alpha": 32,
            "actor.adam.lr": 1e-4,
            "vllm.enforce_eager": True,
            # an H200's engine of adapters did not repeat its bits among other requests
            "balance.in_flight": 1,
            **({} if machine.tiny else {**fewer, **short, "rollout.max_new_tokens": 24}),
        },
    }
    invariant = {
        "extends": "gpu.yaml",
        "plugins": ["marl_plugins.coach", "marl_plugins.determinism"],
        "flags": {
            "vllm.enforce_eager": True,
            **({} if machine.tiny else {**few, **short}),
            # the stand-in's engines are the CPU's
            **({"balance.in_flight": 1} if machine.rehearsal else {}),
        },
    }
    size = "" if machine.rehearsal else "hidden=1024,layers=48,heads=16,positions=1024,"
    groups = {
        "extends": "gpu.yaml",
        "roles": {name: {"prompt": f"prompts/tiny/{name}.md"} for name in roles},
        "model": f"tiny:{size}seed=0",
        "policies": {
            name: {"model": f"tiny:{size}seed={seed}"}
            for seed, name in enumerate(("coder", "verifier"), start=1)
        },
        "plugins": ["marl_plugins.coach", "marl_plugins.process_groups"],
        "flags": {
            **few,
            "rollout.max_new_tokens": 24,
            "data.max_len": 384,
            "process_groups.seats": 1,
            "ds.enable_sleep": False,  # processes that are gone have nothing on the device
            "vllm.gpu_memory_utilization": 0.15,
            "vllm.enforce_eager": True,
        },
    }
    recipes = {
        "gpu": recipe,
        "apart": apart,
        "invariant": invariant,
        "lora": lora,
        "groups": groups,
    }
    for name, content in recipes.items():
        (folder / f"{name}.yaml").write_text(json.dumps(content))  # JSON is YAML
    (folder / "killer.py").write_text(KILLER)
    return folder


KILLER = """
import os
import signal

from marl_plugins import hookimpl


class Killed:
    already = False


@hookimpl(wrapper=True)
def marl_generate(run, call, engines):
    inner = yield
    state = run.state(Killed)
    if call.step == 2 and not state.already:
        state.already = True
        os.kill(engines.engines[0].where.pid, signal.SIGKILL)
    return inner
"""
"""A plugin that kills the engine (SIGKILL) which is asked first in step 2."""


def pair(machine: Machine) -> int:
    """Training processes of runs that are for two devices and can do with one."""
    return min(2, machine.devices)


def on(count: int) -> list[str]:
    """Flags of one policy on so many devices, shared with as many engines."""
    return [
        "--mapping",
        "shared",
        "--actor.num_gpus_per_node",
        str(count),
        "--vllm.num_engines",
        str(count),
    ]


def flex(machine: Machine) -> list[str]:
    """Attention for trees; the stand-in's tensors are the host's, which have no flex attention."""
    attention = "sdpa" if machine.rehearsal else "flex_attention"
    return ["--ds.attn_implementation", attention]


RUNS: dict[str, Callable[[Machine], list[str]]] = {
    "three": lambda m: [],
    "shared": lambda m: on(1),
    "apart": lambda m: [*on(1), "--algo.kl.init_coef", "0"],
    "zero3": lambda m: [*on(pair(m)), "--ds.zero_stage", "3"],
    "packed": lambda m: [*on(1), "--ds.packing_samples"],
    "ring": lambda m: [*on(2), "--ds.packing_samples", "--ds.ring_attn_size", "2"],
    "tree": lambda m: [*on(1), "--sequences", "trees", *flex(m)],
    "killed": lambda m: on(1),
    "invariant": lambda m: on(1),
    "lora": lambda m: [],
    "lora_again": lambda m: [],
    "lora_killed": lambda m: ["--plugin", "{recipes}/killer.py"],
    "groups": lambda m: [],
}
"""The flags in which our runs differ. Their logs and command lines are beside their folders."""
RECIPE_OF = {
    **{name: name for name in ("apart", "invariant", "groups")},
    **dict.fromkeys(("lora", "lora_again", "lora_killed"), "lora"),
}
"""The recipes of runs that have others than `gpu.yaml`."""
