"""Runs on the stand-in for CUDA (stand_in/), once for all tests of this folder."""

import itertools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from engines.relay import FILES

HERE = Path(__file__).resolve().parent
DEVICES = 8
RECIPE = """
    name: relay
    roles:
      first: {prompt: first.md}
      second: {prompt: second.md, tools: [echo], max_turns: 2, endless_tools: go_on}
      judge: {prompt: second.md}
    workflow: workflow.py
    grader: grader.py
    tasks: tasks.py
    plugins: [tools.py]
    mapping: {first: first, second: second, judge: judge}
    model: tiny
    policies:
      second: {model: "tiny:seed=1"}
      judge: {model: "tiny:seed=2"}
    flags:
      actor.num_gpus_per_node: 1
      rollout.batch_size: 6
      rollout.micro_batch_size: 4
      rollout.max_new_tokens: 6
      train.batch_size: 3
      train.micro_batch_size: 4
      data.max_len: 256
      data.max_samples: 18
      actor.adam.lr: 1.0e-3
      algo.kl.init_coef: 0.05
      ds.attn_implementation: eager
      ds.zero_stage: 2
      vllm.enforce_eager: true
      ckpt.save_steps: 2
      eval.steps: 2
      eval.n_samples_per_prompt: 1
"""
RECIPES = {
    "recipe": RECIPE,
    "colocated": """
        extends: recipe.yaml
        flags: {train.colocate_all: true, vllm.enable_sleep: true, ds.enable_sleep: true, vllm.gpu_memory_utilization: 0.5}
    """,
}


def pytest_collection_modifyitems(items):
    for item in items:
        if "gpu" in Path(item.fspath).parts and {"runs", "on_cpu"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.engines)


class Runs:
    """What several runs have left: their records, what they printed, exit codes, and the stand-in's log."""

    def __init__(self, folder):
        self.folder = folder
        self.codes = json.loads((folder / "codes.json").read_text())
        log = folder / "log.jsonl"
        self.events = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []

    def of(self, name):
        """The events of a run, in order."""
        after = itertools.dropwhile(lambda e: e.get("name") != name or e["event"] != "run", self.events)
        next(after)
        return list(itertools.takewhile(lambda e: e["event"] != "run", after))

    def lines(self, name, file):
        return [json.loads(line) for line in (self.folder / name / file).read_text().splitlines()]

    def text(self, name):
        return (self.folder / f"{name}.txt").read_text()


def several(folder, words, device):
    """Runs by name, on so many devices, or on the CPU."""
    recipe = folder / "relay"
    recipe.mkdir()
    for name, text in RECIPES.items():
        (recipe / f"{name}.yaml").write_text(textwrap.dedent(text).lstrip("\n"))
    for name, text in FILES.items():
        (recipe / name).write_text(textwrap.dedent(text).lstrip("\n"))
    runs = [{"name": name, "words": [*map(str, given(recipe, folder, name))]} for name, given in words.items()]
    (folder / "runs.json").write_text(json.dumps(runs))
    path = os.pathsep.join([str(HERE / "stand_in"), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")])
    own = {
        "MARL_PLUGINS_DEVICE": device,
        "MARL_STAND_IN": str(folder),
        "MARL_STAND_IN_GPUS": str(DEVICES),
        "PYTHONPATH": path,
    }
    with (folder / "log.txt").open("w") as log:
        command = [sys.executable, str(HERE / "several.py"), str(folder)]
        code = subprocess.call(command, stdout=log, stderr=log, env={**os.environ, **own}, timeout=900)
    assert code == 0, (folder / "log.txt").read_text()[-4000:]
    return Runs(folder)


def started(file, *flags, name=None, resume=None):
    """The words of a run."""

    def words(recipe, folder, run):
        output = folder / (resume or run)
        begin = ["--resume", output] if resume else ["--recipe", recipe / f"{file}.yaml", "--ckpt.output_dir", output]
        return [*begin, *(flag.format(recipe=recipe) for flag in flags)]

    return words


TWO = ("--max_steps", "2")
ON_GPUS = {"colocated": started("colocated", *TWO)}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """On eight devices of the stand-in."""
    return several(tmp_path_factory.mktemp("gpus"), ON_GPUS, "cuda")


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory):
    """The run of three policies on the CPU path, its engines in bfloat16 as on GPUs."""
    return several(tmp_path_factory.mktemp("cpu"), {"same": started("recipe", *TWO)}, "cpu")
