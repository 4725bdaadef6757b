"""Data sets of reasoning-gym: as tasks of recipes/swarm, and as cases."""

import json
import random
import time

import pytest

from marl_plugins.builtin.cases import gym
from marl_plugins.builtin.cases.gym import GymCase, gym_score, gym_task
from marl_plugins.core.cases import is_score
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.shipped import recipes_root

FOLDER = recipes_root() / "swarm"
TASKS = load_file(FOLDER / "gym_tasks.py")


def task_of(name):
    """The first training task of a specialty."""
    return next(task for n in range(50) if (task := TASKS.task_of(f"{name}-{n}")))


@pytest.mark.parametrize("name", TASKS.SPECIALTIES)
def test_a_task_is_made_from_its_name_and_its_own_answer_is_right(name, capsys):
    task = task_of(name)
    assert task == TASKS.task_of(task.id) and json.loads(json.dumps(task.label)) == task.label
    assert gym_score(task, task.label["answer"] or task.label["metadata"]["example_answer"]) == 1.0
    assert all(gym_score(task, nonsense) <= 0.25 for nonsense in (None, "", "banana", "x" * 10_000))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["arc_agi", "rearc"])
def test_a_verifier_gets_its_tuples(name):
    task = gym_task(name, 1)
    assert json.loads(json.dumps(task.label)) == task.label
    assert gym_score(task, task.label["answer"]) == 1.0 > gym_score(task, "1 2\n3 4")


def test_splits_share_nothing_and_hold_every_specialty():
    train, held_out = TASKS.load("train", 90), TASKS.load("eval", 900)
    assert not {t.prompt for t in train} & {t.prompt for t in held_out}
    assert (
        {t.metadata["type"] for t in train}
        == {t.metadata["type"] for t in held_out}
        == {*TASKS.SPECIALTIES}
    )
    assert all(TASKS.task_of(t.id) == t for t in train) and not any(
        TASKS.task_of(t.id) for t in held_out
    )
    assert TASKS.task_of("bf-x") is TASKS.task_of("nothing-3") is TASKS.task_of("bf-03") is None


def test_a_data_set_is_a_case():
    case = GymCase("leg_counting", {"max_animals": 3})
    made = case.case(random.Random(3), None)
    assert made == case.case(random.Random(3), None) != case.case(random.Random(4), None)
    assert (
        case.prompt(made) == {"problem": made["question"]}
        and case.verify(made["answer"], made) == 1.0
    )
    assert case.verify(int(made["answer"]), made) == 1.0 and all(
        is_score(case.verify(v, made)) for v in (None, "", 3.5)
    )


@pytest.mark.parametrize(
    "name",
    [
        "binary_matrix",
        "countdown",
        "propositional_logic",
        "polynomial_multiplication",
        "simple_integration",
    ],
)
def test_no_answer_is_executed(name, tmp_path):
    task, left = gym_task(name, 1), tmp_path / "left"
    first = task.label["metadata"].get("example_answer") or task.label["answer"]
    honest = gym_score(task, first)
    for answer in (
        f"__import__('os').system('touch {left}')",
        f"[open('{left}', 'w')]",
        f"sympify(\"open('{left}', 'w')\")",
        "setattr(type(self), 'score_answer', lambda *a: 1.0)",
        "[r.split() for r in oracle_answer.splitlines()]",
        "open('score', 'w').write('1.0') and __import__('os')._exit(0)",
        "exit()",
    ):
        assert gym_score(task, answer) <= 0.05
    assert (
        not left.exists()
        and gym_score(task, first) == honest == 1.0
        and gym_score(task, "anything") <= 0.05
    )


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("countdown", "9**9**9**9"),
        ("binary_matrix", "[" * 10_000),
        ("propositional_logic", "(" * 9000),
    ],
)
def test_no_answer_keeps_the_grader_busy_or_raises(name, answer):
    before = time.monotonic()
    assert gym_score(gym_task(name, 1), answer) <= 0.05
    assert time.monotonic() - before < 30


def test_a_verifier_that_cannot_be_run_is_no_score(monkeypatch):
    monkeypatch.setattr(gym, "SOURCE", "raise ImportError('no reasoning_gym')")
    with pytest.raises(InfrastructureFailure, match="no reasoning_gym"):
        gym_score(gym_task("countdown", 1), "1 + 1")
