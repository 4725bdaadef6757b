"""Intervals, the final table and the curves."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_plugins.core.intervals import wilson
from marl_plugins.runtime.report import read_metrics, summarise, table, write_report


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_ends_of_the_interval_solve_wilsons_equation(counts):
    """At its ends the observed rate is just 1.96 standard errors away, the errors being those of the end's own rate."""
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


def metrics(folder: Path, steps=25, every=10):
    lines = []
    for step in range(steps + 1):
        line = {"step": step}
        if step:
            line |= {"outcome/mean": step / 100, "role/solver/reward": step / 10, "role/solver/response_length": 5.0}
            line |= {"role/solver/tool_call_rate": 0.0, "role/coder/tool_call_rate": 0.5, "role/coder/reward": 1.0}
            line |= {"role/coder/tool_success": 0.25} if step > 15 else {}
        if step % every == 0 or step == steps:
            line |= {"eval/outcome": 0.5 + step / 100, "eval/low": 0.4, "eval/high": 0.9, "eval/tasks": 400, "eval/lost": 1}
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_the_summary_compares_the_first_evaluation_with_the_mean_of_the_last_three(tmp_path):
    metrics(tmp_path)
    summary = summarise(read_metrics(tmp_path), ["solver", "coder"])
    held_out = summary["held_out"]
    assert held_out["before"] == {"step": 0, "outcome": 0.5, "low": 0.4, "high": 0.9}
    assert held_out["steps_of_after"] == [10, 20, 25]
    assert held_out["after"]["outcome"] == pytest.approx(0.5 + (10 + 20 + 25) / 300)
    assert (held_out["tasks"], held_out["lost"]) == (400, 4)
    assert summary["roles"]["solver"]["reward"] == pytest.approx([0.55, 2.05])
    assert summary["roles"]["coder"]["tool_success"] == [None, 0.25]


def test_a_report_is_written_as_a_table_and_a_picture(tmp_path):
    metrics(tmp_path)
    summary, problem = write_report(tmp_path, ["solver", "coder"], "a run")
    text = (tmp_path / "report.md").read_text()
    assert "| success on 400 held-out tasks | 0.500 [0.400, 0.900] | 0.683 [0.400, 0.900] |" in text
    assert "after steps 10, 20, 25" in text
    assert not any("solver: calls a tool" in row[0] for row in table(summary)[1])  # it has none
    if problem is None:
        assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert "matplotlib" in problem


def test_a_run_without_evaluations_has_a_report_too(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "role/a/reward": 0.5, "role/a/response_length": 3}\n')
    summary, _ = write_report(tmp_path, ["a"], "short")
    assert summary["held_out"] is None
    assert "| a: reward | 0.500 | 0.500 |" in (tmp_path / "report.md").read_text()
