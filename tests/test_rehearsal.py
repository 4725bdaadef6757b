"""A workflow's mistakes are found before anything starts, by one run of it without any model."""

import asyncio

import pytest

from marl_plugins.core.recipe import load_recipe
from marl_plugins.core.trajectory import Task
from marl_plugins.loading import load_file
from marl_plugins.plan.rehearsal import MOST_CALLS, rehearse
from marl_plugins.run import Run

RECIPE = """
name: two
roles:
  writer: {prompt: writer.md, tools: [python], max_turns: 3}
  editor: {prompt: editor.md, system: system.md}
workflow: workflow.py
"""
GOOD = "async def run(task, roles, tools):\n    a = await roles.writer(q=task.prompt)\n    return await roles.editor(a=a, q='')\n"


@pytest.fixture
def rehearsed(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    for name, text in (("writer", "{q}"), ("editor", "{a}"), ("system", "{q}")):
        (tmp_path / f"{name}.md").write_text(text)

    def run(code):
        (tmp_path / "workflow.py").write_text("import asyncio\n" + code)
        recipe, _ = load_recipe(tmp_path / "recipe.yaml")
        workflow = load_file(tmp_path / "workflow.py", f"marl_recipe_{tmp_path.name}_workflow").run
        return rehearse(Run(recipe, tmp_path, None, "cpu"), workflow, Task("1", "a task", "7"), ["python", "search"])

    return run


def test_a_good_workflow_shows_who_sees_whom(rehearsed):
    found = rehearsed(GOOD)
    assert (found.graph, found.wrong, found.unclear) == (["task -> writer", "writer -> editor"], [], [])


@pytest.mark.parametrize(
    ("code", "line", "part"),
    [
        (GOOD.replace("roles.editor", "roles.editr"), 4, "the recipe has no role 'editr'; did you mean 'editor'?"),
        (GOOD.replace("a=a, q=''", "a=a"), 4, "the prompt has places for ['a', 'q'], the workflow gave ['a']"),
        (GOOD.replace("a=a, q=''", "a"), 4, "role 'editor' takes its fields by name: roles.editor(FIELD=...)"),
        (GOOD.replace("return await", "await tools.serch('x')\n    return await"), 4, "no tool 'serch'; did you mean 'search'?"),
        ("def run(task, roles, tools):\n    return str(roles)", 2, "write `async def run(task, roles, tools)`"),
        (GOOD.replace("a = await", "a ="), 4, "role 'editor' was given, as 'a', a call that is not awaited; write `await`"),
        (GOOD.replace("return await", "return"), 2, "run returns a call that is not awaited; write `await` before it"),
        (GOOD.replace("roles, tools", "roles"), 2, "run is called with task, roles and tools"),
        ("async def run(task, roles, tools):\n    async with asyncio.TaskGroup() as g:\n        "
         "g.create_task(roles.editor(a='', q=''))\n        g.create_task(roles.writer())", 2, "['q'], the workflow gave []"),
    ],
)  # fmt: skip
def test_what_no_answer_would_change_is_wrong(rehearsed, tmp_path, code, line, part):
    found = rehearsed(code)
    (problem,) = found.wrong
    assert part in problem and problem.startswith(f"{tmp_path}/workflow.py:{line}: ")
    assert found.unclear == []


def test_what_an_answer_might_change_is_odd(rehearsed, tmp_path):
    found = rehearsed(GOOD.replace("a=a", "a=1 / len(str(a))"))
    assert found.wrong == []
    assert found.unclear == [
        f"{tmp_path}/workflow.py:4: the workflow does not run on empty answers: ZeroDivisionError: division by zero"
    ]


def test_a_workflow_that_waits_for_a_good_answer_is_left_there(rehearsed):
    found = rehearsed(
        GOOD.replace("return await", "while not str(a):\n        a = await roles.writer(q='again')\n    return await")
    )
    assert len(found.graph) == MOST_CALLS
    assert (found.wrong, found.unclear) == ([], [])


def test_a_wrapped_workflow_and_a_notebook_are_fine(rehearsed):
    code = GOOD.replace("def run", "def inner") + "def run(task, roles, tools):\n    return inner(task, roles, tools)\n"

    async def notebook():
        return rehearsed(code)

    assert asyncio.run(notebook()).graph == ["task -> writer", "writer -> editor"]
