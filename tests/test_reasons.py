"""A report says why: criteria by role, types of tasks, failures and what was left out, with an
example each."""

import asyncio
import json

import pytest

from marl_plugins.core.failures import AgentFailure, InfrastructureFailure
from marl_plugins.engine.records.read import RunReader
from marl_plugins.engine.records.reasons import reasons_of

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
