"""What a person is told of a step: losses by cause, and where numbers go to standard output."""

import json
from collections import Counter

import pytest
from simulated import make_trajectory

from marl_plugins.core.ledger import Ledger
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.step_table import WIDTH_CHARS, StepTable


def test_with_json_people_are_told_on_standard_error(capsys):
    display = Display(True, ["a"])
    with display.phase("starting engines", announce=True):
        pass
    lost = make_trajectory({"a": []})
    lost.lose("calculator", "Connection refused")
    display.rollout(4, {}, [lost], Ledger(4))
    display.step({"step": 4.0}, 12, 60.0)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"step": 4.0}
    assert (
        "starting engines ..." in err
        and "step 4: 1 of 1 trajectories lost: calculator: Connection refused" in err
    )


def test_a_step_says_one_line_per_cause_and_where_there_is_no_signal(capsys):
    found = [make_trajectory({"a": []}, sample=n) for n in range(4)]
    for t, kind in zip(found, ["engine", "calculator", "calculator"], strict=False):
        t.lose(kind, "gone")
    found[3].actions[0].unscored, found[3].actions[0].explanation = (
        "coach_busy",
        "no verdict: HTTP 429",
    )
    Display(False).rollout(2, {"signal/none": 1.0}, found, Ledger(2, trained=Counter(a=1)))
    assert capsys.readouterr().out.splitlines() == [
        "step 2: 2 of 4 trajectories lost: calculator: gone",
        "step 2: 1 of 4 trajectories lost: engine: gone",
        "step 2: 1 of 4 actions without a score: coach_busy: no verdict: HTTP 429",
        "step 2: no signal: every advantage is 0, because no two rewards that are compared differ",
    ]


@pytest.mark.parametrize("count", [1, 8])
def test_a_step_has_a_line_whatever_was_measured_of_it(count):
    table = StepTable([f"role_{n}" for n in range(count)], 12)
    all_of_it = {column.metric: -1.2e-5 for column in table.columns} | {"step": 2}
    for metrics in ({"step": 1}, all_of_it):
        assert all(len(line) <= WIDTH_CHARS for line in table.lines(metrics, 60.0))
