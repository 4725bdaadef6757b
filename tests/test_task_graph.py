"""recipes/task_graph: what its scores lead to."""

import asyncio
import re

import pytest
from random_graphs import played, roles
from test_cases import says

from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.workflow_file import workflow_of

FILES = {"recipe.yaml": "cuda", "tiny.yaml": "cpu"}


def planned(file):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_PLUGINS_DEVICE", FILES[file])
        return build_plan(["--recipe", str(recipes_root() / "task_graph" / file)])


def solved(shown):
    """The right result of what a role is shown."""
    first, sign, second = re.search(r"u:(-?\d+)([+-])(-?\d+)", shown).groups()
    return str(int(first) + int(f"{sign}1") * int(second))


@pytest.mark.parametrize(
    ("answer", "outcome", "actions"),
    [(solved, 1.0, 7), (lambda shown: "0", 0.0, 3)],
)
def test_right_answers_lead_on_and_the_budget_covers_one_hard_problem(answer, outcome, actions):
    plan = planned("tiny.yaml")
    workflow, grader = workflow_of(plan.plugins, plan.run), plan.run.grader_module
    found = asyncio.run(
        played(workflow, says(answer), {}, roles({"solver": ["problem"]}), task="train-3")
    )
    assert len(found.actions) == actions and grader.score_outcome(found) == outcome
    assert [action.score for action in found.actions] == [float(answer is solved)] * actions
