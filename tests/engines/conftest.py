"""Real processes: Ray, DeepSpeed, vLLM. A run is started at most three times for all tests of this folder."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from marl_plugins.hosts import cpu


def pytest_collection_modifyitems(items):
    for item in items:
        if "engines" in Path(item.fspath).parts:
            item.add_marker(pytest.mark.engines)


os.environ.update(cpu.environment())  # of this process, as `openrlhf train` sets it before anything heavy is imported


RECIPE = """
    name: relay
    roles:
      first: {prompt: first.md}
      second: {prompt: second.md, tools: [echo], max_turns: 3, endless_tools: go_on}
      judge: {prompt: second.md}
    workflow: workflow.py
    grader: grader.py
    tasks: tasks.py
    plugins: [tools.py]
    mapping: {first: first, second: second, judge: judge}
    model: tiny
    policies:
      second: {model: "tiny:seed=1", flags: {actor.num_gpus_per_node: 2, ref.num_gpus_per_node: 2, ds.zero_stage: 2}}
      judge: {model: "tiny:seed=2", trainable: false}
    flags:
      rollout.batch_size: 6
      rollout.micro_batch_size: 4
      rollout.max_new_tokens: 6
      train.batch_size: 3
      train.micro_batch_size: 4
      data.max_len: 256
      actor.adam.lr: 1.0e-3
      ckpt.save_steps: 2
      eval.steps: 2
      eval.n_samples_per_prompt: 1
"""
FILES = {
    "first.md": "{problem}",
    "second.md": "{problem} {seen}",
    "workflow.py": """
        import asyncio

        async def run(task, roles, tools):
            first = await roles.first(problem=task.prompt)
            seconds = [roles.second(problem=task.prompt, seen=first) for _ in range(1 + int(task.id) % 3)]
            answers = await asyncio.gather(*seconds)
            if int(task.id) % 4 == 0:
                return answers[0]
            return await roles.judge(problem=task.prompt, seen=answers[0])
    """,
    "grader.py": """
        def score_outcome(trajectory):
            return float((trajectory.answer or "").count("e") > 0)

        def score_action(action, seen):
            return min(1.0, len(action.text) / 12)
    """,
    "tasks.py": """
        from marl_plugins.core.trajectory import Task

        def load(split):
            return [Task(str(n), f"{n} and {n}", str(n)) for n in (range(18) if split == "train" else range(100, 103))]
    """,
    "tools.py": """
        from marl_plugins import hookimpl
        from marl_plugins.core.trajectory import ToolResult
        from marl_plugins.core.workflow import Tool

        @hookimpl
        def marl_tools(run):
            async def echo(call):
                return ToolResult("echo", call, f"<{call}>", ok=True)
            return [Tool("echo", echo, find=lambda text: [text] if len(text) % 2 else [])]
    """,
}


def write_recipe(folder):
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(textwrap.dedent(RECIPE))
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip("\n"))
    return folder


class Started:
    """`openrlhf train` as a process of its own, with its records."""

    def __init__(self, folder, recipe, *flags):
        self.output = folder / "out"
        self.words = ["train", "--recipe", str(recipe), "--ckpt.output_dir", str(self.output)]
        self.words += ["--ckpt.path", str(folder / "checkpoints"), *flags]
        self.log = folder / "log"

    def start(self, *more):
        words = [*self.words, *more]
        env = {**os.environ, "MARL_TEST_RUN": str(self.log), "WORDS": " ".join(words)}
        with self.log.open("a") as log:
            return subprocess.Popen([sys.executable, "-m", "marl_plugins", *words], stdout=log, stderr=log, env=env)

    def processes(self):
        """Every process that belongs to the run, by its environment."""
        mark = f"MARL_TEST_RUN={self.log}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes() and b"Z" not in (folder / "stat").read_bytes().split()[2:3]:
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
            except OSError:
                continue
        return found

    def run(self, *more, code=0):
        process = self.start(*more)
        assert process.wait(timeout=400) == code, self.log.read_text()[-4000:]
        return self

    def lines(self, name):
        return [json.loads(line) for line in (self.output / name).read_text().splitlines()]

    @property
    def trajectories(self):
        return self.lines("trajectories.jsonl")

    @property
    def metrics(self):
        return self.lines("metrics.jsonl")

    @property
    def ledger(self):
        return self.lines("ledger.jsonl")


@pytest.fixture(scope="session")
def relay(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("relay") / "relay")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, relay):
    """First start-up: three policies (one frozen, one on two ranks), ragged rows, tool turns, three steps, saved every second."""
    return Started(tmp_path_factory.mktemp("undisturbed"), relay, "--reinforce_pp.scope", "action").run()


KILLER = """
    import asyncio, os, signal
    from pathlib import Path
    from marl_plugins import hookimpl

    once = Path(__file__).with_name("once")

    @hookimpl(wrapper=True)
    def marl_generate(call, engines):
        # An engine dies while the rollout of step 1 is under way.
        inner = yield
        async def work():
            if call.step == 1 and call.role == "second" and not once.exists():
                once.touch()
                pid = await engines.engines[0].handle.identify.remote(call.policy, 0)
                os.kill(pid, signal.SIGKILL)
            return await inner
        return work()

    @hookimpl(wrapper=True)
    def marl_update(host, rows, steps):
        # The driver dies in the middle of the update of step 3.
        inner = yield
        async def work():
            if host.step == 3 and host.policy.name == "first" and "--ckpt.load_enable" not in os.environ["WORDS"]:
                running = asyncio.ensure_future(inner)
                await asyncio.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)
            return await inner
        return work()
"""


@pytest.fixture(scope="session")
def killed(tmp_path_factory, relay):
    """Second start-up: an engine is killed in the rollout of step 1, the driver in the update of step 3."""
    folder = tmp_path_factory.mktemp("disturbed")
    (folder / "killer.py").write_text(textwrap.dedent(KILLER))
    run = Started(folder, relay, "--plugin", str(folder / "killer.py"))
    run.run(code=-signal.SIGKILL)
    run.left_behind = wait_until(lambda: not run.processes()) or run.processes()
    run.metrics_before = run.metrics
    return run


@pytest.fixture(scope="session")
def resumed(killed):
    """Third start-up: the killed run goes on."""
    return killed.run("--ckpt.load_enable")


def wait_until(condition, seconds=30.0):
    """Wait for something to hold; whether it did."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.2)
    return False
