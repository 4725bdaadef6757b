"""`marl_plugins.continuous`: no task is lost, none is twice, none is later than the bound, whatever
takes how long; and resume."""

import asyncio
import json
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
import virtual_time
from hypothesis import given
from hypothesis import strategies as st
from planned_once import PlannedOnce
from plugin_pairs import words
from refusals import briefs, refused
from simulated import make_trajectory
from simulated_session import killed_after, recorded, run_planned

from marl_plugins.continuous.flight import ContinuousPart, Flight
from marl_plugins.continuous.gate import LateGate
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workflow import Call, Sampling
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.processes.engines import RestartBudget
from marl_plugins.engine.runtime.policy_engines import PolicyEngines
from marl_plugins.engine.runtime.weight_sync import WeightSync


class TestContract(PlannedOnce):
    plugin = "marl_plugins.continuous"
    flags = ("--train.async_enable",)


class PlannedStep:
    """A step of a run whose tasks take as long as is declared."""

    def __init__(self, number, plan, seconds, begun):
        self.number, self.plan, self.seconds, self.begun = number, plan, seconds, begun

    def planned(self, number):
        return self.plan[number - 1] if number <= len(self.plan) else ()

    async def trajectory(self, task, place, sample):
        self.begun.append((self.number, task.id, sample))
        await asyncio.sleep(self.seconds[(len(self.begun) * 7 + sample) % len(self.seconds)])
        trajectory = make_trajectory({"a": []}, task=task.id, sample=sample)
        trajectory.task, trajectory.step = task, self.number
        return trajectory


@st.composite
def plans(draw):
    """Batches of tasks, over passes of one data set as a run makes them."""
    size, batch, passes = draw(st.integers(1, 9)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    tasks = [Task(f"t{n}", "p") for n in range(size)]
    orders = [draw(st.permutations(tasks)) for _ in range(passes)]
    return [order[start : start + batch] for order in orders for start in range(0, size, batch)]


@given(
    plans(),
    st.lists(st.integers(0, 50), min_size=1, max_size=20),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sets(st.integers(1, 20), max_size=3),
    st.sampled_from([0.0, 3.0, 100.0]),
)
def test_every_task_is_taken_once_for_each_of_its_turns_and_none_too_late(
    plan, seconds, ahead, late, samples, kills, training
):
    """A run that is killed after a rollout goes on from what was saved then; what it had begun is
    begun anew."""
    begun, taken = [], defaultdict(list)

    async def whole():
        flight = Flight()
        for number in range(1, len(plan) + 1):
            if number in kills:
                state = json.loads(json.dumps(flight.saved))
                await flight.close()
                flight = Flight()
                flight.restore(state)
            part = ContinuousPart(
                PlannedStep(number, plan, seconds, begun), flight, samples, ahead, late, 1
            )
            async for group in part.source():
                assert [t.sample for t in group] == list(range(samples))
                assert number - late <= group[0].step <= number
                taken[number].append(group[0].task.id)
            await asyncio.sleep(training)
        assert not flight.groups and not flight.saved["waiting"]

    virtual_time.run(whole())
    for number, tasks in enumerate(plan, 1):
        assert len(taken[number]) == len(set(taken[number])) == len(tasks)
    assert Counter(t for each in taken.values() for t in each) == Counter(
        t.id for tasks in plan for t in tasks
    )
    if not kills:
        assert len(begun) == samples * sum(map(len, plan))


def test_a_rollout_that_was_lost_before_it_was_trained_is_made_again_of_the_same_tasks():
    plan = [[Task(f"t{n}", "p") for n in range(4 * step, 4 * step + 4)] for step in range(3)]

    async def roll_out(flight, number):
        part = ContinuousPart(PlannedStep(number, plan, [1, 9, 2, 30], []), flight, 1, 2, 1, 1)
        return [group[0].task.id async for group in part.source()]

    async def whole():
        flight, resumed = Flight(), Flight()
        first, second = [await roll_out(flight, number) for number in (1, 2)]
        await flight.close()
        resumed.restore(json.loads(json.dumps(flight.saved)))
        again = await roll_out(resumed, 2)
        third = await roll_out(resumed, 3)
        assert sorted(again) == sorted(second) and first != [t.id for t in plan[0]]
        assert sorted([*first, *again, *third]) == sorted(t.id for tasks in plan for t in tasks)

    virtual_time.run(whole())


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.booleans()), max_size=20))
def test_an_answer_is_by_weights_of_one_version_and_nobody_waits_for_ever(events):
    gate, held = LateGate(), {"version": 0, "changing": False}

    async def answer(seconds):
        before = held["version"]
        assert not held["changing"]
        await asyncio.sleep(seconds)
        assert held == {"version": before, "changing": False}

    async def weights(seconds):
        held["changing"] = True
        await asyncio.sleep(seconds)
        held.update(version=held["version"] + 1, changing=False)

    async def later(at, seconds, changes):
        await asyncio.sleep(at)
        await (gate.change(weights(seconds)) if changes else gate.ask(answer(seconds)))

    async def whole():
        changes = [e for e in events if e[2]][:1]  # a policy gets weights from one place
        await asyncio.gather(*(later(*e) for e in [e for e in events if not e[2]] + changes))

    virtual_time.run(whole())


class LoadingEngine(virtual_time.SimulatedEngine):
    """An engine that is found within a second of its start, answers within 9, and takes over
    weights within 2."""

    def __init__(self, policy):
        super().__init__(policy, lambda call: 9.0)
        self.handle.load_state = SimpleNamespace(remote=self.take_over)
        self.handle.__ray_call__ = SimpleNamespace(remote=lambda function: asyncio.sleep(1.0))

    async def take_over(self, pieces, policy, version):
        assert pieces == [f"version {version}"]
        await self.load_state(policy, version, 2.0)


class StoredWeights:
    """The weights of a policy, as its training processes give them."""

    version = 0

    async def weights(self):
        await asyncio.sleep(1.0)
        return [f"version {self.version}"]

    def check_nodes(self):
        pass


@pytest.mark.parametrize("dies", [3.5, 5.0, 13.5])
def test_an_engine_that_dies_around_a_sync_is_replaced_and_its_late_answer_comes(tmp_path, dies):
    """Its replacement has not come when the sync begins, or it dies while the sync waits for the
    answer, or is given the new weights."""
    plan = planned(tmp_path)
    run, hook = plan.run, plan.plugins.hook
    spec = next(policy for policy in run.policies if policy.trainable)

    async def whole():
        training = StoredWeights()
        args = run.policy_args[spec.name]
        policy = PolicyEngines(spec, args, "cpu", RestartBudget(1), 60.0, training)
        first = LoadingEngine(spec.name)
        policy.engines.engines = [first]
        policy.engines.start = lambda dead: LoadingEngine(spec.name)
        trained = {spec.name: policy}
        sync = WeightSync(SimpleNamespace(plan=plan, trained=trained, policies=trained))
        await sync.again()

        async def asked():
            call = Call(
                spec.name, (1, 2), Sampling(1.0, 1.0, 8, 1000), 8, 1, "a", "t", 0, "a.0", 1, 0
            )
            return await hook.marl_generate(run=run, call=call, engines=policy.engines)

        late = asyncio.create_task(asked())
        asyncio.get_running_loop().call_at(dies, first.die)
        await asyncio.sleep(1.0)
        training.version = 1
        await sync.updated([spec.name])
        return await late, await asked(), policy

    (late, later, policy), _ = virtual_time.run(whole())
    assert (late.version, later.version) == (0, 1)
    assert policy.engines.restarted == 1 and len(policy.engines.engines) == 1


def test_the_bias_is_the_length_of_what_was_taken_at_once_over_that_of_all():
    """Short tasks first: of the lengths 2, 2, 2 and 10 that one rollout begins, it takes three of
    2."""
    plan = [[Task("0", "p"), Task("1", "p"), Task("2", "p")], [Task("3", "p")]]

    class OfLength(PlannedStep):
        async def trajectory(self, task, place, sample):
            length = 10 if task.id == "3" else 2
            await asyncio.sleep(length)
            action = SimpleNamespace(role="a", generation=SimpleNamespace(ids=(1,) * length))
            return SimpleNamespace(task=task, step=self.number, sample=sample, actions=[action])

    async def whole():
        flight, metrics = Flight(), []
        for number in (1, 2):
            part = ContinuousPart(OfLength(number, plan, [1], []), flight, 1, 1, 1, 1)
            assert [group async for group in part.source()]
            metrics.append(part.metrics())
        return metrics

    first, second = virtual_time.run(whole())[0]
    assert first == {"continuous/late": 0, "continuous/running": 1}
    assert second == {
        "continuous/late": 1,
        "continuous/running": 0,
        "role/a/first_length": 2 / (16 / 4),
    }


def planned(folder, *more):
    return build_plan([*words(folder, ["continuous"], max_steps="3"), *more])


def test_a_run_on_simulated_engines_trains_every_task_once_and_its_ledger_adds_up(tmp_path):
    plan = planned(tmp_path, "--continuous.ahead", "3")
    run_planned(plan)
    killed_after(plan, 1)
    run_planned(plan, resume=True)
    lines, trajectories = recorded(plan, "ledger.jsonl"), recorded(plan, "trajectories.jsonl")
    for line in lines:
        for role, n in Ledger.from_record(line).generated.items():
            account = line["roles"][role]
            assert (
                n == account["trained"] + sum(account["left_out"].values())
                and "stale" not in account["left_out"]
            )
    assert sorted((t["task"], t["sample"]) for t in trajectories) == sorted(
        (f"t{n}", s) for n in range(12) for s in (0, 1)
    )
    assert all(
        "continuous/late" in line for line in recorded(plan, "metrics.jsonl") if line["step"]
    )
    lags = {
        t["step"] - 1 - a["version"]
        for t in trajectories
        for a in t["actions"]
        if a["policy"] == "judge"
    }
    assert max(lags) <= 2


def test_it_needs_rollouts_during_updates_and_says_that_a_run_cannot_be_repeated(tmp_path):
    plan = planned(tmp_path / "with")
    assert ("continuous.timing", "marl_plugins.continuous") in briefs(plan.run.warnings)
    found = [
        word
        for word in words(tmp_path / "without", ["continuous"])
        if word != "--train.async_enable"
    ]
    with refused(("continuous.async", "marl_plugins.continuous")):
        build_plan(found)
