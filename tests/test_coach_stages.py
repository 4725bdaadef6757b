"""What the coach asks for first, and what it is told of the training: stages, weights, prompts,
memory, bad input."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import openai_server, verdict
from refusals import briefs
from simulated import credit, make_trajectory

from marl_plugins import coach as plugin
from marl_plugins.coach.section import CoachStageConfig
from marl_plugins.coach.stages import MARGIN, Stages
from marl_plugins.coach.state import CoachState
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.scoring import Seen
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.records.behaviour import Behaviour

ROOT = Path(__file__).resolve().parent.parent


def stages(*ends):
    return Stages([CoachStageConfig(**end) for end in ends])


def follow(found, outcomes, first=1):
    """The stage of each step, from its number and the outcomes of those before it."""
    where = []
    for step, outcome in enumerate(outcomes, first):
        where.append(found.index)
        found.observe(step, outcome)
    return where


def test_a_stage_by_steps_ends_with_its_last_one():
    assert follow(stages({"until_step": 3}, {"until_step": 5}, {}), [0.0] * 7) == [
        0,
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def test_a_stage_by_outcome_comes_back_where_success_is_lost():
    """The smoothed outcome, by hand: 0, 1/3, 0.556, 0.704, then down by a third of the way to 0
    each step."""
    found = follow(stages({"until_outcome": 0.5}, {}), [0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    assert found == [0, 0, 0, 1, 1, 1, 0]  # 0.469 is within the margin of 0.5, 0.313 is not
    assert 0.5 - MARGIN < 0.704 * 2 / 3 < 0.5


@given(st.lists(st.floats(0, 1), max_size=40))
def test_noise_around_the_bound_does_not_cross_it_back_and_forth(outcomes):
    """Whoever has passed the bound has to fall clearly below it to come back."""
    found, before, smoothed = stages({"until_outcome": 0.5}, {}), 0, None
    for step, outcome in enumerate(outcomes, 1):
        found.observe(step, outcome)
        smoothed = outcome if smoothed is None else smoothed + (outcome - smoothed) / 3
        bound = 0.5 - MARGIN if before else 0.5
        assert found.index == int(smoothed >= bound)
        before = found.index


# --- in a run
# --------------------------------------------------------------------------------------------------

RUBRIC = """
from marl_plugins.coach.rubric import Criterion

RUBRIC = {
    role: [Criterion("runs", 1, lambda action, seen: 1.0), Criterion("is short", 3, lambda action, seen: 0.0)]
    for role in ("solver", "coder", "verifier")
}
"""
TWO = "  stages:\n    - {until_step: 2, weights: {runs: 9}}\n    - {weights: {is short: 2}}\n"


@pytest.fixture
def recipe(tmp_path):
    folder = tmp_path / "sums"
    shutil.copytree(ROOT / "tests" / "recipes" / "sums", folder)
    (folder / "rules.py").write_text(RUBRIC)
    (tmp_path / "out").mkdir()

    def write(coach, flags="coach.rubric: rules.py"):
        text = (
            f"extends: tiny.yaml\nplugins: [marl_plugins.coach]\nflags:\n  {flags}\ncoach:\n{coach}"
        )
        (folder / "stages.yaml").write_text(text)
        return ["--recipe", str(folder / "stages.yaml"), "--ckpt.output_dir", str(tmp_path / "out")]

    return write


def problems(words):
    with pytest.raises(ConfigurationError) as caught:
        build_plan([*words, "--dry-run"])
    return briefs(caught.value.problems)


def score(run, role="solver"):
    trajectory = make_trajectory({role: []})

    async def judge():
        try:
            return await plugin.marl_score_action(
                run, trajectory.actions[0], Seen.of(trajectory, trajectory.actions[0])
            )
        finally:
            await plugin.marl_stop(run)

    return asyncio.run(judge())


def finish(run, step, **metrics):
    credit(plugin, [], run)
    found = {"step": float(step), **metrics}
    plugin.marl_log(run, found)
    return found


def test_points_are_weighed_by_the_stage_and_a_resumed_run_is_where_it_was(recipe):
    words = recipe(TWO)
    run, scores, told = build_plan(words).run, [], []
    for step in range(1, 5):
        scores.append(score(run))
        told.append(finish(run, step)["coach/stage"])
    assert scores == pytest.approx([9 / 12, 9 / 12, 1 / 7, 1 / 7])
    assert told == [1, 1, 2, 2]
    resumed = build_plan(words).run
    plugin.marl_restore(resumed, json.loads(json.dumps(plugin.marl_state(run))))
    assert score(resumed) == score(run) == pytest.approx(1 / 7)


def asked_of(words, steps=(), memory=False):
    """What a model was asked about the solver, before and after the steps."""
    found = []
    with openai_server(
        lambda body, n: found.append(body["messages"][-1]["content"]) or verdict(body, 5)
    ) as (url, _):
        flags = [
            "--coach.model",
            "m",
            "--coach.base_url",
            url,
            *(["--coach.memory"] if memory else []),
        ]
        run = build_plan([*words, *flags]).run
        score(run)
        for step in steps:
            run.state(Behaviour).observe(step, list(run.recipe.roles))
            finish(
                run, step["step"], **{name: value for name, value in step.items() if name != "step"}
            )
        if steps:
            scores = {"a": 0.8, "b": 0.5}
            run.state(CoachState).bias.add(
                {
                    ("solver", k, str(n)): [(scores[k] + n % 3 / 100, n % 2)]
                    for k in scores
                    for n in range(200)
                }
            )
            score(run)
    return found


def test_a_model_is_told_what_counts_and_how_the_role_is_doing(recipe):
    words = recipe(
        "  stages:\n    - {until_outcome: 0.5, ask: It has to work at all.}\n    - {ask: Now it "
        "has to be short.}\n"
    )
    step = {
        "step": 1,
        "outcome/mean": 0.75,
        "role/solver/score": 0.61,
        "role/solver/outcome": 0.75,
        "role/solver/truncated": 0.02,
    }
    before, after = asked_of(words, [step], memory=True)
    assert (
        "What counts at this stage of the training:\nIt has to work at all.\n\nEverything between"
        in before
    )
    assert "over the last steps" not in before
    assert "Now it has to be short." in after and "work at all" not in after
    for line in (
        "mean score that you gave it: 6.1 of 10",
        "success of the team: 75%",
        "answers cut off: 2%",
    ):
        assert f"- {line}\n" in after
    assert "- your scores on tasks of type a, at the same success, than on all types: +1.5" in after
    _, after = asked_of(words, [step])
    assert "over the last steps" not in after and "Now it has to be short." in after


def test_a_prompt_without_the_place_for_it_is_refused(recipe, tmp_path):
    (tmp_path / "prompt.md").write_text("{action} {fence} {form}")
    words = ["--coach.model", "m", "--coach.prompt", str(tmp_path / "prompt.md")]
    found = problems([*recipe("  stages: [{ask: x}]\n"), *words])
    assert [problem for problem in found if problem[0].startswith("prompt.")] == [
        ("prompt.training", "coach.prompt")
    ]


def test_everything_that_is_wrong_with_stages_is_said_at_once_with_its_line(recipe):
    words = recipe(
        "  stages:\n"
        "    - {weights: {run: 2}}\n"
        "    - {until_step: 4, until_outcome: 0.5}\n"
        "    - {until_step: 9, ask: be short}\n"
        "    - {until_step: 10, weights: {runs: 0, is short: 0}}\n"
    )
    assert set(problems(words)) >= {
        ("coach.stage_end", "stages.yaml:7", "coach.stages.0"),
        ("coach.no_criterion", "stages.yaml:7", "coach.stages.0.weights.run"),
        ("coach.stage_end", "stages.yaml:8", "coach.stages.1"),
        ("coach.stage_ask", "stages.yaml:9", "coach.stages.2.ask"),
        ("coach.stage_end", "stages.yaml:10", "coach.stages.3"),
        ("coach.no_criterion_left", "stages.yaml:10", "coach.stages.3.weights"),
    }
    assert "coach.no_criterion" in {
        code for code, *_ in problems([*recipe(TWO), "--coach.model", "m"])
    }
