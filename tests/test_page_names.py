"""What the pages name exists: flags, hooks and commands."""

import argparse
import re
from pathlib import Path

import pytest

from marl_plugins.asking.flags import add_endpoint_flags
from marl_plugins.cli import all_commands
from marl_plugins.commands.query import TERMS
from marl_plugins.core import hookspecs
from marl_plugins.core.estimators import scope_flags
from marl_plugins.engine.hosts import upstream_cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "recipes" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "recipes").glob("*/README.md")),
]
OTHERS = ("from_openrlhf.md", "marti.md", "patches.md", "compatibility.md", "decisions.md")
"""Pages that are about other projects' names too, or about what is gone."""
TABLES = ("flags.md",)
"""Made from the code, and tested with it."""
FOREIGN = {
    "clear",
    "logdir",
    "tool-call-parser",
    "cpus-per-task",
    "env",
    "gpus-per-node",
    "requeue",
    "time",
    "nodes",
    "pdb",
    "pid",
}
"""Flags of other programs: TensorBoard's, vLLM's server's, Slurm's, SkyPilot's, pytest's, py-spy's,
uv's."""


def pages(*without):
    """Name and text of each page."""
    return [
        (str(page.relative_to(ROOT)), page.read_text())
        for page in PAGES
        if page.name not in without
    ]


@pytest.fixture(scope="module")
def flags():
    """Those of upstream, and every one that the code names."""
    upstream = upstream_cli.build_parser(upstream_cli.upstream_root())
    found = {option.lstrip("-") for action in upstream._actions for option in action.option_strings}
    for path in (
        p
        for f in ("marl_plugins", "benchmarks", "examples", "recipes")
        for p in (ROOT / f).rglob("*.py")
        if "venv" not in p.parts  # of recipes/environments
    ):
        found |= set(re.findall(r"--([a-z][\w.-]*\w)", path.read_text()))
    found |= {flag for plugin in ("reinforce_pp", "groups", "gae") for flag in scope_flags(plugin)}
    asking = argparse.ArgumentParser()
    for prefix in ("coach", "external"):
        add_endpoint_flags(asking.add_argument_group(prefix), prefix, "")
    found |= {option.lstrip("-") for action in asking._actions for option in action.option_strings}
    return found | FOREIGN | set(TERMS)


def test_every_flag_exists(flags):
    wrong = []
    for page, text in pages(*OTHERS, *TABLES):
        named = re.findall(
            r"(?<![\w-])--(?!policy\.)([a-z][\w.-]*\w)(\*?)", re.sub(r"--no-\w+", "", text)
        )
        known = flags | set(re.findall(r'"--([a-z][\w.]*)"', text))  # of an example on the page
        prefixes = {name for name, star in named if star}
        for name in {name for name, _ in named} - known - prefixes:
            if not any(flag.startswith((f"{name}.", f"{name}_")) for flag in known):
                wrong.append((page, name))
        wrong += [
            (page, name) for name in prefixes if not any(flag.startswith(name) for flag in known)
        ]
    assert not wrong


def test_every_command_and_hook_exists():
    commands = {*all_commands([])}
    hooks = {name for name in vars(hookspecs) if name.startswith("marl_")}
    for page, text in pages("decisions.md", "compatibility.md"):
        named = set(re.findall(r"(?:^    |`)openrlhf ([a-z]+)", text, re.MULTILINE))
        assert named <= commands, page
        assert set(re.findall(r"`(marl_(?!plugins)[a-z_]+)(?:\(|`)", text)) <= hooks, page
