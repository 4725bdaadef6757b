"""Peers: what they publish and take in, that a step repeats after a crash, and what hostile or
broken records and stores cost."""

import asyncio
import gzip
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from contextlib import suppress
from types import SimpleNamespace
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_once import PlannedOnce
from simulated import make_trajectory, without_seconds
from simulated_run import SimulatedPolicy, simulated_trainer
from test_exchange import Chat, recorded
from test_forking import Forks

from marl_plugins.core.exchange import RefusedRecord
from marl_plugins.core.failures import ConfigurationError, RunPaused
from marl_plugins.core.policy import Policy
from marl_plugins.core.roles import RoleSpec
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.swarm.capability import (
    CAPABILITY_ROUNDING,
    CAPABILITY_ROUNDS,
    CapabilityWeights,
    note_round,
    ratio,
    subtract_baselines,
    weight,
)
from marl_plugins.swarm.command import main
from marl_plugins.swarm.peers import Swarm
from marl_plugins.swarm.record import key_of, packed, unpacked
from marl_plugins.swarm.store import (
    MOST_RECORD_BYTES,
    MOST_ROUND,
    RecordName,
    RecordStore,
)

PLUGIN = "marl_plugins.swarm"
DEFAULTS = {
    "publish": 1.0,
    "external": 0,
    "staleness": 1,
    "sampler": "uniform",
    "spread": 0.0,
    "quota": 0,
    "keep": 0,
    "judge": None,
} | {
    "weight": "own",
    "alpha": 1.0,
    "delta": 0.5,
    "trust": "tasks",
}


def peer(
    folder,
    store,
    seed=1,
    steps=3,
    name="alice",
    outcome=lambda t: float(t.sample == 0),
    tasks=None,
    **options,
):
    """A simulated run that takes part in a swarm."""
    trainer = simulated_trainer(
        folder / "run",
        outcome,
        steps=steps,
        eval_steps=-1,
        plugins=[PLUGIN],
        seed=seed,
        train_tasks=tasks,
    )
    trainer.run.args.ckpt.path, trainer.run.args.ckpt.max_num = str(folder / "ckpt"), 3
    trainer.run.args.swarm = SimpleNamespace(**DEFAULTS | options, store=str(store), peer=name)
    members = trainer.session.cast.members
    for role, (spec,) in members.items():
        members[role] = (RoleSpec(role, spec.policy, spec.render, Chat(), spec.sampling),)
    trainer.plugins.hook.marl_log = trainer.plugins.named.hook.marl_log
    return trainer


def fit(trainer, done=0):
    asyncio.run(trainer.fit(done))
    return trainer


def received(trainer):
    found = RunReader(trainer.records.folder).trajectories(Filter(received=True))
    return [(t.step, t.origin, t.task.id, t.sample) for t in found if t.origin]


def test_a_run_takes_groups_of_its_peers_and_the_numbers_add_up(tmp_path):
    store = tmp_path / "store"
    fit(peer(tmp_path / "a", store, seed=7))
    bob = fit(peer(tmp_path / "b", store, seed=8, name="bob", external=2, staleness=2))
    names = RecordStore(str(store)).names()
    assert {(n.peer, n.round) for n in names} == {
        *(("alice", r) for r in (1, 2, 3)),
        *(("bob", r) for r in (3, 4, 5)),  # who comes is in the present
    } and len(names) == 24
    for line, ledger in zip(
        recorded(bob, "metrics.jsonl"), recorded(bob, "ledger.jsonl"), strict=True
    ):
        assert (line["swarm/published"], line["swarm/taken"], line["swarm/refused"]) == (
            4.0,
            2.0,
            0.0,
        )
        assert (
            ledger["received"]["trajectories"] == 4 == ledger["received"]["roles"]["a"]["trained"]
        )
    taken = received(bob)
    assert len(taken) == len(set(taken)) == 12  # no record twice
    assert all(
        origin.startswith("alice-") and step + 2 - int(origin.split()[-1]) in (0, 1, 2)
        for step, origin, *_ in taken
    )


def test_forks_are_not_published(tmp_path):
    shared = []
    for name, parts in (("plain", []), ("forked", [lambda step: Forks(step, [])])):
        trainer = peer(tmp_path / name, tmp_path / f"{name}-store", steps=1)
        trainer.plugins.parts += parts
        fit(trainer)
        store = RecordStore(str(tmp_path / f"{name}-store"))
        shared.append({n.key: unpacked(store.get(n)) for n in store.names()})
    assert any("forked" in line for line in recorded(trainer, "trajectories.jsonl"))
    assert len(shared[0]) == 4 and shared[0] == shared[1]


@pytest.mark.parametrize("publish", [1.0, 0.5])
def test_without_groups_of_others_the_run_is_the_run_without_the_plugin(tmp_path, publish):
    store = tmp_path / "store"
    fit(peer(tmp_path / "a", store, seed=7))
    bob = fit(peer(tmp_path / "b", store, seed=8, name="bob", publish=publish))
    alone = simulated_trainer(
        tmp_path / "c" / "run", lambda t: float(t.sample == 0), steps=3, eval_steps=-1, seed=8
    )
    fit(alone)
    for name in ("trajectories.jsonl", "ledger.jsonl"):
        assert without_seconds(recorded(bob, name)) == without_seconds(recorded(alone, name))
    own = [n for n in RecordStore(str(store)).names() if n.peer == "bob"]
    assert len(own) == sum(line["swarm/published"] for line in recorded(bob, "metrics.jsonl"))
    assert {1.0: len(own) == 12, 0.5: 0 < len(own) < 12}[publish]


def test_samplers_choose_by_the_outcomes_here(tmp_path):
    """Of alice's tasks the graders here give some 0, some 1 and some both."""
    store = tmp_path / "store"
    fit(peer(tmp_path / "a", store, seed=7, steps=1))

    def outcome(t):
        return {"t0": 0.0, "t1": 1.0}.get(t.task.id, float(t.sample == 0)) if t.origin else 0.5

    def tasks(sampler, external=4, **more):
        folder = tmp_path / f"{sampler}{len(more)}{external}"
        bob = fit(
            peer(
                folder,
                store,
                seed=8,
                name="bob",
                steps=1,
                external=external,
                sampler=sampler,
                outcome=outcome,
                publish=0.0,
                **more,
            )
        )
        return {task for _, _, task, _ in received(bob)}, recorded(bob, "metrics.jsonl")[0]

    assert tasks("uniform")[0] == {"t0", "t1", "t2", "t3"}
    found, metrics = tasks("nonzero")
    assert found == {"t2", "t3"} and metrics["swarm/unlike"] == 2.0
    assert tasks("nonzero", spread=1.0)[0] == set()
    assert tasks("reward", external=1)[0] < {"t2", "t3"}  # t1 has no advantage
    assert len(tasks("uniform", quota=3)[0]) == 3
    assert tasks("nonzero", external=9)[0] == {"t2", "t3"}  # there are no more


def test_a_repeated_step_takes_in_what_it_took_in_although_peers_go_on(tmp_path):
    store = tmp_path / "store"
    fit(peer(tmp_path / "a", store, seed=7))
    options = {"seed": 8, "name": "bob", "external": 2, "staleness": 9}
    first = peer(tmp_path / "b", store, steps=2, **options)
    fit(first)
    state = json.loads(json.dumps(first.plugins.named.state(first.run)))
    third = peer(tmp_path / "b2", store, steps=3, **options)
    third.run.args.ckpt.path = first.run.args.ckpt.path
    third.plugins.named.restore(third.run, state)
    third.policies = third.session.policies["p"].version = 2
    fit(third, done=2)
    fit(peer(tmp_path / "c", store, seed=9, name="carol"))  # and writes records of every round
    again = peer(tmp_path / "b3", store, steps=3, **options)
    again.run.args.ckpt.path = first.run.args.ckpt.path
    again.plugins.named.restore(again.run, state)
    again.session.policies["p"].version = 2
    fit(again, done=2)
    assert received(again) == received(third) and len(received(third)) == 4
    assert len({(n.round, n.key) for n in RecordStore(str(store)).names() if n.peer == "bob"}) == 12
    other = peer(
        tmp_path / "b4", store, steps=3, **options
    )  # a fresh run in the same folder reads nobody else's journal
    other.run.args.ckpt.path = first.run.args.ckpt.path
    fit(other)
    assert any(origin.startswith("carol") for _, origin, *_ in received(other))


def test_a_run_takes_in_no_records_of_an_earlier_run_of_its_name(tmp_path):
    store = tmp_path / "store"
    fit(peer(tmp_path / "a", store, seed=7))
    again = fit(peer(tmp_path / "b", store, seed=8, external=2, staleness=9))
    assert not received(again)
    assert not any(line["swarm/offered"] for line in recorded(again, "metrics.jsonl"))


def test_a_group_whose_sender_found_no_difference_is_not_scored_here(tmp_path):
    """What is scored again may cost a coach's answer, in every step."""
    store = tmp_path / "store"
    fit(peer(tmp_path / "a", store, seed=7, steps=1, outcome=lambda t: float(t.task.id > "t1")))
    for task in ("t0", "t1", "t2"):  # by others, who say that t0 and t1 differ
        name = RecordName(1, "carol", "0" * 8, key_of(task))
        group = [good(task, sample=n, outcome=float(n and task != "t2")) for n in range(2)]
        RecordStore(str(store)).put(name, packed(group))
    scored = []

    def outcome(t):
        scored.append(t)
        return float(t.task.id == "t0" and t.sample)

    options = {"external": 9, "staleness": 9, "sampler": "nonzero", "publish": 0.0}
    bob = fit(peer(tmp_path / "b", store, name="bob", outcome=outcome, **options))
    assert {(step, task) for step, _, task, _ in received(bob)} == {(1, "t0")}
    foreign = [(t.origin.partition("-")[0], t.task.id) for t in scored if t.origin]
    assert sorted(foreign) == [("carol", t) for t in ("t0", "t0", "t1", "t1")]
    assert [line["swarm/unlike"] for line in recorded(bob, "metrics.jsonl")] == [6.0, 0.0, 0.0]


@pytest.mark.parametrize("sampler", ["nonzero", "reward"])
def test_a_group_that_cannot_be_compared_is_taken(tmp_path, sampler):
    """One answer of a person, or one sample of a task."""
    store = tmp_path / "store"
    for sample, task in enumerate(("t0", "t1")):
        name = RecordName(None, "people", "0" * 8, key_of(task))
        RecordStore(str(store)).put(name, packed([good(task, outcome=1.0 if sample else None)]))
    bob = fit(peer(tmp_path / "b", store, steps=1, name="bob", external=4, sampler=sampler))
    assert {task for _, _, task, _ in received(bob)} == {"t0", "t1"}


def test_the_best_groups_are_taken_within_the_quota(tmp_path):
    store = tmp_path / "store"
    worth = {"t0": 0.9, "t1": 0.7, "t2": 0.5, "t3": 0.3}
    for who in ("alice", "carol"):
        for task in worth:
            name = RecordName(1, who, "0" * 8, key_of(task))
            RecordStore(str(store)).put(name, packed([good(task), good(task, sample=1)]))

    def outcome(t):
        known = worth[t.task.id] - 0.1 * t.origin.startswith("carol") - 0.1 * t.sample
        return known if t.origin else 0.5

    options = {"external": 3, "sampler": "reward", "outcome": outcome, "publish": 0.0}
    for quota, best in (
        (0, {("alice", "t0"), ("carol", "t0"), ("alice", "t1")}),
        (1, {("alice", "t0"), ("carol", "t0")}),
    ):
        folder = tmp_path / f"quota{quota}"
        bob = fit(peer(folder, store, steps=1, name="bob", quota=quota, **options))
        assert {(origin.partition("-")[0], task) for _, origin, task, _ in received(bob)} == best


def test_the_journal_has_the_steps_that_the_saved_ones_may_be_followed_by(tmp_path):
    trainer = peer(tmp_path, tmp_path / "store", steps=9, external=1)
    trainer.run.args.ckpt.save_steps, trainer.run.args.ckpt.max_num = 2, 2
    trainer.saving.save = lambda step: asyncio.sleep(0)
    fit(trainer)
    kept = {path.stem for path in (tmp_path / "ckpt" / "swarm").iterdir()}
    assert kept == {f"step-{step:06d}" for step in (6, 7, 8, 9)}


def test_a_journal_that_is_damaged_pauses_the_run(tmp_path):
    trainer = peer(tmp_path, tmp_path / "store", external=1)
    (tmp_path / "ckpt" / "swarm").mkdir(parents=True)
    (tmp_path / "ckpt" / "swarm" / "step-000001.json").write_text('{"run"')
    with pytest.raises(RunPaused, match="journal"):
        fit(trainer)


def rounds_taken(trainer):
    """Who took in what of whom, by step: (step, peer, round)."""
    found = ((step, *origin.split(" round ")) for step, origin, *_ in received(trainer))
    return {(step, name.partition("-")[0], int(number)) for step, name, number in found}


def test_who_comes_lags_or_leaves_learns_from_the_present(tmp_path):
    """alice plays twenty rounds; bob comes, and then carol; alice is back from a checkpoint when
    both have gone on."""
    store, tasks = tmp_path / "store", [Task(f"t{n}", f"q{n}", "4") for n in range(88)]
    options = {"external": 12, "staleness": 1, "tasks": tasks}
    alice = peer(tmp_path / "a", store, seed=7, steps=20, tasks=tasks)
    fit(alice)
    bob = fit(peer(tmp_path / "b", store, seed=8, steps=2, name="bob", **options))
    assert rounds_taken(bob) == {(1, "alice", 19), (1, "alice", 20)}  # and never twice
    for n, path in enumerate(sorted(store.rglob("*.json.gz"))):
        os.utime(path, (9e8 - n, 9e8 - n))  # the store's clock runs backwards
    carol = fit(peer(tmp_path / "c", store, seed=9, steps=4, name="carol", **options))
    assert rounds_taken(carol) == {(1, "alice", 20), (1, "bob", 20), (1, "bob", 21)}
    again = peer(tmp_path / "a2", store, seed=7, steps=22, **options)
    again.plugins.named.restore(again.run, alice.plugins.named.state(alice.run))
    again.session.policies["p"].version = 20
    fit(again, done=20)
    assert rounds_taken(again) == {(21, "carol", 23), (21, "carol", 24)}
    rounds = defaultdict(set)
    for name in RecordStore(str(store)).names():
        rounds[name.peer].add(name.round)
    assert rounds == {
        "alice": {*range(1, 21), 24, 25},
        "bob": {20, 21},
        "carol": {21, 22, 23, 24},
    }


def test_a_peer_that_names_a_far_future_or_rewrites_its_past_moves_no_experience(tmp_path):
    store = tmp_path / "store"
    for number in (10**12 - 1, MOST_ROUND):
        path = store / RecordName(number, "mallory", "0" * 8, key_of("t0")).path
        path.parent.mkdir(parents=True)
        path.write_bytes(HOSTILE["no JSON"])
    fit(peer(tmp_path / "a", store, seed=7, steps=3))
    options = {"external": 12, "staleness": 2, "seed": 8, "name": "bob"}
    bob = peer(tmp_path / "b", store, steps=2, **options)
    bob.run.state(Swarm).round = MOST_ROUND + 1  # in step with alice
    for number in range(2):
        old = RecordName(5 + number, "alice", "0" * 8, key_of("t0"))
        RecordStore(str(store)).put(old, packed([good(), good(sample=1)]))
    fit(bob)
    assert {r for _, _, r in rounds_taken(bob)} == {MOST_ROUND + n for n in (0, 1, 2)}
    assert {step for step, *_ in rounds_taken(bob)} == {1}


def test_a_peer_that_rewrites_what_is_still_shared_is_taken_once_and_a_repeated_step_as_it_was(
    tmp_path,
):
    """Between bob's steps alice puts other answers to the same tasks into all of her records, which
    are in his window: what he has taken stays what it was, and nothing comes a second time."""
    store, rng = tmp_path / "store", random.Random(58)
    fit(peer(tmp_path / "a", store, seed=7))
    files = sorted(store.rglob("alice-*.json.gz"))

    def rewrite():
        by_task = defaultdict(list)
        for file in files:
            by_task[file.name].append((file, file.read_bytes()))
        for same in by_task.values():
            contents = [content for _, content in same]
            rng.shuffle(contents)
            for (file, _), content in zip(same, contents[1:] + contents[:1], strict=True):
                file.write_bytes(content)

    def bob(folder, step, state):
        trainer = peer(
            tmp_path / folder, store, seed=8, steps=step, name="bob", external=2, staleness=9
        )
        trainer.run.args.ckpt.path = str(tmp_path / "ckpt")
        if state is not None:
            trainer.plugins.named.restore(trainer.run, state)
            trainer.session.policies["p"].version = step - 1
        fit(trainer, done=step - 1)
        journal = json.loads((tmp_path / "ckpt" / "swarm" / f"step-{step:06}.json").read_text())
        return trainer, journal["records"]

    state, paths, taken = None, [], []
    for step in (1, 2, 3):
        before, shared = state, {str(f.relative_to(store)): f.read_bytes() for f in files}
        trainer, records = bob(f"b{step}", step, state)
        for path, content in records.items():
            assert content == gzip.decompress(shared[path]).decode("utf-8")
        paths += records
        taken.append(received(trainer))
        state = json.loads(json.dumps(trainer.plugins.named.state(trainer.run)))
        rewrite()
    assert len(paths) == len(set(paths)) == 6
    again, records = bob("again", 3, before)
    assert received(again) == taken[-1] and list(records) == paths[-2:]


def test_old_records_of_its_own_are_removed_and_no_others(tmp_path):
    store = tmp_path / "store"
    fit(peer(tmp_path / "a", store, seed=7, steps=2))
    fit(peer(tmp_path / "b", store, seed=8, steps=5, name="bob", keep=2))
    found = {(n.peer, n.round) for n in RecordStore(str(store)).names()}
    assert found == {("alice", 1), ("alice", 2), ("bob", 4), ("bob", 5), ("bob", 6)}


# -- stores that fail, and records that lie
# -------------------------------------------------------------------------------------


def test_a_store_that_is_gone_costs_records_and_no_step(tmp_path):
    (tmp_path / "store").write_text("a file in its place")
    trainer = fit(peer(tmp_path / "b", tmp_path / "store" / "below", external=2))
    for line in recorded(trainer, "metrics.jsonl"):
        assert (
            line["swarm/unpublished"] == 4.0
            and line["swarm/unreachable"] == 1.0
            and line["rows/trained"] == 8.0
        )


class Away(MemoryFileSystem):
    """A store whose library has exceptions of its own, as those of S3 and HTTP have."""

    protocol = "away"
    listed: ClassVar[list[RecordName]] = []

    def fails(self, *_, **__):
        raise LookupError("no answer")

    exists = makedirs = pipe_file = cat_file = rm_file = fails

    def size(self, path):
        return 1

    def ls(self, path, detail=True, **_):
        if not self.listed:
            self.fails()
        part = 2 if path.endswith("000000") else 0
        return [name.path.rpartition("/")[part] for name in self.listed]


@pytest.mark.parametrize("names", [[], [RecordName(0, "alice", "0" * 8, key_of("t0"))]])
def test_what_a_stores_library_raises_costs_records_and_no_step(tmp_path, monkeypatch, names):
    fsspec.register_implementation("away", Away, clobber=True)
    monkeypatch.setattr(Away, "listed", names)
    options = {"external": 2, "keep": 1, "steps": 2, "name": "bob"}
    trainer = fit(peer(tmp_path / "b", "away://store", **options))
    for line in recorded(trainer, "metrics.jsonl"):
        assert line["swarm/unpublished"] == 4.0
        assert line["swarm/unreachable"] == float(not names)
    assert recorded(trainer, "metrics.jsonl")[0].get("swarm/refused/unreachable", 0) == len(names)


def good(task="t0", sample=0, **values):
    """A record that a run of `peer` can say again."""
    answer = {"role": "a", "shown": "", "text": "abc", "end": "eos", "logprob": -1.0}
    return {
        "schema": 1,
        "task": task,
        "prompt": f"q{task[1:]}",
        "sample": sample,
        "tokenizers": {},
        "answers": [answer],
    } | values


HOSTILE = {
    "a bomb": gzip.compress(gzip.decompress(packed([good()])) + b" " * (16 << 20)),
    "too large": os.urandom(MOST_RECORD_BYTES + 1),
    "no JSON": gzip.compress(b"{"),
    "deep": gzip.compress(b'{"schema": 1, "group": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "another schema": gzip.compress(b'{"schema": 2, "group": []}'),
    "no numbers as ids": packed([good(answers=[good()["answers"][0] | {"ids": ["x"] * 10**6}])]),
    "another task than its name's": packed([good("t1")]),
    "a task of nobody's": packed([good("t9999")]),
    "another prompt": packed([good(prompt="send me your keys")]),
    "an answer too many": packed([good(answers=good()["answers"] * 2)]),
    "one good, one bad": packed([good(), good(sample=1, answers=[])]),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=list(HOSTILE))
def test_a_record_that_lies_is_refused_counted_and_not_trained_on(tmp_path, content):
    store = tmp_path / "store"
    place = store / RecordName(1, "mallory", "0" * 8, key_of("t0")).path
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    bob = fit(peer(tmp_path / "b", store, steps=1, name="bob", external=3))
    (line,) = recorded(bob, "metrics.jsonl")
    assert line["swarm/refused"] == 1.0 and line["swarm/taken"] == 0.0 and not received(bob)


def test_a_step_looks_no_further_after_many_refused_records(tmp_path):
    store = RecordStore(str(tmp_path / "store"))
    for number in range(20):
        store.put(RecordName(1, "mallory", f"{number:08x}", key_of("t0")), HOSTILE["no JSON"])
    bob = fit(
        peer(tmp_path / "b", tmp_path / "store", steps=3, name="bob", external=1, staleness=9)
    )
    assert [m["swarm/refused"] for m in recorded(bob, "metrics.jsonl")] == [8.0, 8.0, 4.0]


@given(st.binary(max_size=300), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_no_content_raises_anything_but_a_refusal(noise, seed):
    record = bytearray(gzip.decompress(packed([good(), good(sample=1)])))
    draw = random.Random(seed)
    for byte in noise[:3]:
        record[draw.randrange(len(record))] = byte
    for content in (noise, bytes(record)):
        with suppress(RefusedRecord):
            unpacked(content)


WRITER = """
import sys
from marl_plugins.swarm.store import RecordName, RecordStore

store, content = RecordStore(sys.argv[1]), sys.stdin.buffer.read()
for number in range(int(sys.argv[3])):
    store.put(RecordName(number % 7, sys.argv[2], "0" * 8, f"{number:016x}"), content)
"""


def writer(folder, who, count):
    """A process of its own that writes records: a fork of this one would have its threads'
    locks."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, folder, who, str(count)], stdin=subprocess.PIPE
    )
    process.stdin.write(packed([good()]))
    process.stdin.close()
    return process


def test_a_writer_that_is_killed_leaves_whole_records(tmp_path):
    store = RecordStore(str(tmp_path))
    for attempt in range(2):
        killed = writer(tmp_path, f"p{attempt}", 10_000)
        while len(store.names()) < 20 * (attempt + 1):
            assert killed.poll() is None
            time.sleep(0.005)
        killed.kill()
        killed.wait()
    names = store.names()
    assert len(names) >= 40
    assert all(len(unpacked(store.get(name)).group) == 1 for name in names)


def test_a_record_is_written_once(tmp_path):
    for store in (RecordStore(str(tmp_path)), RecordStore("memory://swarm-once")):
        name = RecordName(3, "a", "0" * 8, "1" * 16)
        assert store.put(name, packed([good()])) and not store.put(name, packed([good(sample=5)]))
        assert unpacked(store.get(name)).group[0].sample == 0 and store.names() == [name]
        with pytest.raises(ValueError, match="bytes"):
            store.put(RecordName(4, "a", "0" * 8, "1" * 16), b"x" * (MOST_RECORD_BYTES + 1))
        store.remove([name, name])
        assert store.names() == []


# -- configuration and commands
# --------------------------------------------------------------------------------------------------


def codes(*flags):
    with pytest.raises(ConfigurationError) as error:
        build_plan(["--plugin", PLUGIN, "--recipe", "tool_user/tiny.yaml", *flags])
    return {problem.code for problem in error.value.problems}


def test_what_is_wrong_with_the_flags_is_said_at_once(tmp_path):
    assert codes() == {"swarm.store_missing"}
    assert codes("--swarm.store", "nosuch://x", "--swarm.peer", "../x") == {
        "swarm.store",
        "swarm.peer",
    }
    words = ["--swarm.store", str(tmp_path), "--swarm.keep", "1", "--swarm.staleness", "3"]
    words += ["--swarm.weight", "capability", "--algo.advantage.estimator", "group_norm"]
    words += ["--groups.by", "task+role+turn"]
    plan = build_plan(["--plugin", PLUGIN, "--recipe", "tool_user/tiny.yaml", *words])
    assert {"swarm.keep", "swarm.compared_again"} <= {problem.code for problem in plan.run.warnings}
    assert codes(*words, "--swarm.external", "2") == {"swarm.unnamed"}
    assert codes("--swarm.store", str(tmp_path), "--swarm.trust", "generator") == {
        "swarm.no_generator"
    }


def test_answers_of_people_are_taken_in_by_role(tmp_path, capsys):
    file, store = tmp_path / "answers.jsonl", tmp_path / "store"
    lines = [
        {"task": f"t{n}", "prompt": f"q{n}", "answers": [{"role": "a", "text": text}]}
        for n in (0, 1)
        for text in ("yes", "no")
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert main(["add", str(file), str(store), "--peer", "people"]) == 0
    assert "4 trajectories of 2 tasks" in capsys.readouterr().out
    bob = fit(peer(tmp_path / "b", store, steps=1, external=4))
    found = {
        t.task.id: []
        for t in RunReader(bob.records.folder).trajectories(Filter(received=True))
        if t.origin
    }
    for t in RunReader(bob.records.folder).trajectories(Filter(received=True)):
        if t.origin:
            found[t.task.id].append(t.actions[0].text)
            assert t.actions[0].generation.ids[-1] == ord("^")
    assert found == {"t0": ["yes", "no"], "t1": ["yes", "no"]}
    capsys.readouterr()
    assert main(["show", str(store)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert sorted(peer["trajectories"] for peer in shown.values()) == [4, 8]
    (store / "000001").mkdir(exist_ok=True)
    (store / RecordName(1, "mallory", "0" * 8, "0" * 16).path).write_bytes(zlib.compress(b"x"))
    assert main(["show", str(store)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [name for name, peer in shown.items() if peer["refused"]] == ["mallory-00000000"]


def test_a_record_that_is_removed_meanwhile_is_not_shown(tmp_path, capsys, monkeypatch):
    store = RecordStore(str(tmp_path))
    names = [RecordName(1, who, "0" * 8, key_of("t0")) for who in ("alice", "bob")]
    for name in names:
        store.put(name, packed([good()]))
    listed = RecordStore.names

    def then_removed(self, rounds=None):
        found = listed(self, rounds)
        self.remove(names[:1])
        return found

    monkeypatch.setattr(RecordStore, "names", then_removed)
    assert main(["show", str(tmp_path)]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["bob-00000000"]


@pytest.mark.parametrize("text", ["", "{", '{"task": "t", "prompt": "p", "answers": []}'])
def test_a_file_without_answers_is_said_by_line(tmp_path, text):
    (tmp_path / "answers.jsonl").write_text(text)
    with pytest.raises(ConfigurationError) as error:
        main(["add", str(tmp_path / "answers.jsonl"), str(tmp_path / "store")])
    assert {problem.code for problem in error.value.problems} == {"swarm.answers"}
    (tmp_path / "no_folder").write_text("")
    for address, code in (
        ("nosuch://x", "swarm.store"),
        (f"{tmp_path}/no_folder/below", "swarm.unreachable"),
    ):
        with pytest.raises(ConfigurationError) as error:
            main(["show", address])
        assert {problem.code for problem in error.value.problems} == {code}


JOURNALS = tempfile.TemporaryDirectory()


# --- a population
# --------------------------------------------------------------------------------------------------


def population(folder, store, name="alice", frozen=(), fitted=True, **options):
    """A simulated run in which one of `p`, `q` and `s` plays the role on each task."""
    trainer = peer(folder, store, name=name, **options)
    run, session = trainer.run, trainer.session
    policies = {name: SimulatedPolicy(name) for name in "pqs"}
    session.policies.clear()
    session.policies.update(policies)
    session.trained = {name: policy for name, policy in policies.items() if name not in frozen}
    session.rollout.pools = dict.fromkeys(policies)
    run.recipe.populations = {"a": tuple(policies)}
    run.policies = [Policy(name, "tiny", name not in frozen) for name in policies]
    no_penalty = SimpleNamespace(overlong_buffer_len=None, stop_properly_penalty_coef=None)
    run.policy_args = dict.fromkeys(policies, SimpleNamespace(reward=no_penalty))
    (old,) = session.cast.members["a"]
    session.cast.members["a"] = tuple(
        RoleSpec("a", name, old.render, Chat(), old.sampling) for name in policies
    )
    return fit(trainer) if fitted else trainer


def test_the_members_of_a_population_are_peers_of_each_other(tmp_path):
    store = tmp_path / "store"
    fit(peer(tmp_path / "b", store, seed=7, name="bob"))
    run = population(tmp_path / "a", store, external=2, frozen="s", staleness=2)
    names = RecordStore(str(store)).names()
    assert {n.peer for n in names} == {"bob", "alice.p", "alice.q", "alice.s"}
    found = list(RunReader(run.records.folder).trajectories(Filter(received=True)))
    taken = [t for t in found if t.origin]
    assert len(taken) == 3 * 2 * 2 * 2  # steps, learners, groups, samples
    for t in taken:
        source, _, learner = t.origin.partition(" round ")
        learner = learner.partition(" to ")[2]
        assert learner in ("p", "q") and source.rpartition("-")[0] != f"alice.{learner}"
        assert {a.policy for a in t.actions} == {learner}
    assert {t.origin.partition("-")[0] for t in taken} >= {
        "alice.s",
        "bob",
    }  # a frozen member publishes, and takes nothing
    own = {(t.step, t.task.id): t.actions[0].policy for t in found if not t.origin}
    made_by = {(n.round - 2, n.key): n.peer for n in names if n.peer != "bob"}
    assert made_by == {
        (step, key_of(task)): f"alice.{policy}" for (step, task), policy in own.items()
    }
    for line, ledger in zip(
        recorded(run, "metrics.jsonl"), recorded(run, "ledger.jsonl"), strict=True
    ):
        assert (line["swarm/taken"], line["swarm/refused"]) == (4.0, 0.0)
        assert (
            ledger["received"]["trajectories"] == 8 == ledger["received"]["roles"]["a"]["trained"]
        )


def test_a_population_alone_learns_from_its_members_and_a_repeated_step_takes_in_the_same(tmp_path):
    store = tmp_path / "store"
    first = population(tmp_path / "a", store, external=2)
    assert received(first) and all(origin.startswith("alice.") for _, origin, *_ in received(first))
    assert {path.name for path in (tmp_path / "a" / "ckpt" / "swarm").iterdir()} == {
        f"step-{step:06d}-{member}.json" for step in (1, 2, 3) for member in "pqs"
    }
    again = population(tmp_path / "c", store, external=2, fitted=False)
    again.run.state(Swarm).run = first.run.state(Swarm).run
    shutil.copytree(tmp_path / "a" / "ckpt", tmp_path / "c" / "ckpt")
    fit(peer(tmp_path / "b", store, seed=7, name="bob"))  # which the journals do not know
    assert received(fit(again)) == received(first)


def test_members_have_baselines_and_ratios_of_their_own():
    """q is twice as good as p: what q earned counts half where p learns from it."""
    own = [
        make_trajectory({"a": []}, rewards={"a": r}, sample=n, policies={"a": "p"})
        for n, r in enumerate((1.0, 0.0))
    ]
    read = [
        make_trajectory({"a": []}, rewards={"a": r}, sample=n, policies={"a": "p"})
        for n, r in enumerate((1.0, 0.4))
    ]
    for t in read:
        t.origin, t.learner = "alice.q-0 step 3 to p", "p"
    others = [make_trajectory({"a": []}, rewards={"a": r}, policies={"a": "q"}) for r in (0.2, 0.6)]
    outcomes = {}
    for t, outcome in zip([*own, *read, *others], (0.4, 0.2, 0.6, 0.6, 0.9, 0.9), strict=True):
        t.outcome = outcome
    note_round(outcomes, [*own, *read, *others], ["p", "q"])
    assert outcomes == {"p": [pytest.approx(0.3)], "alice.q-0": [0.6], "q": [0.9]}
    subtract_baselines([*own, *read, *others], outcomes, ["p", "q"])
    baseline = (1.0 + 0.0 + 0.5 + 0.2) / 4
    assert [t.actions[0].reward for t in [*own, *read]] == pytest.approx(
        [r - baseline for r in (1.0, 0.0, 1.0, 0.4)]
    )
    assert [t.actions[0].reward for t in others] == pytest.approx([-0.2, 0.2])


# --- by capability
# --------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 10), st.floats(-3, 3), st.floats(0, 4), st.floats(0, 1))
def test_a_weight_grows_with_likeness_and_is_nothing_outside_its_bounds(
    of_source, difference, alpha, delta
):
    s, found = math.exp(difference), weight(of_source, difference, alpha, delta)
    if 1 < s <= 1 + CAPABILITY_ROUNDING:
        assert found == of_source
    elif not 1 - delta <= s <= 1:
        assert found == 0
    else:
        assert found == pytest.approx(of_source * s ** (1 + alpha)) and found <= of_source
        assert found <= weight(of_source, difference, 0.0, delta) + 1e-12
    assert (
        weight(of_source, 0.0, alpha, delta) == weight(of_source, 1e-3, alpha, delta) == of_source
    )
    assert weight(of_source, 5e-3, alpha, delta) == 0.0


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
)
def test_a_ratio_is_of_the_last_five_rounds_and_within_bounds(theirs, own):
    outcomes = {"x": theirs[-CAPABILITY_ROUNDS:], "": own[-CAPABILITY_ROUNDS:]}
    noted = {}
    for values, source in ((theirs, "x step 1"), (own, "")):
        for value in values:
            note_round(noted, [SimpleNamespace(origin=source, outcome=value, actions=())], [])
    assert noted == outcomes
    found, above, below = (
        ratio(noted, "x", ""),
        sum(theirs[-5:]) / len(theirs[-5:]),
        sum(own[-5:]) / len(own[-5:]),
    )
    assert 0.1 <= found <= 10
    if below > 0 and 0.1 < above / below < 10:
        assert found == pytest.approx(above / below)
    assert ratio(noted, "", "") == ratio(noted, "unknown", "") == ratio({}, "x", "") == 1.0


def test_baselines_span_own_and_foreign_samples_of_a_task():
    """P_own / P_source is 0.5: what the better peer earned counts half."""
    trajectories = [
        make_trajectory({"a": []}, rewards={"a": r}, sample=n)
        for n, r in enumerate((1.0, 0.0, 1.0, 0.4))
    ]
    for t in trajectories[2:]:
        t.origin = "bob-0 step 3"
    other = make_trajectory({"a": []}, rewards={"a": 0.7}, task="other")
    subtract_baselines([*trajectories, other], {"": [0.2, 0.4], "bob-0": [0.6]}, [])
    baseline = (1.0 + 0.0 + 0.5 + 0.2) / 4
    assert [t.actions[0].reward for t in trajectories] == pytest.approx(
        [r - baseline for r in (1.0, 0.0, 1.0, 0.4)]
    )
    assert other.actions[0].reward == pytest.approx(0.0)


def test_foreign_rows_are_weighted_by_capability_and_by_how_likely_they_are_here(tmp_path):
    store = tmp_path / "store"
    fit(peer(tmp_path / "a", store, seed=7))
    bob = peer(
        tmp_path / "b",
        store,
        seed=8,
        name="bob",
        external=2,
        staleness=2,
        weight="capability",
        outcome=lambda t: 0.8 if t.origin else 0.4,
    )
    seen = []
    real = CapabilityWeights.prepared

    async def prepared(self, given):
        before = {row: row.action.advantages for p in given for row in p.rows}
        after = await real(self, given)
        seen.append((before, after))
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CapabilityWeights, "prepared", prepared)
        fit(bob)
    assert len(seen) == 3
    for before, after in seen:
        for p in after:
            for sequence, item in zip(p.sequences, p.items, strict=True):
                (row,) = sequence.rows
                factor = (
                    2.0 if row.trajectory.origin else 1.0
                )  # simulated policies are as likely everywhere: s is 1
                wanted = [factor * value for value in before[row]]
                assert (
                    item.advantages[-len(wanted) :].tolist()
                    == pytest.approx(wanted)
                    == list(row.action.advantages)
                )
    assert {line["swarm/weight"] for line in recorded(bob, "metrics.jsonl")} == {2.0}
    state = bob.plugins.state(bob.run)[PLUGIN]
    fresh = peer(tmp_path / "c", store)
    fresh.plugins.named.restore(fresh.run, {PLUGIN: json.loads(json.dumps(state))})
    assert fresh.run.state(Swarm).outcomes == bob.run.state(Swarm).outcomes


# --- trust
# --------------------------------------------------------------------------------------------------


def strangers(tmp_path, trust, tasks_module=None, publish="labels"):
    """A run whose peer has other tasks."""
    store = tmp_path / "store"
    tasks = [Task(f"s{n}", f"strange {n}", {"answer": n}, {"n": n}) for n in range(12)]
    fit(peer(tmp_path / "a", store, seed=7, trust=publish, tasks=tasks))
    bob = peer(
        tmp_path / "b",
        store,
        seed=8,
        name="bob",
        external=2,
        staleness=2,
        trust=trust,
        outcome=lambda t: float(bool(t.task.label)),
    )
    bob.run.tasks_module = tasks_module
    fit(bob)
    found = RunReader(bob.records.folder).trajectories(Filter(received=True))
    return [t for t in found if t.origin], recorded(bob, "metrics.jsonl")


def test_strangers_tasks_are_refused_by_default(tmp_path):
    taken, metrics = strangers(tmp_path, "tasks")
    assert not taken and metrics[0]["swarm/refused/task"] == 12.0


def test_labels_are_taken_where_peers_are_trusted(tmp_path):
    taken, _ = strangers(tmp_path, "labels")
    assert taken and all(
        t.task.label == {"answer": t.task.metadata["n"]} and t.outcome == 1.0 for t in taken
    )


@pytest.mark.parametrize("trust", ["labels", "generator"])
def test_a_strangers_task_that_nobody_expects_is_refused(tmp_path, trust):
    """A label that the grader cannot read, a name from which no task can be made."""
    store = tmp_path / "store"
    words = [good("s1", sample=n) for n in range(2)]
    name = RecordName(1, "mallory", "0" * 8, key_of("s1"))
    RecordStore(str(store)).put(name, packed(words, Task("s1", "q1", None)))

    def grade(t):
        return float(t.task.label.isalpha())

    bob = peer(tmp_path / "b", store, steps=2, name="bob", external=2, trust=trust, outcome=grade)
    bob.run.tasks_module = SimpleNamespace(task_of=lambda name: 1 / 0)
    fit(bob)
    assert not received(bob)
    assert [m["swarm/refused"] for m in recorded(bob, "metrics.jsonl")] == [1.0, 0.0]
    assert recorded(bob, "metrics.jsonl")[0]["swarm/refused/task"] == 1.0


def test_a_strangers_task_does_not_keep_a_run_from_pausing(tmp_path):
    store = tmp_path / "store"
    name = RecordName(1, "mallory", "0" * 8, key_of("s1"))
    RecordStore(str(store)).put(name, packed([good("s1")], Task("s1", "q1", "4")))

    def grade(t):
        if t.origin:
            raise RunPaused("the budget is spent")
        return 1.0

    with pytest.raises(RunPaused, match="budget"):
        fit(peer(tmp_path / "b", store, steps=1, external=2, trust="labels", outcome=grade))


def test_a_generator_makes_the_task_and_its_label_here(tmp_path):
    def task_of(name):
        number = int(name[1:])
        return (
            Task(name, f"strange {number}", "mine") if number % 2 else Task(name, "another", "mine")
        )

    taken, metrics = strangers(tmp_path, "generator", SimpleNamespace(task_of=task_of))
    assert (
        taken
        and {t.task.label for t in taken} == {"mine"}
        and all(int(t.task.id[1:]) % 2 for t in taken)
    )
    assert sum(line["swarm/refused/task"] for line in metrics if "swarm/refused/task" in line) > 0


class TestSwarm(PlannedOnce):
    plugin = PLUGIN
    flags: ClassVar = [
        "--swarm.store",
        "memory://contract",
        "--swarm.external",
        "2",
        "--ckpt.path",
        JOURNALS.name,
    ]
