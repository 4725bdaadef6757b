"""A capability that is taken out, its folder or file deleted, takes nothing else with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_structure import MODULES, imported_at_run_time

ROOT = Path(__file__).resolve().parent.parent
CAPABILITIES = {
    "coach": (["coach"], 0),
    "the tool python": (["builtin.tools.python"], 0),
    "the tool sql": (["builtin.tools.sql"], 0),
    "the tool search": (["builtin.tools.search"], 0),
    "rewards": (["rewards"], 0),
    "graphs": (["builtin.graph"], 0),
    "cases": (["builtin.cases"], 0),
    "programs": (["builtin.agents"], 0),
    "MCP": (["builtin.tools.mcp"], 0),
    "reward backpropagation": (["reward_backprop"], 0),
    "streaming": (["streaming"], 0),
    "process groups": (["process_groups"], 0),
    "adapters": (["adapters"], 0),
    "dynamic filtering": (["builtin.filtering"], 0),
    "averages of weights": (["builtin.ema"], 0),
    "reward models": (["builtin.reward_model"], 0),
    "the curriculum": (["curriculum"], 0),
    "earlier opponents": (["opponent_pool"], 0),
    "balance": (["balance"], 0),
    "routing": (["builtin.routing"], 0),
    "REINFORCE++": (["builtin.reinforce_pp"], 0),
    "filter_agents_data": (["filter_agents_data"], 0),
    "groups": (["builtin.groups"], 0),
    "gae": (["builtin.gae"], 0),
    "rae": (["rae"], 0),
    "credit by forks": (["counterfactual"], 0),
    "the swarm": (["swarm"], 0),
    "looking at a run": (["commands.inspect"], 0),
    "environments": (["environments"], 0),
    "the rehearsal": (["builtin.rehearsal"], 0),
}
"""Folders or files below marl_plugins/, and the number of other modules that are lost with them."""
IMPORTED = ("coach", "the tool sql", "graphs", "process groups", "the swarm", "the rehearsal")
"""One of each kind; to import everything anew without one takes a second, and `imported_at_run_time`
says of all of them what is lost."""


def modules_of(parts):
    return [f"marl_plugins.{part}" for part in parts]


def belongs(module, parts):
    return any(f"{module}.".startswith(f"{part}.") for part in modules_of(parts))


@pytest.fixture(scope="module")
def lost():
    """The modules that cannot be imported without each of these capabilities."""
    hidden = json.dumps({name: modules_of(CAPABILITIES[name][0]) for name in IMPORTED})
    command = [sys.executable, "tests/lost_modules.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, input=hidden, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", IMPORTED)
def test_nothing_else_fails_to_be_imported(name, lost):
    assert len(lost[name]) == CAPABILITIES[name][1], lost[name]


@pytest.mark.parametrize("name", CAPABILITIES)
def test_nothing_else_depends_on_it_in_a_function_either(name):
    """All that imports it, directly or through others, wherever in its code."""
    parts, expected = CAPABILITIES[name]
    gone, found = {m for m in MODULES if belongs(m, parts)}, set()
    assert gone
    while more := {
        m
        for m, file in MODULES.items()
        if m not in gone | found and imported_at_run_time(file) & (gone | found)
    }:
        found |= more
    assert len(found) == expected, found


def test_the_rest_works_without_them():
    hidden = [
        "coach",
        "reward_backprop",
        "builtin.tools.mcp",
        "builtin.tools.sql",
        "builtin.tools.search",
        "swarm",
    ]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "MARL_HIDDEN": " ".join(modules_of(hidden)),
    }
    chosen = ["tests/without_capabilities.py", "tests/test_tool_records.py"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "hiding",
        "-p",
        "no:cacheprovider",
        *chosen,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]
