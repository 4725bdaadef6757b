"""The trace of `openrlhf export`: parents precede, intervals nest, sums are the metrics'; and who
cannot be traced is told."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from simulated import make_trajectory
from test_tool_records import echo, find

from marl_plugins.cli import main
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.tools import Tool
from marl_plugins.engine.records.load import load_of
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.engine.records.tables import accounts_of, row_of
from marl_plugins.engine.records.trace import trace_of, traced

simulated = pytest.importorskip("simulated_run")


async def branches(task, roles, tools):
    """A turn that continues, two branches that wait for a moment, a call of the workflow, and a
    join."""

    async def branch(number, first):
        await asyncio.sleep(random.random() / 100)
        return await roles.a(q=f"{number}", seen=first)

    first = await roles.a(q=task.prompt)
    again = await roles.a(q="go on", continues=first)
    both = await asyncio.gather(branch(1, first), branch(2, again))
    told = await tools.echo(str(both[0]))
    return await roles.a(q=told.output, after=list(both))


def test_a_fork_has_a_name_and_what_it_repeats_was_asked_of_nobody():
    fork = make_trajectory({"a": [], "b": ["a"]})
    fork.forked, fork.actions[0].replayed = ("b", 1), True
    for action in fork.actions:
        action.end = 1.0
    (asked,) = traced(fork)
    assert (asked.action, asked.fork) == ("b", "b:1")
    assert [row_of(fork, action)["fork"] for action in fork.actions] == ["b:1", "b:1"]
    account = accounts_of((fork, action) for action in fork.actions)["p"]
    assert (account["actions"], account["tokens_sampled"]) == (2, 2)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of three steps, in whose third one trajectory is lost."""
    folder = tmp_path_factory.mktemp("run")

    def answer(call):
        if call.step == 3 and call.sample == 1 and call.task.endswith("1"):
            raise InfrastructureFailure("calculator", "Connection refused")

    trainer = simulated.simulated_trainer(
        folder, lambda t: 1.0, answer, steps=3, eval_steps=-1, workflow=branches
    )
    rollout = trainer.session.rollout
    tool = Tool("echo", echo, find)
    rollout.tools = {"echo": tool}
    (spec,) = rollout.cast.members["a"]
    rollout.cast.members["a"] = (
        replace(spec, tools=(tool,), max_turns=3, endless_tools_fail=False),
    )
    asyncio.run(trainer.fit(0))
    return folder


def test_the_load_is_the_integral_of_the_requests_in_flight(recorded):
    """By a count at 20,000 moments of the step's rollout."""
    asked = [a for a in trace_of(RunReader(recorded), Filter((2, 2))) if a.policy]
    end = max(a.answered for a in asked)
    ((policy, (count, busy, *load)),) = load_of(RunReader(recorded), 2).items()
    assert (policy, count) == (asked[0].policy, len(asked))
    moments = [end * (n + 0.5) / 20_000 for n in range(20_000)]
    with_any = sum(any(a.start <= moment < a.answered for a in asked) for moment in moments)
    assert busy == pytest.approx(with_any / 20_000, abs=0.002)
    for part, mean in enumerate(load):
        moments = [end * (part + (n + 0.5) / 2000) / len(load) for n in range(2000)]
        flying = [sum(a.start <= moment < a.answered for a in asked) for moment in moments]
        assert mean == pytest.approx(sum(flying) / len(flying), abs=0.02)
    assert load_of(RunReader(recorded), 99) == {}


TRACE = ("--table", "trace", "--to")


def of_run(folder):
    return list(trace_of(RunReader(folder)))


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_parents_precede_and_intervals_nest(recorded):
    ended, spans = {}, {}
    for record in lines(recorded, "trajectories.jsonl"):
        start = record["start"]
        spans[record["step"], record["task"], record["sample"]] = start, start + record["seconds"]
    steps = Counter()
    for action in of_run(recorded):
        of = action.step, action.task, action.sample
        assert all(ended[*of, parent] <= action.start for parent in action.parents)
        ended[*of, action.action] = action.end
        assert spans[of][0] <= action.start <= action.answered <= action.end <= spans[of][1] + 1e-9
        before = action.answered
        for call in action.tools if action.role else ():
            assert before <= call.start and call.start + call.seconds <= action.end + 1e-9
            before = call.start + call.seconds
        steps[action.step] += 1
    assert sorted(steps) == [1, 2, 3]


def test_its_sums_are_the_metrics(recorded):
    for metrics in lines(recorded, "metrics.jsonl"):
        mine = [action for action in of_run(recorded) if action.step == metrics["step"]]
        calls = [call for action in mine for call in action.tools]
        assert metrics["tokens/sampled"] == sum(action.tokens_out for action in mine)
        assert metrics["rows/generated"] == sum(bool(action.role) for action in mine)
        assert metrics["tool/echo/calls"] == len(calls) > 0
        assert metrics["tool/echo/failed"] == sum(call.status == "failed" for call in calls)
        assert metrics["tool/echo/seconds"] * len(calls) == pytest.approx(
            sum(call.seconds for call in calls)
        )
        assert metrics["tool/echo/bytes"] * len(calls) == pytest.approx(
            sum(call.bytes for call in calls)
        )


def test_a_record_that_cannot_be_read_is_named(recorded, tmp_path, capsys):
    records = lines(recorded, "trajectories.jsonl")
    records[1]["schema"] = 0
    (tmp_path / "trajectories.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records)
    )
    assert main(["export", str(tmp_path), *TRACE, "-"]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/trajectories.jsonl:2: cannot be " in said and "schema 0" in said
