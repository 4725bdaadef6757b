"""`openrlhf recipes new`: a recipe from names of roles and a file of tasks, which passes a dry run
and a check."""

import json
import sys
from pathlib import Path

import pytest

from marl_plugins.cli import main
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.plan.build import build_plan


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Writes rows into a file of tasks, and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(rows, name="tasks.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return name

    return write


def sums(count, first=0):
    return [
        {"question": f"What is {n}+{n}?", "answer": str(2 * n), "hard": n > 5}
        for n in range(first, first + count)
    ]


def new(*words):
    return main(["recipes", "new", *words])


def planned(file, monkeypatch):
    monkeypatch.setenv(cpu.DEVICE, "cpu" if "tiny" in file else "cuda")
    return build_plan(["--recipe", file])


@pytest.mark.parametrize(
    ("count", "roles"), [(1, "solver"), (9, "planner,coder,checker"), (300, "solver")]
)
def test_its_plans_have_no_warning(data, monkeypatch, count, roles):
    assert new("mine", "--roles", roles, "--data", data(sums(count))) == 0
    for file in ("mine", "mine/tiny.yaml"):
        plan = planned(file, monkeypatch)
        assert plan.run.warnings == () and [*plan.run.recipe.roles] == roles.split(",")
        assert (
            len(plan.tasks("train")) + len(plan.tasks("eval")) == count
            and len(plan.tasks("eval")) == count // 10
        )
        assert plan.tasks("train")[0].metadata == {"hard": False}


def test_it_passes_its_own_check(data, capsys):
    new("mine", "--roles", "planner,solver", "--data", data(sums(20)))
    capsys.readouterr()
    assert main(["recipes", "check", "mine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fine"] and len(found["labels"]) == 80


def test_a_prompt_that_may_be_another_field_is_refused(data):
    """As in Alpaca's columns; the recipe's own file has one field."""
    rows = [{"instruction": f"Add {n}.", "input": f"{n}", "output": f"{2 * n}"} for n in range(20)]
    asked = ("mine", "--roles", "solver", "--data", data(rows))
    assert new(*asked) == 2 and not Path("mine").exists()
    assert new(*asked, "--data.input_key", "instruction") == 0


def test_held_out_tasks_that_are_trained_on_are_counted(data, capsys):
    files = ("--data", data(sums(20)), "--eval-data", data(sums(10, 17), "eval.jsonl"))
    assert new("mine", "--roles", "solver", *files) == 0
    assert "3 of 10" in capsys.readouterr().out


PROGRAM = """
import json, os, urllib.request
from {module} import question

def {function}(prompt):
    body = {{"model": "solver", "messages": [{{"role": "user", "content": question(prompt)}}]{more}}}
    headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""
TOOL = (
    ', "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": '
    '"object"}}}]'
)


def program(folder, module="tasks", function="main", more=""):
    """A program with a module beside it, which imports another one."""
    (folder / "theirs").mkdir()
    (folder / "theirs" / "my_agent.py").write_text(
        PROGRAM.format(module=module, function=function, more=more)
    )
    (folder / "theirs" / "tasks.py").write_text(
        "from words import ASK\n\n\ndef question(text):\n    return ASK + text\n"
    )
    (folder / "theirs" / ".venv").mkdir()
    (folder / "theirs" / ".venv" / "other.py").write_text("")
    (folder / "theirs" / "words").mkdir()
    (folder / "theirs" / "words" / "__init__.py").write_text("ASK = 'Compute: '\n")
    return "theirs/my_agent.py"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({}, []),
        (
            {"function": "solve", "more": TOOL},
            ["--function", "solve", "--calls", "hermes"],
        ),
        ({}, ["--python", sys.executable, "--model", "tiny"]),
    ],
)
def test_an_existing_program_becomes_a_recipe_that_passes_its_check(
    made, words, data, monkeypatch, tmp_path, capsys
):
    agent = program(tmp_path, **made)
    assert new("mine", "--agent", agent, "--roles", "solver", "--data", data(sums(20)), *words) == 0
    for file in ("mine",) if "tiny" in words else ("mine", "mine/tiny.yaml"):
        monkeypatch.setenv(
            cpu.DEVICE, "cpu" if "tiny" in [*words, file.partition("/")[2][:4]] else "cuda"
        )
        assert build_plan(["--recipe", file]).run.warnings == ()
    capsys.readouterr()
    assert main(["recipes", "check", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fine"]
    copied = {
        path.relative_to(tmp_path / "mine").as_posix()
        for path in (tmp_path / "mine" / "agent").rglob("*.py")
    }
    assert copied == {"agent/my_agent.py", "agent/tasks.py", "agent/words/__init__.py"}
