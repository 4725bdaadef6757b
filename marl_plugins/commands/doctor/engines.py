"""Try what a run starts, each in a separate process: engines, training processes, Ray."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from marl_plugins.commands.doctor.machine import ray_folder, why_unwritable
from marl_plugins.core.findings import Finding, error, note, ok
from marl_plugins.engine.hosts import cpu

ENGINE_CHECK_SECONDS = 180.0
"""Time limit of one trial; a first import on a cold disk takes a minute."""
GRACE_SECONDS = 5.0
"""Seconds to wait for the output of a trial that was killed."""

ENGINE = """
import marl_plugins.engine.processes.engine_actor, json, torch, vllm, vllm.platforms
device = vllm.platforms.current_platform.device_type
print(json.dumps({"vllm": vllm.__version__, "device": device, "gpus": torch.cuda.device_count()}))
"""
TRAINING = """
import marl_plugins.engine.processes.policy_actor, json, deepspeed, deepspeed.accelerator
device = deepspeed.accelerator.get_accelerator()._name
print(json.dumps({"deepspeed": deepspeed.__version__, "device": device}))
"""
RAY = """
import json, os, sys
from marl_plugins.engine.processes.cluster import closed, own_cluster
if own_cluster():
    os.environ.update(closed())
ray = __import__("ray")
options = {} if os.environ.get("RAY_ADDRESS") else {
    "address": "local", "include_dashboard": False, "num_cpus": 1, "object_store_memory": 10**8,
    "_temp_dir": sys.argv[1],
}
ray.init(log_to_driver=False, logging_level="ERROR", **options)
resources = ray.cluster_resources()
ray.shutdown()
gpus, cpus = resources.get("GPU", 0), resources.get("CPU", 0)
print(json.dumps({"ray": ray.__version__, "gpus": gpus, "cpus": cpus}))
"""


def try_engine(device: str) -> list[Finding]:
    """Imports what an engine's process imports."""
    report, seconds, problem = run_script(ENGINE, device)
    if report is None:
        return [
            error(
                "engines",
                f"an engine process cannot be started: {problem}",
                _command_for_details(ENGINE, device),
            )
        ]
    text = f"vLLM {report['vllm']} for {report['device']}, imported in {seconds:.0f} s"
    if report["device"] != device:
        return [
            error(
                "engines",
                f"{text}, and the run would be on {device}",
                f"install vLLM for {device}, or: export {cpu.DEVICE}={report['device']}",
            )
        ]
    if device == "cuda" and not report["gpus"]:
        return [
            error(
                "engines",
                f"{text}; torch sees no GPU",
                "python -c 'import torch; torch.cuda.init()' shows why",
            )
        ]
    return [ok("engines", text)]


def try_training(device: str) -> list[Finding]:
    """Imports what a training process imports."""
    report, seconds, problem = run_script(TRAINING, device)
    if report is None:
        return [
            error(
                "training",
                f"a training process cannot be started: {problem}",
                _command_for_details(TRAINING, device),
            )
        ]
    text = f"DeepSpeed {report['deepspeed']} for {report['device']}, imported in {seconds:.0f} s"
    if report["device"] != device:
        return [
            error(
                "training",
                f"{text}, and the run would be on {device}",
                f"export DS_ACCELERATOR={device}",
            )
        ]
    return [ok("training", text)]


def try_ray() -> list[Finding]:
    """Starts Ray, or connects to the cluster in RAY_ADDRESS, as a run does."""
    if why_unwritable(ray_folder()):
        return []  # reported by check_caches
    ray_folder().mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(
        prefix="ray-", dir=ray_folder()
    )  # as long as a run's path: socket paths are limited
    try:
        report, seconds, problem = run_script(RAY, cpu.device(), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    address = os.environ.get("RAY_ADDRESS")
    if report is None:
        if address:
            return [
                error(
                    "ray",
                    f"the cluster at RAY_ADDRESS={address}: {problem}",
                    f"ray status --address {address}; or: unset RAY_ADDRESS",
                )
            ]
        return [
            error(
                "ray",
                f"cannot be started: {problem}",
                "ray start --head shows more; if the path is too long: export RAY_TMPDIR=/tmp",
            )
        ]
    where = (
        f"cluster at {address}: {report['cpus']:g} cores, {report['gpus']:g} GPUs"
        if address
        else f"started in {seconds:.0f} s"
    )
    return [
        ok("ray", f"{report['ray']}, {where}"),
        *find_leftovers(Path("/proc"), ray_folder() / "ray"),
    ]


def find_leftovers(processes: Path, sessions: Path) -> list[Finding]:
    """Returns Ray processes that are already running, and session folders whose process has
    ended."""
    findings = []
    running = [
        folder.name
        for folder in processes.glob("[0-9]*")
        if Path(_command_line(folder / "cmdline")[0]).name in ("gcs_server", "raylet")
    ]
    if running:
        text = (
            f"already running here (processes {', '.join(sorted(running, key=int))}); a run "
            "starts another one"
        )
        findings.append(note("ray", text, "if it is unused: ray stop"))
    ended = [
        s
        for s in sorted(sessions.glob("session_*_*"))
        if not s.is_symlink() and not (processes / s.name.rpartition("_")[2]).exists()
    ]
    size = sum(map(_folder_size, ended))
    if size > 2**30:
        names = " ".join(
            shlex.quote(str(s)) for s in ended[:8]
        )  # by name: other sessions may be running
        more = f"  # and then the other {len(ended) - 8}" if len(ended) > 8 else ""
        findings.append(
            note(
                "ray",
                f"{size / 2**30:.0f} GiB in {len(ended)} ended sessions",
                f"rm -r {names}{more}",
            )
        )
    return findings


def _folder_size(folder: Path) -> int:
    """Bytes in a folder; unreadable and vanished files are skipped."""
    size = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                size += os.lstat(Path(place, name)).st_size
    return size


def _command_line(cmdline: Path) -> list[str]:
    """A process's command line; empty if the process has just ended."""
    try:
        return cmdline.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def run_script(
    script: str, device: str, *arguments: str
) -> tuple[dict[str, Any] | None, float, str]:
    """Runs a script in the environment of a run's processes, and returns its last line as JSON
    (None if it failed), its seconds and the problem."""
    env = dict(os.environ) | {
        cpu.DEVICE: device,
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    if device == "cpu":
        env |= cpu.environment()
        env.pop("CUDA_VISIBLE_DEVICES", None)
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=ENGINE_CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children too
        with contextlib.suppress(
            subprocess.TimeoutExpired
        ):  # a child in another session may hold the pipes
            process.communicate(timeout=GRACE_SECONDS)
        return None, ENGINE_CHECK_SECONDS, f"not done after {ENGINE_CHECK_SECONDS:.0f} s"
    seconds = time.monotonic() - started
    if process.returncode:
        last = [line.strip() for line in errors.splitlines() if line.strip()] or [
            f"exit code {process.returncode}"
        ]
        return None, seconds, last[-1][:300]
    try:
        return json.loads(out.strip().splitlines()[-1]), seconds, ""
    except (
        IndexError,
        ValueError,
    ):  # whatever it imports may end the process, or print on the way out
        return None, seconds, f"it printed {out.strip()[-200:]!r}, expected a line of JSON"


def _command_for_details(script: str, device: str) -> str:
    """The command that shows the full error."""
    return (
        f"{cpu.DEVICE}={device} python -c '{script.strip().partition(',')[0]}' shows the full error"
    )
