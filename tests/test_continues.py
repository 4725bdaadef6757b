"""Calls that continue a conversation: `roles.player(move=x, continues=mine)`."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import CharacterChat, simulated_engine

from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.fields import InvalidCall
from marl_plugins.core.rows import Row
from marl_plugins.core.sequences import sequences_of
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Generation, Task, ToolResult
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.records.trajectory_record import from_record, to_record

TASK = Task("t", "2+2", "4")


def prompt(fields):
    return [
        {"role": "system", "content": "play"},
        {"role": "user", "content": f"begin {'|'.join(fields.values())}"},
    ]


def followup(fields):
    return [{"role": "user", "content": f"then {'|'.join(fields.values())}"}]


def role(name, chat, policy="p", **settings):
    settings = {"render_next": followup, **settings}
    return RoleSpec(
        name,
        policy,
        prompt,
        chat,
        Sampling(1.0, 1.0, 16, settings.pop("max_len", 2000)),
        **settings,
    )


def run(workflow, *roles, generate=None):
    chat = CharacterChat()
    roles = roles or (role("a", chat), role("b", chat))
    return asyncio.run(
        run_workflow(
            workflow,
            TASK,
            0,
            step=1,
            run_seed=5,
            roles={r.name: r for r in roles},
            tools={},
            generate=generate or simulated_engine(),
            seconds=60.0,
        )
    )


async def three_calls(task, roles, tools):
    mine = await roles.a(q="one")
    mine = await roles.a(q="two", continues=mine)
    return await roles.a(q="three", continues=mine)


def test_each_call_extends_the_conversation_token_for_token():
    asked = []

    async def keep(call):
        asked.append(call.context_ids)
        return await simulated_engine()(call)

    got = run(three_calls, generate=keep)
    first, second, third = got.actions
    assert [a.context_ids for a in got.actions] == asked
    assert second.before is first and third.before is second
    assert [(a.turn, a.call, a.extends) for a in got.actions] == [
        (0, 0, True),
        (1, 1, True),
        (2, 2, True),
    ]
    assert third.parents == (second.path,)
    text = CharacterChat().text
    assert text(second.context_ids) == f"s:play^u:begin one^a:{first.text}^u:then two^a:"
    assert third.shown == (("user", "then three"),)
    assert third.messages == (
        ("system", "play"),
        ("user", "begin one"),
        ("assistant", first.text),
        ("user", "then two"),
        ("assistant", second.text),
        ("user", "then three"),
        ("assistant", third.text),
    )
    assert third.opening == third.messages[:-1]  # what a coach is shown
    (sequence,) = sequences_of([Row(got, action, 1.0) for action in got.actions])
    assert tuple(sequence.ids) == third.context_ids + third.generation.ids


def test_without_a_followup_prompt_the_user_message_is_shown_again():
    chat = CharacterChat()
    got = run(three_calls, role("a", chat, render_next=None))
    assert got.actions[1].shown == (("user", "begin two"),)


def test_a_conversation_branches_and_each_branch_extends_the_same_turn():
    async def branches(task, roles, tools):
        root = await roles.a(q="root")
        left, right = await asyncio.gather(*(roles.a(q=side, continues=root) for side in "lr"))
        return await roles.a(q="x", other=left, continues=right)

    got = run(branches)
    root, *sides, last = got.actions
    assert [a.before for a in sides] == [root, root]
    assert all(a.context_ids[: len(root.context_ids)] == root.context_ids for a in got.actions)
    assert last.parents == tuple(
        a.path for a in (last.before, *(s for s in sides if s is not last.before))
    )


def test_tools_work_inside_a_conversation():
    async def shout(call):
        return ToolResult("shout", call.text, call.text.upper(), ok=True)

    tool = Tool("shout", shout, find=lambda text: [text] if int(text[0], 16) % 2 else [])

    async def five(task, roles, tools):
        mine = await roles.a(q="0")
        for n in range(1, 5):
            mine = await roles.a(q=str(n), continues=mine)
        return mine

    got = run(
        five, role("a", CharacterChat(), tools=(tool,), max_turns=4, endless_tools_fail=False)
    )
    assert [a.turn for a in got.actions] == list(range(len(got.actions)))
    assert {a.call for a in got.actions} == set(range(5))
    assert len(got.actions) > 5  # some turns were a tool's
    assert got.actions[-1].chain == list(got.actions)


def wrong(use, says):
    async def workflow(task, roles, tools):
        return await use(roles, await roles.a(q="1"), await roles.b(q="2"))

    with pytest.raises(InvalidCall, match=says):
        run(workflow)


def test_what_cannot_be_continued_is_refused_with_its_place():
    kept = run(three_calls).actions[0]
    wrong(
        lambda r, a, b: r.a(q="x", continues=b),
        r"test_continues\.py:\d+: role 'a' cannot continue .* of role 'b'",
    )
    wrong(
        lambda r, a, b: r.a(q="x", continues=kept),
        "continues takes an action of this trajectory, got one of another",
    )


def test_a_conversation_over_the_context_is_the_agents_failure():
    async def on_and_on(task, roles, tools):
        mine = await roles.a(q="0")
        while True:
            mine = await roles.a(q="more", continues=mine)

    got = run(on_and_on, role("a", CharacterChat(), max_len=100))
    assert got.agent_failure == "context"
    assert "leaves no room in 100" in got.detail
    assert all(len(a.context_ids) < 100 for a in got.actions)


def test_a_record_keeps_the_conversation():
    got = run(three_calls)
    back = from_record(to_record(got))
    assert [a.context_ids for a in back.actions] == [a.context_ids for a in got.actions]
    assert [(a.call, a.extends, a.messages) for a in back.actions] == [
        (a.call, a.extends, a.messages) for a in got.actions
    ]


class Template:
    """A tokenizer of characters with a chat template of one's own."""

    chat_template = "given"
    eos_token_id = ord("^")

    def __init__(self, shown):
        self.shown = shown

    def apply_chat_template(self, conversation, tokenize, add_generation_prompt):
        last_user = max((n for n, m in enumerate(conversation) if m["role"] == "user"), default=-1)
        text = "".join(
            f"<{m['role']}>{self.shown(m, n > last_user)}^" for n, m in enumerate(conversation)
        )
        return text + "<assistant>" * add_generation_prompt

    def encode(self, text, add_special_tokens):
        return [ord(c) for c in text]

    def decode(self, ids, skip_special_tokens):
        return "".join(map(chr, ids)).replace("^", "" if skip_special_tokens else "^")


def keeping(message, since_the_last_user):
    return message["content"]


def trimming(message, since_the_last_user):
    return message["content"].strip()


def thinking_removed(message, since_the_last_user):
    """As Qwen3's: an assistant's thinking is shown since the user's last message only."""
    hidden = message["role"] == "assistant" and not since_the_last_user
    return message["content"].split("</think>")[-1] if hidden else message["content"]


def thinking_engine(seed, thinks=0.5):
    dice = random.Random(seed)

    async def generate(call):
        text = ("<think>hm</think>" if dice.random() < thinks else "") + f"say {dice.randrange(9)} "
        ids = tuple(map(ord, text + "^"))
        return Generation(ids, (-0.5,) * len(ids), "stop", call.policy, 1)

    return generate


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shown=st.sampled_from([keeping, trimming, thinking_removed]),
    moves=st.lists(st.integers(0, 5), max_size=7),
)
def test_the_context_is_the_template_of_the_conversation(seed, shown, moves):
    """Whatever branches there are: each context reads as the template writes the conversation,
    white space aside; where it extends the turn before it begins with its very tokens, and it does
    so unless the template changes what was before."""

    async def tree(task, roles, tools):
        said = [await roles.a(q="root")]
        for number, move in enumerate(moves):
            said.append(await roles.a(q=str(number), continues=said[move % len(said)]))
        return said[-1]

    tokenizer = Template(shown)
    got = run(tree, role("a", ChatFormat(tokenizer, "p")), generate=thinking_engine(seed))
    assert got.agent_failure is None
    for action in got.actions:
        messages = [{"role": r, "content": text} for r, text in action.messages[:-1]]
        whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        context = "".join(map(chr, action.context_ids))
        if shown is not trimming:
            assert context == whole
        if action.before is None:
            assert action.extends
            continue
        sequence = action.before.context_ids + action.before.generation.ids
        assert (action.context_ids[: len(sequence)] == sequence) == action.extends
        earlier = "".join(text for r, text in action.messages[:-1] if r == "assistant")
        assert action.extends == (
            shown is not thinking_removed or "think" not in earlier or not_again(action)
        )


def not_again(action):
    """Whether all thinking of the conversation had been removed before the last turn, which has
    none."""
    return "think" not in action.before.text and "think" not in "".join(
        map(chr, action.before.context_ids)
    )


def test_thinking_since_the_users_last_message_stays_through_a_tools_turns():
    async def answer(call):
        return ToolResult("t", call.text, "42", ok=True)

    calls = iter([["x"], [], []])
    tool = Tool("t", answer, find=lambda text: next(calls), message_role="tool")

    async def twice(task, roles, tools):
        mine = await roles.a(q="1")
        return await roles.a(q="2", continues=mine)

    chat = ChatFormat(Template(thinking_removed), "p")
    got = run(
        twice, role("a", chat, tools=(tool,), max_turns=2), generate=thinking_engine(1, thinks=1.0)
    )
    assert [a.extends for a in got.actions] == [True, True, False]
    assert "think" not in "".join(map(chr, got.actions[-1].context_ids))


def test_a_turn_that_begins_anew_is_no_part_of_the_earlier_sequence():
    chat = ChatFormat(Template(thinking_removed), "p")
    got = run(three_calls, role("a", chat), generate=thinking_engine(1, thinks=1.0))
    assert [a.extends for a in got.actions] == [True, False, False]
    assert [a.chain for a in got.actions] == [[a] for a in got.actions]
    assert len(sequences_of([Row(got, action, 1.0) for action in got.actions])) == 3
