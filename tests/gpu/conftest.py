"""Runs on the stand-in for CUDA (stand_in/), once for all tests of this folder."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from engines.relay import FILES

from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.processes.cluster import quiet

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
    "seated": """
        extends: recipe.yaml
        flags: {train.colocate_all: true, vllm.enable_sleep: true, vllm.gpu_memory_utilization: 0.3}
    """,
    "apart": """
        extends: recipe.yaml
        policies:
          first: {flags: {vllm.tensor_parallel_size: 2, ref.num_gpus_per_node: 2}}
          second: {flags: {train.colocate_actor_ref: true}}
          judge: {follows: first, model: null}
        flags: {vllm.enable_prefix_caching: true}
    """,
    "adapters": """
        extends: recipe.yaml
        policies:
          second: {model: tiny}
          judge: {model: tiny}
        flags: {ds.lora.rank: 4, ds.lora.alpha: 8}
    """,
    "adapters_colocated": """
        extends: adapters.yaml
        flags: {train.colocate_all: true, vllm.enable_sleep: true, ds.enable_sleep: true, vllm.gpu_memory_utilization: 0.5}
    """,
}
PAPER = """
    extends: paper.yaml
    roles:
      coder: {max_turns: 2}
    model: "tiny:positions=4096"
    policies:
      coder: {model: "tiny:positions=4096,seed=1"}
      verifier: {model: "tiny:positions=4096,seed=2"}
    flags:
      actor.adam.lr: 1.0e-3
      coach.model: null
      coach.base_url: null
      coach.api_key_env: null
      coach.rubric: rubric.py
      rollout.batch_size: 4
      rollout.n_samples_per_prompt: 1
      rollout.max_new_tokens: 8
      train.batch_size: 4
      data.max_len: 4096
      data.max_samples: 8
      mathchat.held_out: 2
      ds.adam_offload: false
      vllm.enforce_eager: true
      eval.n_samples_per_prompt: 1
"""
"""MathChat's recipe for six devices, with models and batches that are small. Adam is not offloaded:
it would be a C++ operator that takes a minute to compile."""
KILLER = """
    import json, os, psutil, signal
    from pathlib import Path
    from marl_plugins import hookimpl

    PLANNED = Path(__file__).stem.split("_")
    KILLED = Path(os.environ["MARL_STAND_IN"], Path(__file__).with_suffix(".json").name)

    def kill(when, pool):
        killed = json.loads(KILLED.read_text()) if KILLED.exists() else {}
        if when in PLANNED and when not in killed:
            pid = pool.engines[0].where.pid
            processes = [pid, *(process.pid for process in psutil.Process(pid).children(recursive=True))]
            KILLED.write_text(json.dumps(killed | {when: processes}))
            os.kill(pid, signal.SIGKILL)

    @hookimpl(wrapper=True)
    def marl_update(policy, step):
        # An engine dies while it sleeps.
        inner = yield
        async def work():
            if step == 2 and policy.name == "first":
                kill("asleep", policy.engines)
            if step == 2 and policy.name == "second":
                kill("again", policy.engines)
            return await inner
        return work()

    @hookimpl(wrapper=True)
    def marl_generate(call, engines):
        # An engine dies while it is asked.
        inner = yield
        async def work():
            if call.step == 2 and call.policy == "second":
                kill("awake", engines)
            return await inner
        return work()

    @hookimpl(wrapper=True)
    def marl_sync(policy, version):
        # vLLM's own process, in which an engine's model is, dies when the weights arrive.
        inner = yield
        def arm(worker):
            import os, signal
            worker.model_runner.get_model().load_weights = lambda weights: os.kill(os.getpid(), signal.SIGKILL)
        async def work():
            if version == 2 and policy.name == "second" and "syncing" in PLANNED:
                await policy.engines.engines[0].handle.in_workers.remote(arm)
            return await inner
        return work()
"""
"""An engine is killed when the plugin's file is named so: `awake`, `asleep`, `syncing`, or the one
in its place `again`."""


def pytest_collection_modifyitems(items):
    for item in items:
        if "gpu" in Path(item.fspath).parts and {"runs", "on_cpu"} & set(
            getattr(item, "fixturenames", ())
        ):
            item.add_marker(pytest.mark.engines)


class Runs:
    """What several runs have left: their records, what they printed, exit codes, and the stand-in's
    log."""

    def __init__(self, folder):
        self.folder = folder
        self.codes = json.loads((folder / "codes.json").read_text())
        log = folder / "log.jsonl"
        self.events = (
            [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
        )

    def of(self, name):
        """The events of a run, in order."""
        after = itertools.dropwhile(
            lambda e: e.get("name") != name or e["event"] != "run", self.events
        )
        next(after)
        return list(itertools.takewhile(lambda e: e["event"] != "run", after))

    def killed(self, plugin):
        """The processes of engines that a plugin has killed, by what these were doing."""
        return json.loads((self.folder / f"{plugin}.json").read_text())

    def lines(self, name, file):
        return [json.loads(line) for line in (self.folder / name / file).read_text().splitlines()]

    def text(self, name):
        return (self.folder / f"{name}.txt").read_text()


def written(folder, words):
    """What runs read, by name with their words: recipes and plugins are written into the folder."""
    recipe = folder / "relay"
    recipe.mkdir()
    for name, text in RECIPES.items():
        (recipe / f"{name}.yaml").write_text(textwrap.dedent(text).lstrip("\n"))
    for name, text in FILES.items():
        (recipe / name).write_text(textwrap.dedent(text).lstrip("\n"))
    for name in ("awake_asleep_again", "syncing", "awake"):
        (recipe / f"{name}.py").write_text(textwrap.dedent(KILLER).lstrip("\n"))
    shutil.copytree(recipes_root() / "mathchat", folder / "mathchat")
    (folder / "mathchat" / "small_paper.yaml").write_text(textwrap.dedent(PAPER).lstrip("\n"))
    return {name: [*map(str, given(recipe, folder, name))] for name, given in words.items()}


def several(folder, words):
    """Runs by name, on so many devices."""
    runs = [{"name": name, "words": own} for name, own in written(folder, words).items()]
    (folder / "runs.json").write_text(json.dumps(runs))
    places = [HERE / "stand_in", HERE.parent, HERE.parent.parent, os.environ.get("PYTHONPATH", "")]
    own = {
        **quiet(False),
        "MARL_PLUGINS_DEVICE": "cuda",
        "MARL_STAND_IN": str(folder),
        "MARL_STAND_IN_GPUS": str(DEVICES),
        "PYTHONPATH": os.pathsep.join(map(str, places)),
    }
    with (folder / "log.txt").open("w") as log:
        command = [sys.executable, str(HERE / "several.py"), str(folder)]
        code = subprocess.call(
            command, stdout=log, stderr=log, env={**os.environ, **own}, timeout=900
        )
    assert code == 0, (folder / "log.txt").read_text()[-4000:]
    return Runs(folder)


def started(file, *flags):
    """The words of a run."""
    return lambda recipe, folder, name: [
        *("--recipe", recipe / f"{file}.yaml", "--ckpt.output_dir", folder / name),
        *(flag.format(recipe=recipe) for flag in flags),
    ]


def resumed(run, *flags):
    """The words of a run that goes on with another one."""
    return lambda recipe, folder, name: ["--resume", folder / run, *flags]


TWO = ("--max_steps", "2")
WITH_CRITIC = ("--mapping", "shared", "--algo.advantage.estimator", "gae")
POOL = ("--plugin", "marl_plugins.opponent_pool", "--opponents.every", "1")
MOVING = ("--plugin", "marl_plugins.balance", "--balance.in_flight", "1")
ADAPTERS = ("--plugin", "marl_plugins.adapters")
UNSEEN = ("--eval.steps", "-1", "--ckpt.best_metric_key", "none")
SEATED = ("--plugin", "marl_plugins.process_groups")
WATCHED = ("--plugin", "benchmarks.gpu_observer")
ON_GPUS = {
    "colocated": started("colocated", *TWO, *WATCHED, "--plugin", "{recipe}/awake_asleep_again.py"),
    "apart": started("apart", *TWO, *POOL, "--plugin", "{recipe}/syncing.py"),
    "shared": started("colocated", "--max_steps", "1", "--ckpt.save_steps", "1", *WITH_CRITIC),
    "resumed": resumed("shared", *TWO),
    "paper": started("../mathchat/small_paper", "--max_steps", "1", *UNSEEN, *MOVING),
    "adapters": started("adapters_colocated", *TWO, *ADAPTERS, "--plugin", "{recipe}/awake.py"),
    "seated": started("seated", *TWO, *SEATED),
    "too_few": started("recipe", "--vllm.num_engines", "2", *TWO),
    "no_memory": started(
        "colocated", "--mapping", "shared", "--vllm.gpu_memory_utilization", "0.99", *TWO
    ),
}
"""By name: three policies on 3 devices, two of whose engines are killed, one of them twice; two and a follower on 8,
one of whose engines is killed; one for all roles on 1, and resumed; three on 6, whose engines move;
three adapters on 1, whose engine is killed; three on 1, whose training processes come and go; on
more than there are; and with more memory than is free."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """On eight devices of the stand-in."""
    return several(tmp_path_factory.mktemp("gpus"), ON_GPUS)


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory, template):
    """The runs of three policies and of three adapters on the CPU path, their engines in bfloat16
    as on GPUs."""
    folder = tmp_path_factory.mktemp("cpu")
    given = {"same": started("recipe", *TWO), "adapters": started("adapters", *TWO, *ADAPTERS)}
    environment = {**os.environ, **cpu.environment(), "MARL_TEST_ENGINES": "bfloat16"}
    codes = {}
    for name, words in written(folder, given).items():
        with (folder / f"{name}.txt").open("w") as out:
            run = template.start(["train", *words], environment, out, out)
            codes[name] = run.wait(timeout=400)
    (folder / "codes.json").write_text(json.dumps(codes))
    return Runs(folder)
