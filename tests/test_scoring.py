"""Scores of trajectories that have ended, here or elsewhere, and what a record gives back."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import content, make_trajectory

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.scoring import SeenLast, score_outcome, score_trajectory, set_outcome
from marl_plugins.core.trajectory import Action, Generation, Task, ToolResult, Trajectory
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.records.trajectory_record import from_record, to_record

ROOT = Path(__file__).resolve().parent.parent
text = st.text(max_size=8)
number = st.floats(-2, 2, allow_nan=False)
float32 = st.floats(-2, 0, width=32)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | text,
    lambda v: st.lists(v, max_size=2),
    max_leaves=4,
)


@st.composite
def actions(draw, earlier):
    """An action after some others, perhaps a later turn of one of them."""
    ids = tuple(draw(st.lists(st.integers(0, 99), max_size=4)))
    before = draw(st.none() | st.sampled_from(earlier)) if earlier else None
    parents = [before.path] if before else []
    if earlier:
        parents += draw(st.lists(st.sampled_from([a.path for a in earlier]), max_size=2))
    advantage = draw(st.none() | number)
    advantages = draw(st.tuples(*[number for _ in ids]) | st.just((advantage,) * len(ids)))
    if advantage is not None and len(set(advantages)) == 1:
        advantage = advantages[0]
    return Action(
        path=f"a{len(earlier)}",
        role=draw(st.sampled_from("xy")),
        policy="p",
        turn=before.turn + 1 if before else 0,
        shown_ids=tuple(draw(st.lists(st.integers(0, 99), max_size=3))),
        generation=Generation(
            ids,
            tuple(draw(st.tuples(*[float32 for _ in ids]))),
            draw(st.sampled_from(["stop", "length"])),
            "p",
            3,
        ),
        text=draw(text),
        shown=tuple(
            draw(st.lists(st.tuples(st.sampled_from(["user", "system"]), text), max_size=2))
        ),
        before=before,
        parents=tuple(dict.fromkeys(parents)),
        tool_results=tuple(
            draw(
                st.lists(
                    st.builds(ToolResult, text, text, text, st.booleans(), number, st.tuples(text)),
                    max_size=2,
                )
            )
        ),
        score=draw(st.none() | st.floats(0, 1)),
        unscored=draw(text),
        explanation=draw(text),
        reward=draw(st.none() | number),
        terms=draw(st.dictionaries(text, number, max_size=2)),
        notes=draw(st.dictionaries(text, values, max_size=2)),
        returns=draw(st.none() | number),
        advantage=advantage,
        advantages=() if advantage is None else advantages,
        left_out=draw(st.none() | text),
    )


@st.composite
def trajectories(draw):
    made: list[Action] = []
    for _ in range(draw(st.integers(0, 4))):
        made.append(draw(actions(tuple(made))))
    task = Task(
        draw(text), draw(text), draw(values), draw(st.dictionaries(text, values, max_size=2))
    )
    return Trajectory(
        task=task,
        sample=draw(st.integers(0, 3)),
        step=draw(st.integers(0, 9)),
        actions=made,
        answer=draw(st.none() | text),
        returned=draw(st.none() | st.sampled_from([a.path for a in made] or [None])),
        agent_failure=draw(st.none() | st.just("no_answer")),
        infrastructure_failure=draw(st.none() | st.just("deadline")),
        detail=draw(text),
        actions_scored=draw(st.booleans()),
        outcome=draw(st.none() | st.floats(0, 1)),
        outcomes=draw(st.dictionaries(st.sampled_from("xy"), st.floats(0, 1))),
        outcome_parts=draw(st.dictionaries(text, number, max_size=2)),
        seconds=draw(number),
    )


@settings(max_examples=50)
@given(trajectories())
def test_a_record_gives_back_what_was_recorded(trajectory):
    record = json.loads(json.dumps(to_record(trajectory)))
    assert content(from_record(record)) == content(trajectory)
    assert [a.context_ids for a in from_record(record).actions] == [
        a.context_ids for a in trajectory.actions
    ]


def test_another_schema_is_refused():
    with pytest.raises(ValueError, match="a record of schema 2; this release reads 1"):
        from_record({**to_record(make_trajectory({"a": []})), "schema": 2})


def test_a_recorded_trajectory_is_scored_as_in_its_rollout():
    """Every action sees its ancestors; the one that the workflow returned gets the label; scores
    from before are gone."""
    trajectory = make_trajectory(
        {"a": [], "b": ["a"], "c": ["a"], "d": ["b"]},
        roles={"a": "x", "b": "x", "c": "y", "d": "y"},
    )
    trajectory.returned, trajectory.answer, trajectory.outcome = "c", "7", 0.25
    for action in trajectory.actions:
        action.score, action.explanation = 0.9, "before"
    record = json.loads(json.dumps(to_record(trajectory)))
    seen = {}

    async def score_action(action, view):
        seen[action.path] = view
        if action.path == "b":
            raise InfrastructureFailure("coach_busy", "later")
        return len(view.before) / 10

    got = from_record(record)
    asyncio.run(score_trajectory(got, score_action, None, roles=["x", "y"]))
    assert {a.path: a.score for a in got.actions} == {"a": 0.0, "b": None, "c": 0.1, "d": 0.2}
    assert {a.path: a.unscored for a in got.actions} == {
        "a": "",
        "b": "coach_busy",
        "c": "",
        "d": "",
    }
    assert [path for path, view in seen.items() if isinstance(view, SeenLast)] == ["c"]
    assert (seen["c"].label, seen["c"].answer) == ("label", "7")
    assert all(
        a.score is None and a.explanation == "" for view in seen.values() for a in view.before
    )
    assert got.outcome == 0.25  # nobody was asked for it anew

    async def score_outcome(trajectory):
        return 1.0

    asyncio.run(score_trajectory(got, None, score_outcome, roles=["x", "y"]))
    assert (got.outcome, got.actions[0].score) == (1.0, 0.0)


def test_a_score_that_is_late_is_missing():
    trajectory = make_trajectory({"a": [], "b": ["a"]})

    async def slow(action, view):
        await asyncio.sleep(0 if action.path == "a" else 60)
        return 1.0

    asyncio.run(score_trajectory(trajectory, slow, None, roles=["x"], seconds=1.0))
    assert [(a.score, a.unscored) for a in trajectory.actions] == [(1.0, ""), (None, "deadline")]


# Outcomes per role

DEBATE = ["pro", "con", "judge"]


def debate(**given):
    return make_trajectory({"pro": [], "con": ["pro"], "judge": ["con"]}, **given)


def test_the_teams_outcome_is_the_mean_of_the_roles_that_have_one():
    trajectory = debate()
    set_outcome(trajectory, {"pro": 1, "con": 0.0, "judge": 0.5}, DEBATE)
    assert (
        trajectory.outcomes == {"pro": 1.0, "con": 0.0, "judge": 0.5} and trajectory.outcome == 0.5
    )
    set_outcome(trajectory, {"pro": 1.0, "con": 0.5, "judge": None}, DEBATE)
    assert (trajectory.outcome, [trajectory.outcome_of(r) for r in DEBATE]) == (
        0.75,
        [1.0, 0.5, None],
    )
    set_outcome(trajectory, dict.fromkeys(DEBATE), DEBATE)
    assert (trajectory.outcome, trajectory.outcome_of("pro")) == (None, None)
    set_outcome(trajectory, 0.25, DEBATE)  # of an earlier scoring nothing is left
    assert (trajectory.outcomes, trajectory.outcome_of("pro")) == ({}, 0.25)


def test_a_role_that_did_not_act_may_have_an_outcome_or_none():
    trajectory = make_trajectory({"pro": []})
    set_outcome(trajectory, {"pro": 1.0}, DEBATE)
    assert trajectory.outcome == 1.0
    set_outcome(trajectory, {"pro": 1.0, "con": 0.0}, DEBATE)
    assert trajectory.outcome == 0.5


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (5, r"outcome of task t9 is 5; scores lie in \[0, 1\]"),
        (float("nan"), "outcome of task t9 is nan"),
        (
            {"pro": 1.0, "con": 2.0, "judge": 1.0},
            r"outcome of task t9 for role 'con' is 2.0; scores lie in \[0, 1\]",
        ),
        (
            {"pro": 1.0, "con": 0.0},
            "of task t9 is .*role 'judge' acted and has none: a number, or None",
        ),
        (
            {"pro": 1.0, "con": 0.0, "juge": 1.0},
            "'juge' is no role of the recipe; did you mean 'judge'.*'judge' acted",
        ),
        ({}, "role 'pro' acted and has none.*role 'con' acted and has none"),
    ],
)
def test_an_outcome_that_is_wrong_is_named(outcome, message):
    trajectory = debate(task="t9")
    with pytest.raises(ValueError, match=message):
        set_outcome(trajectory, outcome, DEBATE)
    assert (trajectory.outcome, trajectory.outcomes) == (None, {})


def test_agents_that_fail_have_an_outcome_of_0_in_every_role():
    trajectory = debate()
    trajectory.agent_failure = "no_answer"
    asyncio.run(
        score_outcome(trajectory, lambda t: pytest.fail("asked for a failure"), None, DEBATE)
    )
    assert [trajectory.outcome_of(role) for role in DEBATE] == [0.0] * 3


@pytest.mark.parametrize("grader", ["def", "async def"])
def test_a_recipes_grader_may_score_roles(tmp_path, grader):
    """Plain or async; through the plan's hooks, as a rollout asks it."""
    shutil.copytree(ROOT / "recipes" / "mathchat", tmp_path / "mine")
    (tmp_path / "mine" / "grader.py").write_text(
        f"{grader} score_outcome(trajectory):\n    return {{'solver': 1.0, 'coder': 0.0, "
        f"'verifier': None}}\n"
    )
    plan = build_plan(["--recipe", str(tmp_path / "mine" / "tiny.yaml")])
    trajectory = make_trajectory({"solver": [], "coder": ["solver"], "verifier": ["coder"]})

    def ask(trajectory):
        return plan.plugins.hook.marl_score_outcome(run=plan.run, trajectory=trajectory)

    asyncio.run(score_outcome(trajectory, ask, None, plan.run.recipe.roles))
    assert (trajectory.outcomes, trajectory.outcome) == ({"solver": 1.0, "coder": 0.0}, 0.5)
