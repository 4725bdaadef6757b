"""What a person is told of a step, and where numbers go to standard output."""

import json

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


@pytest.mark.parametrize("count", [1, 8])
def test_a_step_has_a_line_whatever_was_measured_of_it(count):
    table = StepTable([f"role_{n}" for n in range(count)], 12)
    all_of_it = {column.metric: -1.2e-5 for column in table.columns} | {"step": 2}
    for metrics in ({"step": 1}, all_of_it):
        assert all(len(line) <= WIDTH_CHARS for line in table.lines(metrics, 60.0))
