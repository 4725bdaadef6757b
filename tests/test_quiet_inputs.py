"""Inputs that were green and silent: each is refused, or said, or what was taken is shown."""

import json

import pytest
from refusals import brief, found_by
from routers import Triage

ROWS = [{"question": f"q{n}", "answer": "registry"} for n in range(8)]


@pytest.fixture
def folder(tmp_path):
    return Triage(tmp_path, "JSON")


def set_flag(folder, line, old="  data.max_len: 256"):
    recipe = folder.path / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(old, f"{old}\n  {line}"))


def with_data(folder, rows, name="train.json"):
    recipe = folder.path / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("tasks: tasks.py\n", ""))
    set_flag(folder, f"data.prompt_dataset: {name}")
    (folder.path / name).write_text(json.dumps(rows))
    return folder


def warnings(folder):
    return [brief(problem) for problem in folder.plan().run.warnings]


def refusal(folder):
    return found_by(folder.plan)


def codes(found):
    return {code for code, *_ in found}


def test_saving_every_zero_steps_is_refused(folder):
    set_flag(folder, "ckpt.save_steps: 0")
    ((code, line, flag),) = refusal(folder)
    assert (code, line.partition(":")[0], flag) == (
        "plan.save_steps",
        "recipe.yaml",
        "ckpt.save_steps",
    )


def test_evaluations_without_tasks_are_said(folder):
    set_flag(with_data(folder, ROWS), "eval.steps: 2")
    assert "tasks.no_evaluation" in codes(warnings(folder))


def test_prompts_that_contradict_each_other_are_said(folder):
    with_data(folder, [{"question": "the same", "answer": str(n)} for n in range(32)])
    assert warnings(folder) == [("tasks.contradict", "1")]
    (problem,) = folder.plan().run.warnings
    assert problem.got.startswith("31 of 32 ")


@pytest.mark.parametrize("rows", [
    [{"question": "the same", "answer": "x", "host": n} for n in range(8)],
    [{"question": "the same", "answer": "x"} for _ in range(8)],
])  # fmt: skip
def test_equal_prompts_may_differ_in_what_the_workflow_is_given(folder, rows):
    assert warnings(with_data(folder, rows)) == []
