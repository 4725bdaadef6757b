"""Intervals, the final table and the curves."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_plugins.engine.records.intervals import interval, student, t_quantile, wilson
from marl_plugins.engine.records.read import RunReader
from marl_plugins.engine.records.report import legend, summarise, table, write_report


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_ends_of_the_interval_solve_wilsons_equation(counts):
    """At its ends the observed rate is just 1.96 standard errors away, the errors being those of
    the end's own rate."""
    hits, count = counts
    rate = hits / count
    low, high = wilson(rate, count)
    assert 0 <= low <= rate <= high <= 1
    for end in (low, high):
        assert count * (rate - end) ** 2 == pytest.approx(1.96**2 * end * (1 - end), abs=1e-9)


def test_a_known_interval():
    assert wilson(0.3, 10) == pytest.approx((0.1078, 0.6032), abs=1e-4)  # the textbook's 3 of 10


def test_an_interval_over_nothing_says_nothing():
    assert wilson(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("degrees", "quantiles"),
    [
        (1, (12.706, 235.801, 10050.4)),
        (2, (4.303, 19.207, 125.64)),
        (3, (3.182, 9.219, 32.616)),
        (5, (2.571, 5.507, 12.282)),
        (16, (2.120, 3.544, 5.361)),
        (399, (1.966, 3.020, 4.042)),
        (10**6, (1.960, 3.000, 4.000)),
    ],
)
def test_students_quantile(degrees, quantiles):
    assert [t_quantile(degrees, z) for z in (1.96, 3.0, 4.0)] == pytest.approx(quantiles, rel=0.003)


def test_students_interval_is_the_textbooks_and_stays_within_the_scores():
    """Student's own data, sleep of ten patients, in units of 10 hours: mean 1.58, standard error
    0.389."""
    sleep = [0.12, 0.24, 0.13, 0.13, 0.0, 0.1, 0.18, 0.08, 0.46, 0.14]
    assert student(sleep) == pytest.approx((0.0700, 0.2460), abs=1e-3)
    assert student([0.9, 1.0, 0.95, 1.0])[1] == 1.0
    assert student([0.5, 0.6]) == (0.0, 1.0)  # two tasks say nothing


def test_successes_have_wilsons_interval_and_scores_students():
    assert interval([1.0, 0.0, 1.0, 1.0], binary=True) == wilson(0.75, 4)
    assert interval([1.0, 0.5, 1.0, 0.25], binary=False) == student([1.0, 0.5, 1.0, 0.25])
    assert interval([], binary=True) == (0.0, 1.0)


def metrics(folder: Path, steps=25, every=10):
    lines = []
    for step in range(steps + 1):
        line = {"step": step}
        if step:
            line |= {
                "outcome/mean": step / 100,
                "role/solver/reward": step / 10,
                "role/solver/response_length": 5.0,
            }
            line |= {
                "role/solver/tool_call_rate": 0.0,
                "role/coder/tool_call_rate": 0.5,
                "role/coder/reward": 1.0,
            }
            line |= {"role/coder/tool_success": 0.25} if step > 15 else {}
        if step % every == 0 or step == steps:
            line |= {
                "eval/outcome": 0.5 + step / 100,
                "eval/low": 0.4,
                "eval/high": 0.9,
                "eval/tasks": 400,
                "eval/lost": 1,
            }
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_the_summary_compares_the_first_evaluation_with_the_mean_of_the_last_three(tmp_path):
    metrics(tmp_path)
    summary = summarise(RunReader(tmp_path).metrics(), ["solver", "coder"])
    held_out = summary["held_out"]
    assert held_out["before"] == {"step": 0, "outcome": 0.5, "low": 0.4, "high": 0.9, "lost": 1}
    assert held_out["steps_of_after"] == [10, 20, 25]
    assert held_out["after"]["outcome"] == pytest.approx(0.5 + (10 + 20 + 25) / 300)
    assert (held_out["tasks"], held_out["lost"]) == (400, 4)
    assert summary["windows"] == [[1, 8], [18, 25]]
    assert summary["roles"]["solver"]["reward"] == pytest.approx([0.45, 2.15])
    assert summary["roles"]["coder"]["tool_success"] == [None, 0.25]


def test_a_run_without_evaluations_has_a_report_too(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "role/a/reward": 0.5, "role/a/response_length": 3}\n'
    )
    summary, _ = write_report(tmp_path, ["a"], "short")
    assert summary["held_out"] is None
    assert (
        "| a: reward | 0.500 | - |" in (tmp_path / "report.md").read_text()
    )  # one step is not compared with itself


def step(number, **more):
    return {"step": number, "role/a/reward": number / 10, **more}


def evaluation(number, outcome, lost=0, **more):
    found = (
        {}
        if outcome is None
        else {"eval/outcome": outcome, "eval/low": outcome - 0.1, "eval/high": outcome + 0.1}
    )
    return {"step": number, "eval/tasks": 20, "eval/lost": lost, **found, **more}


@pytest.mark.parametrize("steps", [1, 2, 5, 6, 13])
def test_before_and_after_never_share_a_step(steps):
    summary = summarise([step(n) for n in range(1, steps + 1)], ["a"])
    before, after = summary["windows"]
    assert before[0] == 1
    if steps == 1:
        assert after is None
    else:
        assert before[1] < after[0] and after[1] == steps
        assert before[1] - before[0] == after[1] - after[0] == (0 if steps < 6 else steps // 3 - 1)


def test_an_evaluation_is_not_compared_with_itself():
    summary = summarise([evaluation(0, 0.5)], [])
    assert table(summary)[1] == [["success on 20 held-out tasks", "0.500 [0.400, 0.600]", "-"]]


def test_lost_evaluations_are_neither_wrong_nor_silent():
    """One lost from end to end says nothing, whether it is the first or the last."""
    found = [
        evaluation(0, None, 20),
        evaluation(1, 0.4),
        evaluation(2, 0.6, 5),
        evaluation(3, None, 20),
    ]
    summary = summarise(found, [])
    assert table(summary)[1] == [
        ["success on 20 held-out tasks", "-, 20 lost", "0.500 [0.400, 0.600], 25 lost"]
    ]
    assert "45 evaluation trajectories" in legend(summary)


def test_a_zero_sum_game_is_reported_by_role():
    found = [
        evaluation(n, None, **{"eval/outcome/a": n / 4, "eval/outcome/b": 1 - n / 4})
        for n in (0, 1)
    ]
    rows = table(summarise(found, ["a", "b"]))[1]
    assert rows == [
        ["a: held-out outcome", "0.000", "0.250"],
        ["b: held-out outcome", "1.000", "0.750"],
    ]


def test_a_picture_is_drawn_of_runs_with_gaps(tmp_path):
    pytest.importorskip("matplotlib")
    found = [
        evaluation(0, None, 20),
        evaluation(1, 0.4) | step(1, **{"outcome/mean": 0.5}),
        step(2),
        evaluation(3, None, 20),
    ]
    for name, part in {"gaps": found, "steps": [step(1)]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in part))
        assert write_report(tmp_path / name, ["a"], name)[1] is None
        assert (tmp_path / name / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_number_that_is_none_is_in_no_mean_and_in_no_line():
    wrong = {"role/a/score": float("nan"), "role/a/reward": float("inf"), "role/a/outcome": None}
    steps = [{"step": n, **(wrong if n % 2 else dict.fromkeys(wrong, 0.5))} for n in range(1, 8)]
    _, rows = table(summarise(steps, ["a"]))
    assert rows and not [cell for row in rows for cell in row if cell in ("nan", "inf", "None")]
    assert {cell for row in rows for cell in row[1:]} == {"0.500"}
