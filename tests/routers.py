"""A recipe of three roles behind a router that answers in JSON; what stands behind it can be
edited."""

import json
import textwrap

from marl_plugins.engine.plan.build import build_plan

RECIPE = """
name: triage
roles:
  router: {prompt: any.md}
  registry: {prompt: any.md}
  metrics: {prompt: any.md}
  resolver: {prompt: resolver.md}
workflow: workflow.py
tasks: tasks.py
grader: grader.py
model: tiny
flags:
  rollout.batch_size: 4
  rollout.max_new_tokens: 8
  train.batch_size: 4
  train.micro_batch_size: 4
  data.max_len: 256
"""
TASKS = """
from marl_plugins.core.trajectory import Task

def load(split):
    names = "abcd" if split == "train" else "ef"
    return [Task(n, f"Host {n} is down", "registry") for n in names]
"""
GRADER = (
    "def score_outcome(trajectory):\n    return float(trajectory.answer == trajectory.task.label)\n"
)
HEAD = """\
import asyncio, enum, json, random, re, time
from marl_plugins.core.failures import AgentFailure

TEAMS = {"registry": "registry", "databases": "registry", "metrics": "metrics", "other": "nobody"}
BY_NUMBER = {1: "registry", 2: "metrics", 3: "nobody"}

async def run(task, roles, tools):
    route = await roles.router(incident=task.prompt)
"""
TAIL = """\
    if team == "registry":
        finding = await roles.registry(incident=task.prompt, after=[route])
    elif team == "metrics":
        finding = await roles.metrics(incident=task.prompt, after=[route])
    else:
        raise AgentFailure("no_answer", "there is no such team")
    return await roles.resolver(incident=task.prompt, finding=finding)
"""
JSON = """\
    try:
        team = json.loads(str(route))["team"]
    except (ValueError, KeyError, TypeError):
        raise AgentFailure("no_answer", "the route is no JSON") from None
"""
EXAMPLES = ('{"team": "registry"}', '{"team": "metrics"}')


class Triage:
    """A recipe's folder, whose router states examples of its answers."""

    def __init__(self, path, router="JSON", tail=TAIL, head=HEAD, examples=None):
        self.path = path
        self.head = head + (JSON if router == "JSON" else router)
        if examples is None:
            examples = EXAMPLES if router == "JSON" else ()
        stated = f"  router: {{prompt: any.md, example: {json.dumps(examples)}}}"
        files = {
            "recipe.yaml": RECIPE.replace("  router: {prompt: any.md}", stated),
            "tasks.py": TASKS,
            "grader.py": GRADER,
            "any.md": "{incident}",
        }
        files |= {"resolver.md": "{incident}\n{finding}", "workflow.py": self.head + tail}
        for name, text in files.items():
            self.write(name, text)

    def write(self, name, text):
        (self.path / name).write_text(textwrap.dedent(text))

    def edit(self, old, new):
        """Replace a part of the workflow; returns the line on which it stands."""
        text = (self.path / "workflow.py").read_text()
        assert old in text
        (self.path / "workflow.py").write_text(text.replace(old, new))
        return text[: text.index(old)].count("\n") + 1

    def plan(self, *words):
        return build_plan(["--recipe", str(self.path), *words])
