"""Every benchmark that a page names runs in its smallest form, or its subject has tests of its own;
what a figure of a page is made with would otherwise break unseen.

No figure is looked at: times on a busy machine say nothing.
"""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import inspected_runs
import pytest

from benchmarks import (
    adapters,
    claims,
    startup,
)
from marl_plugins.engine.plan.build import build_plan

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "recipes").glob("*/README.md")]

SMALLEST = {
    "agents": ["starts 1"],
    "arena": [
        "--games pair --repetitions 8 --steps 2 --seeds 1",
        "--recorded --picture {out}/p.png",
    ],
    "arithmetic": ["--runs 1"],
    "blame": ["--tasks 2 --seeds 1"],
    "coach": ["--calls 20 --rounds 1 --verdict_seconds 0.1-0.2"],
    "coach_map": ["--seeds 1 --steps 80"],
    "compat": ["--checks 1 --pairs 0"],
    "credit": ["--out {recorded} --arms coach --seeds 2"],
    "demo": ["--out {out} --recorded --arms coach frozen async --seeds 2 --control_seeds 1"],
    "dsbench": ["--out {out} --recorded --arms strict outcome uniform curriculum --seeds 0 1"],
    "endurance": ["--steps 20 --trajectories 100"],
    "gallery": ["{run} --out {out}"],
    "graphs": ["--repeats 1"],
    "judged_effects": ["--seeds 0 --steps 2 --spread 1.5"],
    "learning": [
        "merchant --out {out} --recorded --arms trained outcome frozen --seeds 0 1",
        "swarm --out {out} --recorded --arms trained async --seeds 0 1",
    ],
    "population": ["--seeds 1 --games spread trading --estimators normalised --presets"],
    "records": ["--megabytes 1"],
    "scheduling": ["--seeds 1", "--controller --trajectories 10"],
    "sequences": ["--trees 8 --length 8 --rounds 1 --models tiny --recipes vote/tiny.yaml"],
    "swarm": ["--out {out} --recorded --arms 8/0 4/4 capability stronger --seeds 0 1"],
    "trained_judge": ["--seeds 0 1 --steps 3"],
    "viewer": ["--scale 0.005 --only 0"],
}
"""Command lines of each, seconds of CPU. `recorded` is a folder with the recorded runs of the demo,
`run` a run to look at."""

HERE = (
    "agents",
    "arena",
    "arithmetic",
    "coach",
    "coach_map",
    "credit",
    "demo",
    "dsbench",
    "endurance",
    "graphs",
    "judged_effects",
    "learning",
    "population",
    "records",
    "scheduling",
    "sequences",
    "swarm",
    "trained_judge",
)
"""Those that run in this process, because imports would take most of their time."""


PLANNED = {
    "adapters": "its runs are those of benchmarks.startup",
    "async_steps": "a run of many steps each way",
    "curriculum": "its runs have 96 steps, and none is recorded",
    "judge": "three runs and a warm start of a thousand steps",
    "kuhn_poker": "its runs have 64 steps, and none is recorded",
    "laptop": "runs of an hour; tests/engines/test_laptop.py has two steps of one",
    "robustness": "twenty steps beside an endpoint that fails",
    "startup": "a whole run on three engines; tests/engines has many",
    "temperatures": "25 runs of 20 steps a seed; benchmarks.claims reads those that are recorded",
    "upstream_loop": "fourteen steps of upstream's trainer and of ours; tests/engines compares "
    "them step by step",
}
"""Those that only train, minutes at the least: that their runs can be planned is tested, and why
nothing else is."""

ELSEWHERE = {
    "attacks": "tests/test_sandbox_limits.py",
    "claims": "test_every_figure_with_a_record_is_what_the_record_gives",
    "coach_bias": "tests/test_coach_bias.py",
    "engine_traffic": "eight vLLM engines one after the other; tests/engines/test_adapters.py has "
    "one with slots",
    "faults": "whole runs that are killed and resumed; tests/engines/test_runs.py kills and "
    "resumes two",
    "gpu": "tests/gpu",
    "hostile_coach": "tests/test_coach_hostile.py",
    "kills": "as faults",
    "load": "tests/test_trace.py",
    "process_groups": "tests/engines/test_process_groups.py",
    "programs": "tests/test_hostile_programs.py",
    "requests": "tests/test_mailbox.py",
    "sandbox": "tests/test_sandbox.py",
    "sql": "tests/test_sql_tool.py",
    "trials": "as faults",
    "weight_sync": "an engine and gigabytes; every run of tests/engines and tests/gpu syncs",
}
"""Those that have no form of some seconds, or that other tests run."""


def test_all_benchmarks_of_the_pages_are_here():
    named = {
        name
        for page in PAGES
        for name in re.findall(r"\bbenchmarks\.([a-z_]+)\b", page.read_text())
    } - {"md"}
    assert named == {*SMALLEST, *PLANNED, *ELSEWHERE}


def benchmark(name, words):
    """Run one as a user does, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{name}", *words]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("benchmarks")
    shutil.copytree(ROOT / "benchmarks" / "recorded" / "demo", top / "recorded")
    inspected_runs.write_run(top / "run", steps=2, tasks=3, samples=2)
    inspected_runs.write_tokenizers(top / "run")
    return {"recorded": top / "recorded", "run": top / "run"}


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name in HERE for words in SMALLEST[name]]
)
def test_it_runs_here_in_its_smallest_form(name, words, folders, tmp_path, monkeypatch, capsys):
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # other tests run on the other cores
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [name, *shlex.split(words.format(out=tmp_path, **folders))])
    importlib.import_module(f"benchmarks.{name}").main()
    torch.set_num_threads(threads)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("name", "words"),
    [(name, words) for name, lines in SMALLEST.items() if name not in HERE for words in lines],
)
def test_it_runs_in_its_smallest_form(name, words, folders, tmp_path):
    if name == "gallery" and not (
        shutil.which("chromium-headless-shell") or shutil.which("chromium")
    ):
        pytest.skip("apt-get install chromium-headless-shell")
    benchmark(name, shlex.split(words.format(out=tmp_path, **folders)))


class Planned(Exception):
    """A run could be planned; it is not made."""


class PlanOnly(subprocess.Popen):
    """In place of `openrlhf train`, the plan of its command line. Everything else is started."""

    def __init__(self, command, **options):
        if "train" in command:
            words = command[command.index("train") + 1 :]
            build_plan([word for word in words if word != "--json"])
            raise Planned
        super().__init__(command, **options)


TRAINED = [
    *(f"adapters --models {model}" for model in ("tiny", "tiny:hidden=384,layers=6,heads=6")),
    *(
        "async_steps",
        "async_steps --train.async_enable",
        "judge",
        "robustness",
        "startup",
        "upstream_loop",
    ),
    *(f"credit --arms {arm}" for arm in ("backprop", "group")),
    *(f"curriculum --arms {arm}" for arm in ("curriculum", "filtered")),
    *(f"demo --arms {arm}" for arm in ("outcome", "adapters", "async_token")),
    *(f"dsbench --arms {arm}" for arm in ("traced", "own_to_go", "shifted", "easy_strict")),
    *(f"kuhn_poker --arms {arm}" for arm in ("pool", "four")),
    "laptop learn mails --arms outcome",
    "laptop time mathchat",
    *(f"learning {system} --arms trained" for system in ("debate", "swarm")),
    *(f"learning merchant --arms {arm}" for arm in ("outcome", "rare_trained")),
    *(f"swarm --arms {arm}" for arm in ("4/4", "capability", "uniform")),
]
"""Benchmarks that train, with arms that differ in their recipe or plugin: their first run."""
WITH_OUT = (
    "credit",
    "curriculum",
    "demo",
    "dsbench",
    "judge",
    "kuhn_poker",
    "laptop",
    "learning",
    "robustness",
    "swarm",
    "temperatures",
)


@pytest.mark.parametrize("line", TRAINED)
def test_what_it_trains_can_be_planned(line, tmp_path, monkeypatch):
    name, *words = shlex.split(line)
    out = ["--out", str(tmp_path)] if name in WITH_OUT else []
    monkeypatch.setattr(subprocess, "Popen", PlanOnly)
    monkeypatch.setattr(sys, "argv", [name, *words, *out])
    module = importlib.import_module(f"benchmarks.{name}")
    with pytest.raises(Planned):
        module.main(1, []) if name == "startup" else module.main()


def test_adapters_can_be_planned():
    build_plan(["--recipe", startup.RECIPE, *adapters.flags("tiny"), *adapters.ADAPTERS])


def test_every_figure_with_a_record_is_what_the_record_gives():
    """And all others stand behind a command that repeats them."""
    equal, different, unrecorded = claims.check()
    assert not different and len(equal) > 150
    assert all(command for _, command in unrecorded)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("+42.4 [+40.8, +44.0]", "+42.4 [+40.8, +44.1]")],
)
def test_a_figure_that_no_record_gives_is_named(tmp_path, monkeypatch, right, wrong):
    text = claims.PAGE.read_text()
    assert text.count(right) == 1
    (tmp_path / "page.md").write_text(text.replace(right, wrong))
    monkeypatch.setattr(claims, "PAGE", tmp_path / "page.md")
    (figure,) = claims.check()[1]
    assert " ".join(figure.words).split()[0] in wrong
