"""Every shipped recipe's grader on the answers of its answers.py: right ones, wrong ones, and tricks
that want to be paid for nothing."""

import asyncio

import pytest

from marl_plugins.commands.recipes import main
from marl_plugins.contracts.graders import FILE, check_grader
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.recipe_yaml import read_recipe
from marl_plugins.core.recipe.schema import find_recipe
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan.build import build_plan, draft_plan
from marl_plugins.grading.exploits import TRICKS
from marl_plugins.sandbox import Checker

RECIPES = {
    folder.name: "tiny_merchant.yaml" if folder.name == "ecommerce" else "tiny.yaml"
    for folder in sorted(recipes_root().iterdir())
    if (folder / FILE).is_file()
}


def checked(path):
    return check_grader(
        draft_plan(["--recipe", str(path)], Plugins(read_recipe(find_recipe(str(path))).plugins))
    )


@pytest.fixture
def checked_once(monkeypatch):
    """A program and checks are run once, however many answers lead to them."""
    passed, known = Checker.passed, {}

    async def once(self, program, checks):
        if (program, checks) not in known:
            known[program, checks] = asyncio.ensure_future(passed(self, program, checks))
        return await known[program, checks]

    monkeypatch.setattr(Checker, "passed", once)


@pytest.mark.usefixtures("checked_once")
@pytest.mark.parametrize("name", RECIPES)
def test_a_shipped_grader_pays_what_is_right_and_nothing_else(name):
    found = checked(recipes_root() / name / RECIPES[name])
    assert [(one.kind, one.answer, one.outcome) for one in found if not one.fine] == []
    assert {one.kind for one in found if one.answer not in TRICKS} == {"right", "wrong", "tricks"}


PAIR = {
    "recipe.yaml": (
        "name: pair\nroles:\n  coder: {prompt: coder.md}\nworkflow: workflow.py\ntasks: "
        "tasks.py\ngrader: grader.py\nmodel: tiny\n"
    ),
    "coder.md": "{problem}\n",
    "workflow.py": "async def run(task, roles, tools):\n    return await "
    "roles.coder(problem=task.prompt)\n",
    "tasks.py": (
        "from marl_plugins.core.trajectory import Task\n\n\n"
        "def load(split):\n    return [Task(f'{split}-1', 'f(x) = x + 1', 'assert f(1) == 2')] if "
        "split == 'train' else []\n"
    ),
    "answers.py": (
        "from marl_plugins.contracts.graders import GradedAnswers\n\n\ndef answers(tasks):\n"
        "    yield GradedAnswers(tasks[0], ['def f(x): return x + 1'], ['def f(x): return x'], "
        "['def f(x): raise SystemExit'])\n"
    ),
}
EXECUTES = (
    "import subprocess, sys\n\n\ndef score_outcome(trajectory):\n"
    "    program = f'{trajectory.answer}\\n{trajectory.task.label}'\n"
    "    return float(subprocess.run([sys.executable, '-c', program], "
    "capture_output=True).returncode == 0)\n"
)
CHECKS = (
    "from marl_plugins.sandbox import Checker\n\nchecker = Checker(seconds=5)\n\n\nasync def "
    "score_outcome(trajectory):\n"
    "    return float((await checker.passed(trajectory.answer, trajectory.task.label)).passed)\n"
)


@pytest.fixture
def pair(tmp_path):
    def make(grader, **changed):
        for name, text in {
            **PAIR,
            "grader.py": grader,
            **{f"{n}.py": t for n, t in changed.items()},
        }.items():
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


def test_a_grader_that_appends_checks_to_the_program_is_found_by_its_tricks(pair, capsys):
    assert main(["check", str(pair(EXECUTES))]) == 1
    said = capsys.readouterr().out
    assert [line[:6] for line in said.splitlines()[:2]] == ["1 of 1"] * 2
    assert "raise SystemExit" in said and "os._exit(0)" in said


def test_a_grader_that_checks_programs_apart_is_fine(pair, capsys):
    assert main(["check", str(pair(CHECKS))]) == 0
    assert f"{len(TRICKS) + 1} of {len(TRICKS) + 1}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ("x = 1", "answers.none"),
        (
            "from marl_plugins.contracts.graders import GradedAnswers\n"
            "def answers(tasks): return [GradedAnswers(tasks[0], role='code')]",
            "answers.role",
        ),
    ],
)
def test_answers_that_are_none_are_named(pair, answers, code):
    assert codes(lambda: checked(pair(CHECKS, answers=answers))) == [code]


def codes(work):
    with pytest.raises(ConfigurationError) as caught:
        work()
    return [problem.code for problem in caught.value.problems]


def test_a_recipe_without_answers_is_told_so(pair):
    folder = pair(CHECKS)
    (folder / FILE).unlink()
    assert codes(lambda: checked(folder)) == ["files.missing"]


SMALL = (
    *("--data.max_len", "256", "--rollout.max_new_tokens", "8", "--rollout.batch_size", "1"),
    *("--train.batch_size", "1", "--train.micro_batch_size", "1"),
)


def warned(folder):
    run = build_plan(["--recipe", str(folder), *SMALL]).run
    return [warning for warning in run.warnings if warning.code == "rehearsal.pays_leaving"]


def test_the_rehearsal_names_a_grader_that_pays_leaving(pair):
    (warning,) = warned(folder := pair(EXECUTES))
    assert warning.names("file") == () and warning.names("line") == (f"{folder}/grader.py:4",)
    assert "pays 1 for a program" in warning.got and "SystemExit" in warning.got


def test_a_grader_that_runs_programs_in_its_own_process_is_named(pair):
    folder = pair(
        "def score_outcome(trajectory):\n    try:\n        exec(trajectory.answer + '\\n' + "
        "trajectory.task.label, {})\n"
        "    except Exception:\n        return 0.0\n    return 1.0\n"
    )
    assert codes(lambda: checked(folder)) == ["answers.left"]
    (warning,) = warned(folder)
    assert "own process" in warning.got


def test_the_rehearsal_names_a_grader_that_compares_what_a_program_made(pair):
    compares = (
        "def score_outcome(trajectory):\n    names = {}\n    try:\n        exec(trajectory.answer, "
        "names)\n"
        "    except BaseException:\n        return 0.0\n    f = names.get('f', lambda x: None)\n   "
        " return float(bool(f(1) == 2))\n"
    )
    (warning,) = warned(pair(compares))
    assert "equals everything" in warning.got


@pytest.mark.parametrize(
    "grader", [CHECKS, "def score_outcome(trajectory):\n    return 0.5  # without exec\n"]
)
def test_the_rehearsal_has_nothing_against_others(pair, grader):
    assert warned(pair(grader)) == []
