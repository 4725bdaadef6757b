"""Inputs that were green and silent: each is refused, or said, or what was taken is shown."""

import json

import pytest
from refusals import brief
from routers import TASKS, Triage

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.plan.build import build_plan
from marl_plugins.plan.describe import describe

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
    with pytest.raises(ConfigurationError) as error:
        folder.plan()
    return "\n".join(map(str, error.value.problems))


def taken(folder):
    return str(describe(folder.plan())).replace("\\", "")


def test_a_batch_of_a_billion_tasks_is_said(folder):
    recipe = folder.path / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("rollout.batch_size: 4", "rollout.batch_size: 1000000000"))
    assert "--rollout.batch_size 1000000000 is more than there are tasks" in said(folder)


def test_saving_every_zero_steps_is_refused(folder):
    set_flag(folder, "ckpt.save_steps: 0")
    assert "recipe.yaml" in refusal(folder) and "--ckpt.save_steps: a step is saved every N steps, got 0" in refusal(folder)


def test_evaluations_without_tasks_are_said(folder):
    set_flag(with_data(folder, ROWS), "eval.steps: 2")
    assert "--eval.steps: 2: nothing is evaluated, because there are no eval tasks; give --eval.dataset FILE" in said(
        folder
    )


@pytest.mark.parametrize(
    ("flag", "kind", "problem"),
    [("HF_HUB_OFFLINE", "model", "hub.offline"), ("HF_DATASETS_OFFLINE", "dataset", "hub.offline")],
)
def test_a_name_of_the_hub_that_is_not_here_is_said_while_offline(folder, tmp_path, monkeypatch, flag, kind, problem):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    if kind == "model":
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(recipe.read_text().replace("model: tiny", "model: nobody/nothing"))
    else:
        with_data(folder, ROWS)
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(recipe.read_text().replace("train.json", "nobody/nothing"))
    assert problem not in [code for code, *_ in warnings(folder)]
    monkeypatch.setenv(flag, "1")
    assert [code for code, *_ in warnings(folder)].count(problem) == 1
    (tmp_path / "hub" / f"{kind}s--nobody--nothing").mkdir(parents=True)
    assert problem not in [code for code, *_ in warnings(folder)]


def test_of_two_columns_that_may_be_the_prompt_the_one_taken_is_said(folder):
    with_data(folder, [{"question": f"q{n}", "problem": f"p{n}", "answer": "x"} for n in range(8)])
    assert "the prompt is taken from field 'problem'; there is 'question' too" in said(folder)


def test_what_was_taken_of_chat_messages_is_shown(folder):
    with_data(folder, [{"prompt": [{"role": "user", "content": f"q{n}"}], "answer": "x"} for n in range(8)])
    assert "prompt -> prompt, answer -> label; of chat messages, the user's text" in taken(folder)


def test_what_was_taken_of_one_object_is_shown(folder):
    with_data(folder, {"about": "mine", "data": ROWS})
    assert "question -> prompt, answer -> label; of the one object, the list under 'data'" in taken(folder)


def test_an_object_with_two_lists_is_refused_as_such(folder):
    assert "expected a list of objects, got an object with 2 lists; leave one of them in it" in refusal(
        with_data(folder, {"train": ROWS, "test": ROWS})
    )


def test_prompts_that_contradict_each_other_are_said(folder):
    with_data(folder, [{"question": "the same", "answer": str(n)} for n in range(32)])
    assert warnings(folder) == [("tasks.contradict", "1")]
    assert "31 of 32 train tasks have the prompt of another one and a different label" in said(folder)


@pytest.mark.parametrize("rows", [
    [{"question": "the same", "answer": "x", "host": n} for n in range(8)],
    [{"question": "the same", "answer": "x"} for _ in range(8)],
])  # fmt: skip
def test_equal_prompts_may_differ_in_what_the_workflow_is_given(folder, rows):
    assert warnings(with_data(folder, rows)) == []


def test_a_nul_in_a_prompt_is_said(folder):
    assert warnings(with_data(folder, [{"question": f"a\0{n}", "answer": "x"} for n in range(8)])) == [("tasks.nul", "0")]


def test_a_nul_in_a_prompt_file_is_refused(folder):
    folder.write("any.md", "{incident}\0")
    assert "any.md: holds a NUL character; remove it" in refusal(folder)


def test_the_hint_at_chat_messages_is_given_for_prompts_only(folder):
    folder.write("tasks.py", TASKS.replace("Task(n,", "Task(ord(n),"))
    assert "its id must be a non-empty string, got 97" in refusal(folder) and "chat messages" not in refusal(folder)


def test_a_sibling_is_imported_with_a_dot(folder):
    folder.write("grader.py", "from tasks import load\ndef score_outcome(t):\n    return 1.0\n")
    assert "write `from .tasks import ...`" in refusal(folder)


def test_the_shipped_recipes_are_silent():
    assert build_plan(["--recipe", "kuhn_poker/tiny.yaml"]).run.warnings == ()
