"""What the pages name exists: flags, hooks, commands, modules and files."""

import re
from pathlib import Path

import pytest

from marl_plugins.cli import plugin_commands
from marl_plugins.commands import COMMANDS
from marl_plugins.commands.inspect.query import TERMS
from marl_plugins.core import hookspecs
from marl_plugins.core.estimators import scope_flags
from marl_plugins.core.moved import present_name
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
    "logdir",
    "tool-call-parser",
    "cpus-per-task",
    "gpus-per-node",
    "requeue",
    "time",
    "nodes",
    "pdb",
    "pid",
}
"""Flags of other programs: TensorBoard's, vLLM's server's, Slurm's, pytest's, py-spy's."""
FOLDERS = "tests|benchmarks|docs|examples|recipes|core|plan|runtime|records|processes|coach|asking|hosts|commands|tools|sandbox"


def pages(*without):
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)))
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
    ):
        found |= set(re.findall(r"--([a-z][\w.-]*\w)", path.read_text()))
    found |= {flag for plugin in ("reinforce_pp", "groups", "gae") for flag in scope_flags(plugin)}
    return found | FOREIGN | set(TERMS)


@pytest.mark.parametrize("page", pages(*OTHERS, *TABLES))
def test_every_flag_exists(page, flags):
    named = re.findall(
        r"(?<![\w-])--(?!policy\.)([a-z][\w.-]*\w)(\*?)", re.sub(r"--no-\w+", "", page.read_text())
    )
    prefixes = {name for name, star in named if star}
    known = flags | set(
        re.findall(r'"--([a-z][\w.]*)"', page.read_text())
    )  # of an example on the page
    unknown = {name for name, _ in named if name not in known and name not in prefixes}
    assert not {
        name
        for name in unknown
        if not any(flag.startswith((f"{name}.", f"{name}_")) for flag in known)
    }
    assert all(any(flag.startswith(name) for flag in known) for name in prefixes)


@pytest.mark.parametrize("page", pages("decisions.md", "compatibility.md"))
def test_every_command_and_hook_exists(page):
    text = page.read_text()
    commands = {command.name for command in (*COMMANDS, *plugin_commands([]))}
    assert set(re.findall(r"(?:^    |`)openrlhf ([a-z]+)", text, re.MULTILINE)) <= commands
    hooks = {name for name in vars(hookspecs) if name.startswith("marl_")}
    assert set(re.findall(r"`(marl_(?!plugins)[a-z_]+)(?:\(|`)", text)) <= hooks


def exists(name):
    """Whether there is a module of this name, or a module that defines it; nothing is imported."""
    path = ROOT.joinpath(*present_name(name).split("."))
    if path.with_suffix(".py").exists() or path.is_dir():
        return True
    files = [
        file
        for file in (path.parent.with_suffix(".py"), path.parent / "__init__.py")
        if file.exists()
    ]
    defined = rf"^(?:(?:async )?def|class) {path.name}\b|^ *{path.name}\b|import .*\b{path.name}\b"
    return any(re.search(defined, file.read_text(), re.MULTILINE) for file in files)


@pytest.mark.parametrize("page", pages("compatibility.md"))
def test_every_module_exists(page):
    named = re.findall(
        r"\b((?:benchmarks|marl_plugins)(?:\.[a-z_]+)+)\b(?!\.?[(#])", page.read_text()
    )
    assert all(map(exists, set(named) - {"benchmarks.md"}))


@pytest.mark.parametrize("page", pages(*OTHERS))
def test_every_file_exists(page):
    named = set(
        re.findall(
            rf"`((?:marl_plugins/)?(?:{FOLDERS})/[\w/.-]+\.(?:py|md|yaml))`", page.read_text()
        )
    )
    assert not {
        name
        for name in named
        if not (ROOT / name).exists() and not (ROOT / "marl_plugins" / name).exists()
    }
