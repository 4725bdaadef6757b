"""A plugin's part of a step (`marl_step`): in the real trainer, over simulated engines."""

import asyncio
from dataclasses import replace

import pytest
from simulated_run import SimulatedPolicy, simulated_trainer

from marl_plugins.core.failures import RunEnded, RunPaused
from marl_plugins.core.steps import StepPart


async def two_calls(task, roles, tools):
    """Tasks finish in an order of their own, not in the step's."""
    first = await roles.a(q=task.prompt)
    for _ in range(int(task.id[1:]) * 7 % 5):
        await asyncio.sleep(0)
    return await roles.a(q=first)


def trained(folder, *parts, outcome=lambda t: 1.0, **settings):
    """A trainer whose plugins have these parts, after its last step."""
    trainer = simulated_trainer(
        folder, outcome, steps=2, eval_steps=-1, tasks=6, samples=2, workflow=two_calls, **settings
    )
    trainer.plugins.parts += parts
    asyncio.run(trainer.fit(0))
    return trainer


def part(**methods):
    """A `marl_step` that gives a part with these methods, which get the step as `self.step`."""

    def made(step):
        found = type("Part", (StepPart,), methods)()
        found.step = step
        return found

    return made


def names(trajectories):
    return [(t.step, t.task.id, t.sample) for t in trajectories]


def test_every_part_sees_every_trajectory_scored_and_before_credit(tmp_path):
    seen, rows, ordered = {}, {}, {}

    def arrived(self, trajectory):
        assert trajectory.outcome == 1.0 and not trajectory.actions[0].returns
        seen.setdefault(self.step.number, []).append(trajectory)
        assert seen[self.step.number] == self.step.trajectories and not self.step.ended.is_set()

    async def see_rows(self, given):
        assert self.step.ended.is_set()
        rows[self.step.number], ordered[self.step.number] = (
            list(given),
            list(self.step.trajectories),
        )

    trained(tmp_path, part(arrived=arrived, rows=see_rows))
    for step in (1, 2):
        assert sorted(names(seen[step])) == sorted(names(ordered[step]))
        assert [(t.place, t.sample) for t in ordered[step]] == [
            (place, sample) for place in range(6) for sample in (0, 1)
        ]
        assert names(seen[step]) != names(ordered[step])  # they arrive in another order
        assert {row.action for row in rows[step]} == {a for t in ordered[step] for a in t.actions}


def test_a_part_sees_the_step_and_everything_that_serves_it(tmp_path):
    seen = []

    def look(step):
        seen.append(
            (step.number, step.optimiser_steps, len(step.tasks), list(step.pools), [*step.policies])
        )

    trained(tmp_path, look)
    assert seen == [(1, 1, 6, ["p"], ["p"]), (2, 1, 6, ["p"], ["p"])]


def test_the_step_waits_for_work_during_the_rollout_and_its_metrics_are_recorded(tmp_path):
    order = []

    async def slow(self):
        await self.step.ended.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        order.append(("part", self.step.number))

    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=2, eval_steps=-1)
    trainer.plugins.parts.append(
        part(during_rollout=slow, metrics=lambda self: {"mine/step": float(self.step.number)})
    )
    sync, logged = trainer.plugins.hook.marl_sync, []

    async def synced(run, policy, version):
        order.append(("sync", version))
        return await sync(run, policy, version)

    trainer.plugins.hook.marl_sync = synced
    trainer.plugins.hook.marl_log = lambda run, step, metrics: logged.append(metrics["mine/step"])
    asyncio.run(trainer.fit(0))
    assert order == [
        ("sync", 0),
        ("part", 1),
        ("sync", 1),
        ("part", 2),
        ("sync", 2),
    ]  # the first: a run begins on CPU
    assert logged == [1.0, 2.0]


@pytest.mark.parametrize("error", [RunEnded, ZeroDivisionError])
@pytest.mark.parametrize("method", ["arrived", "during_rollout"])
def test_what_a_part_raises_ends_the_rollout_at_once(tmp_path, error, method):
    cancelled = []

    def fails(self, trajectory):
        raise error("part")

    async def fails_later(self):
        while not self.step.trajectories:  # noqa: ASYNC110
            await asyncio.sleep(0)
        raise error("part")

    async def other(self):
        try:
            await self.step.ended.wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def endless(task, roles, tools):
        if task.id != "t3":
            await asyncio.sleep(3600)
        return await roles.a(q=task.prompt)

    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=1, eval_steps=-1, workflow=endless)
    trainer.run.recipe.limits.task_seconds = None
    trainer.session.rollout.task_seconds = None
    trainer.plugins.parts += [
        part(**{method: fails if method == "arrived" else fails_later}),
        part(during_rollout=other),
    ]

    async def fit():
        with pytest.raises(RunEnded, match="part"):
            await trainer.fit(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(fit())
    assert cancelled == [True]


def test_a_rollout_that_fails_ends_the_parts(tmp_path):
    ended = []

    async def waits(self):
        try:
            await self.step.ended.wait()
        finally:
            ended.append(self.step.ended.is_set())

    def outcome(trajectory):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trained(tmp_path, part(during_rollout=waits), outcome=outcome)
    assert ended == [False]


def test_forward_passes_that_a_part_has_made_are_not_made_again(tmp_path):
    async def forward(self):
        await self.step.ended.wait()
        rows = await self.step.credited(self.step.trajectories[:4])
        self.step.forwarded.append(await self.step.policies["p"].forward(rows))

    trainer = trained(tmp_path, part(during_rollout=forward))
    computed = trainer.session.policies["p"].computed
    assert [len(rows) for rows in computed] == [8, 16, 8, 16]  # of 12 trajectories of two actions
    assert not {*computed[0]} & {*computed[1]} and len({*computed[0], *computed[1]}) == 24


def test_parts_change_what_policies_are_updated_with_one_after_the_other(tmp_path):
    def scale(by):
        async def prepared(self, given):
            return [
                replace(p, metrics={**p.metrics, "order": p.metrics.get("order", 1.0) * 10 + by})
                for p in given
            ]

        return part(prepared=prepared)

    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=1, eval_steps=-1)
    trainer.plugins.parts += [scale(2), scale(3)]
    seen = []

    async def update(run, policy, prepared, steps, step):
        seen.append(prepared.metrics["order"])
        return {"optimiser_steps": 1.0}

    trainer.plugins.hook.marl_update = update
    asyncio.run(trainer.fit(0))
    assert seen == [123.0]


@pytest.mark.parametrize("wrong", ["twice", "version"])
def test_what_cannot_be_trained_is_refused_with_the_plugins_name(tmp_path, wrong):
    async def prepared(self, given):
        (p,) = given
        if wrong == "twice":
            return [p, p]
        self.step.policies["p"].version += 1
        return given

    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=1, eval_steps=-1)
    trainer.plugins.parts.append(part(prepared=prepared))
    said = {
        "twice": "plugin plugin 0: its part of step 1 gave rows of policy 'p'",
        "version": "version 0, but would train policy 'p' at version 1",
    }
    with pytest.raises(RunEnded, match=said[wrong]):
        asyncio.run(trainer.fit(0))


def test_scores_that_come_and_go_pause_the_run_before_the_step_is_trained(tmp_path):
    """The first step says whether actions are scored; what it was trained with is saved."""
    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=3, eval_steps=-1)

    async def score():
        return 0.5

    running = []
    trainer.run.scorers.append("plugin mine.py")
    trainer.plugins.parts.append(lambda step: running.append(step.number))
    trainer.plugins.hook.marl_score_action = lambda run, action, seen: (
        score() if running[-1] == 2 else None
    )
    with pytest.raises(
        RunPaused, match=r"step 2: actions were scored by plugin mine\.py .* in step 1 none was"
    ):
        asyncio.run(trainer.fit(0))
    assert trainer.session.policies["p"].saved == [1] and trainer.session.policies["p"].version == 1


def test_a_policy_that_plays_no_role_may_be_added(tmp_path):
    """Its rows are of its own forward passes; it is updated with them and synced."""
    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=1, eval_steps=-1)
    judge = trainer.session.policies["judge"] = SimulatedPolicy("judge")
    updated = []

    async def prepared(self, given):
        (p,) = given
        own = []
        for row in p.rows:
            generation = replace(row.action.generation, policy="judge")
            own.append(
                replace(row, action=replace(row.action, policy="judge", generation=generation))
            )
        return [p, replace(p, policy="judge", rows=own)]

    async def update(run, policy, prepared, steps, step):
        updated.append(policy.name)
        return {"optimiser_steps": 1.0}

    trainer.plugins.parts.append(part(prepared=prepared))
    trainer.plugins.hook.marl_update = update
    asyncio.run(trainer.fit(0))
    assert updated == ["p", "judge"] and judge.version == 1
