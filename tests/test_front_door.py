"""What a newcomer types first works: README's system, its plugins, and the commands of README,
CONTRIBUTING and recipes/README."""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from marl_plugins.commands import COMMANDS
from marl_plugins.core.plugin_names import BUILTINS, SHIPPED
from marl_plugins.engine.plan.build import build_plan

ROOT = Path(__file__).resolve().parent.parent
README, CONTRIBUTING, RECIPES = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md", "recipes/README.md")
)


def commands(page):
    """The indented lines of a page, without their comments."""
    outside = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^    (\S.*?)(?:  +#.*| +# .*)?$", outside, re.MULTILINE)
    return [command.strip() for command in found]


def run(words, folder=ROOT):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """An empty folder in which README's files have been typed."""
    folder = tmp_path_factory.mktemp("typed")
    (making,) = [command for command in commands(README) if command.startswith("mkdir duo")]
    run(["bash", "-c", making], folder)
    for name, text in re.findall(
        r"^```\w+\n# (\S+?)(?::[^\n]*)?\n(.*?)^```", README, re.MULTILINE | re.DOTALL
    ):
        (folder / name).write_text(text)
    return folder


def test_the_system_of_the_readme_is_complete(typed, monkeypatch):
    monkeypatch.chdir(typed)
    plan = build_plan(["--recipe", "duo", "--dry-run"])
    assert not plan.run.warnings
    held_out = {task.id for task in plan.tasks("eval")}
    assert held_out and held_out.isdisjoint(task.id for task in plan.tasks("train"))


@pytest.mark.parametrize(
    "command", [c for page in (README, RECIPES) for c in commands(page) if "openrlhf train" in c]
)
def test_every_training_that_is_shown_is_a_plan(command, typed, monkeypatch):
    monkeypatch.chdir(typed)
    if re.search(r"--recipe (?!duo)\w+(?: |$)", command):  # named without a file: for GPUs
        monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    assert build_plan([*shlex.split(command)[2:], "--dry-run"]).run.policies


@pytest.mark.parametrize(
    "command",
    [c for page in (README, CONTRIBUTING, RECIPES) for c in commands(page) if "openrlhf" in c],
)
def test_every_command_that_is_shown_exists(command):
    words = shlex.split(command)
    if words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        (ours,) = re.findall(r"(?:openrlhf-marl|\.)\[([\w,]*)\]", command)
        assert set(ours.split(",")) <= extras["optional-dependencies"].keys()
    else:
        assert words[1] in {name for command in COMMANDS for name in command.name.split()}


def rows():
    """Name, and recipe and flags if there are any, of every row of README's table of plugins."""
    found = re.findall(r"^\| ([a-z_]+) \|.*\| (?:`(.*)` )?\|$", README, re.MULTILINE)
    return [(name, words) for name, words in found if name != "name"]


def test_every_plugin_that_a_user_names_is_in_the_table():
    named = {f"marl_plugins.{name}" for name, _ in rows()}
    assert named == {*SHIPPED} - {*BUILTINS, "marl_plugins.commands.inspect"}


@pytest.mark.parametrize(("name", "words"), [row for row in rows() if row[1]])
def test_every_plugin_of_the_table_has_a_plan_with_its_own_recipe(name, words, monkeypatch):
    monkeypatch.chdir(ROOT)
    plugin = f"marl_plugins.{name}"
    assert build_plan(
        ["--recipe", *shlex.split(words), "--plugin", plugin, "--dry-run"]
    ).run.policies
