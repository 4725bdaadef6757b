"""Data sets of reasoning-gym: as tasks of recipes/swarm, and as cases."""

import json
import random

import pytest
from simulated import make_trajectory

from marl_plugins.cases.gym import GymCase, gym_score, gym_task
from marl_plugins.core.cases import is_score
from marl_plugins.core.shipped import recipes_root
from marl_plugins.loading import load_file

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


def test_splits_share_nothing_and_hold_every_specialty():
    train, held_out = TASKS.load("train", 90), TASKS.load("eval", 900)
    assert not {t.prompt for t in train} & {t.prompt for t in held_out}
    assert {t.metadata["type"] for t in train} == {t.metadata["type"] for t in held_out} == {*TASKS.SPECIALTIES}
    assert all(TASKS.task_of(t.id) == t for t in train) and not any(TASKS.task_of(t.id) for t in held_out)
    assert TASKS.task_of("bf-x") is TASKS.task_of("nothing-3") is TASKS.task_of("bf-03") is None


def test_the_grader_reads_the_last_box_or_all():
    grader, task = load_file(FOLDER / "gym_grader.py"), task_of("basic_arithmetic")
    answer = task.label["answer"]
    for said, outcome in ((f"\\boxed{{1}} no: \\boxed{{{answer}}}", 1.0), (f" {answer}\n", 1.0), ("\\boxed{banana}", 0.0)):
        trajectory = make_trajectory({"solver": []}, task=task.id)
        trajectory.task, trajectory.answer = task, said
        assert grader.score_outcome(trajectory) == outcome


def test_braces_in_the_box_are_read():
    grader, task = load_file(FOLDER / "gym_grader.py"), gym_task("fraction_simplification", 0)
    assert task.label["answer"].startswith("$\\dfrac{")
    trajectory = make_trajectory({"solver": []}, task=task.id)
    for said, outcome in (
        (task.label["answer"], 1.0),
        ("\\boxed{" + task.label["answer"].strip("$") + "}", 1.0),
        ("\\boxed{", 0.01),
    ):
        trajectory.task, trajectory.answer = task, said
        assert grader.score_outcome(trajectory) == outcome


def test_a_data_set_is_a_case():
    case = GymCase("leg_counting", {"max_animals": 3})
    made = case.case(random.Random(3), None)
    assert made == case.case(random.Random(3), None) != case.case(random.Random(4), None)
    assert case.prompt(made) == {"problem": made["question"]} and case.verify(made["answer"], made) == 1.0
    assert case.verify(int(made["answer"]), made) == 1.0 and all(is_score(case.verify(v, made)) for v in (None, "", 3.5))
