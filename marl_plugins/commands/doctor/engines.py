"""What a run starts, tried out in processes of their own: engines, training processes, Ray."""

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

from marl_plugins.commands.doctor.machine import temporary, unwritable
from marl_plugins.core.findings import Finding, fine, red, remark
from marl_plugins.hosts import cpu

SECONDS = 180.0
"""For one of them; a first import on a cold disk takes a minute."""
GRACE = 5.0
"""Seconds between ending one and giving up on what it said."""

ENGINE = """
import marl_plugins.runtime.engine_actor, json, torch, vllm, vllm.platforms
device = vllm.platforms.current_platform.device_type
print(json.dumps({"vllm": vllm.__version__, "device": device, "gpus": torch.cuda.device_count()}))
"""
TRAINING = """
import marl_plugins.runtime.policy_actor, json, deepspeed, deepspeed.accelerator
device = deepspeed.accelerator.get_accelerator()._name
print(json.dumps({"deepspeed": deepspeed.__version__, "device": device}))
"""
RAY = """
import json, os, ray, sys
options = {} if os.environ.get("RAY_ADDRESS") else {
    "address": "local", "include_dashboard": False, "num_cpus": 1, "object_store_memory": 10**8, "_temp_dir": sys.argv[1],
}
ray.init(log_to_driver=False, logging_level="ERROR", **options)
resources = ray.cluster_resources()
ray.shutdown()
print(json.dumps({"ray": ray.__version__, "gpus": resources.get("GPU", 0), "cpus": resources.get("CPU", 0)}))
"""


def engines(device: str) -> list[Finding]:
    """Import what an engine's process imports."""
    found, seconds, problem = tried(ENGINE, device)
    if found is None:
        return [red("engines", f"their process cannot be started: {problem}", _again(ENGINE, device))]
    text = f"vLLM {found['vllm']} for {found['device']}, imported in {seconds:.0f} s"
    if found["device"] != device:
        return [
            red(
                "engines",
                f"{text}, and the run would be on {device}",
                f"install vLLM for {device}, or: export {cpu.DEVICE}={found['device']}",
            )
        ]
    if device == "cuda" and not found["gpus"]:
        return [red("engines", f"{text}; torch sees no GPU", "python -c 'import torch; torch.cuda.init()' says why")]
    return [fine("engines", text)]


def training(device: str) -> list[Finding]:
    """Import what a training process imports."""
    found, seconds, problem = tried(TRAINING, device)
    if found is None:
        return [red("training", f"its process cannot be started: {problem}", _again(TRAINING, device))]
    text = f"DeepSpeed {found['deepspeed']} for {found['device']}, imported in {seconds:.0f} s"
    if found["device"] != device:
        return [red("training", f"{text}, and the run would be on {device}", f"export DS_ACCELERATOR={device}")]
    return [fine("training", text)]


def ray() -> list[Finding]:
    """Start Ray, or reach the cluster that RAY_ADDRESS names, as a run does."""
    if unwritable(temporary()):
        return []  # said among the caches
    temporary().mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="ray-", dir=temporary())  # as long a path as a run's: sockets have short names
    try:
        found, seconds, problem = tried(RAY, cpu.device(), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    address = os.environ.get("RAY_ADDRESS")
    if found is None:
        if address:
            return [
                red(
                    "ray",
                    f"the cluster at RAY_ADDRESS={address}: {problem}",
                    f"ray status --address {address}; or: unset RAY_ADDRESS",
                )
            ]
        return [
            red(
                "ray",
                f"cannot be started: {problem}",
                "ray start --head says more; RAY_TMPDIR=/tmp where the path is too long",
            )
        ]
    where = (
        f"cluster at {address}: {found['cpus']:g} cores, {found['gpus']:g} GPUs"
        if address
        else f"started in {seconds:.0f} s"
    )
    return [fine("ray", f"{found['ray']}, {where}"), *left_over(Path("/proc"), temporary() / "ray")]


def left_over(processes: Path, sessions: Path) -> list[Finding]:
    """Ray that is running already, and sessions whose process is gone: each a folder with logs."""
    findings = []
    running = [
        folder.name
        for folder in processes.glob("[0-9]*")
        if Path(_words(folder / "cmdline")[0]).name in ("gcs_server", "raylet")
    ]
    if running:
        found = f"runs here already (processes {', '.join(sorted(running, key=int))}); a run starts its own beside it"
        findings.append(remark("ray", found, "if nobody uses it: ray stop"))
    gone = [
        s
        for s in sorted(sessions.glob("session_*_*"))
        if not s.is_symlink() and not (processes / s.name.rpartition("_")[2]).exists()
    ]
    size = sum(map(_size, gone))
    if size > 2**30:
        names = " ".join(shlex.quote(str(s)) for s in gone[:8])  # by name: others may be running
        more = f"  # and then the other {len(gone) - 8}" if len(gone) > 8 else ""
        findings.append(
            remark("ray", f"{size / 2**30:.0f} GiB in {len(gone)} sessions that have ended", f"rm -r {names}{more}")
        )
    return findings


def _size(folder: Path) -> int:
    """Bytes in a folder, as far as it can be read and is still there."""
    size = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                size += os.lstat(Path(place, name)).st_size
    return size


def _words(cmdline: Path) -> list[str]:
    """A process's command line; one that has just ended has none."""
    try:
        return cmdline.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def tried(script: str, device: str, *arguments: str) -> tuple[dict[str, Any] | None, float, str]:
    """Run a script as a run's processes are run: what it printed last as JSON, the seconds, and the problem where it failed."""
    env = dict(os.environ) | {cpu.DEVICE: device, "RAY_USAGE_STATS_ENABLED": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
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
        out, said = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started
        with contextlib.suppress(subprocess.TimeoutExpired):  # what is in a session of its own may hold the pipes
            process.communicate(timeout=GRACE)
        return None, SECONDS, f"not done after {SECONDS:.0f} s"
    seconds = time.monotonic() - started
    if process.returncode:
        last = [line.strip() for line in said.splitlines() if line.strip()] or [f"exit code {process.returncode}"]
        return None, seconds, last[-1][:300]
    return json.loads(out.strip().splitlines()[-1]), seconds, ""


def _again(script: str, device: str) -> str:
    """The command that shows the whole error."""
    return f"{cpu.DEVICE}={device} python -c '{script.strip().partition(',')[0]}' shows all of it"
