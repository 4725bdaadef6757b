"""`--train.partial_rollout_enable`: weights change in the middle of answers. Whatever takes how
long, each token says which weights sampled it, no token is older than the bound, nothing is lost,
and a run that is killed goes on.

The engine that is simulated samples a token at a time by the weights that it holds then, and pauses
as vLLM does.
"""

import asyncio
import hashlib
import random
from itertools import groupby
from types import SimpleNamespace

import pytest
import virtual_time
from ray.exceptions import RayActorError
from refusals import briefs, refused
from test_async import CORRECTED, ON, Killed, Phases, learning_trainer, records, rows_at

from marl_plugins.commands.inspect.text import version_text
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.processes.engines import (
    EnginePool,
    EngineProcess,
    RestartBudget,
    is_current,
)
from marl_plugins.engine.records.read import RunReader
from marl_plugins.engine.records.trajectory_record import from_record, to_record
from marl_plugins.engine.records.write import cut_back
from marl_plugins.engine.runtime.crediting import check_versions, without_stale
from marl_plugins.engine.runtime.metrics import lag_metrics, version_change_metrics

STEPS = 6


class PausingEngine:
    """The engines of a policy: tokens take a while, and a pause ends with the token that is being
    sampled."""

    restarted = 0

    def __init__(self, policy, seed):
        self.policy, self.draw, self.going = policy, random.Random(seed), asyncio.Event()
        self.going.set()
        self.remarks = []

    async def pause(self):
        await asyncio.sleep(self.draw.random() / 10)
        self.going.clear()

    async def resume(self):
        await asyncio.sleep(self.draw.random() / 10)
        self.going.set()

    async def answer(self, call):
        digest, sampled = hashlib.sha256(str(call.seed).encode()).hexdigest()[:7], []
        for letter in (*digest, "^"):
            await asyncio.sleep(self.draw.random())
            await self.going.wait()
            # The log-prob says which weights have sampled the token, whatever is recorded of their
            # version.
            sampled.append((ord(letter), -1.0 - self.policy.version, self.policy.version))
        versions = [
            (len(list(same)), version)
            for version, same in groupby(version for *_, version in sampled)
        ]
        starts = [sum(count for count, _ in versions[:n]) for n in range(len(versions))]
        changes = tuple(
            (start, version) for start, (_, version) in zip(starts, versions, strict=True)
        )[1:]
        ids, logprobs, _ = zip(*sampled, strict=True)
        return Generation(ids, logprobs, "stop", call.policy, versions[0][1], changes)


def partial_trainer(folder, seed, queue=1, training=4.0, max_lag=None, kill=None, **settings):
    """A trainer as test_async has it, whose updates take `training` seconds or so while a rollout
    takes about 4."""
    phases = Phases(kill)
    trainer, done = learning_trainer(folder, queue, phases, **settings)
    policy, hook, draw = trainer.session.policies["p"], trainer.plugins.hook, random.Random(seed)
    engine = policy.engines = PausingEngine(policy, seed)
    trainer.run.args.train.partial_rollout_enable, trainer.run.max_lag = True, max_lag
    update, sync = hook.marl_update, hook.marl_sync

    async def generate(run, call, engines):
        await phases.at("generate")
        return await engine.answer(call)

    async def slow_update(**given):
        await asyncio.sleep(2 * training * draw.random())
        return await update(**given)

    async def sync_paused(run, policy, version):
        if version != policy.version:  # else a run begins
            assert not engine.going.is_set()
        return await sync(run=run, policy=policy, version=version)

    hook.marl_generate, hook.marl_update, hook.marl_sync = generate, slow_update, sync_paused
    return trainer, done


def fitted(*given, **settings):
    async def go():
        trainer, done = partial_trainer(*given, **settings)
        cut_back(given[0], done)
        await trainer.fit(done)
        return trainer

    return virtual_time.run(go())[0]


def actions_of(folder):
    for step, trajectories in records(folder).items():
        for record in trajectories.values():
            for action in from_record(record).actions:
                yield step, action


def trained_versions(folder):
    """By step, the version of the weights that it trains: a step without a row changes none."""
    updates = [sum(ledger.trained.values()) > 0 for ledger in RunReader(folder).ledgers()]
    return {step: sum(updates[: step - 1]) for step in range(1, STEPS + 1)}


def check_run(folder, most):
    """What holds of every run: versions are those that sampled, ledgers add up, nobody is lost."""
    found = records(folder)
    assert sorted(found) == list(range(1, STEPS + 1)) and all(
        len(step) == 8 for step in found.values()
    )
    assert len({key for step in found.values() for key in step}) == 8 * STEPS
    trains = trained_versions(folder)
    for step, action in actions_of(folder):
        g = action.generation
        assert [-1.0 - version for version in g.token_versions] == list(g.logprobs)
        assert trains[step] - most <= g.version <= g.newest <= trains[step]
    for ledger in RunReader(folder).ledgers():
        assert ledger.generated["a"] == ledger.trained["a"] + sum(
            ledger.left_out.get("a", {}).values()
        )


@pytest.mark.parametrize("queue", [1, 2])
def test_each_token_says_which_weights_sampled_it_and_none_is_older_than_the_queue(tmp_path, queue):
    """Whichever takes longer, a rollout or an update."""
    for seed, training in enumerate((0.2, 2.0, 4.0, 12.0)):
        fitted(folder := tmp_path / str(seed), seed, queue, training)
        check_run(folder, queue)
        lags = [m["policy/p/lag"] for m in RunReader(folder).metrics()[1:]]
        assert lags[0] == 0 and all(lag <= min(queue, step) for step, lag in enumerate(lags))
        assert not any(action.left_out for _, action in actions_of(folder))
        changed = [bool(action.generation.changes) for _, action in actions_of(folder)]
        assert any(changed) or training > 4.0
        shares = [m["policy/p/changed"] for m in RunReader(folder).metrics()[1:]]
        assert sum(shares) * 8 == pytest.approx(sum(changed))


@pytest.mark.parametrize("most", [0, 1])
def test_what_is_older_than_the_bound_is_left_out_and_counted(tmp_path, most):
    fitted(tmp_path, 5, most + 1, 1.0, max_lag=most)
    check_run(tmp_path, most + 1)
    stale, trains = {True: 0, False: 0}, trained_versions(tmp_path)
    for step, action in actions_of(tmp_path):
        assert (action.left_out == "stale") is (action.generation.version < trains[step] - most)
        stale[action.left_out == "stale"] += 1
    assert stale[True] and stale[False]
    assert (
        sum(
            ledger.left_out.get("a", {}).get("stale", 0) for ledger in RunReader(tmp_path).ledgers()
        )
        == stale[True]
    )


def test_a_run_that_is_killed_anywhere_goes_on_and_nothing_is_lost(tmp_path):
    whole = Phases()
    moments = {}
    trainer, _ = learning_trainer(tmp_path / "whole", 1, whole, eval_steps=2, save_steps=2)
    asyncio.run(trainer.fit(0))
    for number, what in enumerate(whole.seen, 1):
        moments.setdefault(what, []).append(number)
    draw = random.Random(1)
    for moment in sorted(
        {n for found in moments.values() for n in draw.sample(found, min(2, len(found)))}
    ):
        folder = tmp_path / str(moment)
        with pytest.raises(Killed):
            fitted(folder, moment, kill=moment, eval_steps=2, save_steps=2)
        fitted(folder, moment + 1, eval_steps=2, save_steps=2)
        check_run(folder, 1)


# --- a row
# --------------------------------------------------------------------------------------------------


def changed_rows(version, *changes):
    rows = rows_at(version)
    object.__setattr__(rows[0].action.generation, "changes", changes)
    return rows


def test_the_oldest_token_decides_whether_a_row_is_trained_and_the_newest_whether_it_can_be():
    trained = {"p": SimpleNamespace(name="p", version=5)}
    check_versions(without_stale(changed_rows(4, (1, 5)), trained, 1), trained, 1)
    assert without_stale(changed_rows(3, (1, 5)), trained, 1) == []
    with pytest.raises(RunEnded, match="out of step"):
        check_versions(changed_rows(4, (1, 6)), trained, 1)


def test_the_lag_of_a_row_is_that_of_its_tokens():
    rows = changed_rows(3, (1, 5))
    rows[0].action.trainer_logprobs = (-0.1, -0.2)
    assert rows[0].action.generation.token_versions == [3, 5]
    assert lag_metrics(rows, {"p": 5})["policy/p/lag"] == 1 and version_change_metrics(rows) == {
        "policy/p/changed": 1
    }


def test_a_record_keeps_the_version_of_each_token_and_readers_see_it():
    record = to_record(changed_rows(3, (1, 5))[0].trajectory)
    assert from_record(record).actions[0].generation.token_versions == [3, 5]
    assert version_text(record["actions"][0]) == "3, 5 from token 2 on"
    for wrong in ([[1]], [["1", 5]], 5):
        record["actions"][0]["newer"] = wrong
        with pytest.raises(ValueError, match="newer"):
            from_record(record)


@pytest.mark.parametrize(
    ("version", "changes", "possible", "current"),
    [
        (3, ((1, 4),), [3, 4], True),
        (3, ((1, 4), (2, 5)), [3, 4, 5], True),
        (4, (), [3, 4], True),
        (-1, (), [3, 3], False),
    ],
)
def test_an_answer_is_current_if_each_of_its_tokens_is(version, changes, possible, current):
    answer = Generation((1, 2, 3), (-1.0,) * 3, "stop", "p", version, changes)
    assert is_current(answer, "p", possible) is current
    for policy, others in (("q", possible), ("p", [7])):
        with pytest.raises(RunEnded, match="out of step"):
            is_current(answer, policy, others)


def test_a_request_that_comes_while_weights_change_is_by_the_new_ones():
    from marl_plugins.engine.processes.engine_actor import HeldWeights, RunningRequest

    held = HeldWeights("p", 4)
    begun, waiting = RunningRequest(held), RunningRequest(held)
    begun.tokens = 2
    held.epoch, held.version = held.epoch + 1, -1  # as `load_state` does first
    late = RunningRequest(held)
    held.version = 5
    for request in (begun, waiting, late):
        request.go_on()
    assert [(request.version, request.changes) for request in (begun, waiting, late)] == [
        (4, [(2, 5)]),
        (5, []),
        (5, []),
    ]


# --- engines
# --------------------------------------------------------------------------------------------------


class PoolEngine(EngineProcess):
    """An engine of a real pool; `dies` names the call during which it does."""

    def __init__(self, said, dies=""):
        calls = {
            name: SimpleNamespace(remote=self.called(name))
            for name in ("pause_generation", "resume_generation", "load")
        }
        located = SimpleNamespace(remote=lambda function: self.located())
        super().__init__(
            SimpleNamespace(**calls, __ray_call__=located, _actor_id=SimpleNamespace(hex=str)), []
        )
        self.said, self.dies, self.dead = said, dies, False

    async def located(self):
        return None

    def called(self, name):
        async def call():
            await asyncio.sleep(1)
            if self.dead or name == self.dies:
                self.dead = True
                raise RayActorError
            self.said.append(name)

        return call

    def kill(self):
        self.dead = True


@pytest.mark.parametrize("dies", ["pause_generation", "load", "resume_generation"])
def test_an_engine_that_dies_while_it_is_paused_is_replaced_and_nobody_waits_for_ever(dies):
    async def go():
        said, restored = [[], [], []], []

        async def restore(handle):
            restored.append(handle)

        budget = RestartBudget(1)
        pool = EnginePool("p", [], lambda dead: PoolEngine(said[2]), restore, budget, 60.0, 4)
        pool.engines = [PoolEngine(said[0]), PoolEngine(said[1], dies)]
        await pool.pause()
        with pool.changing("p", 1):
            await pool.on_all(lambda handle: handle.load.remote())
        await pool.resume()
        return said, restored, pool

    (said, restored, pool), _ = virtual_time.run(go())
    assert said[0] == ["pause_generation", "load", "resume_generation"] and len(restored) == 1
    assert (
        said[2]
        == {
            "pause_generation": ["pause_generation", "load", "resume_generation"],
            "load": ["pause_generation", "resume_generation"],
            "resume_generation": [],
        }[dies]
    ), "one that replaces it writes nothing either, until the others go on"
    assert pool.restarted == 1 and len(pool.engines) == 2 and pool.versions["p"] == (1,)


# --- the plan
# --------------------------------------------------------------------------------------------------

PARTIAL = "train.partial_rollout_enable"
BOTH = [*ON, *CORRECTED, f"--{PARTIAL}"]


def test_a_plan_says_that_a_run_cannot_be_repeated():
    plan = build_plan(BOTH)
    assert (
        briefs(plan.run.warnings) == [("async.partial", PARTIAL)]
        and "changes" in describe(plan)["async"]
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([*BOTH, "--async.max_lag", "-1"], ("flags.value", "command line", "async.max_lag")),
        ([*BOTH, "--plugin", "marl_plugins.balance"], ("balance.partial", "marl_plugins.balance")),
        (
            [*BOTH, "--plugin", "marl_plugins.streaming"],
            ("streaming.async", "marl_plugins.streaming"),
        ),
        (
            [*BOTH, "--plugin", "marl_plugins.adapters", "--ds.lora.rank", "8"],
            ("adapters.partial",),
        ),
    ],
)
def test_what_does_not_go_together_is_refused(words, problem):
    with refused(problem):
        build_plan(words)
