"""Kinds of mistakes and their corrections: the law of the parts, and mathchat's grader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipe_runs import planned, played

from marl_plugins.grading import mistake_parts

KINDS = ("slip", "gap")
ANSWERS = st.lists(st.tuples(st.sampled_from(["", *KINDS]), st.sampled_from("ab")), max_size=6)


@given(ANSWERS)
def test_parts_are_shares_and_a_correction_is_of_one_who_was_wrong_before(answers):
    kinds, givers = [kind for kind, _ in answers], [giver for _, giver in answers]
    parts = mistake_parts(kinds, givers, KINDS)
    assert set(parts) == {
        "mistaken",
        "corrected/self",
        "corrected/other",
        "mistake/slip",
        "mistake/gap",
    }
    assert all(0 <= value <= 1 for value in parts.values())
    corrected = parts["corrected/self"] + parts["corrected/other"]
    assert corrected == float(any(kinds) and not kinds[-1])
    if corrected:
        place = max(n for n, kind in enumerate(kinds) if kind)
        assert parts["corrected/self"] == float(givers[place] == givers[place + 1])


@pytest.mark.parametrize(
    ("plan_right", "result", "verdict", "expected"),
    [
        (True, 0, 0, {}),
        (False, 0, 0, {"mistaken": 1, "corrected/other": 1, "mistake/plan": 1 / 3}),
        (True, 1, 0, {"mistaken": 1, "corrected/other": 1, "mistake/calculation": 1 / 3}),
        (True, 0, 1, {"mistaken": 1, "mistake/verification": 1 / 3}),
        (True, None, 1, {"mistaken": 1, "mistake/incomplete": 1 / 3, "mistake/calculation": 1 / 3}),
    ],
)
def test_mathchat_tells_kinds_of_mistakes(plan_right, result, verdict, expected):
    plan = planned("mathchat/tiny_mistakes.yaml")
    task = plan.tasks("train")[0]
    says = {
        "solver": task.metadata["expression"] if plan_right else "7+7",
        "coder": "none" if result is None else str(int(task.label) + result),
        "verifier": str(int(task.label) + verdict),
    }
    trajectory = played(plan, task, lambda role, prompt: says[role])
    found = {name: value for name, value in trajectory.outcome_parts.items() if value}
    assert found == pytest.approx(expected) and trajectory.outcome == float(not verdict)
