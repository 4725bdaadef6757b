"""What runs beside a rollout (`marl_beside`): in the real trainer, over simulated engines."""

import asyncio

import pytest
from simulated_run import simulated_trainer

from marl_plugins.core.failures import RunEnded, RunPaused


async def two_calls(task, roles, tools):
    """Tasks finish in an order of their own, not in the step's."""
    first = await roles.a(q=task.prompt)
    for _ in range(int(task.id[1:]) * 7 % 5):
        await asyncio.sleep(0)
    return await roles.a(q=first)


def trained(folder, *beside, outcome=lambda t: 1.0, **settings):
    """A trainer of which `beside` are the plugins' hooks, after its last step."""
    trainer = simulated_trainer(folder, outcome, steps=2, eval_steps=-1, tasks=6, samples=2, workflow=two_calls, **settings)
    trainer.plugins.hook.marl_beside = lambda run, rollout: [hook(rollout) for hook in beside]
    asyncio.run(trainer.fit(0))
    return trainer


def names(trajectories):
    return [(t.step, t.task.id, t.sample) for t in trajectories]


def test_everybody_sees_every_trajectory_scored_and_before_credit(tmp_path):
    seen, tasks = {}, {}

    async def quick(rollout):
        seen["quick", rollout.step] = [t async for t in rollout.arrived() if t.outcome == 1.0 and not t.actions[0].returns]

    async def late(rollout):
        tasks[rollout.step] = [task.id for task in rollout.tasks]
        first = [t async for t in rollout.arrived()]
        assert rollout.ended.is_set()
        seen["late", rollout.step] = [t async for t in rollout.arrived()]
        assert first == seen["late", rollout.step]

    async def leaves(rollout):
        async for trajectory in rollout.arrived():
            seen["leaves", rollout.step] = [trajectory]
            break

    trained(tmp_path, quick, late, leaves)
    for step in (1, 2):
        assert names(seen["quick", step]) == names(seen["late", step]) and seen["leaves", step] == seen["late", step][:1]
        by_place = sorted((t.place, t.sample, t.task.id) for t in seen["late", step])
        assert by_place == [(n, sample, task) for n, task in enumerate(tasks[step]) for sample in (0, 1)]


def test_it_sees_the_step_and_everything_that_serves_it(tmp_path):
    seen = []

    async def look(rollout):
        seen.append((rollout.step, [t.id for t in rollout.tasks], list(rollout.pools), [*rollout.policies]))

    trained(tmp_path, look)
    assert [(step, pools, policies) for step, _, pools, policies in seen] == [(1, ["p"], ["p"]), (2, ["p"], ["p"])]
    assert [len(tasks) for _, tasks, _, _ in seen] == [6, 6]


def test_the_step_waits_for_it(tmp_path):
    order = []

    async def slow(rollout):
        await rollout.ended.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        order.append(("beside", rollout.step))

    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=2, eval_steps=-1)
    trainer.plugins.hook.marl_beside = lambda run, rollout: [slow(rollout)]
    sync = trainer.plugins.hook.marl_sync

    async def synced(run, policy, version):
        order.append(("sync", version))
        return await sync(run, policy, version)

    trainer.plugins.hook.marl_sync = synced
    asyncio.run(trainer.fit(0))
    assert order == [("sync", 0), ("beside", 1), ("sync", 1), ("beside", 2), ("sync", 2)]  # the first: a run begins on CPU


@pytest.mark.parametrize("error", [RunEnded, ZeroDivisionError])
def test_what_it_raises_ends_the_rollout_at_once(tmp_path, error):
    asked = []

    async def fails(rollout):
        async for _ in rollout.arrived():
            raise error("beside")

    async def other(rollout):
        try:
            await rollout.ended.wait()
        except asyncio.CancelledError:
            asked.append("cancelled")
            raise

    async def endless(task, roles, tools):
        if task.id != "t3":
            await asyncio.sleep(3600)
        return await roles.a(q=task.prompt)

    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=1, eval_steps=-1, workflow=endless)
    trainer.run.recipe.limits.task_seconds = None
    trainer.session.rollout.task_seconds = None
    trainer.plugins.hook.marl_beside = lambda run, rollout: [fails(rollout), other(rollout)]

    async def fit():
        with pytest.raises(error, match="beside"):
            await trainer.fit(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(fit())
    assert asked == ["cancelled"]


def test_a_rollout_that_fails_ends_it(tmp_path):
    ended = []

    async def waits(rollout):
        try:
            await rollout.ended.wait()
        finally:
            ended.append(rollout.ended.is_set())

    def outcome(trajectory):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trained(tmp_path, waits, outcome=outcome)
    assert ended == [False]


def test_a_pause_saves_the_step_before(tmp_path):
    async def pauses(rollout):
        if rollout.step == 2:
            raise RunPaused("no more")

    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=2, eval_steps=-1)
    trainer.plugins.hook.marl_beside = lambda run, rollout: [pauses(rollout)]
    with pytest.raises(RunPaused, match="no more"):
        asyncio.run(trainer.fit(0))
    assert trainer.session.policies["p"].saved == [1]


def test_scores_that_come_and_go_pause_the_run_before_the_step_is_trained(tmp_path):
    """The first step says whether actions are scored; what it was trained with is saved."""
    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=3, eval_steps=-1)

    async def score():
        return 0.5

    running = []
    trainer.plugins.owners = lambda hook: ["mine.py"]
    trainer.plugins.hook.marl_beside = lambda run, rollout: running.append(rollout.step) or []
    trainer.plugins.hook.marl_score_action = lambda run, action, seen: score() if running[-1] == 2 else None
    with pytest.raises(RunPaused, match=r"step 2: actions were scored by plugin mine\.py .* in step 1 none was"):
        asyncio.run(trainer.fit(0))
    assert trainer.session.policies["p"].saved == [1] and trainer.session.policies["p"].version == 1
