"""The commands of two pages are plans."""

import re
import shlex
from pathlib import Path

import pytest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.plan.build import build_plan

ROOT = Path(__file__).parent.parent
METHODS, NO_EFFECT = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("methods", "no_effect")
)


@pytest.mark.parametrize("words", re.findall(r"`(--recipe \S+ [^`]+)` \|$", METHODS, re.MULTILINE))
def test_every_command_of_the_methods_page_is_a_plan(words, monkeypatch):
    """Recipes alone are planned in test_configuration.py."""
    monkeypatch.chdir(ROOT)
    assert build_plan([*shlex.split(words), "--dry-run"]).run.policies


@pytest.mark.parametrize(
    ("line", "words"), re.findall(r"^(\| .*` \|) `(--recipe [^`]+)` \|$", NO_EFFECT, re.MULTILINE)
)
def test_the_plan_says_of_a_flag_without_effect_what_the_page_says(line, words, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda" if "| cuda |" in line else "cpu")
    said = line.split("|")[-2].strip(" `")
    try:
        found = build_plan([*shlex.split(words), "--dry-run"]).run.warnings
    except ConfigurationError as error:
        found = error.problems
    assert said in {problem.code for problem in found}
