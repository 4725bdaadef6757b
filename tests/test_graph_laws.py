"""Laws of random graphs with loops, maps, joins, sub-graphs, retries and failures: dependencies are
complete, timing is nothing.

MARL_GRAPHS=1000 python -m pytest tests/test_graph_laws.py
"""

import asyncio
import os
import random

import pytest
from graph_interpreter import NOTHING, Failed, Interpreter, said
from random_graphs import Writer, compiled, content, engine, lost_descendants, played, slow_tools
from simulated import CharacterChat

from marl_plugins.builtin.graph.values import as_text
from marl_plugins.core.trajectory import Generation

GRAPHS = int(os.environ.get("MARL_GRAPHS", "24"))
"""Of each kind; the numbers of docs/graphs.md are of 1,000."""
OTHERS = "1469"
"""What a changed action says."""


def workflows(folder, **kind):
    for seed in range(GRAPHS):
        workflow, problems = compiled(folder, Writer(seed, **kind).written())
        assert not problems, (seed, [*map(str, problems)])
        yield seed, workflow


@pytest.mark.parametrize(("rounds", "once"), [(False, False), (True, False), (True, True)])
def test_whatever_differs_when_an_answer_is_changed_depends_on_it(tmp_path, rounds, once):
    """Paths are made of role, parents and context, so an action that is shown something else has
    another one."""

    async def law(seed, workflow):
        before, changes = await played(workflow, engine()), 0
        for action in before.actions:
            for other in {*OTHERS} - {action.text}:
                after = await played(workflow, engine((action.path, other)))
                assert not lost_descendants(before, after, action.path), (seed, action.path, other)
                changes += 1
        return changes

    changes = sum(asyncio.run(law(*one)) for one in workflows(tmp_path, rounds=rounds, once=once))
    print(f"{changes} changed answers in {GRAPHS} graphs")
    assert changes > 5 * GRAPHS


@pytest.mark.parametrize(("rounds", "once"), [(False, False), (True, False), (True, True)])
def test_latencies_change_nothing(tmp_path, rounds, once):
    """But for actions of one role that saw the very same, which are told apart by which began
    first, as in any workflow."""
    compared = 0
    for seed, workflow in workflows(tmp_path, rounds=rounds, budget=rounds, once=once):
        trajectory = asyncio.run(played(workflow, engine()))
        if any("+" in action.path for action in trajectory.actions):
            continue
        at_once, compared = content(trajectory), compared + 1
        for draw in range(3):
            latency = random.Random(1000 * draw + seed)
            late = asyncio.run(played(workflow, engine(latency=latency), slow_tools(latency)))
            assert content(late) == at_once, seed
    assert compared > 0.8 * GRAPHS


@pytest.mark.parametrize("rounds", [False, True])
def test_a_graph_runs_as_its_page_says(tmp_path, rounds):
    """The page's words as a second interpreter (graph_interpreter.py): the same calls of the same
    nodes in the same rounds, the same answer, the same failure."""

    async def generate(call):
        prompt = "".join(map(chr, call.context_ids)).removeprefix("u:").removesuffix("^a:")
        ids = (*CharacterChat.encode(said(call.role, prompt)), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

    total, graphs = 0, max(GRAPHS, 100)
    for seed in range(graphs):
        graph = Writer(seed, rounds, budget=rounds, once=True).written()
        workflow, problems = compiled(tmp_path, graph)
        assert not problems, (seed, [*map(str, problems)])
        trajectory, interpreter = (
            asyncio.run(played(workflow, generate)),
            Interpreter(graph.get("graphs", {})),
        )
        try:
            answer, failed = interpreter.run(graph, {})[0], False
        except Failed:
            answer, failed = NOTHING, True
        calls = [
            (
                action.notes["graph"]["node"],
                tuple(map(tuple, action.notes["graph"].get("within", ()))),
                action.role,
                action.shown[0][1],
                action.text,
            )
            for action in trajectory.actions
        ]
        assert sorted(calls) == sorted(interpreter.calls), seed
        assert (trajectory.agent_failure == "no_answer") == failed, seed
        expected = None if answer is NOTHING or answer is None else as_text(answer)
        assert trajectory.answer == expected, seed
        total += len(calls)
    assert total > 1.5 * graphs


def test_a_law_that_is_broken_is_seen(tmp_path):
    """Without the deciders that loops and skips hand on, actions are lost."""
    text = """
nodes:
  a1: {role: a, with: {q: "'1'"}, read: number}
  b1: {role: b, with: {q: "'2'"}, read: number, when: a1 > 4}
  a2: {role: a, with: {q: "str(ran(b1))"}}
give: a2
"""
    workflow, _ = compiled(tmp_path, text)
    before = asyncio.run(played(workflow, engine()))
    first = before.actions[0]
    after = asyncio.run(played(workflow, engine((first.path, "1" if int(first.text) > 4 else "9"))))
    assert not lost_descendants(before, after, first.path)
    for trajectory in (before, after):
        for action in trajectory.actions[1:]:
            vars(action)["parents"] = ()
    assert lost_descendants(before, after, first.path)
