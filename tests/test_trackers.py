"""The trackers in examples/: with the real packages where these are installed, in a process of
their own for each start of a run."""

import json
import os
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
START = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace as Named
sys.path.insert(0, {examples!r})
import {module} as tracker

run = Named(
    recipe=Named(name="demo"),
    output=Path("runs/one"),
    args=Named(ckpt=Named(load_enable={resumed})),
)

async def main():
    for step in {steps}:
        metrics = {{"eval/outcome": step / 4, "role/a/reopened?": 1.0, "none": float("nan")}}
        tracker.marl_log(run, step, metrics)
    await tracker.marl_stop()

asyncio.run(main())
"""


def start(name, folder, steps, resumed):
    """One start of a run; what it wrote to its standard error."""
    text = START.format(
        examples=str(EXAMPLES), module=f"track_{name}", resumed=resumed, steps=steps
    )
    local = {"TRACKIO_DIR": str(folder), "HOME": str(folder)}
    ended = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=os.environ | local,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def outcomes(name, folder):
    """The outcomes that a tracker has kept, by run and step."""
    if name == "trackio":
        (file,) = folder.glob("*.db")
        rows = sqlite3.connect(file).execute("select run_name, step, metrics from metrics")
        return {(run, step): json.loads(values)["eval/outcome"] for run, step, values in rows}
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    key = client.get_experiment_by_name("demo").experiment_id
    return {
        (run.data.tags["mlflow.runName"], kept.step): kept.value
        for run in client.search_runs([key])
        for kept in client.get_metric_history(run.info.run_id, "eval/outcome")
    }


@pytest.mark.parametrize("name", ["trackio", "mlflow"])
def test_a_resumed_run_goes_on_in_the_run_that_it_was(name, tmp_path):
    """Without the tracker's package each step is a warning, and nothing else."""
    if find_spec(name) is None:
        assert start(name, tmp_path, [1, 2], resumed=False).count(f"No module named '{name}'") == 2
        return
    assert "warning" not in start(name, tmp_path, [1, 2], resumed=False)
    start(name, tmp_path, [3], resumed=True)
    assert outcomes(name, tmp_path) == {("one", step): step / 4 for step in (1, 2, 3)}
