"""`openrlhf recipes check`: graders on the data's own labels, and data."""

import json

import pytest

from marl_plugins.cli import main
from marl_plugins.contracts import graders
from marl_plugins.contracts.labels import check_labels
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan.build import draft_plan

RECIPE = {
    "recipe.yaml": (
        "name: sums\nroles:\n  a: {prompt: a.md}\n  b: {prompt: a.md}\nworkflow: "
        "workflow.py\ntasks: tasks.py\n"
        "grader: grader.py\nmodel: tiny\n"
    ),
    "a.md": "{problem}\n",
    "workflow.py": (
        "async def run(task, roles, tools):\n"
        "    await roles.a(problem=task.prompt)\n    return await roles.b(problem=task.prompt)\n"
    ),
    "tasks.py": (
        "from marl_plugins.core.trajectory import Task\n\n\ndef load(split):\n    first = 0 if "
        "split == 'train' else 50\n"
        "    return [Task(f'{split}-{n}', f'{n}+1=', str(n + 1)) for n in range(first, first + "
        "20)]\n"
    ),
    "grader.py": (
        "from marl_plugins.grading import final, number\n\n\ndef score_outcome(trajectory):\n"
        "    found = number(final(trajectory.answer or ''))\n"
        "    return float(found is not None and found == number(trajectory.task.label))\n"
    ),
}


@pytest.fixture
def recipe(tmp_path):
    def write(**changes):
        for name, text in (RECIPE | {f"{name}.py": text for name, text in changes.items()}).items():
            (tmp_path / name).write_text(text)
        return str(tmp_path)

    return write


def checked(folder, capsys, *words):
    code = main(["recipes", "check", folder, "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def labels_of(folder):
    return check_labels(draft_plan(["--recipe", folder], Plugins([])))


# --- labels
# --------------------------------------------------------------------------------------------------


def test_a_good_grader_pays_every_label_and_nothing_else(recipe):
    found = labels_of(recipe())
    assert len(found) == 160 and all(one.fine for one in found)
    assert {one.kind for one in found} == {"label", "wrong", "empty", "another task's"}


@pytest.mark.parametrize(
    ("grader", "kinds"),
    [
        ("return 0.0", {"label"}),
        ("return float(trajectory.answer != '')", {"wrong", "another task's"}),
        ("return float(trajectory.task.label.startswith(trajectory.answer or ''))", {"empty"}),
    ],
)
def test_what_a_bad_grader_takes_otherwise(recipe, grader, kinds):
    found = labels_of(recipe(grader=f"def score_outcome(trajectory):\n    {grader}\n"))
    assert kinds <= {one.kind for one in found if not one.fine}
    assert ("label" in kinds) == any(one.kind == "label" and not one.fine for one in found)


# --- the command
# --------------------------------------------------------------------------------------------------


def test_a_good_recipe(recipe, capsys):
    code, found = checked(recipe(), capsys)
    assert code == 0 and found["fine"] and found["labels_are_answers"] and not found["answers"]
    assert (
        len(found["labels"]) == 160
        and len(checked(recipe(), capsys, "--tasks", "5")[1]["labels"]) == 40
    )
    assert main(["recipes", "check", recipe(), "--tasks", "5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("10 of 10")
    assert f"openrlhf train --recipe {recipe()} --dry-run" in out.splitlines()[-1]


def test_a_grader_that_pays_everything_is_found(recipe, capsys):
    code, found = checked(recipe(grader="def score_outcome(trajectory):\n    return 1.0\n"), capsys)
    assert code == 1 and not found["fine"]
    assert (
        main(
            ["recipes", "check", recipe(grader="def score_outcome(trajectory):\n    return 1.0\n")]
        )
        == 1
    )
    out = capsys.readouterr().out
    assert out.splitlines()[2].startswith("0 of 40")
    assert sum(" empty " in line and "''" in line for line in out.splitlines()) == 1  # 40 alike


RIGHT = "    if trajectory.answer == trajectory.task.label:\n        {}\n    return 0.0\n"
GIVES = "from marl_plugins.contracts.graders import GradedAnswers\n\n\ndef answers(tasks):\n    "
MISTAKES = {
    "a score of another type": (
        {"grader": RIGHT.format("return 'yes'")},
        "grader.py: ",
        "'yes'; expected a number",
    ),
    "a name that is wrong": (
        {"grader": RIGHT.format("return trajectory.labels")},
        "grader.py:3: ",
        "answer '1' to task 'train-0'",
    ),
    "it leaves": (
        {"grader": "    import os\n    os._exit(0)\n"},
        "grader.py: ",
        "runs programs in its own process",
    ),
    "a word of answers.py": (
        {"answers": f"{GIVES}yield GradedAnswers(tasks[0], rigth=['1'])\n"},
        "answers.py:5: ",
        "'rigth'",
    ),
    "answers that are returned": (
        {"answers": f"{GIVES}return GradedAnswers(tasks[0])\n"},
        "answers.py: ",
        "yielded one by one",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_recipes_raise_is_said_with_its_line(recipe, capsys, mistake):
    files, line, said = MISTAKES[mistake]
    if "grader" in files:
        files = files | {"grader": f"def score_outcome(trajectory):\n{files['grader']}"}
    assert main(["recipes", "check", recipe(**files)]) == 2
    error = capsys.readouterr().err
    assert line in error and said in error and "Traceback" not in error


ENDLESS = {
    "a loop of the grader": ({"grader": RIGHT.format("while True: pass")}, "grader.py:3: "),
    "a grader that waits": (
        {"grader": "    import asyncio\n    await asyncio.Event().wait()\n"},
        "grader.py:3: ",
    ),
    "answers without an end": (
        {"answers": f"{GIVES}while True:\n        pass\n    yield\n"},
        "answers.py:",
    ),
    "a workflow that waits": (
        {
            "workflow": RECIPE["workflow.py"].replace(
                "    return", "    import asyncio\n    await asyncio.Event().wait()\n    return"
            )
        },
        "workflow.py:4: ",
    ),
    "a workflow that calls for ever": (
        {"workflow": RECIPE["workflow.py"].replace("    await", "    while True: await")},
        "workflow.py:2: ",
    ),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_is_left_behind_and_said_with_its_line(recipe, capsys, monkeypatch, what):
    monkeypatch.setattr(graders, "GRADER_SECONDS", 3.0)
    files, line = ENDLESS[what]
    if "grader" in files:
        files = files | {"grader": f"async def score_outcome(trajectory):\n{files['grader']}"}
    assert main(["recipes", "check", recipe(**files)]) == 2
    error = capsys.readouterr().err
    assert line in error and "never ends" in error
