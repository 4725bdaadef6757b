"""What a plan says of roles' calls and of MCP servers, without starting one or importing vLLM."""

import asyncio
import json

import pytest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe

RECIPE = """\
name: shop
roles:
  clerk: {prompt: clerk.md, max_new_tokens: 16, ROLE}
workflow: workflow.py
grader: grader.py
model: tiny
plugins: [find.py]
tools:
  mcp:
    SERVER
flags:
  data.prompt_dataset: data.jsonl
  data.max_len: 500
  rollout.batch_size: 2
  rollout.n_samples_per_prompt: 2
  rollout.max_new_tokens: 16
  train.batch_size: 4
"""
FILES = {
    "clerk.md": "Sell: {problem}\n",
    "workflow.py": "async def run(task, roles, tools):\n"
    "    await tools.started.note(text='x')\n"
    "    return await roles.clerk(problem=task.prompt)\n",
    "grader.py": "def score_outcome(trajectory):\n    return 1.0\n",
    "find.py": "from marl_plugins import hookimpl\nfrom marl_plugins.core.tools import "
    "Tool\n\n\nasync def run(call): ...\n\n\n"
    "@hookimpl\ndef marl_tools():\n    return [Tool('find', run, lambda text: [])]\n",
    "data.jsonl": "\n".join(json.dumps({"problem": f"{n}", "answer": "a"}) for n in range(4)),
}
STARTED = "{command: [python, -c, \"open('started', 'w')\"]}"


@pytest.fixture
def plan(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def make(role, server=f"started: {STARTED}", words=()):
        (tmp_path / "recipe.yaml").write_text(
            RECIPE.replace("ROLE", role).replace("SERVER", server)
        )
        return build_plan(["--recipe", str(tmp_path), *words])

    return make


def problems(plan, *arguments):
    with pytest.raises(ConfigurationError) as error:
        plan(*arguments)
    return [*map(str, error.value.problems)]


def test_a_plan_starts_no_server_and_a_run_tries_it_first(plan, tmp_path):
    made = plan("tools: [started, python], max_turns: 3, calls: hermes")
    assert not (tmp_path / "started").exists()
    shown = describe(made)
    assert shown["roles"]["clerk"]["calls"] == "hermes"
    line = shown["lengths"]["clerk"]
    python = json.dumps([f.schema for f in functions(made, "python")])
    assert f"{len(python)} of its tools + what started offers, known at the start" in line

    async def start():
        async with made.plugins.started(made.run, "train"):
            pass

    with pytest.raises(
        ConfigurationError,
        match=r"tools\.mcp\.started: MCP server 'started' \(python\): cannot be reached",
    ):
        asyncio.run(start())
    assert (tmp_path / "started").exists()  # in the recipe's folder


def functions(made, name):
    (tool,) = [
        tool
        for answer in made.plugins.hook.marl_tools(run=made.run)
        for tool in answer
        if tool.name == name
    ]
    return tool.functions


@pytest.mark.parametrize(
    ("role", "problem"),
    [
        ("tools: [python], reasoning: qwen3", "roles.clerk.reasoning: says what is no call"),
        ("tools: [find], calls: hermes", "roles.clerk.calls: tool 'find' has no functions"),
    ],
)
def test_roles_that_cannot_call_their_tools(plan, role, problem):
    (found,) = problems(plan, role)
    assert problem in found
