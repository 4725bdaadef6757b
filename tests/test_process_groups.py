"""Seats that policies share: what the plan says of them, and who is in the room, without
processes."""

import asyncio
from types import SimpleNamespace

import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from virtual_time import run

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.process_backend import TrainingSpec
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.devices import needed_devices
from marl_plugins.engine.plan.engines_only import only_players
from marl_plugins.engine.processes.cluster import _check_devices
from marl_plugins.process_groups.room import SeatedProcesses, SeatRoom
from marl_plugins.process_groups.seats import Seat, Seating
from marl_plugins.process_groups.states import engine_seats, state_bytes

SUMS = ["--recipe", "tests/recipes/sums/tiny.yaml"]
PLUGIN = ["--plugin", "marl_plugins.process_groups"]
PARAMETERS = 128 * (259 + 2 * (10 * 128 + 5) + 1)


def plan(*words):
    return build_plan([*SUMS, *PLUGIN, *words])


def stored(found):
    return found.run.processes.object_store_bytes(found.run)


def test_policies_share_as_many_seats_as_the_largest_one_needs():
    found = plan("--policy.coder.actor.num_gpus_per_node", "2")
    assert found.run.processes.seating == Seating(2)
    devices = {"solver": 1, "coder": 1, "verifier": 1, "seats of training processes": 2}
    assert describe(found)["devices"] == devices and describe(found)["devices_together"] == 5
    assert "seats of training processes" not in needed_devices(only_players(found.run))


def test_the_object_store_is_as_large_as_all_states():
    """Of a model with P parameters: 14 P by each process, or 2 P and a share of 12 P; the engines'
    weights once."""
    with_critic = [
        "--algo.advantage.estimator",
        "gae",
        "--critic.num_gpus_per_node",
        "2",
        "--policy.coder.ds.zero_stage",
        "2",
    ]
    sizes = {name: size / PARAMETERS for name, size in state_bytes(plan(*with_critic).run).items()}
    assert sizes == {
        "solver": 2 + 14 + 2 * 14,
        "coder": 2 + 14 + 2 * 2 + 12,
        "verifier": 2 + 14 + 2 * 14,
    }
    assert stored(plan()) == 3 * 16 * PARAMETERS
    assert stored(plan("--process_groups.state_gb", "0.5")) == 5 * 10**8


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--process_groups.seats", "1", "--policy.coder.actor.num_gpus_per_node", "2"],
            [("seats.too_few", "marl_plugins.process_groups", "coder")],
        ),
        (
            ["--process_groups.seats", "1", "--algo.advantage.estimator", "gae"],
            [
                ("seats.too_few", "recipe.yaml:24", "marl_plugins.process_groups", "solver"),
                ("seats.too_few", "recipe.yaml:24", "marl_plugins.process_groups", "coder"),
                ("seats.too_few", "recipe.yaml:24", "marl_plugins.process_groups", "verifier"),
            ],
        ),
        (
            ["--process_groups.state_gb", "0.001"],
            [("seats.state_gb", "marl_plugins.process_groups")],
        ),
        (
            ["--policy.coder.actor.model_name_or_path", "tiny:hidden=40000,layers=2"],
            [("seats.memory", "marl_plugins.process_groups")],
        ),
        (
            ["--policy.coder.actor.model_name_or_path", "someone/unsized"],
            [("seats.unknown_size", "marl_plugins.process_groups")],
        ),
    ],
)
def test_what_cannot_be_seated_is_said_before_anything_starts(words, expected, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with refused(*expected):
        plan(*words)


@pytest.mark.parametrize(
    ("seats", "nodes", "of_nodes", "fits"),
    [
        (3, 2, [4, 3], True),
        (4, 2, [4, 4, 1], True),
        (4, 2, [4, 3, 2], False),
    ],
)
def test_seats_of_one_node_are_on_one_node(seats, nodes, of_nodes, fits, monkeypatch):
    """A cluster may have devices enough and none of its nodes; Ray would wait for such a node for
    ever."""
    together = {"GPU": sum(of_nodes), "CPU": 64, "object_store_memory": 2**40}
    monkeypatch.setattr(ray, "cluster_resources", lambda: together)
    monkeypatch.setattr(ray, "available_resources", lambda: together)
    nodes_of_ray = [
        {"NodeID": str(number), "Alive": gpus < 100, "Resources": {"GPU": gpus}}
        for number, gpus in enumerate([100, *of_nodes])
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes_of_ray)
    run = plan("--process_groups.seats", str(seats), "--process_groups.nodes", str(nodes)).run
    monkeypatch.setattr(
        "marl_plugins.engine.processes.cluster.needed_devices",
        lambda run: {"seats of training processes": 0},
    )
    if fits:
        _check_devices(run)
        return
    with refused(("seats.cluster",)):
        _check_devices(run)


TOGETHER = ["--train.colocate_all", "--vllm.enable_sleep"]
A_THIRD = ["--vllm.gpu_memory_utilization", "0.3"]


def test_on_gpus_engines_may_have_the_seats_too(monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    seats = "seats of training processes"
    apart = plan().run
    assert needed_devices(apart) == {"solver": 1, "coder": 1, "verifier": 1, seats: 1}
    together = plan(*TOGETHER, "--ds.enable_sleep", *A_THIRD).run
    assert needed_devices(together) == {"solver": 0, "coder": 0, "verifier": 0, seats: 1}
    on_two = plan(*TOGETHER, "--process_groups.seats", "2", "--vllm.gpu_memory_utilization", "0.5")
    places = engine_seats(on_two.run, on_two.run.processes.seating)
    assert [seat for (seat,) in places.values()] == [Seat(0, 0), Seat(0, 1), Seat(0, 0)]


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ([*TOGETHER, "--vllm.gpu_memory_utilization", "0.4"], ["seats.engines"]),
        ([*A_THIRD, "--train.colocate_all"], ["seats.awake"] * 3),
    ],
)
def test_what_cannot_be_on_one_device_is_refused(words, codes, monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    with pytest.raises(ConfigurationError) as caught:
        plan(*words)
    assert [problem.code for problem in caught.value.problems] == codes


class Member:
    """A policy whose processes are a name: where they are, and how long they need to leave and to
    come."""

    def __init__(self, room, name, count, there):
        self.room, self.name, self.count, self.there = room, name, count, there
        self.leaving = None
        room.members[name] = self

    def leave(self):
        self.leaving = asyncio.create_task(self.go())

    async def go(self):
        await asyncio.sleep(0.5)
        for seat in [seat for seat, who in self.there.items() if who == self.name]:
            del self.there[seat]

    async def work(self, arrives, seconds):
        await asyncio.sleep(arrives)
        grant = await self.room.take(self.name, self.count)
        try:
            for member in self.room.members.values():  # as `SeatedProcesses.active` does
                if member.leaving:
                    await asyncio.shield(member.leaving)
            assert not {self.there.get(seat) for seat in grant.seats} - {None, self.name}, (
                "two policies on one seat"
            )
            self.there |= dict.fromkeys(grant.seats, self.name)
            await asyncio.sleep(seconds)
            assert {self.there.get(seat) for seat in grant.seats} == {self.name}, (
                "it had to leave while it computed"
            )
        finally:
            self.room.give_back(self.name)
        return self.name


INSTANT = st.integers(0, 6).map(float)
WORK = st.tuples(
    st.integers(0, 3), INSTANT, INSTANT, st.none() | st.integers(0, 12).map(lambda n: n / 2)
)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 3),
    st.lists(st.integers(1, 2), min_size=4, max_size=4),
    st.lists(WORK, min_size=1, max_size=12),
)
def test_no_two_policies_are_on_one_seat_and_all_who_do_not_give_up_are_served(size, counts, works):
    room, there = SeatRoom(Seating(size), False, 600.0), {}
    members = [Member(room, name, count, there) for name, count in zip("pqrs", counts, strict=True)]

    async def go():
        tasks = [
            asyncio.create_task(members[who].work(at, seconds)) for who, at, seconds, _ in works
        ]
        for task, (*_, gives_up) in zip(tasks, works, strict=True):
            if gives_up is not None:
                asyncio.get_running_loop().call_later(gives_up, task.cancel)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found, _ = run(go())
    for result, (who, _, _, gives_up) in zip(found, works, strict=True):
        assert result == members[who].name or (
            gives_up is not None and isinstance(result, asyncio.CancelledError)
        ), result
    assert not room.seats.waiting and not any(room.seats._at_work.values()) and not room._granted


class Stream:
    """What a process streams, and that it has ended."""

    def __init__(self, values):
        self.values = values

    async def __aiter__(self):
        for value in self.values:
            yield value

    async def completed(self):
        await asyncio.gather(*self.values)


class Process:
    """A training process that knows how many steps it has taken, and does one thing after the
    other, each in its time."""

    def __init__(self):
        self.steps, self.dead, self._last = None, False, None
        self.__ray_call__ = self._answering(0.1, lambda function: None)
        self.assign = self._answering(0.1, lambda *_: ("here", 1))
        self.init_model_from_pretrained = self._answering(1.0, lambda *_: self._become(0))
        self.set_state = self._answering(0.5, self._become)
        self.step = self._answering(1.0, lambda: self._become(self.steps + 1))
        both = self._answering(0.5, lambda: self.steps)
        self.get_state = SimpleNamespace(remote=lambda: Stream([both.remote()]))
        weights = self._answering(0.1, lambda: b"weights")
        self.pieces = SimpleNamespace(remote=lambda *_: Stream([weights.remote()]))

    def _become(self, steps):
        self.steps = steps

    def _answering(self, seconds, do):
        async def work(before, given):
            await asyncio.gather(*before, return_exceptions=True)
            await asyncio.sleep(seconds)
            assert not self.dead, "it was asked for something after its end"
            return do(*[await g if isinstance(g, asyncio.Task) else g for g in given])

        def remote(*given):
            self._last = asyncio.create_task(work([self._last] if self._last else [], given))
            return self._last

        return SimpleNamespace(remote=remote)


class OfStandIns(SeatRoom):
    def _start(self, seat, kind):
        return Process(), asyncio.create_task(asyncio.sleep(2.0))

    async def spare(self, seat, kind):
        spares = self._spares.get((seat, kind))
        handle, ready = spares.pop(0) if spares else self._start(seat, kind)
        await ready
        return handle


@pytest.fixture(scope="module")
def solver():
    """The flags of a policy."""
    return plan().run.policy_args["solver"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), INSTANT, st.none() | st.integers(1, 40).map(lambda n: n / 4)),
        max_size=10,
    )
)
def test_work_that_is_given_up_leaves_every_policy_what_it_knows(solver, works):
    """The rollout beside which forward passes run may end early (`RunPaused`); what is saved then
    is what was trained."""
    done = dict.fromkeys("pqr", 0)

    async def one_step(processes, arrives):
        await asyncio.sleep(arrives)
        async with processes.active():
            (handle,) = processes.handles()
            done[processes.policy] += 1
            await asyncio.shield(
                handle.step.remote()
            )  # what has been asked for is done, whoever waits for it

    async def go():
        room = OfStandIns(Seating(1), False, 600.0)
        specs = [TrainingSpec(name, solver, "cpu", None, 10, 600.0) for name in "pqr"]
        members = [SeatedProcesses(room, spec) for spec in specs]
        for member in members:
            member.launch(None)
        tasks = [asyncio.create_task(one_step(members[who], at)) for who, at, _ in works]
        for task, (*_, gives_up) in zip(tasks, works, strict=True):
            if gives_up is not None:
                asyncio.get_running_loop().call_later(gives_up, task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in members:
            async with member.active():
                (handle,) = member.handles()
                assert await member.weights() and handle.steps == done[member.policy]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "kill", lambda handle: setattr(handle, "dead", True))
        run(go())
