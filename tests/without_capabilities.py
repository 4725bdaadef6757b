"""What test_removable.py runs while the coach, reward backpropagation, MCP and the tool sql are
hidden."""

import importlib.util
import json

import pytest

from marl_plugins.cli import main
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.plan.build import build_plan


def refused(*words):
    with pytest.raises(ConfigurationError) as caught:
        build_plan(words)
    return "\n".join(map(str, caught.value.problems))


def test_they_are_hidden():
    assert (
        importlib.util.find_spec("marl_plugins.builtin.tools.sql")
        is importlib.util.find_spec("marl_plugins.coach")
        is None
    )


def test_a_recipe_that_needs_none_of_them_is_planned():
    plan = build_plan(["--recipe", "coder_tester/tiny.yaml"])
    assert [*plan.run.tools] == ["python"]
    assert [name for name in plan.run.sections if name.startswith("tools.")] == [
        "tools.python",
        "tools.sandbox",
    ]


def test_a_key_that_only_they_read_is_unknown(tmp_path):
    text = (
        "name: a\nroles: {r: {prompt: p.md}}\nworkflow: w.py\ntools: {sql: {database: shop.db}}\n"
    )
    (tmp_path / "recipe.yaml").write_text(text)
    assert "tools.sql: unknown key; valid: python, sandbox" in refused("--recipe", str(tmp_path))


def test_a_plugin_that_is_not_there_is_named():
    assert "marl_plugins.coach" in refused("--recipe", "mathchat/tiny.yaml")


def test_commands_do_without_them(capsys):
    assert main(["plugins", "--json"]) == 0
    assert not any("coach" in plugin["name"] for plugin in json.loads(capsys.readouterr().out))
    assert main(["--help"]) == 0
    assert main(["recipes", "list"]) == 0
    main(["doctor", "--static", "--json"])
    out = capsys.readouterr().out
    assert not any(
        "coach" in line["what"] for line in json.loads(out[out.index("{\n") :])["findings"]
    )
