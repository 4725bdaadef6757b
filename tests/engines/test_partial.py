"""`--train.partial_rollout_enable` through the real engines, with policies that take turns on a
seat and an opponent pool: an engine is killed while it is paused, and the driver in an update.
Nothing is lost, and every token knows its version.
"""

import signal
import textwrap
from collections import Counter

import pytest
from engines.relay import Started

KILLER = """
    import asyncio, os, signal
    from collections import defaultdict
    from pathlib import Path
    from marl_plugins import hookimpl

    once = Path(__file__).with_name("once")
    updates = defaultdict(list)
    updated = defaultdict(asyncio.Event)
    first = 3 if "--ckpt.load_enable" in os.environ["WORDS"] else 1

    @hookimpl(wrapper=True)
    def marl_generate(call):
        # The first role is asked when the update is done, so that its answers are being written when the weights change.
        inner = yield
        async def work():
            if call.step > first and call.role == "first":
                await updated[call.step - 1].wait()
            return await inner
        return work()

    @hookimpl(wrapper=True)
    def marl_sync(policy, version):
        # All engines are paused: that of the first policy dies before it has version 2.
        inner = yield
        async def work():
            if version == 2 and policy.name == "first" and not once.exists():
                once.touch()
                os.kill(await policy.engines.engines[0].handle.identify.remote("first", 0), signal.SIGKILL)
            return await inner
        return work()

    @hookimpl(wrapper=True)
    def marl_update(policy, step):
        inner = yield
        async def work():
            done = await inner
            updates[step].append(policy.name)
            if len(updates[step]) == 2:
                updated[step].set()
                await asyncio.sleep(0.2)  # until these answers have begun: then all engines are paused
            return done
        return work()
"""
RECIPE = """
    extends: recipe.yaml
    plugins: [tools.py, dies.py, killer.py, marl_plugins.process_groups, marl_plugins.opponent_pool]
    policies:
      judge: {model: null, trainable: null, follows: first}
    flags:
      train.async_enable: true
      train.partial_rollout_enable: true
      process_groups.seats: 2
      opponents.every: 1
      rollout.max_new_tokens: 120
      data.max_len: 512
      train.num_episodes: 2
"""
KILLED, STEPS = 3, 6
"""The step in whose update the driver is killed, and those of the run."""


@pytest.fixture(scope="module")
def partial(tmp_path_factory, relay, template):
    folder = tmp_path_factory.mktemp("partial")
    (relay / "killer.py").write_text(textwrap.dedent(KILLER))
    (relay / "partial.yaml").write_text(textwrap.dedent(RECIPE))
    run = Started(folder, relay / "partial.yaml", template=template)
    run.run(code=-signal.SIGKILL)
    assert (relay / "once").exists()
    run.before = run.trajectories
    return run.run("--ckpt.load_enable")


def test_an_engine_that_dies_while_it_is_paused_is_replaced(partial):
    assert [m["engines/restarted"] for m in partial.metrics[:KILLED]].count(1.0) == 1


def test_every_sample_of_every_task_is_trained_once_although_engine_and_driver_were_killed(partial):
    found = Counter((t["step"], t["task"], t["sample"]) for t in partial.trajectories)
    assert len(partial.metrics) == STEPS and set(found.values()) == {1}
    samples = Counter((t["task"], t["sample"]) for t in partial.trajectories)
    assert set(samples.values()) == {2} and {task for task, _ in samples} == {
        str(n) for n in range(18)
    }
    for entry in partial.ledger:
        assert entry["lost"] == {}
        assert all(
            role["trained"] == role["generated"]
            for name, role in entry["roles"].items()
            if name != "judge"
        )


def test_every_token_is_by_weights_that_are_at_most_one_step_older_than_those_it_trains(partial):
    changed = 0
    for t, a in partial.actions:
        if a["policy"] == "judge":
            continue
        versions = [a["version"], *(version for _, version in a.get("newer", []))]
        assert (
            versions == sorted(set(versions))
            and 0 <= t["step"] - 1 - versions[0] <= 1
            and versions[-1] < t["step"]
        )
        changed += len(versions) > 1
    assert changed
    assert all(m["policy/first/lag"] <= 1 for m in partial.metrics)
