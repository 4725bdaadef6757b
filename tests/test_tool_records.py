"""What is recorded and counted of the calls of tools: status, seconds, bytes; also of those that
are lost."""

import asyncio
import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import CharacterChat, simulated_engine, without_seconds

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Task, ToolResult
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.records.trajectory_record import from_record, to_record

metrics = pytest.importorskip("marl_plugins.engine.runtime.metrics")


async def echo(call):
    """Says what it is told, fails where it is told an odd digit, and takes a moment."""
    await asyncio.sleep(0.001)
    return ToolResult("echo", call.text, f"é{call.text}", ok=int(call.text[-1], 16) % 2 == 0)


async def down(call):
    raise InfrastructureFailure("calculator", "Connection refused")


async def hang(call):
    await asyncio.sleep(60)


def find(text):
    return [text] if len(text) % 2 == 0 else []


def run(workflow, tool=echo, calls=1, seconds=60.0, max_turns=3):
    tools = {"echo": Tool("echo", tool, lambda text: [text] * calls, calls_per_answer=2)}
    specs = {
        name: RoleSpec(
            name, "p", lambda f: [{"role": "user", "content": f["q"]}], CharacterChat(), Sampling(1.0, 1.0, 8, 900),
            tools=own, max_turns=max_turns if own else 1, endless_tools_fail=False,
        )
        for name, own in (("caller", tuple(tools.values())), ("plain", ()))
    }  # fmt: skip
    return asyncio.run(
        run_workflow(
            workflow,
            Task("t", "p"),
            0,
            step=1,
            run_seed=3,
            roles=specs,
            tools=tools,
            generate=simulated_engine(),
            seconds=seconds,
        )
    )


async def calling(task, roles, tools):
    first = await roles.caller(q="x")
    await asyncio.gather(tools.echo("b2"), tools.echo("a1"))
    return await roles.plain(q=first)


def test_every_call_is_recorded_with_status_seconds_and_bytes():
    got = run(calling)
    for result in (r for a in got.actions for r in a.tool_results):
        assert result.status == ("ok" if result.ok else "failed")
        assert result.seconds >= 0.001 and result.bytes == len(result.output) + 1
    record = json.loads(json.dumps(to_record(got)))
    first = record["actions"][0]["tools"][0]
    assert {
        "tool",
        "output",
        "ok",
        "start",
        "seconds",
        "bytes",
    } <= first.keys() and "failure" not in first
    assert [t["call"] for t in record["tools"]] == ["a1", "b2"]  # the workflow's own
    assert to_record(from_record(record)) == record


@pytest.mark.parametrize(("tool", "status"), [(down, "calculator"), (hang, "cancelled")])
def test_a_call_that_is_lost_is_recorded_too(tool, status):
    got = run(calling, tool, seconds=1.0 if tool is hang else 60.0)
    assert got.infrastructure_failure == ("deadline" if tool is hang else "calculator")
    (action,) = got.actions
    (result,) = action.tool_results
    assert result.status == status and not result.ok and result.start is not None
    assert action.end >= result.start + result.seconds
    counted = metrics.summary([got], Ledger(1))
    assert (counted["tool/echo/calls"], counted["tool/echo/lost"], counted["tool/echo/failed"]) == (
        1,
        1,
        0,
    )
    read = from_record(json.loads(json.dumps(to_record(got))))
    assert read.actions[0].tool_results == action.tool_results


def test_calls_that_are_not_made_are_in_no_metric_by_tool():
    got = run(calling, calls=5, max_turns=1)
    results = [r for a in got.actions for r in a.tool_results]
    assert [r.start is None for r in results] == [False, False, True]
    assert metrics.summary([got], Ledger(1))["tool/echo/calls"] == 4  # two of them the workflow's


def test_records_do_not_depend_on_which_of_the_workflows_calls_is_first():
    async def later(call):
        await asyncio.sleep(0.02 * ("a" in call.text))
        return await echo(call)

    assert without_seconds(to_record(run(calling))) == without_seconds(
        to_record(run(calling, later))
    )


results = st.builds(
    ToolResult,
    st.just("t"),
    st.just("c"),
    st.text(max_size=5),
    st.booleans(),
    st.floats(0, 100),
    start=st.floats(0, 9),
    failure=st.sampled_from(["", "", "sandbox"]),
)


@given(st.lists(results, min_size=1, max_size=40), st.randoms())
def test_the_metrics_of_a_tool(calls, dice):
    got = metrics.tool_metrics(calls)
    statuses = [call.status for call in calls]
    assert got["calls"] == len(calls) == got["failed"] + got["lost"] + statuses.count("ok")
    assert got["lost"] == statuses.count("sandbox")
    assert got["bytes"] == pytest.approx(statistics.fmean(len(c.output.encode()) for c in calls))
    assert got["seconds"] == pytest.approx(statistics.fmean(c.seconds for c in calls))
    below = sum(c.seconds <= got["seconds_p95"] for c in calls)
    assert below >= 0.95 * len(calls) > sum(c.seconds < got["seconds_p95"] for c in calls)
    assert metrics.tool_metrics(dice.sample(calls, len(calls))) == pytest.approx(got)
    assert all(math.isfinite(value) for value in got.values())
