"""The recipe debate: what each side and the judge are shown, and who wins what."""

import pytest
from recipe_runs import planned, played


@pytest.fixture(scope="module", params=["tiny.yaml", "recipe.yaml"])
def plan(request):
    return planned(f"debate/{request.param}")


def debated(plan, task, says):
    """A scored debate in which `says(role, turn)` answers, and what each action was shown, by
    (role, turn)."""
    shown = {}

    def said(role, prompt):
        turn = sum(other == role for other, _ in shown)
        shown[role, turn] = prompt
        return says(role, turn)

    return played(plan, task, said), shown


def lines(task, side):
    """The parts of a side's report that can be quoted, the best one first."""
    return sorted(task.metadata["reports"][side], key=lambda line: -number(line))


def number(line):
    return max(int(word) for word in line.replace(".", "").split() if word.isdigit())


def test_its_splits_share_no_task_and_labels_are_true(plan):
    train, held_out = plan.tasks("train"), plan.tasks("eval")
    reports = [{str(task.metadata["reports"]) for task in tasks} for tasks in (train, held_out)]
    assert len(train) >= 1000 and len(held_out) >= 200 and not reports[0] & reports[1]
    for task in train[:200]:
        north, south = (number(lines(task, side)[0]) for side in ("north", "south"))
        assert task.label == ("north" if north > south else "south")
    assert 0.4 < sum(task.label == "north" for task in train) / len(train) < 0.6


def test_a_debate_with_memory(plan):
    """A side sees its own report and what the other has quoted; the judge sees quotes only."""
    task = plan.tasks("train")[0]
    quotes = {side: lines(task, side)[:2] for side in ("north", "south")}
    trajectory, shown = debated(
        plan, task, lambda role, turn: task.label if role == "judge" else quotes[role][turn]
    )
    assert trajectory.outcomes == {
        task.label: 1.0,
        {"north": "south", "south": "north"}[task.label]: 0.0,
        "judge": 1.0,
    }
    for side, other in (("north", "south"), ("south", "north")):
        report = "\n".join(task.metadata["reports"][side])
        assert report in shown[side, 0] and quotes[side][0] in shown[side, 1].split(report)[1]
        assert quotes[other][0] in shown[side, 1].split(report)[1]
        if len(report) > 20:
            assert not any(
                line in shown[other, 1] + shown["judge", 0] for line in lines(task, side)[2:]
            )
    assert all(quote in shown["judge", 0] for both in quotes.values() for quote in both)
    judge = next(a for a in trajectory.actions if a.role == "judge")
    assert set(judge.parents) == {a.path for a in trajectory.actions if a.role != "judge"}
    seconds = [a for a in trajectory.actions if a.turn == 1]
    assert len(seconds) == 2 and all(a.extends and len(a.parents) == 2 for a in seconds)


@pytest.mark.parametrize(
    ("text", "side"),
    [
        *[
            ("north", "north"),
            ("South.", "south"),
            ("not north but\nsouth", "south"),
        ],
        *[("", ""), ("northern", "")],
    ],
)
def test_the_judges_word(plan, text, side):
    assert plan.run.grader_module.decision(text) == side
