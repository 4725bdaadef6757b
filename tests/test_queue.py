"""Who waits for an engine, and who is next: the real pool over simulated engines on virtual
time."""

import asyncio
import copy
from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ray.exceptions import OutOfMemoryError, RayActorError
from simulated import CharacterChat, without_seconds
from virtual_time import SimulatedEngine, run

from marl_plugins.builtin.routing import MAX_REQUESTS_IN_FLIGHT, least_loaded
from marl_plugins.core.failures import InfrastructureFailure, RunEnded
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workflow import Call, RoleSpec, Sampling
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.processes.engines import EnginePool, RestartBudget
from marl_plugins.engine.records.trajectory_record import to_record
from marl_plugins.engine.runtime.roles import Cast
from marl_plugins.engine.runtime.rollout import Rollout

SAMPLING = Sampling(1.0, 1.0, 8, 1000)


def request(number, policy="p", place=0, sample=0):
    return Call(
        policy, (1, 2), SAMPLING, 8, number, "a", f"t{place}", sample, f"a.{number}", 1, place
    )


def pool_of(seconds, engines=1, in_flight=1, budget=0, policy="p", loading=3.0):
    def engine():
        return SimulatedEngine(policy, seconds, places=in_flight)

    async def restore(handle):
        await asyncio.sleep(loading)

    restarts = budget if isinstance(budget, RestartBudget) else RestartBudget(budget)
    return EnginePool(
        policy,
        [engine() for _ in range(engines)],
        lambda dead: engine(),
        restore,
        restarts,
        60.0,
        in_flight,
    )


# --- laws ---------------------------------------------------------------------------------------


@dataclass
class Request:
    """One request of a scenario, and what has become of it."""

    call: Call
    arrives: float
    seconds: float
    given_up: float | None
    state: str = "not asked"
    at: object = None
    answers: list = field(default_factory=list)

    @property
    def order(self):
        return self.call.place, self.call.sample, self.call.path


@st.composite
def scenarios(draw):
    """Requests to two policies that arrive, take their time and are given up; engines that die;
    budgets of replacements."""
    instant = st.integers(0, 20).map(float)  # whole seconds, so that much happens at the same time
    requests = [
        Request(
            request(
                n, draw(st.sampled_from("pq")), draw(st.integers(-1, 4)), draw(st.integers(0, 1))
            ),
            arrives=draw(instant),
            seconds=float(draw(st.integers(1, 6))),
            given_up=draw(st.none() | instant),
        )
        for n in range(draw(st.integers(1, 25)))
    ]
    deaths = draw(
        st.lists(st.tuples(instant, st.sampled_from("pq"), st.integers(0, 3)), max_size=4)
    )
    return {
        "requests": requests,
        "deaths": deaths,
        "engines": draw(st.integers(1, 3)),
        "in_flight": draw(st.integers(1, 3)),
        "budget": draw(st.integers(0, 4)),
    }


class Watched(SimulatedEngine):
    """An engine that says whom it was given, and when it fails them."""

    def __init__(self, world, policy, in_flight):
        super().__init__(policy, lambda call: world.by_path[call.path].seconds, places=in_flight)
        self.world = world

    async def answer(self, call, silence):
        asked = self.world.by_path[call.path]
        assert asked.state == "chosen" and asked.at is self
        asked.state = "asked"
        assert self.load <= self.world.in_flight and self.load == self.world.inside(self)
        try:
            return await super().answer(call, silence)
        except Exception:  # it died: the request waits again
            asked.state, asked.at = "waits", None
            raise


class World:
    """A scenario while it runs."""

    def __init__(self, requests, deaths, engines, in_flight, budget):
        self.requests, self.deaths, self.in_flight = requests, deaths, in_flight
        self.by_path = {r.call.path: r for r in requests}
        shared = RestartBudget(budget)
        self.pools = {}
        for policy in "pq":
            self.pools[policy] = pool_of(None, 0, in_flight, shared, policy)
            self.pools[policy].start = lambda dead, policy=policy: Watched(self, policy, in_flight)
            self.pools[policy].engines = [Watched(self, policy, in_flight) for _ in range(engines)]

    def inside(self, engine):
        return sum(r.at is engine for r in self.requests)

    def choose_for(self, mine):
        def choose(engines):
            assert mine.state == "waits"
            older = [
                r
                for r in self.requests
                if r.state == "waits" and r.call.policy == mine.call.policy and r.order < mine.order
            ]
            assert not older, f"{mine.order} was given a place before {[r.order for r in older]}"
            assert engines and all(
                e.load < self.in_flight and e in self.pools[mine.call.policy].engines
                for e in engines
            )
            mine.state, mine.at = "chosen", least_loaded(engines)
            return mine.at

        return choose

    async def ask(self, mine):
        await asyncio.sleep(mine.arrives)
        pool = self.pools[mine.call.policy]
        mine.state = "waits"
        try:
            mine.answers.append(await pool.generate(mine.call, self.choose_for(mine)))
            mine.state = "answered"
        except InfrastructureFailure:
            assert not pool.engines and pool.budget.left == 0
            mine.state = "refused"
        except asyncio.CancelledError:
            mine.state = "given up"
            raise
        finally:
            mine.at = None
            if pool.engines:  # else some have been refused and do not know it yet
                states = Counter(r.state for r in self.requests if r.call.policy == pool.policy)
                busy = all(engine.load == self.in_flight for engine in pool.engines)
                assert not states["waits"] or busy, "a request waits beside a free place"
                assert pool.waiting == states["waits"] + states["leaves"]

    def give_up(self, mine, task):
        task.cancel()
        if mine.state == "waits":
            mine.state = "leaves"  # as soon as the task is told

    async def kill(self, at, policy, index):
        await asyncio.sleep(at + 0.5)
        if index < len(engines := self.pools[policy].engines):
            engines[index].die()

    async def play(self):
        loop = asyncio.get_running_loop()
        asked = [asyncio.create_task(self.ask(r)) for r in self.requests]
        for r, task in zip(self.requests, asked, strict=True):
            if r.given_up is not None:
                loop.call_later(r.given_up, self.give_up, r, task)
        kills = [asyncio.create_task(self.kill(*death)) for death in self.deaths]
        found = await asyncio.gather(*asked, return_exceptions=True)
        for error in found:
            if isinstance(error, Exception):
                raise error
        await asyncio.gather(*kills)
        await asyncio.sleep(60)  # what still starts has started


GIVEN_UP_AS_AN_ENGINE_COMES = {
    "requests": [
        Request(request(0, "q", 0, 0), 4.0, 1.0, None),
        Request(request(1, "q", 0, 0), 5.0, 1.0, 7.0),
    ],
    "deaths": [(0.0, "q", 0)],
    "engines": 1,
    "in_flight": 1,
    "budget": 1,
}


@settings(max_examples=50)
@example(GIVEN_UP_AS_AN_ENGINE_COMES)
@given(scenarios())
def test_no_request_is_lost_doubled_or_overtaken(scenario):
    """Nor answered by another policy; what was given up frees its place, and a dead engine gives
    its requests back."""
    world = World(**copy.deepcopy(scenario))
    run(world.play())
    for r in world.requests:
        assert r.state in ("answered", "given up", "refused", "not asked")
        assert r.state != "not asked" or r.given_up <= r.arrives
        assert len(r.answers) == (r.state == "answered")
        assert [g.policy for g in r.answers] == [r.call.policy] * len(r.answers)
    served = Counter(
        c.path for pool in world.pools.values() for e in pool.engines for c, _, _ in e.served
    )
    assert all(times == 1 for times in served.values())
    for pool in world.pools.values():
        assert pool.waiting == 0 and [engine.load for engine in pool.engines] == [0] * len(
            pool.engines
        )


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=20
    ),
    st.integers(1, 4),
)
def test_requests_that_wait_together_are_answered_as_a_list_is_worked_off(wanted, engines):
    """Reference: the requests sorted by age, each to the engine that is free first."""
    calls = [request(n, place=place, sample=sample) for n, (place, sample, _) in enumerate(wanted)]
    seconds = {call.path: float(s) for call, (_, _, s) in zip(calls, wanted, strict=True)}
    pool = pool_of(lambda call: seconds[call.path], engines)
    ended = {}

    async def ask(call):
        await pool.generate(call, least_loaded)
        ended[call.path] = asyncio.get_running_loop().time()

    async def together():
        blocked, pool.engines = pool.engines, []
        pool._coming = {
            None: asyncio.get_running_loop().create_future()
        }  # as while an engine is replaced
        asked = [asyncio.create_task(ask(call)) for call in calls]
        await asyncio.sleep(0)
        pool.engines = blocked
        pool.hand_out()
        await asyncio.gather(*asked)

    run(together())
    free, expected = [0.0] * engines, {}
    for call in sorted(calls, key=lambda c: (c.place, c.sample, c.path)):
        first = free.index(min(free))
        free[first] += seconds[call.path]
        expected[call.path] = free[first]
    assert ended == expected


# --- cases
# --------------------------------------------------------------------------------------------------


def test_a_routers_error_is_its_own_requests():
    async def go():
        pool = pool_of(lambda call: 1.0)

        def broken(engines):
            raise KeyError("my table")

        first = asyncio.create_task(pool.generate(request(1), least_loaded))
        await asyncio.sleep(0)
        second, third = (
            asyncio.create_task(pool.generate(request(n), c))
            for n, c in ((2, broken), (3, least_loaded))
        )
        return await asyncio.gather(first, second, third, return_exceptions=True), pool

    (found, pool), _ = run(go())
    assert [type(f).__name__ for f in found] == ["Generation", "KeyError", "Generation"]
    assert pool.waiting == 0 and pool.engines[0].load == 0


DEATHS = pytest.mark.parametrize(
    "death", [RayActorError(), OutOfMemoryError("1 worker was killed")], ids=["died", "memory"]
)


@DEATHS
def test_a_dead_engines_requests_go_to_the_others_at_once(death):
    async def go():
        pool = pool_of(lambda call: 10.0, engines=2, budget=1, loading=100.0)
        old, young = (
            asyncio.create_task(pool.generate(request(n, place=n), least_loaded)) for n in (1, 2)
        )
        later = asyncio.create_task(pool.generate(request(3, place=3), least_loaded))
        await asyncio.sleep(5)
        pool.engines[0].die(death)
        await asyncio.gather(old, young, later)
        return [(c.place, ended) for c, _, ended in pool.engines[0].served], pool.restarted

    (served, restarted), _ = run(go())
    assert served == [(2, 10.0), (1, 20.0), (3, 30.0)] and restarted == 0  # still loading


def test_who_waits_when_the_last_engine_dies_goes_to_its_replacement_or_is_told():
    async def go(budget):
        pool = pool_of(lambda call: 10.0, budget=budget)
        asked = [
            asyncio.create_task(pool.generate(request(n, place=n), least_loaded)) for n in range(3)
        ]
        await asyncio.sleep(5)
        pool.engines[0].die()
        return await asyncio.gather(
            *asked, return_exceptions=True
        ), asyncio.get_running_loop().time()

    (answered, at), _ = run(go(1))
    assert [g.policy for g in answered] == ["p"] * 3 and at == 5 + 3 + 30
    (refused, at), _ = run(go(0))
    assert [type(f) for f in refused] == [InfrastructureFailure] * 3 and at == 5
    assert "policy 'p'" in str(refused[0]) and "(limits.engine_restarts)" in str(refused[0])


@DEATHS
def test_an_engine_that_dies_when_all_are_asked_is_replaced(death):
    """A weight sync: Ray's memory monitor may end any process."""

    async def go():
        pool = pool_of(lambda call: 10.0, engines=2, budget=1)
        first = pool.engines[0].handle

        async def load(handle):
            if handle is first:
                raise death

        await pool.on_all(load)
        return len(pool.engines), pool.restarted, first in pool.handles

    assert run(go())[0] == (2, 1, False)


def test_an_engine_that_does_not_wake_is_ended_and_replaced():
    """The watchdog ends it, and what it was asked fails."""

    pool = pool_of(lambda call: 10.0, budget=1)
    (engine,) = pool.engines

    async def go():
        woken = asyncio.get_running_loop().create_future()
        engine.kill = lambda: woken.done() or woken.set_exception(RayActorError())
        await pool.on_all(lambda handle: woken)

    run(go())
    assert engine.silent and pool.engines != [engine] and "60 s" in pool.remarks[0]


def test_a_replacement_that_breaks_ends_the_run_for_all_who_wait_and_come_later():
    async def go():
        pool = pool_of(lambda call: 10.0, engines=2, budget=1)

        async def broken(handle):
            raise RunEnded("the training process died")

        pool.restore = broken
        asked = [
            asyncio.create_task(pool.generate(request(n, place=n), least_loaded)) for n in range(3)
        ]
        await asyncio.sleep(5)
        pool.engines[0].die()
        found = await asyncio.gather(*asked, return_exceptions=True)
        later = [pool.generate(request(9), least_loaded), pool.on_all(lambda handle: None)]
        return found, await asyncio.gather(*later, return_exceptions=True)

    (found, later), _ = run(go())
    assert [type(f).__name__ for f in found] == ["RunEnded", "Generation", "RunEnded"]
    assert [str(error) for error in later] == ["the training process died"] * 2


# --- in a rollout
# --------------------------------------------------------------------------------------------------


async def three_calls(task, roles, tools):
    first = await roles.a(q=task.prompt)
    both = await asyncio.gather(roles.b(q=first), roles.a(q=f"again {first}"))
    return await roles.b(q=" ".join(map(str, both)))


def rolled_out(in_flight, engines=2, deaths=(), seconds=None):
    """Records of a rollout over two policies, and the order in which its trajectories arrived."""
    pools = {
        p: pool_of(lambda call: 1.0 + call.seed % 7, engines, in_flight, 9, policy=p) for p in "pq"
    }

    async def score(trajectory):
        return 1.0

    hook = SimpleNamespace(
        marl_generate=lambda run, call, engines: engines.generate(call, least_loaded),
        marl_score_action=lambda run, action, seen: None,
        marl_score_outcome=lambda run, trajectory: score(trajectory),
    )
    limits, args = (
        SimpleNamespace(task_seconds=seconds),
        SimpleNamespace(train=SimpleNamespace(seed=3)),
    )
    stub = SimpleNamespace(recipe=SimpleNamespace(limits=limits), args=args)
    role = RoleSpec(
        "a", "p", lambda f: [{"role": "user", "content": f["q"]}], CharacterChat(), SAMPLING
    )
    roles = {"a": [role], "b": [replace(role, name="b", policy="q")]}
    rollout = Rollout(stub, SimpleNamespace(hook=hook), three_calls, Cast(roles), {}, pools)
    tasks = [Task(f"t{(7 * n) % 10}", f"q{n}", "l") for n in range(10)]

    async def collected():
        for at, policy in deaths:
            asyncio.get_running_loop().call_later(
                at, lambda policy=policy: pools[policy].engines[0].die()
            )
        return [t async for t in rollout.train(tasks, 2, 1)]

    found, _ = run(collected())
    return without_seconds([to_record(t) for t in rollout.in_order(found)]), [
        (t.place, t.sample) for t in found
    ]


def test_a_rollout_is_the_same_whatever_waits_and_dies():
    unlimited, together = rolled_out(10**6)
    one_by_one, ordered = rolled_out(1)
    disturbed, _ = rolled_out(1, deaths=[(4.5, "p"), (9.5, "q"), (9.5, "p")])
    assert unlimited == one_by_one == disturbed
    assert unlimited[0]["task"] == "t0" and unlimited[2]["task"] == "t7"
    late = [abs(n - (2 * place + sample)) for n, (place, sample) in enumerate(ordered)]
    assert sum(late) < sum(
        abs(n - (2 * place + sample)) for n, (place, sample) in enumerate(together)
    )


def test_the_flag_reaches_every_pool():
    from marl_plugins.engine.runtime.policy import UpstreamPolicy

    def limit(*flags):
        run = build_plan(["--recipe", "tests/recipes/sums/tiny.yaml", *flags]).run
        spec = run.policies[0]
        frozen = replace(spec, trainable=False)
        return UpstreamPolicy(
            frozen, run.policy_args[spec.name], "cpu", None, 1, RestartBudget(0), 60.0
        ).engines.in_flight

    assert (limit(), limit("--balance.in_flight", "3")) == (MAX_REQUESTS_IN_FLIGHT, 3)


def test_the_wait_for_an_engine_does_not_count_against_a_trajectory():
    """Three answers of 7 s at most; all of them one after the other take minutes."""
    assert rolled_out(1, engines=1, seconds=22.0) == rolled_out(1, engines=1)
