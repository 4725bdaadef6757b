"""What a person sees: the table of steps within its width, announcements without a terminal,
evaluations, losses."""

import json
import re
import time
from collections import Counter

import pytest
from simulated import make_trajectory

from marl_plugins.core.ledger import Ledger
from marl_plugins.engine.records import display as display_module
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.step_table import (
    HEADER_EVERY,
    WIDTH_CHARS,
    StepTable,
    abbreviated,
    duration,
    short,
)

ROLES = ["proponent_one", "opponent_two", "judge", "critic_three", "summarizer"]


def metrics_of(table, step=999):
    """Every column's number as long as it may plausibly get."""
    return {
        **{column.metric: -0.123 for column in table.columns},
        **{"step": step, "rows/trained": 12288, "rows/left_out": 1024, "trajectories/lost": 512},
        **{
            "grad_norm/max": 12345.6,
            "kl/mean": -1.2e-5,
            "drift/max": 0.0123,
            "tokens_per_second": 98765,
        },
        **{"seconds/rollout": 5000.0, "seconds/update": 5000.0, "seconds/sync": 5000.0},
    }


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("steps", [12, 1000])
def test_the_table_fits(count, steps):
    table = StepTable([*ROLES, "sixth_role", "g", "h"][:count], steps)
    for line in table.lines(metrics_of(table, steps - 1), 90 * 3600.0):
        assert len(line) <= WIDTH_CHARS


def test_five_roles_have_a_column_each_beside_step_outcome_and_time_left():
    table = StepTable(ROLES, 12)
    header, row = table.lines(metrics_of(table, 4), 125 * 60)
    assert header.split() == [
        "step",
        "outcome",
        *map(abbreviated, ROLES),
        "rows",
        "lost",
        "|grad|",
        "KL",
        "drift",
        "tok/s",
        "left",
    ]
    assert row.split()[0] == "4/12" and row.split()[-1] == "2h05m"
    assert all(a.endswith(b) for a, b in zip(columns(header, table), header.split(), strict=True))


def columns(line, table):
    """The parts of a line below each other."""
    parts, start = [], 0
    for column in table.columns:
        parts.append(line[start : start + column.width])
        start += column.width + 1
    return parts


def test_few_roles_leave_room_for_more():
    titles = [c.title for c in StepTable(["a"], 10).columns]
    assert {"out", "drift", "gen", "update", "tok/s", "KL"} <= set(titles)


def test_the_header_comes_again():
    table = StepTable(["a"], 50)
    counts = [len(table.lines({"step": n}, None)) for n in range(1, 46)]
    assert [n for n, count in enumerate(counts, start=1) if count == 2] == [
        1,
        1 + HEADER_EVERY,
        1 + 2 * HEADER_EVERY,
    ]


@pytest.mark.parametrize("count", range(1, 9))
def test_rows_of_others_have_a_column_once_there_are_any(count):
    table = StepTable(ROLES[:count], 50)
    assert "in" not in table.lines({"step": 1, "rows/trained": 8}, None)[0].split()
    header, row = table.lines({"step": 2, "rows/trained": 8, "rows/received": 3}, None)
    assert (
        dict(zip(header.split(), row.split(), strict=True))["in"] == "3"
        and len(header) <= WIDTH_CHARS
    )
    (row,) = table.lines({"step": 3, "rows/trained": 8}, None)
    assert dict(zip(header.split(), row.split(), strict=True))["in"] == "-"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0123, "0.012"),
        (3.4e-5, "3.4e-5"),
        (-1.2e-5, "-1.2e-5"),
        (2.345, "2.3"),
        (120.4, "120"),
    ],
)
def test_numbers_are_short(value, text):
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.84, "0.8s"), (73, "73.0s"), (99.99, "2m"), (720, "12m"), (11100, "3h05m")],
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_a_phase_is_announced_without_a_terminal(capsys):
    display = Display(False)
    with display.phase("starting engines (3 policies)", announce=True) as tick:
        assert re.fullmatch(
            r"\d\d:\d\d:\d\d starting engines \(3 policies\) \.\.\.\n", capsys.readouterr().out
        )  # at its start
        tick()
    with display.phase("rollout", 8):
        pass
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("total", "line"), [(40, r": 1 of 40, \d+ s\n"), (None, r": \d+ s\n")])
def test_a_log_file_is_told_from_time_to_time_that_a_phase_lasts(capsys, monkeypatch, total, line):
    monkeypatch.setattr(display_module, "SAID_EVERY_SECONDS", 0.01)
    printed = ""
    with Display(False).phase("starting engines", total, announce=True) as tick:
        tick()
        for _ in range(1000):
            if re.search(rf"\d\d:\d\d:\d\d starting engines{line}", printed):
                break
            time.sleep(0.01)
            printed += capsys.readouterr().out
        else:
            pytest.fail(printed)


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


def test_an_evaluation_says_over_what_its_mean_is(capsys):
    metrics = {
        "eval/tasks": 20,
        "eval/answered": 18,
        "eval/lost": 2,
        "eval/unscored": 0,
        "eval/seconds": 1.23,
    }
    outcome = {"eval/outcome": 0.5, "eval/low": 0.3, "eval/high": 0.7, "eval/binary": 1}
    display = Display(False)
    display.evaluation(4, metrics | outcome, [])
    display.evaluation(
        None, metrics | outcome | {"eval/binary": 0, "eval/answered": 20, "eval/lost": 0}, []
    )
    display.evaluation(4, metrics | {"eval/answered": 0, "eval/lost": 20}, [])
    assert capsys.readouterr().out.splitlines() == [
        "held-out success after step 4: 0.500 [0.300, 0.700] on 18 of 20 tasks, 2 lost (1.2 s)",
        "held-out mean score: 0.500 [0.300, 0.700] on 20 tasks (1.2 s)",
        "held-out success after step 4: none known on 0 of 20 tasks, 20 lost (1.2 s)",
    ]
