"""A run's records: one run at a time writes them; TensorBoard and W&B get the numbers, not the
key."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import inspected_runs
import pytest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.records.write import Records, held

KEY = "f00dcafe" * 5


@pytest.fixture(scope="module")  # W&B keeps its first run's folder for the whole process
def records(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield written_records(tmp_path_factory.mktemp("records"), monkeypatch)


def written_records(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.delenv("WANDB_API_KEY")
    words = [
        "--recipe",
        "tests/recipes/sums/tiny.yaml",
        "--ckpt.output_dir",
        str(tmp_path / "out"),
        "--dry-run",
    ]
    words += ["--logger.wandb.key", KEY, "--logger.tensorboard_dir", str(tmp_path / "tensorboard")]
    plan = build_plan([*words, "--logger.trajectories", "2"])
    made = Records(
        plan.run.output,
        plan.run.args,
        describe(plan),
        logged_trajectories=plan.options.logged_trajectories,
    )
    rng = random.Random(0)
    for step in (1, 2):
        text = "</pre><script>\n\x1b[31m\ud83d"
        trajectories = [
            inspected_runs.trajectory(rng, step, f"t{n}", s, text) for n in range(9) for s in (0, 1)
        ]
        made.step(
            step,
            {"role/solver/reward": step / 4, "eval/outcome": 0.5},
            trajectories,
            None,
            trajectories[:8],
        )
    made.close()
    return tmp_path


def test_a_second_run_is_refused_before_anything_starts(tmp_path):
    words = [
        sys.executable,
        "-m",
        "marl_plugins",
        "train",
        "--recipe",
        "tests/recipes/sums/tiny.yaml",
    ]
    words += ["--ckpt.output_dir", str(tmp_path / "out"), "--ckpt.path", str(tmp_path / "saved")]
    with held("ckpt.path", folder := tmp_path / "saved"):
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=Path(__file__).parent.parent
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        f"error: --ckpt.path: {folder}: another run (process {os.getpid()} on "
    )
    assert not (tmp_path / "out" / "run").exists()


def test_a_killed_process_holds_nothing(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from marl_plugins.engine.records.write "
        "import held\n"
    )
    code += "with held('ckpt.path', Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    with (
        pytest.raises(ConfigurationError, match=rf"process {process.pid} on"),
        held("ckpt.path", tmp_path),
    ):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    with held("ckpt.path", tmp_path):
        assert (tmp_path / "ckpt.path.lock").read_text().startswith(f"{os.getpid()} on ")


def test_the_numbers_arrive_and_the_key_is_written_nowhere(records):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (records / "tensorboard").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/role/solver/reward")] == [
        (1, 0.25),
        (2, 0.5),
    ]
    assert [e.value for e in events.Scalars("eval/outcome")] == [0.5, 0.5]
    (wandb,) = (records / "wandb").glob("offline-run-*/*.wandb")
    assert b"role/solver/reward" in wandb.read_bytes()
    files = [path for path in records.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert (
        json.loads((records / "out" / "plan.json").read_text())["flags"]["logger.wandb.key"]
        == "***"
    )
