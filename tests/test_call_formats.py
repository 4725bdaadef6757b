"""Calls in a model's own format: vLLM's parsers, real tokenizers, chat templates that show
tools."""

import asyncio
import copy
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_once import plan_of
from refusals import found_by, refused
from simulated_session import fresh

from marl_plugins.core.calls import calls_in, parse_call
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.rows import Row
from marl_plugins.core.sequences import sequences_of
from marl_plugins.core.tools import Function, FunctionCall, Tool
from marl_plugins.core.trajectory import Generation, Task, ToolResult
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.records.trajectory_record import from_record, to_record

pytest.importorskip("vllm")
from tokenizers import AddedToken
from transformers import AutoTokenizer

from marl_plugins.engine.runtime.call_formats import find_calls
from marl_plugins.engine.runtime.roles import make_cast
from marl_plugins.engine.runtime.tiny_model import resolve

TEMPLATE = (  # as Qwen's: tools in the system message, tools' answers in one message of the user
    "{% if tools %}<system>\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% "
    "endif %}Tools:"
    "{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<eos>\n"
    "{% elif messages[0].role == 'system' %}<system>\n{{ messages[0].content }}<eos>\n{% endif %}"
    "{% set users = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set users.last = loop.index0 %}{% endif "
    "%}{% endfor %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<user>{% endif %}\n<tool_response>\n{{ "
    "m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<eos>\n{% endif %}"
    "{% elif m.role == 'assistant' %}<assistant>\n"
    # thinking is removed
    "{{ m.content if loop.index0 > users.last else m.content.split('</think>')[-1] }}<eos>\n"
    "{% elif m.role == 'user' %}<user>\n{{ m.content }}<eos>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
SPECIAL = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>"]


def make_tokenizer(template=TEMPLATE):
    """The tiny model's, with tokens for calls, and a template that shows tools."""
    made = AutoTokenizer.from_pretrained(resolve("tiny"))
    made.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.chat_template = template
    return made


tokenizer = make_tokenizer()
tiny_template = AutoTokenizer.from_pretrained(resolve("tiny")).chat_template


def schema(**kinds):
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in kinds.items()},
        "required": [*kinds],
    }


async def answered(call):
    made = parse_call(call.text)
    return ToolResult("shop", call.text, f"{made.name}: {made.arguments}", ok=True)


async def printed(call):
    return ToolResult("python", call.text, f"ran {call.text}", ok=True)


SHOP = Tool(
    "shop",
    answered,
    functions=(
        Function("price", "What an item costs.", schema(item="string")),
        Function("order", "Orders items.", schema(item="string", count="integer")),
    ),
)
PYTHON = Tool(
    "python",
    printed,
    lambda text: [],
    functions=(Function("python", "Runs.", schema(code="string"), text="code"),),
)
TOOLS = (SHOP, PYTHON)


def finder(calls="hermes", reasoning=None):
    return find_calls(calls, reasoning, tokenizer, TOOLS)


hermes = finder()


def tagged(name, arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(
    lambda t: not re.search("tool_call|think", t)
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=6,
)
call_lists = st.lists(
    st.tuples(plain.filter(bool), st.dictionaries(plain, values, max_size=3)), max_size=5
)


@settings(max_examples=50)
@given(call_lists, plain)
def test_hermes_reads_what_was_written(calls, between):
    """Whatever names and arguments there are, in order; by vLLM's parser from a role with
    `calls: hermes`, and by ours else."""
    text = between + between.join(tagged(name, arguments) for name, arguments in calls)
    assert hermes(text) == [FunctionCall(name, arguments) for name, arguments in calls]
    ours = calls_in([SHOP], None, "", text)
    assert [parse_call(w.text) for w in ours] == [
        FunctionCall(name, arguments) for name, arguments in calls
    ]


@settings(max_examples=50)
@given(
    st.lists(
        st.sampled_from(
            [
                *SPECIAL,
                "{",
                "}",
                '{"name": "price", "arguments": {"item": "x"}}',
                "[",
                "price(item=",
                '"',
                "x",
            ]
        )
    )
)
def test_no_answer_stops_a_parser(parts):
    for find in (hermes, pythonic, llama):
        for call in find("".join(parts)):
            assert isinstance(call.name, str)


pythonic, llama = finder("pythonic"), finder("llama3_json")


ONE, TWO = tagged("price", {"item": "one"}), tagged("price", {"item": "two"})


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (f"<think>{ONE}</think>{TWO}", ["two"]),
        (f"{ONE}</think>{TWO}", ["two"]),  # the template has begun the thinking
        (f"<think>{ONE}</think>done", []),
        (f"<think>hm, {ONE}", []),
        (TWO, ["two"]),
    ],
)
@pytest.mark.parametrize("reasoning", [None, "deepseek_r1", "qwen3"])
def test_what_is_only_thought_is_no_call(text, items, reasoning):
    if reasoning and "think>" not in text:
        text = f"</think>{text}"  # they take an answer without an end of thinking for thinking
    if reasoning == "qwen3" and "</think>" not in text:
        items = ["one"]  # a call ends the thinking, as vLLM reads this model
    assert [call.arguments["item"] for call in finder(reasoning=reasoning)(text)] == items


def test_a_parser_that_does_not_fit_is_refused():
    with refused(("calls.parser",)):
        finder("hermess")
    with refused(("calls.parser",)):
        finder(reasoning="quen3")
    bare = AutoTokenizer.from_pretrained(resolve("tiny"))
    with refused(("calls.tokenizer",)):
        find_calls("llama3_json", None, bare, TOOLS)


def role_of(template, *tools, limit=4000):
    """What a run makes of a role with `calls: hermes`, with a tokenizer of the template."""
    made = fresh(plan_of("--recipe", "tool_user/tiny.yaml")).run
    config = made.role("clerk").model_copy(
        update={"calls": "hermes", "tools": [tool.name for tool in tools]}
    )
    made = replace(made, recipe=made.recipe.model_copy(update={"roles": {"clerk": config}}))
    ((policy, args),) = copy.deepcopy(dict(made.policy_args)).items()
    args.data.max_len = limit
    chats = {policy: ChatFormat(make_tokenizer(template), policy)}
    return make_cast(made, {policy: args}, chats, {tool.name: tool for tool in tools}).members[
        "clerk"
    ][0]


def test_a_role_is_tried_before_anything_starts():
    role = role_of(TEMPLATE, SHOP, PYTHON)
    assert [t["function"]["name"] for t in role.chat.tools] == ["price", "order", "python"]
    assert role.find_calls(ONE) == [FunctionCall("price", {"item": "one"})]
    shown = decoded(role.chat.opening(role.render({"order": "?"})))
    assert shown.count('"type": "function"') == 3


@pytest.mark.parametrize(
    ("template", "tools", "problem"),
    [
        (None, (SHOP,), ("calls.template", "clerk")),
        (
            TEMPLATE.replace("{{ m.content }}\n</tool", "{{ m.name }} {{ m.content }}\n</tool"),
            (SHOP,),
            ("calls.template_ids", "clerk"),
        ),
        (
            TEMPLATE.replace(
                "{% if m.role == 'tool' %}",
                "{% if m.role == 'tool' %}{{ raise_exception('no tool_calls') }}",
            ),
            (SHOP,),
            ("models.template_refuses", "clerk"),
        ),
        (
            TEMPLATE,
            (SHOP, replace(SHOP, name="mall")),
            ("calls.same_function", "clerk", "shop", "mall"),
        ),
    ],
)
def test_a_role_that_cannot_work_is_refused(template, tools, problem):
    assert problem in found_by(role_of, template or tiny_template, *tools)


def test_tools_that_fill_the_context_are_refused():
    with refused(("lengths.tools", "clerk")):
        role_of(TEMPLATE, SHOP, PYTHON, limit=300)


# --- conversations
# --------------------------------------------------------------------------------------------------


class Says:
    """An engine that says given texts, tokenised so that nothing else would tokenise them alike:
    the first ids are odd ones."""

    def __init__(self, *texts):
        self.texts = list(texts)
        self.asked = []

    async def __call__(self, call):
        self.asked.append(call)
        text = self.texts[len(self.asked) - 1]
        ids = (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)
        return Generation(ids, (-0.5,) * len(ids), "stop", call.policy, 0)


def prompt(fields):
    return [{"role": "system", "content": "sell"}, {"role": "user", "content": fields["q"]}]


def converse(engine, calls=1, **changes):
    """A role's conversation of several calls of the workflow, with its tools, in the model's own
    format."""
    chat = ChatFormat(tokenizer, "p", tuple(f.schema for tool in TOOLS for f in tool.functions))
    spec = RoleSpec(
        "a",
        "p",
        prompt,
        chat,
        Sampling(1.0, 1.0, 4000, 99999),
        TOOLS,
        4,
        find_calls=hermes,
        **changes,
    )

    async def workflow(task, roles, tools):
        mine = None
        for number in range(calls):
            mine = await roles.a(q=f"question {number}", continues=mine)
        return mine

    return asyncio.run(
        run_workflow(
            workflow,
            Task("t", "p"),
            0,
            step=1,
            run_seed=0,
            roles={"a": spec},
            tools={},
            generate=engine,
            seconds=60,
        )
    )


def decoded(ids):
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def whole(messages):
    """A conversation as the template writes it."""
    schemas = [f.schema for tool in TOOLS for f in tool.functions]
    return tokenizer.apply_chat_template(
        messages, tools=schemas, tokenize=False, add_generation_prompt=True
    )


def test_several_calls_are_each_answered_and_the_context_is_the_templates():
    said = f"Well.{ONE}{tagged('python', {'code': 'print(1)'})}{tagged('prize', {})}{tagged('python', {'cod': 1})}{TWO}"
    engine = Says(said, "done")
    first, last = converse(engine).actions
    assert [(r.tool, r.ok) for r in first.tool_results] == [
        ("shop", True),
        ("python", True),
        ("prize", False),
        ("python", False),
        ("shop", True),
    ]
    assert first.tool_results[1].call == "print(1)"
    outputs = [r.output for r in first.tool_results]
    assert outputs[0] == "price: {'item': 'one'}" and "did you mean 'price'" in outputs[2]
    assert 'expected {"code": "..."}' in outputs[3]
    assert "<tool_call>" not in first.text  # a special token
    assert last.shown == tuple(("tool", output) for output in outputs)
    sampled = (*first.context_ids, *first.generation.ids)
    assert last.extends and last.context_ids[: len(sampled)] == sampled
    messages = [*prompt({"q": "question 0"}), {"role": "assistant", "content": said}]
    assert decoded(first.context_ids) == whole(messages[:-1])
    assert decoded(last.context_ids) == whole(
        [*messages, *({"role": "tool", "content": o} for o in outputs)]
    )
    assert '"name": "price"' in decoded(first.context_ids)


def test_what_was_sampled_is_never_tokenised_again():
    """Ids that no text is encoded to stay as they are, in contexts and in the sequence that is
    trained."""
    engine = Says(ONE, TWO, "done")
    odd = tuple(tokenizer.encode("\u00e9", add_special_tokens=False)[:1])  # half a character

    async def generate(call):
        found = await engine(call)
        return Generation((*odd, *found.ids), (-0.5, *found.logprobs), "stop", "p", 0)

    got = converse(generate)
    assert len(got.actions) == 3
    (sequence,) = sequences_of([Row(got, action, 1.0) for action in got.actions])
    assert tuple(sequence.ids) == (*got.actions[-1].context_ids, *got.actions[-1].generation.ids)
    for action in got.actions:
        assert action.generation.ids[0] == odd[0]


def test_a_template_that_removes_thinking_begins_a_new_sequence():
    """Through the turns of a tool thinking stays; once the user says more, the conversation is
    shown as the template writes it, its calls with their special tokens."""
    thought = f"<think>{TWO}</think>{ONE}"
    got = converse(Says(thought, "<think>so</think>It is 1.", "Bye."), calls=2)
    first, second, third = got.actions
    assert [a.extends for a in got.actions] == [True, True, False]
    assert [r.ok for r in first.tool_results] == [True]
    messages = [
        *prompt({"q": "question 0"}),
        {"role": "assistant", "content": thought},
        {"role": "tool", "content": "price: {'item': 'one'}"},
        {"role": "assistant", "content": "<think>so</think>It is 1."},
        {"role": "user", "content": "question 1"},
    ]
    assert decoded(second.context_ids) == whole(messages[:4])
    assert decoded(third.context_ids) == whole(messages)
    assert ONE in decoded(third.context_ids) and TWO not in decoded(third.context_ids)


def test_coach_and_records_see_what_was_offered():
    got = converse(Says(ONE, "done", "bye"), calls=2)
    third = got.actions[2]
    for action in got.actions:
        (role, text), *messages = action.opening
        assert role == "tools" and [t["function"]["name"] for t in json.loads(text)] == [
            "price",
            "order",
            "python",
        ]
        assert messages[0] == ("system", "sell")
    assert [bool(a.offered) for a in got.actions] == [True, False, False]  # kept once
    assert third.opening[-1] == ("user", "question 1")
    back = from_record(json.loads(json.dumps(to_record(got))))
    assert [a.opening for a in back.actions] == [a.opening for a in got.actions]
    assert [a.context_ids for a in back.actions] == [a.context_ids for a in got.actions]
