"""Try what a run starts, each in a separate process: engines, training processes, Ray."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from marl_plugins.commands.doctor.machine import ray_folder, why_unwritable
from marl_plugins.core.findings import Finding, error, ok
from marl_plugins.engine.hosts import cpu

ENGINE_CHECK_SECONDS = 180.0
"""Time limit of one trial; a first import on a cold disk takes a minute."""
GRACE_SECONDS = 5.0
"""Seconds to wait for the output of a trial that was killed."""

ENGINE = """
import marl_plugins.engine.processes.engine_actor, json, torch, vllm, vllm.platforms
device = vllm.platforms.current_platform.device_type
library = f"vLLM {vllm.__version__}"
print(json.dumps({"library": library, "device": device, "gpus": torch.cuda.device_count()}))
"""
TRAINING = """
import marl_plugins.engine.processes.policy_actor, json, deepspeed, deepspeed.accelerator
device = deepspeed.accelerator.get_accelerator()._name
print(json.dumps({"library": f"DeepSpeed {deepspeed.__version__}", "device": device}))
"""
RAY = """
import json, os, sys
from marl_plugins.engine.processes.cluster import closed, own_cluster, reach_cluster
if own_cluster():
    os.environ.update(closed())
else:
    reach_cluster()
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


IMPORTED = (
    (
        "engines",
        "an engine process",
        ENGINE,
        f"install vLLM for WANTED, or: export {cpu.DEVICE}=FOUND",
    ),
    ("training", "a training process", TRAINING, "export DS_ACCELERATOR=WANTED"),
)
"""What is imported, the process that does, its script, and what to do where it would run on the
device FOUND in place of the one WANTED."""


def try_import(what: str, process: str, script: str, fix: str, device: str) -> list[Finding]:
    """Imports what a process imports (`IMPORTED`)."""
    report, seconds, problem = run_script(script, device)
    if report is None:
        text = f"{process} cannot be started: {problem}"
        shows = f"python -c '{script.strip().partition(',')[0]}' shows the full error"
        return [error(what, text, f"{cpu.DEVICE}={device} {shows}")]
    text = f"{report['library']} for {report['device']}, imported in {seconds:.0f} s"
    if report["device"] != device:
        text = f"{text}, and the run would be on {device}"
        fix = fix.replace("WANTED", device).replace("FOUND", report["device"])
        return [error(what, text, fix)]
    if device == "cuda" and report.get("gpus") == 0:
        fix = "python -c 'import torch; torch.cuda.init()' shows why"
        return [error(what, f"{text}; torch sees no GPU", fix)]
    return [ok(what, text)]


def try_ray() -> list[Finding]:
    """Starts Ray, or connects to the cluster in RAY_ADDRESS, as a run does."""
    if why_unwritable(ray_folder()):
        return []  # reported by check_caches
    ray_folder().mkdir(parents=True, exist_ok=True)
    # as long as a run's path: socket paths are limited
    with tempfile.TemporaryDirectory(
        prefix="ray-", dir=ray_folder(), ignore_cleanup_errors=True
    ) as folder:
        report, seconds, problem = run_script(RAY, cpu.device(), folder)
    address = os.environ.get("RAY_ADDRESS")
    if report is None:
        text = f"cannot be started: {problem}"
        fix = "ray start --head shows more; if the path is too long: export RAY_TMPDIR=/tmp"
        if address:
            text = f"the cluster at RAY_ADDRESS={address}: {problem}"
            fix = f"ray status --address {address}; or: unset RAY_ADDRESS"
        return [error("ray", text, fix)]
    where = f"started in {seconds:.0f} s"
    if address:
        where = f"cluster at {address}: {report['cpus']:g} cores, {report['gpus']:g} GPUs"
    return [ok("ray", f"{report['ray']}, {where}")]


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
