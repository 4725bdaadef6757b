"""The small shipped recipes `vote`, `tool_user` and `coder_tester`: whole trajectories through a
simulated engine, scored."""

import json
import random

import pytest
from recipe_runs import planned, played

from marl_plugins.core.recipe.prompts import prompt_renderer

NAMES = ("vote", "tool_user", "coder_tester")


@pytest.mark.parametrize("name", NAMES)
def test_its_splits_share_no_task(name):
    plan = planned(f"{name}/tiny.yaml")
    train, held_out = plan.tasks("train"), plan.tasks("eval")
    assert len(train) >= 100 and len(held_out) >= 20
    assert not {t.prompt for t in train} & {t.prompt for t in held_out}


@pytest.mark.parametrize("name", NAMES)
def test_what_its_demonstrators_are_shown_is_what_its_prompts_need(name):
    run, rng = (plan := planned(f"{name}/tiny.yaml")).run, random.Random(0)
    roles = set()
    for task in plan.tasks("train")[:50]:
        for shown in run.demonstrations_module.demonstrate(task, rng):
            prompt_renderer(run.prompt(shown.role), run.system(shown.role))(shown.fields)
            longest = max(len(text) for text in shown.said)
            assert longest < (run.role(shown.role).max_new_tokens or 0), (
                "one byte is one token of a tiny model"
            )
            roles.add(shown.role)
    assert roles == set(run.recipe.roles)


@pytest.mark.parametrize("wrong", [2, 5])
def test_voters_are_rewarded_for_their_own_answers_and_the_decider_for_the_decision(wrong):
    plan = planned("vote/recipe.yaml")
    task = plan.tasks("train")[0]
    other = {"A": "B", "B": "A"}[task.label]
    votes = iter([other] * wrong + [task.label] * (5 - wrong))

    def says(role, prompt):
        assert task.prompt in prompt
        if role == "voter":
            return f"I think\n{next(votes)}"
        shown = prompt.partition("independently:")[2]
        assert shown.count(other) - shown.count(task.label) == 2 * wrong - 5
        return other if wrong > 2 else task.label

    trajectory = played(plan, task, says)
    voters = [a for a in trajectory.actions if a.role == "voter"]
    (decider,) = [a for a in trajectory.actions if a.role == "decider"]
    assert sorted(a.reward for a in voters) == [0.0] * wrong + [1.0] * (5 - wrong)
    assert decider.reward == trajectory.outcome == float(wrong < 3)
    assert set(decider.parents) == {a.path for a in voters}


def test_the_clerk_looks_up_every_price_and_is_told_what_is_not_sold():
    plan = planned("tool_user/recipe.yaml")
    task = next(t for t in plan.tasks("train") if len(t.metadata["things"]) == 2)
    one, two = task.metadata["things"]
    turns = iter(
        [
            f"<price>{one}</price>",
            "<price>moon</price>",
            f"<price>{two}</price>",
            f"Answer: {task.label}",
        ]
    )
    trajectory = played(plan, task, lambda role, prompt: next(turns))
    outputs = [a.tool_output for a in sorted(trajectory.actions, key=lambda a: a.turn)]
    first, second = task.metadata["prices"]
    assert outputs == [f"{one}: {first}", "moon is not sold here", f"{two}: {second}", ""]
    assert [r.ok for a in trajectory.actions for r in a.tool_results].count(False) == 1
    assert trajectory.outcome == 1.0
    lazy = played(plan, task, lambda role, prompt: f"Answer: {int(task.label) + 1}")
    assert lazy.outcome == 0.0


@pytest.mark.parametrize(
    ("first", "tests", "second", "outcomes"),
    [
        ("right", "right", None, {"coder": 1.0, "tester": 1.0}),
        ("wrong", "right", "wrong", {"coder": 0.0, "tester": 1.0}),
        ("right", "wrong", "right", {"coder": 1.0, "tester": 0.0}),
        ("wrong", "nothing", None, {"coder": 0.0, "tester": 0.0}),
    ],
)
def test_the_coder_is_scored_by_the_hidden_asserts_and_the_tester_by_being_right(
    first, tests, second, outcomes
):
    plan = planned("coder_tester/tiny.yaml")
    task = plan.tasks("train")[0]
    expression = task.metadata["expression"]
    value = eval(expression, {"x": 4, "max": max, "min": min})
    programs = {
        "right": f"```python\ndef f(x):\n    return {expression}\n```",
        "wrong": "def f(x):\n    return -1",
    }
    asserts = {
        "right": f"assert f(4) == {value}",
        "wrong": f"assert f(4) == {value + 1}",
        "nothing": "pass",
    }
    tries = iter([programs[first], programs.get(second)])

    def says(role, prompt):
        return asserts[tests] if role == "tester" else next(tries)

    trajectory = played(plan, task, says)
    assert trajectory.outcomes == outcomes
    coders = [a for a in trajectory.actions if a.role == "coder"]
    assert len(coders) == (1 if second is None else 2)
    assert {a.role: a.reward for a in trajectory.actions} == outcomes
    if second is not None:
        assert "AssertionError" in coders[-1].shown[0][1] and len(coders[-1].parents) == 2


def test_programs_that_read_standard_input_meet_shown_and_hidden_tests():
    """The shown test is run with the tester's, so a wrong program has a second try."""
    plan = planned("coder_tester/stdin.yaml")
    task = next(t for t in plan.tasks("train") if "sum plus" in t.prompt)
    number = int(task.prompt.rstrip(".").split()[-1])
    right = f"a, b = map(int, input().split())\nprint(a + b + {number})"
    programs = iter(["print(0)", right])

    def says(role, prompt):
        if role == "coder":
            return f"```python\n{next(programs)}\n```"
        return f"```python\nassert printed('1 1') == '{2 + number}'\n```"

    trajectory = played(plan, task, says)
    assert trajectory.outcomes == {"coder": 1.0, "tester": 1.0}
    assert [a.role for a in trajectory.actions].count("coder") == 2
    assert not trajectory.tool_results[0].ok
    hidden = [test["input"] for test in json.loads(task.label)]
    shown = [content for a in trajectory.actions for _, content in a.shown]
    assert not [text for text in hidden if any(repr(text) in content for content in shown)]
