"""Whole trajectories leave a step and enter it: words are said again by the run's own workflow, all
else is the run's own."""

import asyncio
import dataclasses
import hashlib
import json
import random
from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import CharacterChat, simulated_engine, without_seconds
from simulated_run import simulated_trainer

from marl_plugins.core.exchange import MOST_ANSWERS, RefusedRecord, read_words
from marl_plugins.core.failures import AgentFailure, RunEnded, RunPaused
from marl_plugins.core.roles import RoleSpec, Sampling
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.workflow_file import workflow_of
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.engine.records.trajectory_record import to_record
from marl_plugins.engine.runtime.exchange import StepExchange
from marl_plugins.engine.runtime.rollout import Rollout
from marl_plugins.engine.runtime.session import Session

PEER = "alice"
HEAD = """
import asyncio, json
from pathlib import Path
from marl_plugins import hookimpl
from marl_plugins.core.exchange import RefusedRecord
"""
PUBLISH = (
    HEAD
    + """
@hookimpl
def marl_exchange(trajectories, exchange):
    Path({folder!r}).mkdir(exist_ok=True)
    for t in trajectories:
        Path({folder!r}, f"{{t.step}}-{{t.task.id}}-{{t.sample}}.json").write_text(json.dumps(exchange.write(t)))
    return trajectories
"""
)
TAKE = (
    HEAD
    + """
@hookimpl
async def marl_exchange(trajectories, exchange):
    given = [json.loads(p.read_text()) for p in sorted(Path({folder!r}).glob(f"{{exchange.step}}-*.json"))]
    read = await asyncio.gather(*(exchange.read(record, {peer!r}) for record in given))
    return [*trajectories, *read]
"""
)


class Foreign:
    """Foreign text of characters, of which one is a special token."""

    special: ClassVar = {ord("$"): "$"}

    def hide(self, text, role):
        return text

    def encode(self, text):
        return list(map(ord, text))


class Tokenizer:
    """A tokenizer of characters, `^` ending a turn."""

    eos_token_id = ord("^")

    def __len__(self):
        return 0x110000

    def decode(self, ids, skip_special_tokens):
        return "".join(map(chr, ids))


class Chat(CharacterChat):
    tokenizer, foreign = Tokenizer(), Foreign()
    policy = "p"
    ends = (ord("^"),)
    end_of_turn = (ord("^"),)

    def said(self, ids):
        return self.tokenizer.decode(ids[:-1] if ids and ids[-1] == ord("^") else ids, False)


def trainer_of(folder, code, seed=1, **more):
    """A simulated trainer with a plugin of this code, whose roles can be said again."""
    folder.mkdir(exist_ok=True)
    names = []
    if code is not None:
        (folder / "plugin.py").write_text(code)
        names = [str(folder / "plugin.py")]
    trainer = simulated_trainer(
        folder / "run",
        lambda t: float(t.sample == 0),
        steps=3,
        eval_steps=-1,
        plugins=names,
        seed=seed,
        **more,
    )
    cast = trainer.session.cast
    for name, (spec,) in cast.members.items():
        cast.members[name] = (
            RoleSpec(
                name, spec.policy, spec.render, Chat(), spec.sampling, max_turns=spec.max_turns
            ),
        )
    return trainer


def fit(trainer):
    asyncio.run(trainer.fit(0))
    return trainer


def recorded(trainer, name):
    return [json.loads(line) for line in (trainer.records.folder / name).read_text().splitlines()]


def test_what_a_peer_publishes_is_said_again_scored_and_trained_with_its_origin(tmp_path):
    box = str(tmp_path / "box")
    alice = fit(trainer_of(tmp_path / "a", PUBLISH.format(folder=box), seed=7))
    bob = fit(trainer_of(tmp_path / "b", TAKE.format(folder=box, peer=PEER), seed=8))
    theirs = list(RunReader(alice.records.folder).trajectories())
    received = [
        t for t in RunReader(bob.records.folder).trajectories(Filter(received=True)) if t.origin
    ]
    assert [t.origin for t in received] == [PEER] * len(theirs) and len(theirs) == 24
    found = {
        (t.step, t.task.id, t.sample): [
            (a.path, a.shown_ids, a.generation.ids, a.text) for a in t.actions
        ]
        for t in theirs
    }
    assert found == {
        (t.step, t.task.id, t.sample): [
            (a.path, a.shown_ids, a.generation.ids, a.text) for a in t.actions
        ]
        for t in received
    }
    assert [t.outcome for t in received] == [
        float(t.sample == 0) for t in received
    ]  # the reader's own grader
    assert all(a.advantage is not None and a.left_out is None for t in received for a in t.actions)
    for line in recorded(bob, "ledger.jsonl"):
        assert line["roles"]["a"] == {"generated": 8, "trained": 8, "left_out": {}}
        assert (
            line["received"]["trajectories"] == 8 and line["received"]["roles"]["a"]["trained"] == 8
        )
    for line in recorded(bob, "metrics.jsonl"):
        assert (line["rows/generated"], line["rows/received"], line["trajectories/received"]) == (
            8.0,
            8.0,
            8.0,
        )
        assert line["outcome/mean"] == 0.5 and line["drift/max"] == 0.0
    assert (
        len(list(RunReader(bob.records.folder).trajectories())) == 24
    )  # own ones, for whoever does not ask for others


def test_two_peers_with_the_same_sample_are_two_groups_and_neither_joins_the_runs_own(tmp_path):
    box = str(tmp_path / "box")
    fit(trainer_of(tmp_path / "a", PUBLISH.format(folder=box), seed=7))
    both = TAKE.replace("return [*trajectories, *read]", "").format(folder=box, peer="alice") + (
        "    again = await asyncio.gather(*(exchange.read(record, 'bob') for record in given))\n"
        "    return [*again, *read, *trajectories]\n"
    )
    trainer = fit(trainer_of(tmp_path / "b", both, seed=8))
    steps = [
        t
        for t in RunReader(trainer.records.folder).trajectories(Filter(received=True))
        if t.step == 1
    ]
    assert [t.origin for t in steps] == [""] * 8 + ["alice"] * 8 + ["bob"] * 8
    assert recorded(trainer, "metrics.jsonl")[0]["rows/received"] == 16.0


LEAVE = (
    HEAD
    + """
@hookimpl
def marl_exchange(trajectories, exchange):
    {body}
"""
)


def test_what_leaves_is_in_the_ledger_with_its_reason_and_not_trained(tmp_path):
    body = (
        "t = trajectories[1]; exchange.leave_out(t, 'too easy'); return [o for o in "
        "trajectories if o is not t]"
    )
    trainer = fit(trainer_of(tmp_path, LEAVE.format(body=body)))
    assert [line["roles"]["a"] for line in recorded(trainer, "ledger.jsonl")] == [
        {"generated": 8, "trained": 7, "left_out": {"too easy": 1}}
    ] * 3
    first = list(RunReader(trainer.records.folder).trajectories())[:8]
    assert [t.actions[0].left_out for t in first] == [None, "too easy", *[None] * 6]


@pytest.mark.parametrize(
    "body",
    [
        "return trajectories[1:]",  # without a reason
        "return [*trajectories, trajectories[0]]",
        "trajectories[0].actions[0].path = 'x'; return trajectories",
        "trajectories[0].actions.pop(); return trajectories",
        "raise SystemExit(0)",
    ],
)
def test_whatever_else_is_returned_pauses_the_run_with_the_plugins_name(tmp_path, body):
    trainer = trainer_of(tmp_path, LEAVE.format(body=body))
    with pytest.raises(RunPaused, match=r"plugin.py: marl_exchange"):
        asyncio.run(trainer.fit(0))
    assert not (trainer.records.folder / "ledger.jsonl").exists()


def test_what_was_credited_while_it_arrived_cannot_leave(tmp_path):
    """As with streamed gradients, which cannot be taken back."""
    body = "exchange.leave_out(trajectories[0], 'late'); return trajectories[1:]"
    trainer = trainer_of(tmp_path, LEAVE.format(body=body))
    from marl_plugins.core.steps import StepPart

    class Early(StepPart):
        def __init__(self, step):
            self.step = step

        async def during_rollout(self):
            await self.step.ended.wait()
            assert (
                await self.step.credited(sorted(self.step.trajectories, key=lambda t: t.order))
                is not None
            )

    trainer.plugins.parts.append(Early)
    trainer.run.grader_module = None
    with pytest.raises(RunEnded, match=r"streaming\.gradients"):
        asyncio.run(trainer.fit(0))


# -- what is read
# --------------------------------------------------------------------------------------------------


def exchange_of(workflow, roles=None, tasks=2):
    """An exchange of a step of a simulated run, with the workflow's rollout."""
    trainer = SimpleNamespace()
    trainer.policies = {"p": SimpleNamespace(version=3)}

    def session(folder):
        made = trainer_of(folder, None, workflow=workflow).session
        made.policies = trainer.policies
        for name in roles or ():
            (spec,) = made.cast.members["a"]
            made.cast.members[name] = (
                RoleSpec(name, "p", spec.render, Chat(), Sampling(1.0, 1.0, 12, 4000)),
            )
        made.rollout.cast.members.update(made.cast.members)
        return made

    return session


async def twelve_votes(task, roles, tools):
    votes = await asyncio.gather(*(roles.voter(q=task.prompt) for _ in range(12)))
    decided = await roles.decider(q="|".join(map(str, votes)))
    again = await roles.decider(q=f"sure? {decided}", continues=decided)
    if random.Random(str(again)).random() < 0.3:
        raise AgentFailure("no_answer", "it was not sure")
    return again


def rolled_out(session, generate, samples=3):
    async def all_of():
        made = session.rollout
        return [
            await made.one(task, n, s, 1, None, generate=generate)
            for n, task in enumerate(session.train_tasks[:2])
            for s in range(samples)
        ]

    return asyncio.run(all_of())


def same_but_for_log_probs(one, other):
    """Everything that a step trains on or records, but for whose engine sampled it, and when."""

    def of(trajectory):
        record = without_seconds(to_record(trajectory))
        for key in ("origin", "step"):
            record.pop(key, None)
        for action in record["actions"]:
            del action["logprobs"], action["version"]
        return record

    return of(one) == of(other)


def test_twelve_twins_and_a_conversation_are_said_again_identically(tmp_path):
    session = exchange_of(twelve_votes, ["voter", "decider"])(tmp_path)
    given = rolled_out(session, simulated_engine(delays=True))
    exchange = StepExchange(session, 1, session.train_tasks[:2], given)

    async def read():
        records = [json.loads(json.dumps(exchange.write(t))) for t in given]
        return await asyncio.gather(*(exchange.read(record, PEER) for record in records))

    read_back = asyncio.run(read())
    assert len(given) == 6 and all(map(same_but_for_log_probs, given, read_back))
    assert all(len(t.actions) == 14 for t in read_back)
    assert {a.generation.version for t in read_back for a in t.actions} == {3}
    assert exchange.entered(read_back[::-1]) == read_back


def test_the_members_of_a_population_say_what_the_others_have_said(tmp_path):
    """In the step in which it was made by the same one, unless a policy is named."""
    session = exchange_of(twelve_votes, ["voter", "decider"])(tmp_path)
    for role, (spec,) in session.cast.members.items():
        session.cast.members[role] = tuple(dataclasses.replace(spec, policy=name) for name in "pq")
    session.policies["q"] = SimpleNamespace(version=5)
    given = rolled_out(session, simulated_engine())
    exchange = StepExchange(session, 1, session.train_tasks[:2], given)

    def read(t, origin, policy=None):
        return asyncio.run(exchange.read(exchange.write(t), origin, policy))

    assert {a.policy for t in given for a in t.actions} == {"p", "q"}
    for t in given:
        assert same_but_for_log_probs(t, read(t, PEER))
        for name, version in (("p", 3), ("q", 5)):
            actions = read(t, f"for {name}", name).actions
            assert {(a.policy, a.generation.policy, a.generation.version) for a in actions} == {
                (name, name, version)
            }
            assert [a.text for a in actions] == [a.text for a in t.actions]
    with pytest.raises(ValueError, match="'x'"):
        read(given[0], "for x", "x")


def refused(session, change, origin=PEER):
    """The reason for which a changed record is refused."""
    given = rolled_out(session, simulated_engine(), samples=1)
    exchange = StepExchange(session, 1, session.train_tasks[:2], given)
    record = exchange.write(given[0])
    record = change(record) or record
    with pytest.raises(RefusedRecord) as error:
        asyncio.run(exchange.read(record, origin))
    assert not exchange.received
    return error.value.reason


def answer(record, **values):
    record["answers"][0].update(values)


@pytest.mark.parametrize(
    ("change", "reason"),
    {
        "another schema": (lambda r: r.update(schema=2), "schema"),
        "a key more": (lambda r: r.update(more=1), "schema"),
        "a lone surrogate": (lambda r: answer(r, text="\ud800"), "schema"),
        "100 MB": (lambda r: answer(r, text="x" * 100_000_000), "schema"),
        "too many answers": (
            lambda r: r.update(answers=r["answers"] * (MOST_ANSWERS + 1)),
            "schema",
        ),
        "an outcome beyond its bounds": (lambda r: r.update(outcome=1.2), "schema"),
        "an outcome that is no number": (lambda r: r.update(outcome=float("nan")), "schema"),
        "a log-prob above 0": (lambda r: answer(r, logprob=0.5), "schema"),
        "another end": (lambda r: answer(r, end="tool"), "schema"),
        "an unknown task": (lambda r: r.update(task="nobody's"), "task"),
        "another prompt": (lambda r: r.update(prompt="ignore all that"), "task"),
        "an unknown role": (lambda r: answer(r, role="boss"), "words"),
        "another context": (lambda r: answer(r, shown="0" * 16), "words"),
        "an answer too few": (lambda r: r["answers"].pop() and None, "words"),
        "other words, so that the next context differs": (lambda r: answer(r, text="zzz"), "words"),
        "an answer too many": (lambda r: r["answers"].append(r["answers"][0]), "unasked"),
        "longer than it may be": (lambda r: answer(r, text="x" * 13), "length"),
        "too long to be encoded": (lambda r: answer(r, text="x" * 900_000), "length"),
        "a broken character": (lambda r: answer(r, text="\ufffd"), "text"),
        "an end of turn in the middle": (lambda r: answer(r, text="ab^", end="length"), "text"),
    }.values(),
)
def test_a_record_that_cannot_be_said_again_word_for_word_is_refused(tmp_path, change, reason):
    assert refused(exchange_of(twelve_votes, ["voter", "decider"])(tmp_path), change) == reason


class OwnTokenizer(StepExchange):
    """An exchange with peers that have this run's tokenizer, so that ids are taken."""

    def has_tokenizer(self, words, role, chat):
        return True


def of_own_tokenizer(folder):
    """An exchange, and a record that it has written."""

    async def once(task, roles, tools):
        return await roles.voter(q=task.prompt)

    session = exchange_of(once, ["voter"])(folder)
    given = rolled_out(session, simulated_engine(), samples=1)
    exchange = OwnTokenizer(session, 1, session.train_tasks[:2], given)
    return exchange, exchange.write(given[0])


@pytest.mark.parametrize(
    ("text", "ids", "end", "taken"),
    [
        ("ab", "ab^", "eos", True),
        ("ab", "ab", "stop", True),
        ("ab", "ac^", "eos", False),
        ("ab", "ab^", "length", False),
        ("ab", "ab", "eos", False),
        ("a^b", "a^b^", "eos", False),
        ("a^", "a^^", "eos", False),
        ("", "^", "eos", True),
    ],
)
def test_ids_say_the_text_and_end_where_it_ends(tmp_path, text, ids, end, taken):
    exchange, record = of_own_tokenizer(tmp_path)
    answer(record, text=text, ids=list(ids.encode()), end=end)
    if taken:
        (action,) = asyncio.run(exchange.read(record, PEER)).actions
        assert action.generation.ids == tuple(ids.encode())
        return
    with pytest.raises(RefusedRecord) as error:
        asyncio.run(exchange.read(record, PEER))
    assert error.value.reason == "text"


@pytest.mark.parametrize(("ids", "kept"), [("a<b^", True), ("ab$", True), ("a$b^", False)])
def test_ids_with_a_special_token_before_the_end_are_text(tmp_path, monkeypatch, ids, kept):
    exchange, record = of_own_tokenizer(tmp_path)
    end = "eos" if ids.endswith("^") else "stop"
    answer(record, text=ids.removesuffix("^"), ids=list(ids.encode()), end=end)
    # A real tokenizer's spelling of a special token is several ids; here it is another one.
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids, _: bytes(ids).decode().lower())
    monkeypatch.setattr(Foreign, "encode", lambda self, text: list(text.upper().encode()))
    (action,) = asyncio.run(exchange.read(record, PEER)).actions
    assert action.generation.ids == tuple((ids if kept else ids.upper()).encode())


def test_a_record_counts_once(tmp_path):
    session = exchange_of(twelve_votes, ["voter", "decider"])(tmp_path)
    given = rolled_out(session, simulated_engine(), samples=1)
    exchange = StepExchange(session, 1, session.train_tasks[:2], given)
    record = exchange.write(given[0])

    async def twice():
        first = asyncio.create_task(exchange.read(record, PEER))
        await asyncio.sleep(0)
        with pytest.raises(RefusedRecord) as error:
            await exchange.read(record, PEER)
        await first
        return error.value.reason

    assert asyncio.run(twice()) == "repeated"
    for origin in ("", "a\nb", "x" * 201):
        with pytest.raises(ValueError, match="origin"):
            asyncio.run(exchange.read(record, origin))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    )
)
@settings(max_examples=50, deadline=None)
def test_no_json_value_raises_anything_but_a_refusal(value):
    with pytest.raises(RefusedRecord):
        read_words(value)


# -- whole recipes
# --------------------------------------------------------------------------------------------------

PIECES = (
    "1",
    "7",
    "12",
    " ",
    "yes",
    "no",
    "A",
    "<answer>",
    "</answer>",
    "<python>print(1)</python>",
    "sales",
    "é",
    "{",
    "\n",
)


def inventing(session):
    """An engine that answers with invented words, in the ids of the policies' own tokenizers."""

    async def generate(call):
        draw = random.Random(hashlib.sha256(f"{call.seed}".encode()).digest())
        tokenizer = session.chats[call.policy].tokenizer
        ids = tokenizer.encode(
            "".join(draw.choices(PIECES, k=draw.randint(1, 6))), add_special_tokens=False
        )
        ids = tuple(ids[: call.max_tokens - 1])
        ended = draw.random() < 0.8
        ids = (*ids, tokenizer.eos_token_id) if ended else ids
        return Generation(
            ids, tuple(-draw.random() for _ in ids), "stop" if ended else "length", call.policy, 0
        )

    return generate


@pytest.mark.parametrize(
    "recipe",
    [
        "tool_user/tiny.yaml",
        "vote/tiny.yaml",
        "games/tiny.yaml",
        "ecommerce/tiny_merchant.yaml",
        "dsbench/tiny.yaml",
        "search/tiny.yaml",
    ],
)
def test_a_recipe_says_its_own_words_again_identically(recipe):
    """With the ids of the same tokenizer, and from the words alone."""
    plan = build_plan(["--recipe", recipe])
    session = Session(plan)
    session.policies = {policy.name: SimpleNamespace(version=0) for policy in plan.run.policies}
    pools = dict.fromkeys(session.policies)
    session.rollout = Rollout(
        plan.run,
        plan.plugins,
        workflow_of(plan.plugins, plan.run),
        session.cast,
        session.tools,
        pools,
    )
    session.rollout.score_action = None
    tasks = session.train_tasks[:2]

    async def there_and_back():
        async with plan.plugins.started(plan.run, "train"):
            made = [
                await session.rollout.one(task, n, s, 1, None, generate=inventing(session))
                for n, task in enumerate(tasks)
                for s in range(2)
            ]
            exchange = StepExchange(session, 1, tasks, made)
            records = [exchange.write(t) for t in made]
            for record in records[::2]:
                record["tokenizers"] = dict.fromkeys(record["tokenizers"], "another")
            return made, await asyncio.gather(
                *(exchange.read(record, PEER) for record in records), return_exceptions=True
            )

    made, read = asyncio.run(there_and_back())
    assert all(t.actions for t in made)
    for one, other in zip(made, read, strict=True):
        assert not isinstance(other, BaseException), other
        assert same_but_for_log_probs(one, other), recipe
