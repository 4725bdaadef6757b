"""`--without PLUGIN`: a plugin of the recipe is taken out, with what only it reads in the
recipe."""

import shutil

import pytest
from refusals import found_by

from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.plan.build import build_plan, mentioned_plugins
from marl_plugins.engine.plan.describe import describe

COACHED = "mathchat/tiny.yaml"


def test_the_recipe_without_its_coach_is_the_one_that_never_had_it():
    plan, control = (
        build_plan(["--recipe", COACHED, "--without", "marl_plugins.coach"]),
        build_plan(["--recipe", "mathchat/tiny_outcome.yaml"]),
    )
    shown, wanted = describe(plan), describe(control)
    assert shown.pop("without") == ["marl_plugins.coach"] and "without" not in wanted
    for described in (shown, wanted):
        described.pop("flags")
    assert shown == wanted
    assert plan.run.given - control.run.given == set() and plan.run.plugins == control.run.plugins
    assert (
        "marl_plugins.coach"
        not in mentioned_plugins(
            ["--recipe", COACHED, "--without", "marl_plugins.coach", "--help"]
        ).names
    )


@pytest.fixture
def recipe(tmp_path):
    def write(text, of="kuhn_poker"):
        shutil.copytree(recipes_root() / of, tmp_path / "copy", dirs_exist_ok=True)
        (tmp_path / "copy" / "mine.yaml").write_text(f"extends: tiny.yaml\n{text}\n")
        return str(tmp_path / "copy" / "mine.yaml")

    return write


def test_its_section_goes_and_what_another_reads_stays(recipe):
    members = (
        "coach: {members: {a: {rubric: tiny_rubric.py}, b: {rubric: tiny_rubric.py, weight: 2}}}"
    )
    section = f"{members}\nflags: {{coach.rubric: null}}"
    name = recipe(section, of="mathchat")
    assert build_plan(["--recipe", name]).run.plugins == ("marl_plugins.coach",)
    run = build_plan(["--recipe", name, "--without", "marl_plugins.coach"]).run
    assert run.plugins == () and "coach" not in run.sections


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--without", "marl_plugins.coaching"],
            [("plugin.not_named", "without", "marl_plugins.coaching")],
        ),
        (
            ["--without", "marl_plugins.coach", "--coach.rubric", "x.py"],
            [("flags.unknown", "command line", "coach.rubric")],
        ),
    ],
)
def test_what_cannot_be_taken_out(words, expected):
    assert [
        found[: len(expected[0])] for found in found_by(build_plan, ["--recipe", COACHED, *words])
    ][:1] == expected
