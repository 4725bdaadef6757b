"""Engines that change policy: the real pools over simulated engines on virtual time, and what the
plan says of it."""

import asyncio
import copy
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from safetensors.torch import save_file
from virtual_time import SimulatedEngine, run

from marl_plugins.balance import (
    EngineGroups,
    balance,
    exchanging,
    idle_to_waiting,
    shortest_to_longest,
)
from marl_plugins.builtin.routing import least_loaded
from marl_plugins.core.failures import InfrastructureFailure, RunEnded
from marl_plugins.core.workflow import Call, Sampling
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.signature import differences, engine_signature
from marl_plugins.engine.processes.engines import EnginePool, RestartBudget

ROOT = Path(__file__).resolve().parent.parent
SAMPLING = Sampling(1.0, 1.0, 8, 1000)
LOADING = 0.5
SUMS = ["--recipe", "tests/recipes/sums/tiny.yaml"]


def request(number, policy, place=0):
    return Call(policy, (1, 2), SAMPLING, 8, number, "a", f"t{place}", 0, f"a.{number}", 1, place)


def pools_of(policies, engines, seconds, in_flight=1, budget=0):
    """Pools of `engines[p]` engines; a policy's weights are version 10 of the first, 11 of the
    second, ..."""
    shared = RestartBudget(budget)

    def pool(number, policy):
        def engine():
            return SimulatedEngine(policy, seconds, in_flight, version=10 + number)

        def restore(handle):
            return handle.engine.load_state(policy, 10 + number, LOADING)

        made = EnginePool(
            policy,
            [engine() for _ in range(engines[number])],
            lambda dead: engine(),
            restore,
            shared,
            600.0,
            in_flight,
        )
        made.versions[policy] = (10 + number,)
        return made

    return {policy: pool(number, policy) for number, policy in enumerate(policies)}


def everywhere(pools):
    """All engines, wherever they are."""
    return [e for pool in pools.values() for e in (*pool.engines, *pool.travelling)]


# --- laws ---------------------------------------------------------------------------------------


@st.composite
def loads(draw):
    policies = "pqr"[: draw(st.integers(2, 3))]
    instant = st.integers(0, 15).map(float)  # whole seconds, so that much happens at the same time
    wanted = st.tuples(
        st.sampled_from(policies),
        instant,
        st.integers(1, 6).map(float),
        st.none() | instant,
        st.integers(0, 3),
    )
    return {
        "policies": policies,
        "engines": [draw(st.integers(1, 3)) for _ in policies],
        "requests": draw(st.lists(wanted, min_size=1, max_size=30)),
        "in_flight": draw(st.integers(1, 2)),
    }


async def at_random(pools, draws, ended):
    """Lends any engine anywhere, busy ones too, as long as a policy keeps one; then all go home."""
    moving = []
    for who, where in draws:
        await asyncio.sleep(0.75)
        names = list(pools)
        giver, taker = pools[names[who % len(names)]], pools[names[where % len(names)]]
        if giver is not taker and len(giver.engines) > 1 and not ended.is_set():
            moving.append(giver.lend(giver.engines[where % len(giver.engines)], taker))
    await ended.wait()
    await asyncio.gather(*moving)
    await balance(list(pools.values()), lambda pools: None, ended)


async def play(load, beside=None, deaths=(), budget=0):
    """Everything asked and answered, what runs beside it included: answers by request, what was
    refused, and the pools."""
    seconds = {n: s for n, (_, _, s, _, _) in enumerate(load["requests"])}
    pools = pools_of(
        load["policies"],
        load["engines"],
        lambda call: seconds[call.seed],
        load["in_flight"],
        budget,
    )
    ended, total = asyncio.Event(), sum(load["engines"])

    def check():
        there = everywhere(pools)
        assert len(there) == len(set(there))
        if not deaths:
            assert len(there) == total and all(
                pool.engines or pool.travelling for pool in pools.values()
            )
        for name, pool in pools.items():
            assert all(
                (e.policy, e.version) == (name, *pool.versions[name])
                for e in pool.engines
                if not e.dead
            )
            assert all(e.load <= load["in_flight"] for e in pool.engines)

    async def ask(n, policy, arrives, place):
        await asyncio.sleep(arrives)
        try:
            return await pools[policy].generate(request(n, policy, place), least_loaded)
        finally:
            check()

    async def kill(at, which):
        await asyncio.sleep(at + 0.25)
        if there := everywhere(pools):
            there[which % len(there)].die()

    for pool in pools.values():
        pool.watchers.append(check)
    loop = asyncio.get_running_loop()
    asked = [
        asyncio.create_task(ask(n, p, at, place))
        for n, (p, at, _, _, place) in enumerate(load["requests"])
    ]
    for task, (*_, gives_up, _) in zip(asked, load["requests"], strict=True):
        if gives_up is not None:
            loop.call_later(gives_up, task.cancel)
    working = asyncio.create_task(beside(pools, ended)) if beside else None
    kills = [asyncio.create_task(kill(*death)) for death in deaths]
    found = await asyncio.gather(*asked, return_exceptions=True)
    await asyncio.gather(*kills)
    ended.set()
    if working:
        await working
    return found, pools


def by_rule(rule):
    return lambda pools, ended: balance(list(pools.values()), rule, ended)


RULES = st.sampled_from(
    [by_rule(idle_to_waiting), by_rule(shortest_to_longest(0)), by_rule(shortest_to_longest(3))]
)
RANDOM = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=20).map(
    lambda draws: lambda pools, ended: at_random(pools, draws, ended)
)


def kinds(found):
    return [type(f).__name__ for f in found]


@settings(max_examples=40)
@given(loads(), RULES | RANDOM)
def test_every_answer_is_what_it_is_without_moves(load, beside):
    """No request is lost, doubled or answered by another policy; the engines are as many as before,
    each in one place, and at home in the end with the weights of their own policy."""
    (moved, pools), _ = run(play(load, beside))
    without, _ = run(play(replace_given_up(load)))[0]
    for number, (answer, plain) in enumerate(zip(moved, without, strict=True)):
        assert answer == plain or isinstance(answer, asyncio.CancelledError), number
        assert (
            isinstance(answer, asyncio.CancelledError)
            or answer.policy == load["requests"][number][0]
        )
    served = [call.seed for e in everywhere(pools) for call, _, _ in e.served]
    assert len(served) == len(set(served))
    for (name, pool), count in zip(pools.items(), load["engines"], strict=True):
        assert len(pool.engines) == count and {e.home for e in pool.engines} <= {None, pool}
        assert all((e.policy, e.load) == (name, 0) for e in pool.engines)
        assert not (pool.away or pool.travelling or pool.waiting)


def replace_given_up(load):
    """The same with nothing given up."""
    return {**load, "requests": [(*r[:3], None, r[4]) for r in load["requests"]]}


@settings(max_examples=40)
@given(
    loads(),
    RULES | RANDOM,
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 8)), max_size=4),
    st.integers(0, 4),
)
def test_engines_may_die_wherever_they_are(load, beside, deaths, budget):
    """In a pool, busy before they leave, on their way, as guests: each is replaced while the budget
    lasts; none waits for ever."""
    deaths = [(float(at), which) for at, which in deaths]
    (found, pools), _ = run(play(load, beside, deaths, budget))
    for answer, (policy, *_) in zip(found, load["requests"], strict=True):
        assert (
            isinstance(answer, asyncio.CancelledError | InfrastructureFailure)
            or answer.policy == policy
        )
    left = next(iter(pools.values())).budget.left
    assert left == 0 or not any(isinstance(f, InfrastructureFailure) for f in found)
    alive = [e for e in everywhere(pools) if not e.dead]
    undiscovered = [e for e in everywhere(pools) if e.dead]
    if left:
        assert len(alive) + len(undiscovered) == sum(load["engines"])
        for pool, count in zip(pools.values(), load["engines"], strict=True):
            assert len(pool.engines) == count
    for name, pool in pools.items():
        assert not (pool.away or pool.travelling or pool.waiting)
        assert all(e.policy == name for e in pool.engines if not e.dead)


# --- the rules
# --------------------------------------------------------------------------------------------------


def still(policy, waiting, *engine_loads, travelling=0, in_flight=1):
    """A pool that stands still."""
    engines = [
        SimpleNamespace(load=load, home=None, name=f"{policy}{n}")
        for n, load in enumerate(engine_loads)
    ]
    return SimpleNamespace(
        policy=policy,
        waiting=waiting,
        engines=engines,
        travelling=range(travelling),
        in_flight=in_flight,
    )


def says(rule, *pools):
    move = rule(pools)
    return move and (move[0].name, move[1].policy, move[2].policy)


def test_an_idle_engine_goes_where_more_than_one_request_waits():
    assert says(idle_to_waiting, still("p", 2, 1), still("q", 0, 1, 0)) == ("q1", "q", "p")
    assert says(idle_to_waiting, still("p", 1, 1), still("q", 0, 1, 0)) is None, (
        "one request is answered soon"
    )
    assert says(idle_to_waiting, still("p", 9, 1), still("q", 0, 0)) is None, (
        "a policy keeps one engine"
    )
    assert says(idle_to_waiting, still("p", 9, 1), still("q", 0, 1, 1)) is None, "nobody is idle"
    assert says(idle_to_waiting, still("p", 3, 1, travelling=2), still("q", 0, 0, 0)) is None, (
        "two are on their way"
    )
    assert says(idle_to_waiting, still("p", 4, 1, travelling=2), still("q", 0, 0, 0)) == (
        "q0",
        "q",
        "p",
    )
    assert says(idle_to_waiting, still("p", 2, 1), still("r", 5, 1), still("q", 0, 0, 0)) == (
        "q0",
        "q",
        "r",
    )


def test_flexmarls_rule_is_strict_and_takes_idle_engines_first():
    rule = shortest_to_longest(5)
    assert says(rule, still("p", 5, 1), still("q", 0, 1, 0)) is None
    assert says(rule, still("p", 6, 1), still("q", 0, 1, 0)) == ("q1", "q", "p")
    assert says(rule, still("p", 7, 1), still("q", 1, 1, 1)) == ("q0", "q", "p"), (
        "a busy one drains first"
    )
    assert says(rule, still("p", 99, 1), still("q", 0, 0)) is None
    crowded = still("r", 0, 0, 0)
    assert says(rule, still("p", 99, 1), still("q", 0, 0), crowded) == ("r0", "r", "p")


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 40), st.integers(0, 10))
def test_flexmarls_rule_moves_as_many_as_the_queues_differ(high, low, engines, gap):
    """Its section 5.2: queues 7 and 1 move 6 of 30 engines; one stays."""
    giver, taker = still("q", low, *[0] * engines), still("p", max(high, low), 1)
    taker.travelling, moved = [], 0
    while move := shortest_to_longest(gap)([taker, giver]):
        engine, whence, whither = move
        assert (whence, whither) == (giver, taker)
        giver.engines.remove(engine)
        taker.travelling.append(engine)
        moved += 1
    more = max(high, low) - low
    assert moved == (min(more, engines - 1) if more > gap else 0)


def test_it_pays_where_the_load_is_skewed():
    load = {
        "policies": "pq",
        "engines": [2, 2],
        "in_flight": 1,
        "requests": [("p", 0.0, 4.0, None, n) for n in range(12)],
    }
    without = run(play(load))[1]
    assert without == 6 * 4.0
    (_, pools), seconds = run(play(load, by_rule(idle_to_waiting)))
    # three engines: q's second goes at once, and home at the end
    assert seconds == 4 * 4.0 + LOADING + LOADING
    assert sorted(len(e.served) for e in everywhere(pools)) == [0, 4, 4, 4]


def test_a_policy_whose_last_engine_died_gets_back_the_one_that_it_has_lent():
    """Without moves that one would have answered; the run must not lose more."""
    load = {
        "policies": "pq",
        "engines": [2, 1],
        "in_flight": 1,
        "requests": [*[("q", 0.0, 5.0, None, n) for n in range(4)], ("p", 7.0, 1.0, None, 9)],
    }
    (found, pools), _ = run(play(load, by_rule(idle_to_waiting), deaths=[(6.0, 0)]))
    assert kinds(found) == ["Generation"] * 5 and found[4].policy == "p"
    assert [len(pool.engines) for pool in pools.values()] == [1, 1]


# --- syncs, sleeps and the end
# ---------------------------------------------------------------------------------------------


def test_a_sync_waits_for_engines_on_their_way_and_gives_them_the_new_weights_too():
    async def go():
        pools = pools_of("pq", [2, 1], lambda call: 3.0)
        p, q = pools.values()
        busy = asyncio.create_task(p.generate(request(1, "p"), least_loaded))
        await asyncio.sleep(1)
        traveller = p.engines[0]
        p.lend(traveller, q)  # it answers until 3.0, and has q's weights at 3.5
        seen = []

        def load(handle):
            seen.append((handle.engine, handle.engine.policy, asyncio.get_running_loop().time()))
            return handle.engine.load_state("q", 12, LOADING)

        with q.changing("q", 12):
            await q.on_all(load)
        await busy
        return traveller, q, seen

    (traveller, q, seen), _ = run(go())
    assert {e for e, _, _ in seen} == set(q.engines) and traveller in q.engines and len(seen) == 2
    assert {(policy, at) for _, policy, at in seen} == {("q", 3.5)} and [
        e.version for e in q.engines
    ] == [12, 12]


def test_the_end_of_a_policy_ends_the_engines_that_are_on_their_way_to_it():
    async def go():
        pools = pools_of("pq", [2, 1], lambda call: 3.0)
        p, q = pools.values()
        traveller = p.engines[0]
        p.lend(traveller, q)
        await asyncio.sleep(0.25)
        q.kill()
        return traveller.dead, [e.dead for e in p.engines], q.engines

    assert run(go())[0] == (True, [False], [])


def test_weights_that_cannot_be_had_end_the_run():
    async def go():
        p, q = pools_of("pq", [2, 1], lambda call: 3.0).values()

        async def gone(handle):
            raise RunEnded("the training process died")

        q.restore = gone
        with pytest.raises(RunEnded, match="the training process died"):
            await p.lend(p.engines[0], q)
        with pytest.raises(RunEnded, match="the training process died"):
            await q.generate(request(1, "q"), least_loaded)
        traveller = next(iter(q.travelling))
        q.kill()
        return traveller.dead

    assert run(go())[0]


# --- whose answers are taken
# -----------------------------------------------------------------------------------------------


def asked_while(change, seconds=4.0):
    """The answer to a request during which something happens to the only engine."""

    async def go():
        (p,) = pools_of("p", [1], lambda call: seconds).values()
        asked = asyncio.create_task(p.generate(request(1, "p"), least_loaded))
        await asyncio.sleep(1)
        await change(p, p.engines[0])
        return await asked

    return run(go())


def test_an_answer_of_another_policy_ends_the_run():
    """Versions alone do not tell: 7 of one policy is not 7 of another one."""

    async def other(pool, engine):
        engine.policy = "q"  # nobody was told

    answer, _ = asked_while(other)
    assert answer.policy == "p", "what was begun before was still its own"

    async def begun():
        (p,) = pools_of("p", [1], lambda call: 1.0).values()
        p.engines[0].policy = "q"
        await p.generate(request(1, "p"), least_loaded)

    with pytest.raises(
        RunEnded, match="weights of policy 'q', version 10, where policy 'p', version 10, was asked"
    ):
        run(begun())


def test_an_answer_during_which_weights_changed_unasked_ends_the_run():
    with pytest.raises(RunEnded, match="version -1, where policy 'p', version 10"):
        asked_while(lambda pool, engine: engine.load_state("p", 10, 0.0))


def test_in_a_sync_it_is_asked_for_again():
    async def sync(pool, engine):
        with pool.changing("p", 11):
            await pool.on_all(lambda handle: handle.engine.load_state("p", 11, LOADING))

    answer, seconds = asked_while(sync)
    assert (answer.policy, answer.version, seconds) == ("p", 11, 8.0)


def test_an_answer_by_the_weights_before_a_sync_is_taken():
    async def sync(pool, engine):
        with pool.changing("p", 11):
            await asyncio.sleep(1)  # training processes still write
            await asyncio.sleep(4)
            await engine.load_state("p", 11, 0.0)

    answer, _ = asked_while(sync)
    assert answer.version == 10


# --- the hook and the plan
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path):
    """The plan of a recipe of three tiny policies, of which some things are said otherwise."""
    shutil.copytree(
        ROOT / "tests" / "recipes" / "sums",
        tmp_path / "sums",
        ignore=shutil.ignore_patterns("__pycache__"),
    )

    def build(*flags, recipe=""):
        (tmp_path / "sums" / "mine.yaml").write_text(f"extends: tiny.yaml\n{recipe}\n")
        words = [
            "--recipe",
            str(tmp_path / "sums" / "mine.yaml"),
            "--plugin",
            "marl_plugins.balance",
        ]
        defaults = {"--vllm.num_engines": "2", "--balance.in_flight": "8"}
        return build_plan(
            [
                *words,
                *(w for pair in defaults.items() if pair[0] not in flags for w in pair),
                *flags,
            ]
        )

    return build


def test_policies_whose_engines_were_started_alike_exchange_them(plan):
    built = plan()
    assert (
        built.run.state(EngineGroups) == [["solver", "coder", "verifier"]] == exchanging(built.run)
    )
    assert not any("marl_plugins.balance" in warning for warning in [*map(str, built.run.warnings)])
    one_apart = plan("--policy.coder.data.max_len", "320")
    assert exchanging(one_apart.run) == [["solver", "verifier"]]


def test_without_a_second_trained_policy_it_is_refused(plan):
    for recipe in (
        "mapping: shared\npolicies: null",
        "policies: {coder: {trainable: false}, verifier: {trainable: false}}",
    ):
        with refused(("balance.one_policy", "marl_plugins.balance")):
            plan(recipe=recipe)


def test_without_two_alike_it_is_refused_with_what_differs(plan):
    who = ("balance.unlike", "marl_plugins.balance", "solver")
    with refused((*who, "coder"), (*who, "verifier")) as error:
        plan(
            "--policy.verifier.data.max_len",
            "320",
            "--policy.coder.actor.model_name_or_path",
            "tiny:hidden=64",
        )
    assert [p.got.rpartition(" in ")[2] for p in error.value.problems] == [
        "model",
        "--data.max_len",
    ]


# --- signatures
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flags():
    return build_plan(SUMS).run.policy_args["solver"]


def started_with(flags, model):
    """The signature of an engine of a model, with the same flags."""
    mine = copy.deepcopy(flags)
    mine.actor.model_name_or_path = str(model)
    return engine_signature(mine)


def model_in(folder, **changed):
    folder.mkdir()
    files = {
        "config.json": {"_name_or_path": str(folder), "eos_token_id": 1, "layers": 2},
        "generation_config.json": {"eos_token_id": 1, "transformers_version": str(folder)},
        "tokenizer.json": {"vocab": ["a", "b"]},
        "tokenizer_config.json": {"name_or_path": str(folder), "eos_token": "b"},
    }
    for name, content in (
        files | {n: c for n, c in changed.items() if n.endswith(".json")}
    ).items():
        (folder / name).write_text(json.dumps(content))
    save_file({"w": changed.get("w", torch.zeros(2, 3))}, folder / "model.safetensors")
    (folder / "chat_template.jinja").write_text(changed.get("template", "{{ x }}"))
    return folder


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({}, []),
        ({"w": torch.ones(2, 3)}, []),
        ({"w": torch.zeros(3, 2)}, ["shapes and dtypes of the weights"]),
        ({"config.json": {"eos_token_id": 1, "layers": 1}}, ["config.json"]),
        ({"tokenizer.json": {"vocab": ["b", "a"]}}, ["tokenizer files"]),
    ],
)
def test_a_signature_is_everything_that_an_engine_was_started_with(
    flags, tmp_path, changed, differing
):
    one, other = model_in(tmp_path / "one"), model_in(tmp_path / "other", **changed)
    assert differences(started_with(flags, one), started_with(flags, other)) == differing
