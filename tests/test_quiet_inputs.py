"""Inputs that were green and silent: each is refused, or said, or what was taken is shown."""

import json

import pytest
from refusals import brief, found_by
from routers import TASKS, Triage

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe

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


def said(folder):
    return "\n".join(map(str, folder.plan().run.warnings))


def refusal(folder):
    return found_by(folder.plan)


def codes(found):
    return {code for code, *_ in found}


def taken(folder):
    return str(describe(folder.plan())).replace("\\", "")


def test_a_batch_of_a_billion_tasks_is_said(folder):
    recipe = folder.path / "recipe.yaml"
    recipe.write_text(
        recipe.read_text().replace("rollout.batch_size: 4", "rollout.batch_size: 1000000000")
    )
    assert "tasks.small" in codes(warnings(folder))


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


def test_of_two_columns_that_may_be_the_prompt_the_one_taken_is_said(folder):
    with_data(folder, [{"question": f"q{n}", "problem": f"p{n}", "answer": "x"} for n in range(8)])
    assert "tasks.prompt_field" in codes(warnings(folder))


def test_what_was_taken_of_chat_messages_is_shown(folder):
    with_data(
        folder,
        [{"prompt": [{"role": "user", "content": f"q{n}"}], "answer": "x"} for n in range(8)],
    )
    assert "prompt -> prompt, answer -> label; of chat messages, the user's text" in taken(folder)


def test_what_was_taken_of_one_object_is_shown(folder):
    with_data(folder, {"about": "mine", "data": ROWS})
    assert "question -> prompt, answer -> label; of the one object, the list under 'data'" in taken(
        folder
    )


def test_an_object_with_two_lists_is_refused_as_such(folder):
    found = refusal(with_data(folder, {"train": ROWS, "test": ROWS}))
    assert ("tasks.no_list", "train.json") in {
        (code, places[-1]) for code, *places in found if places
    }


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


def test_a_nul_in_a_prompt_file_is_refused(folder):
    folder.write("any.md", "{incident}\0")
    assert ("roles.nul", "any.md") in {
        (code, places[-1]) for code, *places in refusal(folder) if places
    }


def test_the_hint_at_chat_messages_is_given_for_prompts_only(folder):
    folder.write("tasks.py", TASKS.replace("Task(n,", "Task(ord(n),"))
    with pytest.raises(ConfigurationError) as error:
        folder.plan()
    assert {p.code for p in error.value.problems} == {"tasks.text"}
    assert all("chat messages" not in p.fix for p in error.value.problems)


def test_a_sibling_is_imported_with_a_dot(folder):
    folder.write("grader.py", "from tasks import load\ndef score_outcome(t):\n    return 1.0\n")
    with pytest.raises(ConfigurationError) as error:
        folder.plan()
    (problem,) = error.value.problems
    assert problem.code == "code.failed" and "`from .tasks import ...`" in str(problem)


def test_the_shipped_recipes_are_silent():
    assert build_plan(["--recipe", "kuhn_poker/tiny.yaml"]).run.warnings == ()
