"""The runtime's rollout over a simulated engine: scoring outcomes, and what failures there
become."""

import asyncio
import errno
from contextlib import aclosing
from types import SimpleNamespace

import pytest
from ray.exceptions import RayTaskError
from simulated import simulated_engine

from marl_plugins.core.failures import InfrastructureFailure, RunEnded
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workflow import RoleSpec, Sampling
from marl_plugins.engine.runtime.roles import Cast

Rollout = pytest.importorskip("marl_plugins.engine.runtime.rollout").Rollout
WeightSync = pytest.importorskip("marl_plugins.engine.runtime.weight_sync").WeightSync
writing = pytest.importorskip("marl_plugins.engine.records.write").writing


def made(chat, outcome, seconds=60.0):
    engine = simulated_engine()
    hook = SimpleNamespace(
        marl_generate=lambda run, call, engines: engine(call),
        marl_score_action=lambda run, action, seen: None,
        marl_score_outcome=lambda run, trajectory: outcome(trajectory),
    )

    async def workflow(task, roles, tools):
        return await roles.a(q=task.prompt)

    role = RoleSpec(
        "a", "p", lambda f: [{"role": "user", "content": f["q"]}], chat, Sampling(1.0, 1.0, 8, 100)
    )
    limits = SimpleNamespace(task_seconds=seconds)
    run = SimpleNamespace(
        recipe=SimpleNamespace(limits=limits), args=SimpleNamespace(train=SimpleNamespace(seed=1))
    )
    return Rollout(run, SimpleNamespace(hook=hook), workflow, Cast({"a": [role]}), {}, {"p": None})


def rollout(chat, outcome, seconds=60.0):
    work, tasks = made(chat, outcome, seconds), [Task("t", "q", "l")]

    async def collected():
        return [t async for t in work.train(tasks, 2, 1)]

    return work.in_order(asyncio.run(collected()))


def test_a_verifier_that_is_down_loses_the_trajectory_and_not_the_run(chat):
    async def down(trajectory):
        raise InfrastructureFailure("verifier", "unreachable")

    got = rollout(chat, down)
    assert [(t.infrastructure_failure, t.outcome) for t in got] == [("verifier", None)] * 2


def test_a_verifier_that_never_answers_loses_the_trajectory_at_the_deadline(chat):
    async def hang(trajectory):
        await asyncio.sleep(60)

    got = rollout(chat, hang, seconds=1.0)
    assert [t.infrastructure_failure for t in got] == ["deadline"] * 2
    assert "not scored" in got[0].detail


def test_trajectories_come_as_they_finish_and_are_put_in_order(chat):
    """The slow ones are first in the order of the tasks and last to arrive."""
    tasks = [Task(name, "q", "l") for name in "abc"]

    async def slow(trajectory):
        await asyncio.sleep(0.05 * "cba".index(trajectory.task.id))
        return 1.0

    async def arrivals():
        return [t async for t in work.train(tasks, 1, 1)]

    work = made(chat, slow)
    arrived = asyncio.run(arrivals())
    assert [t.task.id for t in arrived] == ["c", "b", "a"]
    assert [t.task.id for t in work.in_order(arrived)] == ["a", "b", "c"]


def test_a_rollout_that_is_left_early_leaves_nothing_running(chat):
    ended = []

    async def never(trajectory):
        if trajectory.sample == 0:
            return 1.0
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(trajectory.sample)

    async def first():
        async with aclosing(made(chat, never).train([Task("t", "q", "l")], 3, 1)) as arriving:
            return (await anext(arriving)).sample, len(asyncio.all_tasks())

    async def then():
        found = await first()
        return found, asyncio.all_tasks() - {asyncio.current_task()}

    (sample, running), left = asyncio.run(then())
    assert sample == 0 and running == 3 and not left and sorted(ended) == [1, 2]


def test_what_a_recipe_raises_ends_the_rollout_at_once(chat):
    async def bug(trajectory):
        if trajectory.sample:
            await asyncio.sleep(60)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rollout(chat, bug, seconds=70)


@pytest.mark.parametrize(("answers", "moves"), [(True, False), (False, True), (None, False)])
def test_a_sync_that_did_not_happen_ends_the_run(answers, moves):
    """Else the next step would train on rows that were sampled from other weights."""

    async def collect():
        pass

    host = SimpleNamespace(name="p", version=4, trained=True, collect=collect)

    async def sync(run, policy, version):
        policy.version = version if moves else policy.version
        return answers

    run = SimpleNamespace(args=SimpleNamespace(train=SimpleNamespace(async_enable=False)))
    plan = SimpleNamespace(run=run, plugins=SimpleNamespace(hook=SimpleNamespace(marl_sync=sync)))
    session = SimpleNamespace(plan=plan, trained={"p": host}, policies={})
    with pytest.raises(RunEnded, match="the engines of policy 'p' were not brought to version 5"):
        asyncio.run(WeightSync(session).updated(["p"]))


def test_what_cannot_be_written_ends_the_run_with_the_reason(tmp_path):
    with (
        pytest.raises(
            RunEnded, match=r"step 3 could not be written to .* MB free\): No space left on device"
        ),
        writing("step 3", tmp_path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    torch_says = RuntimeError(
        "[enforce fail at inline_container.cc:672] . unexpected pos 2175744 vs 2175632"
    )
    remote = RayTaskError("save", "traceback", torch_says)
    with (
        pytest.raises(RunEnded, match="writing failed, as it does on a full disk"),
        writing("step 3", tmp_path),
    ):
        raise remote
    with pytest.raises(RayTaskError), writing("step 3", tmp_path):
        raise RayTaskError("save", "traceback", ValueError("a bug"))
