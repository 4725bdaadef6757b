"""The documents say what the code does."""

import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from marl_plugins import hookspecs
from marl_plugins.hosts.flags import table
from marl_plugins.manager import Plugins

ROOT = Path(__file__).resolve().parent.parent


def text_of(function):
    """A hook's docstring without its indentation."""
    return inspect.cleandoc(function.__doc__)


HOOKS = {name: f for name, f in vars(hookspecs).items() if name.startswith("marl_")}


def test_every_hook_has_a_heading_with_its_signature():
    headings = re.findall(r"^## `(.+)`$", (ROOT / "docs/hooks.md").read_text(), re.MULTILINE)
    assert headings == [f"{name}{inspect.signature(f)}".replace("'", "") for name, f in HOOKS.items()]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hooks_text_is_its_docstring(name):
    assert text_of(HOOKS[name]) in (ROOT / "docs/hooks.md").read_text()


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_its_kind_and_shows_an_implementation_that_registers(name, tmp_path):
    text = text_of(HOOKS[name])
    assert re.search(r"\*(each|first|chain|around)(, async)?\*", text)
    code = re.search(r"(    @hookimpl.*)", text, re.DOTALL).group(1)
    file = tmp_path / "example.py"
    file.write_text("from marl_plugins import hookimpl\n" + textwrap.dedent(code))
    assert Plugins([str(file)]).claims(name)


def test_the_flag_table_is_the_codes():
    assert table() in (ROOT / "docs/flags.md").read_text()


def test_the_readmes_plugin_works_and_has_fifteen_lines(tmp_path):
    readme = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(# brevity\.py.*?)```", readme, re.DOTALL).group(1)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    file = tmp_path / "brevity.py"
    file.write_text(code)
    words = ["train", "--recipe", "recipes/mathchat/tiny.yaml", "--plugin", str(file), "--brevity.limit", "32", "--dry-run"]
    done = subprocess.run([sys.executable, "-m", "marl_plugins", *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stdout


def test_the_readmes_links_and_commands_exist():
    readme = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", readme):
        assert (ROOT / link).exists(), link
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"make ([a-z]+)", readme):
        assert target in targets


def test_modules_outside_the_runtime_import_nothing_heavy_at_the_top():
    """Nothing outside hosts/ and runtime/ imports openrlhf, vllm, deepspeed or ray at module level; but for the program that the
    compatibility tests start to import a release."""
    for path in (ROOT / "marl_plugins").rglob("*.py"):
        if "runtime" in path.parts or "hosts" in path.parts or path.parts[-2:] == ("upstream_ci", "adapter.py"):
            continue
        for line in path.read_text().splitlines():
            assert not re.match(r"(import|from) (openrlhf|vllm|deepspeed|ray)\b", line), (path, line)
