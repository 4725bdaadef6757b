"""The first hour on GPUs (benchmarks/gpu.py), as far as it can be known without one: its command
lines, and how its rows end."""

import json

import pytest

from benchmarks import gpu
from benchmarks.gpu_observer import summary
from benchmarks.gpu_runs import RUNS, Hour, Machine, Result
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.devices import needed_devices
from marl_plugins.engine.plan.flags import unknown_flags

NEEDS = {"three": 3, "apart": 2, "ring": 2}
"""Devices of the runs that do not fit one."""


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")


def hour(folder, devices, minutes=10.0):
    return Hour(Machine(devices, "a machine", "tiny", rehearsal=True), folder, minutes)


@pytest.mark.parametrize("devices", [1, 3])
def test_every_run_is_a_plan_that_fits_the_machine(devices, tmp_path):
    of_machine = hour(tmp_path, devices)
    for name in RUNS:
        if NEEDS.get(name, 1) <= devices:
            run = build_plan([*of_machine.words(name), "--max_steps", "2"]).run
            assert sum(needed_devices(run).values()) <= devices, name


def test_upstreams_own_trainer_knows_every_flag_that_it_is_given(tmp_path):
    words = hour(tmp_path, 1).words_of_loop("upstream")
    assert words and not unknown_flags(words)


def test_a_row_is_written_whatever_becomes_of_it(tmp_path):
    of_machine = hour(tmp_path, 1, minutes=0.0)
    (tmp_path / "log").write_text("all is well\nCUDA out of memory | oh\n")
    of_machine.results["shared"] = Result(1, 12.0, tmp_path / "shared", tmp_path / "log")
    of_machine.results["zero3"] = Result(0, 12.0, tmp_path / "zero3", tmp_path / "log")
    known = {
        name: gpu.answered(gpu.ROWS[name], of_machine)
        for name in ("colocated", "sync", "zero3", "packing", "upstream")
    }
    assert {name: how for name, (how, _) in known.items()} == {
        "colocated": "-",
        **dict.fromkeys(("sync", "zero3", "packing", "upstream"), "FAILED"),
    }
    assert "out of memory" in known["sync"][1] and str(tmp_path / "log") in known["sync"][1]
    page = gpu.table(
        of_machine.machine, [("a question", how, answer) for how, answer in known.values()]
    )
    rows = [line for line in page.splitlines() if line.startswith("| a question")]
    assert len(rows) == 5 and all(row.replace("\\|", "").count("|") == 4 for row in rows)


def test_what_was_observed_is_summed_up(tmp_path):
    assert summary(tmp_path).freed is None
    lines = [
        {"what": "sleep", "policy": "a", "seconds": 2.0, "before": [900, 10], "after": [100, 10]},
        {"what": "sleep", "policy": "a", "seconds": 4.0, "before": [900, 10], "after": [200, 10]},
        {"what": "sleep", "policy": "b", "seconds": 6.0, "before": [10, 10], "after": [10, 10]},
    ]
    (tmp_path / "observed.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = summary(tmp_path)
    assert (found.seconds, found.freed, found.most) == ({"sleep": 4.0}, 800, 900)
