"""A small multi-agent system with everything that goes wrong elsewhere, and `openrlhf train` on it
as a process.

Three roles on three policies: one frozen, one on two data-parallel ranks; parallel calls, a branch,
tool turns, and a number of rows that no batch size divides.
"""

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

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
    "program.yaml": """
        extends: recipe.yaml
        workflow: null
        agent: {file: program.py}
    """,
    "program.py": """
        # The same as workflow.py, for a client that knows nothing of this package but a header.
        import json, os, urllib.request

        def ask(role, shown, after=None):
            headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
            if after is not None:
                headers["x-marl-after"] = ",".join(answer["id"] for answer in after)
            body = json.dumps({"model": role, "messages": [{"role": "user", "content": shown}]}).encode()
            with urllib.request.urlopen(
                urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
            ) as response:
                return json.load(response)

        def said(answer):
            return answer["choices"][0]["message"]["content"]

        def main(prompt, item):
            first = ask("first", prompt, [])
            answers = [ask("second", f"{prompt} {said(first)}", [first]) for _ in range(1 + int(item.id) % 3)]
            if int(item.id) % 4 == 0:
                return said(answers[0])
            return said(ask("judge", f"{prompt} {said(answers[0])}", answers[:1]))
    """,
    "silent.yaml": """
        extends: program.yaml
        agent: {file: silent.py}
        plugins: [tools.py, delays.py]
    """,
    "silent.py": """
        # A program that says nothing of who saw whom, and asks in threads.
        from concurrent.futures import ThreadPoolExecutor

        from program import ask, said

        def main(prompt, item):
            with ThreadPoolExecutor() as threads:
                firsts = list(threads.map(lambda n: said(ask("first", f"{prompt} {n}")), range(1 + int(item.id) % 3)))
                answers = list(threads.map(lambda first: said(ask("second", f"{prompt} {first}")), dict.fromkeys(firsts)))
            return said(ask("judge", " ".join([prompt, *answers])))
    """,
    "delays.py": """
        import asyncio, random
        from marl_plugins import hookimpl

        noise = random.SystemRandom()

        @hookimpl(wrapper=True)
        def marl_generate(call, engines):
            inner = yield
            async def work():
                await asyncio.sleep(noise.random() / 20)
                return await inner
            return work()
    """,
    "dies.py": """
        import asyncio, os, signal
        from marl_plugins import hookimpl

        @hookimpl(wrapper=True)
        def marl_update(policy, step):
            # The driver dies in the middle of the update of step 3.
            inner = yield
            async def work():
                if step == 3 and policy.name == "first" and "--ckpt.load_enable" not in os.environ["WORDS"]:
                    running = asyncio.ensure_future(inner)
                    await asyncio.sleep(0.05)
                    os.kill(os.getpid(), signal.SIGKILL)
                return await inner
            return work()
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
        from marl_plugins.core.tools import Tool

        @hookimpl
        def marl_tools(run):
            async def echo(call):
                return ToolResult("echo", call.text, f"<{call.text}>", ok=True)
            return [Tool("echo", echo, find=lambda text: [text] if len(text) % 2 else [])]

        @hookimpl(wrapper=True)
        def marl_score_outcome(run, trajectory):
            # A plugin asks a policy: what it says has to be the same in a run that was killed and resumed.
            inner = yield
            async def work():
                question = {"role": "user", "content": f"{trajectory.answer}?"}
                said = await run.ask(run.policies[-1].name, [question], max_tokens=4)
                trajectory.outcome_parts = {"said": float(sum(map(ord, said)))}
                return await inner
            return work()
    """,
}


def write_recipe(folder):
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(textwrap.dedent(RECIPE))
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip("\n"))
    return folder


class Started:
    """`openrlhf train` as a process of its own, with its records.

    Args:
        template: What forks it (template.py); None to start it as a user does.
    """

    def __init__(self, folder, recipe, *flags, template=None):
        self.template, self.forked = template, None
        self.output = folder / "out"
        self.words = ["train", "--recipe", str(recipe), "--ckpt.output_dir", str(self.output)]
        self.words += ["--ckpt.path", str(folder / "checkpoints"), *flags]
        self.log = folder / "log"

    def start(self, *more):
        words = [*self.words, *more]
        env = {**os.environ, "MARL_TEST_RUN": str(self.log), "WORDS": " ".join(words)}
        with self.log.open("a") as log:
            if self.template:
                self.forked = self.template.start(words, env, log, log)
                return self.forked
            return subprocess.Popen(
                [sys.executable, "-m", "marl_plugins", *words], stdout=log, stderr=log, env=env
            )

    def processes(self):
        """Every process that belongs to the run, by its environment if it was not forked: id to
        command."""
        if self.forked:
            return self.forked.processes()
        mark = f"MARL_TEST_RUN={self.log}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    mark in (folder / "environ").read_bytes()
                    and b"Z" not in (folder / "stat").read_bytes().split()[2:3]
                ):
                    found[folder.name] = (
                        (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
                    )
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
    def actions(self):
        """Every action with its trajectory."""
        return [(t, a) for t in self.trajectories for a in t["actions"]]

    @property
    def evaluations(self):
        return [m for m in self.lines("metrics.jsonl") if "eval/outcome" in m]

    @property
    def metrics(self):
        """Of all steps; the evaluation before the first is step 0."""
        return [m for m in self.lines("metrics.jsonl") if m["step"]]

    @property
    def ledger(self):
        return self.lines("ledger.jsonl")


def wait_until(condition, seconds=300.0):
    """Wait for something to hold; whether it did. Ray's own agents take a minute or two to notice
    that their node has gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.2)
    return False
