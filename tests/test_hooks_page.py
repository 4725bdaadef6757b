"""The code of docs/hooks.md and of the section on outcomes per role in docs/recipes.md does what
the pages say."""

import shutil

import pytest
import torch
from planned_once import PlannedOnce
from simulated import make_trajectory
from test_docs import fenced, simulated

from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load, load_file
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.rows import Row
from marl_plugins.core.scoring import set_outcome
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import first_lines
from marl_plugins.engine.plan.fingerprint import fingerprint


def contracts_of(kit):
    for name in dir(kit):
        if name.startswith("test_"):
            getattr(kit, name)()


@pytest.fixture
def calc(tmp_path, monkeypatch):
    (tmp_path / "calc.py").write_text(fenced("hooks.md", "# calc.py"))
    (tmp_path / "test_calc.py").write_text(fenced("hooks.md", "# test_calc.py"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tool_of_the_page_keeps_the_contracts_of_the_page(calc):
    kit = load_file(calc / "test_calc.py").TestCalc()
    contracts_of(kit)


def test_a_workflow_calls_the_tool_as_the_page_says(calc):
    (tool,) = load(str(calc / "calc.py")).marl_tools()
    results = []

    async def workflow(task, roles, tools):
        results.append(await tools.calc("1+1"))
        return await roles.a(sum=results[0].output)

    got = simulated(
        workflow, Task("t", "q"), {"a": "{sum}?"}, lambda role, prompt: prompt, {"calc": tool}
    )
    assert (results[0].output, results[0].ok) == ("2", True) and "2?" in got.answer


def test_the_estimator_of_the_page_has_a_baseline_per_role(tmp_path):
    file = tmp_path / "role_mean.py"
    file.write_text(fenced("hooks.md", "# role_mean.py"))
    contracts_of(type("Kit", (PlannedOnce,), {"plugin": str(file)})())
    trajectory = make_trajectory(
        {"a": [], "b": [], "c": [], "d": []}, roles={"a": "x", "b": "x", "c": "x", "d": "y"}
    )
    rows = [Row(trajectory, action, 0.0) for action in trajectory.actions]
    shaped = load(str(file)).RoleMean(scope="batch").shape(rows, torch.tensor([1.0, 0.5, 0.0, 4.0]))
    assert shaped.tolist() == [0.75, 0.0, -0.75, 4.0]


@pytest.fixture
def debate(tmp_path):
    """The page's grader and workflow, and a way to run them."""
    (tmp_path / "grader.py").write_text(
        fenced(
            "recipes.md",
            '    """Two debaters and a judge, which says "pro" or "con": one debater wins what the '
            'other loses."""',
        )
    )
    (tmp_path / "workflow.py").write_text(
        fenced("recipes.md", "    con = await roles.con(question=task.prompt, other=pro)")
    )
    workflow = load_file(tmp_path / "workflow.py").run
    grader = load_file(tmp_path / "grader.py")
    prompts = {"pro": "{question}", "con": "{question} {other}", "judge": "{question} {pro} {con}"}

    def play(verdict, label):
        got = simulated(
            workflow,
            Task("t", "q", label),
            prompts,
            lambda role, _: verdict if role == "judge" else role,
        )
        set_outcome(got, grader.score_outcome(got), ["pro", "con", "judge"])
        rewards_from_scores([got])
        return got

    return play


@pytest.mark.parametrize(
    ("verdict", "label", "outcomes"),
    [
        ("pro", "pro", {"pro": 1.0, "con": 0.0, "judge": 1.0}),
        ("con", "pro", {"pro": 0.0, "con": 1.0, "judge": 0.0}),
        ("both", "pro", {"pro": 0.5, "con": 0.5, "judge": 0.0}),
    ],
)
def test_the_debate_of_the_page_rewards_each_role_with_its_outcome(
    debate, verdict, label, outcomes
):
    got = debate(verdict, label)
    assert got.outcomes == outcomes and got.outcome == pytest.approx(sum(outcomes.values()) / 3)
    assert {a.role: a.reward for a in got.actions} == outcomes


def test_a_plugin_tries_its_scorer_as_the_page_says(tmp_path):
    file = tmp_path / "short_enough.py"
    file.write_text(fenced("hooks.md", "# short_enough.py"))
    words = ["--recipe", "tests/recipes/sums/tiny.yaml", "--plugin", str(file)]
    assert build_plan(words).run.warnings == ()
    bad = tmp_path / "too_long.py"
    bad.write_text(file.read_text().replace("min(1.0, 64 /", "min(9.0, 640 /"))
    with pytest.raises(
        ConfigurationError, match=r"too_long\.py:\d+: ValueError: .* scores lie in \[0, 1\]"
    ):
        build_plan([*words[:-1], str(bad)])


@pytest.fixture
def hinted(tmp_path):
    """A recipe whose key `hints` the plugin of the page reads."""
    folder = shutil.copytree(recipes_root() / "vote", tmp_path / "vote")
    (folder / "hints.py").write_text(fenced("hooks.md", "# hints.py"))
    (folder / "hints.txt").write_text("count twice\n")

    def plan(text):
        (folder / "hinted.yaml").write_text(f"extends: tiny.yaml\nplugins: [hints.py]\n{text}\n")
        return build_plan(["--recipe", str(folder / "hinted.yaml")])

    return plan


def test_the_section_of_the_page_is_read_described_and_compared(hinted):
    plan = hinted("hints: {file: hints.txt}")
    assert plan.run.sections["hints"].most == 3 and first_lines(plan) == ["hints: from hints.txt"]
    found = fingerprint(plan)
    assert (
        found["recipe"]["hints.most"] == 3
        and found["files"]["hints"][0] == "hints.txt"
        and found["files"]["hints"][1]
    )
    assert "hints" not in hinted("description: none").run.sections
