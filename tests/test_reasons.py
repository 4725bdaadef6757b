"""A report says why: criteria by role, types of tasks, failures and what was left out, with an
example each."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from simulated import make_trajectory

from marl_plugins.coach.metrics import JudgedAction, measure
from marl_plugins.coach.verdict import Verdict
from marl_plugins.core.failures import AgentFailure, InfrastructureFailure
from marl_plugins.engine.records.read import RunReader
from marl_plugins.engine.records.reasons import markdown, reasons_of
from marl_plugins.engine.records.report import legend, summarise, table, write_report

simulated = pytest.importorskip("simulated_run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of three steps: in the second and third an agent fails, in the third trajectories are
    lost."""
    folder = tmp_path_factory.mktemp("run")

    def answer(call):
        if call.step == 3 and call.task.endswith("1"):
            raise InfrastructureFailure("calculator", "Connection refused | by\nthe server")
        if call.step >= 2 and call.sample == 1:
            raise AgentFailure("no_answer", "nothing in a box")

    trainer = simulated.simulated_trainer(folder, lambda t: 1.0, answer, steps=3, eval_steps=-1)
    asyncio.run(trainer.fit(0))
    return folder


def test_the_counts_are_those_of_the_records(folder):
    records = [
        json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()
    ]
    found = reasons_of(RunReader(folder))
    for what, field in (("failed", "agent_failure"), ("lost", "infrastructure_failure")):
        (reason,) = found[what]
        mine = [r for r in records if r[field]]
        assert (reason["kind"], reason["count"], reason["of"]) == (
            mine[0][field],
            len(mine),
            len(records),
        )
        assert reason["steps"] == (mine[0]["step"], mine[-1]["step"])
        assert reason["example"].startswith(f"step {reason['steps'][1]}, task ")
    left = {(a["role"], a["left_out"]) for r in records for a in r["actions"] if a["left_out"]}
    assert {(r["role"], r["kind"]) for r in found["left_out"]} == left


def test_the_report_has_them_and_the_console_says_them_in_a_line(folder):
    summary, _ = write_report(folder, ["a"], "a run")
    text = (folder / "report.md").read_text()
    assert "nothing in a" in text and "## Failed" in text
    assert "Connection refused \\| by the server" in text  # one cell of one line
    (failed,) = summary["reasons"]["failed"]
    assert (
        f"{failed['count']} of {failed['of']} training trajectories failed by the agents' own "
        "doing: no_answer" in legend(summary)
    )
    assert json.loads(json.dumps(summary))["reasons"]["failed"]


def test_a_run_in_which_nothing_failed_has_no_such_sections(tmp_path):
    assert reasons_of(RunReader(tmp_path)) == {"failed": [], "lost": [], "left_out": []}
    assert markdown(reasons_of(RunReader(tmp_path))) == []


def test_criteria_and_types_have_rows():
    verdicts = [
        Verdict(score=2, criteria={"right": 0.0, "ends": 10.0}),
        Verdict(score=6, criteria={"right": 10.0, "ends": 0.0}),
    ]
    step = []
    for verdict in [verdicts[0], verdicts[0], verdicts[1]]:
        trajectory = make_trajectory({"a": []})
        step.append((trajectory, JudgedAction(trajectory.actions[0], verdict, False)))
    metrics = measure(step)
    assert metrics["role/a/criterion/right"] == pytest.approx(1 / 3) and metrics[
        "role/a/criterion/ends"
    ] == pytest.approx(2 / 3)
    run = [
        {"step": n, "role/a/score": 0.5, **{k: v for k, v in metrics.items() if "criterion" in k}}
        for n in (1, 2)
    ]
    run[1] |= {
        "eval/tasks": 4,
        "eval/lost": 0,
        "eval/outcome": 0.5,
        "eval/low": 0.1,
        "eval/high": 0.9,
        "eval/type/x": 0.25,
    }
    rows = {row[0]: row[1:] for row in table(summarise(run, ["a"]))[1]}
    assert rows["a: right"] == ["0.333", "0.333"] and rows["a: ends"] == ["0.667", "0.667"]
    assert rows["of type x"] == ["0.250", "-"]


def test_steps_that_follow_each_other_are_a_range():
    steps = [{"step": n, "alarm/x": float(n in (2, 3, 4, 7, 9, 10))} for n in range(1, 12)]
    assert "Alarm x after steps 2 to 4, 7, 9, 10 " in legend(summarise(steps, []))


def test_a_record_that_is_gone_leaves_the_counts(folder, tmp_path):
    (tmp_path / "ledger.jsonl").write_bytes((folder / "ledger.jsonl").read_bytes())
    (tmp_path / "trajectories.jsonl").write_text("")
    assert [r["example"] for r in reasons_of(RunReader(tmp_path))["failed"]] == [""]
    assert SimpleNamespace(**reasons_of(RunReader(folder))["failed"][0]).example
