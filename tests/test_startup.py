"""What a command imports before it says anything: a help text needs no pydantic, no plan and no
plugin."""

import json
import subprocess
import sys

import pytest

from marl_plugins.commands.plugin_commands import commands_of, loaded_commands
from marl_plugins.commands.plugins import _look, hooks_of
from marl_plugins.core.loading import load
from marl_plugins.core.plugin_names import found

SCRIPT = """
import contextlib, io, json, sys
before = set(sys.modules)
from marl_plugins.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    code = main(sys.argv[1:])
print(json.dumps([code, sorted(set(sys.modules) - before)]))
"""


def imported(*words):
    """The modules that a command imports."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=120
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    return modules


COMMANDS = {
    ("--help",): (60, {"pydantic", "pluggy", "asyncio", "yaml", "rich"}),
    ("plugins",): (150, {"pydantic", "asyncio", "yaml", "packaging"}),
    ("train", "--recipe", "mathchat/tiny.yaml", "--dry-run"): (
        800,
        {"torch", "ray", "transformers", "numpy", "openai", "rich"},
    ),
}
"""By command: the most modules that it imports, and packages of which it needs none."""


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_imports_what_it_needs(words):
    modules = imported(*words)
    most, none_of = COMMANDS[words]
    assert not none_of & {name.partition(".")[0] for name in modules}
    assert len(modules) <= most, f"{len(modules)} modules: {modules}"


def test_what_is_read_of_a_plugin_is_what_it_is():
    """`openrlhf plugins` and `--help` read this package's plugins and import none."""
    for plugin in found():
        module, shown = load(plugin), _look(plugin)
        assert shown["hooks"] == list(hooks_of(module)), plugin
        assert " ".join(module.__doc__.split()).startswith(shown["about"]), plugin
        read, asked = (
            [(c.name, c.usage, c.about) for c in commands(plugin)]
            for commands in (commands_of, loaded_commands)
        )
        assert read == asked, plugin
