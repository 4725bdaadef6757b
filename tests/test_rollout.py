"""The runtime's rollout over a simulated engine: scoring outcomes, and what failures there become."""

import asyncio
import errno
from types import SimpleNamespace

import pytest
from ray.exceptions import RayTaskError
from simulated import simulated_engine

from marl_plugins.core.failures import InfrastructureFailure, RunEnded
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workflow import RoleSpec, Sampling

Rollout = pytest.importorskip("marl_plugins.runtime.rollout").Rollout
trainer = pytest.importorskip("marl_plugins.runtime.trainer")
Trainer, writing = trainer.Trainer, trainer.writing


def rollout(chat, outcome, seconds=5.0):
    engine = simulated_engine()
    hook = SimpleNamespace(
        marl_generate=lambda call, engines: engine(call),
        marl_score_action=lambda action, seen: None,
        marl_score_outcome=lambda trajectory: outcome(trajectory),
    )

    async def workflow(task, roles, tools):
        return await roles.a(q=task.prompt)

    role = RoleSpec("a", "p", lambda f: [{"role": "user", "content": f["q"]}], chat, Sampling(1.0, 1.0, 8, 100))
    work = Rollout(SimpleNamespace(hook=hook), workflow, {"a": role}, {}, {"p": None}, 1, seconds)
    return asyncio.run(work.train([Task("t", "q", "l")], 2, 1, lambda: None))


def test_a_verifier_that_is_down_loses_the_trajectory_and_not_the_run(chat):
    async def down(trajectory):
        raise InfrastructureFailure("verifier", "unreachable")

    got = rollout(chat, down)
    assert [(t.infrastructure_failure, t.outcome) for t in got] == [("verifier", None)] * 2


def test_a_verifier_that_never_answers_loses_the_trajectory_at_the_deadline(chat):
    async def hang(trajectory):
        await asyncio.sleep(60)

    got = rollout(chat, hang, seconds=0.05)
    assert [t.infrastructure_failure for t in got] == ["deadline"] * 2
    assert "outcome was not scored" in got[0].detail


@pytest.mark.parametrize(("answers", "moves"), [(True, False), (False, True), (None, False)])
def test_a_sync_that_did_not_happen_ends_the_run(answers, moves):
    """Else the next step would train on rows that were sampled from other weights."""
    host = SimpleNamespace(policy=SimpleNamespace(name="p"), version=4)

    async def sync(host, version):
        host.version = version if moves else host.version
        return answers

    fake = SimpleNamespace(plugins=SimpleNamespace(hook=SimpleNamespace(marl_sync=sync)))
    with pytest.raises(RunEnded, match="policy 'p' was updated and its engines were not brought to version 5"):
        asyncio.run(Trainer._sync(fake, [host]))


def test_what_cannot_be_written_ends_the_run_with_the_reason(tmp_path):
    with (
        pytest.raises(RunEnded, match=r"step 3 could not be written to .* MB free\): No space left on device"),
        writing("step 3", tmp_path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    torch_says = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 2175744 vs 2175632")
    remote = RayTaskError("save", "traceback", torch_says)
    with pytest.raises(RunEnded, match="writing failed, as it does on a full disk"), writing("step 3", tmp_path):
        raise remote
    with pytest.raises(RayTaskError), writing("step 3", tmp_path):
        raise RayTaskError("save", "traceback", ValueError("a bug"))
