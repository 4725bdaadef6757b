"""Recipes of every kind, said again and forked over simulated engines whose answers arrive in any
order; records through JSON and back."""

import asyncio
import json
import random

import pytest
from recipe_runs import planned
from simulated_session import SimulatedSession, fresh

from marl_plugins.engine.records.trajectory_record import from_record, to_record
from marl_plugins.engine.runtime.forking import Original, fork, said_again
from marl_plugins.engine.runtime.lifetime import plugins_started

RECIPES = (
    *("mathchat/tiny_graph.yaml", "mathchat/tiny_program.yaml"),
    *("vote/tiny.yaml", "kuhn_poker/population.yaml", "coder_tester/tiny.yaml"),
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_said_again_and_forked_at_every_action(recipe, tmp_path):
    words = ("--ckpt.output_dir", str(tmp_path), "--ckpt.path", str(tmp_path / "ckpt"))
    plan, draw = fresh(planned(recipe, *words)), random.Random(1)
    with asyncio.Runner() as loop, plugins_started(loop, plan, "evaluate"):
        session = SimulatedSession(plan)
        session.start()
        rollout, engines = session.rollout, session.rollout.generate

        async def late(call):
            await asyncio.sleep(draw.random() * 0.004)
            return await engines(call)

        rollout.generate = late
        loop.run(_forked(session, rollout))


async def _forked(session, rollout):
    for place, task in enumerate(session.train_tasks[:1]):
        played = await rollout.one(task, place, 1, 3, None)
        t = from_record(json.loads(json.dumps(to_record(played))))
        t.place = place
        original = Original(rollout, t, task, session.cast(task, 3, place))
        assert await said_again(original) is None
        forks = await asyncio.gather(
            *(
                fork(original, a.path, n, a.generation if n else None)
                for a in t.actions[:: 1 + len(t.actions) // 4]
                for n in (0, 1)
            )
        )
        for one in forks:
            path, number = one.forked
            live = t.descendants(path) - ({path} if number else set())
            assert not one.infrastructure_failure, one.detail
            assert {a.path for a in one.actions if a.replayed} <= {a.path for a in t.actions} - live
            said = {a.path: a.generation.ids for a in one.actions}
            before = {a.path: a.generation.ids for a in t.ancestors(path)}
            assert before.items() <= said.items() and path in said
