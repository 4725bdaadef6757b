"""The endpoint's three dialects: what of a request is honoured, refused or named, and Anthropic's
own client."""

import asyncio
import json
import os
import random
import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from simulated import simulated_engine
from test_agents import (
    ADD,
    CALL,
    calling,
    played,
    said,
    scripted,
    served,
    specs,
    trajectory_of,
    user,
)

from marl_plugins.builtin.agents.messages import MessagesRequest
from marl_plugins.builtin.agents.request_fields import REASONS
from marl_plugins.builtin.agents.requests import ChatRequest
from marl_plugins.builtin.agents.responses import ResponseRequest
from marl_plugins.core.roles import Sampling
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.workflow_file import workflow_of

ASK = {
    "/chat/completions": {"model": "a", "messages": [user("hello")]},
    "/responses": {"model": "a", "input": "hello"},
    "/messages": {"model": "a", "max_tokens": 40, "messages": [user("hello")]},
}


# --- stop strings
# --------------------------------------------------------------------------------------------------


def stopping(text):
    """An engine that says a text, and ends behind the first stop string as vLLM does: with all of
    the token that completes it, which has up to two characters more."""

    async def generate(call):
        ends = [text.index(stop) + len(stop) for stop in call.sampling.stop if stop in text]
        ids = tuple(map(ord, text[: min(ends) + 2] if ends else text + "^"))
        return Generation(ids, (-0.1,) * len(ids), "stop", call.policy, 0)

    return generate


@pytest.mark.parametrize("path", ["/chat/completions", "/messages"])
def test_content_ends_before_the_first_stop_string_and_the_next_turn_goes_on_from_the_ids(path):
    chance = random.Random(3)
    key = "stop" if path == "/chat/completions" else "stop_sequences"

    for _ in range(20):
        text = "".join(chance.choices("abc\n", k=12))
        stops = ["".join(chance.choices("abc\n", k=chance.randint(1, 3))) for _ in range(2)]
        contents = []

        async def client(post, session, stops=stops, contents=contents):
            _, answer = await post(path, **ASK[path], **{key: stops})
            if path == "/messages":
                content = "".join(block["text"] for block in answer["content"])
                assert answer["stop_sequence"] in [*stops, None]
            else:
                content = said(answer)["content"]
            contents.append((content, session.said(content)))
            talk = [user("hello"), {"role": "assistant", "content": content}, user("and?")]
            await post(path, **{**ASK[path], "messages": talk})

        trajectory = served(client, specs("a"), stopping(text))
        first, second = trajectory.actions
        assert contents == [(re.split("|".join(map(re.escape, stops)), text)[0], first)]
        assert second.before is first and second.extends
        shown = first.context_ids + first.generation.ids
        assert second.context_ids[: len(shown)] == shown


def test_a_programs_answer_is_graded_without_the_stop_string_that_it_never_got(tmp_path):
    text = """
        def main(prompt):
            return ask("worker", prompt, stop=["\\nObservation"])["content"]
    """
    trajectory = played(tmp_path, text, generate=stopping("42\nObservation: 3"))
    (action,) = trajectory.actions
    assert (trajectory.answer, trajectory.returned) == ("42", action.path)
    assert action.text.startswith("42\nObservation")


def test_what_another_role_is_shown_of_a_stopped_answer_is_known():
    async def client(post, session):
        _, answer = await post(**ASK["/chat/completions"], stop=["Observation"])
        await post(model="b", messages=[user(f"a said {said(answer)['content']}.")])

    first, second = served(client, specs("a", "b"), stopping("Action: pen\nObservation: 3")).actions
    assert first.text.startswith("Action: pen\nObservation")
    assert second.derived == (first.path,)


# --- fields
# --------------------------------------------------------------------------------------------------

EVERYWHERE = {
    "guided_json": {"type": "object"},
    "guided_choice": ["yes", "no"],
    "structured_outputs": {"regex": "[0-9]+"},
    "bad_words": ["no"],
    "allowed_token_ids": [5],
    "min_tokens": 50,
    "stop_token_ids": [11],
    "chat_template_kwargs": {"enable_thinking": False},
    "continue_final_message": True,
    "logit_bias": {"5": 100},
    "add_generation_prompt": False,
    "skip_special_tokens": False,
    "max_token": 7,
}
REFUSED = {
    "/chat/completions": {
        "n": 2,
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
        "top_logprobs": 5,
        "modalities": ["text", "audio"],
        "functions": [{"name": "f"}],
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        ],
    },
    "/responses": {
        "previous_response_id": "a.1",
        "background": True,
        "text": {"format": {"type": "json_schema"}},
        "truncation": "auto",
        "tool_choice": {"type": "function", "name": "f"},
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
    },
    "/messages": {
        "tool_choice": {"type": "any"},
        "mcp_servers": [{"type": "url"}],
        "container": "c",
        "output_config": {"format": {"type": "json_schema"}},
        "output_format": {"type": "json_schema"},
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "messages": [user("x"), {"role": "assistant", "content": "I think"}],
        "max_tokens": 0,
    },
}
IMAGE = {"type": "image", "source": {"type": "base64", "data": "aaaa"}}


@pytest.mark.parametrize("path", ASK)
def test_every_field_is_refused_by_its_name_or_named_or_honoured(path):
    asked = []

    async def generate(call):
        asked.append(call)
        return await simulated_engine()(call)

    async def client(post, session):
        for name, value in {**EVERYWHERE, **REFUSED[path]}.items():
            status, answer = await post(path, **{**ASK[path], name: value})
            message = answer["error"]["message"]
            assert status == 400, (name, answer)
            assert name in message or "last message" in message, (name, message)
        assert not asked and not session.ignored
        plain = {name: type(value)() for name, value in EVERYWHERE.items() if name != "max_token"}
        plain |= {"add_generation_prompt": True, "skip_special_tokens": True, "nobody": None}
        status, answer = await post(path, **ASK[path], **plain)
        assert status == 200 and not session.ignored, answer
        sampling = {"temperature": 0, "seed": 1, "service_tier": "auto"}
        status, _ = await post(path, **ASK[path], **sampling)
        assert status == 200 and session.ignored == set(sampling)

    assert len(served(client, specs("a"), generate).actions) == 2


@pytest.mark.parametrize(
    ("module", "kind", "form"),
    [
        ("openai.types.chat.completion_create_params", "CompletionCreateParams", ChatRequest),
        ("openai.types.responses.response_create_params", "ResponseCreateParams", ResponseRequest),
        ("anthropic.types.message_create_params", "MessageCreateParams", MessagesRequest),
        ("anthropic.types.beta.message_create_params", "MessageCreateParams", MessagesRequest),
    ],
)
def test_every_field_of_the_official_clients_has_a_fate(module, kind, form):
    pytest.importorskip(module.partition(".")[0])
    known = getattr(import_module(module), f"{kind}Streaming")
    names = known.__required_keys__ | known.__optional_keys__
    assert len(names) > 15 and names <= {*form.model_fields, *REASONS}


@pytest.mark.parametrize(
    "content",
    [[IMAGE], [{"type": "tool_result", "tool_use_id": "x", "content": [IMAGE]}]],
)
def test_an_image_is_refused_by_its_name(content):
    async def client(post, session):
        status, answer = await post("/messages", **{**ASK["/messages"], "messages": [
            {"role": "user", "content": content}
        ]})  # fmt: skip
        assert status == 400 and "'image'" in answer["error"]["message"]

    assert not served(client, specs("a")).actions


def test_what_a_tool_or_a_message_says_in_vain_is_named_and_no_part_of_what_is_compared():
    async def client(post, session):
        strict = {**ADD, "function": {**ADD["function"], "strict": True}}
        _, first = await post(**ASK["/chat/completions"], tools=[strict])
        assert session.ignored == {"tools.function.strict"}
        talk = [{**user("hello"), "name": "Ann"}, {**said(first), "annotations": []}, user("and?")]
        await post(model="a", messages=talk, tools=[ADD])
        assert session.ignored == {"tools.function.strict", "messages.name"}

    first, second = served(client, calling(), scripted("one", "two")).actions
    assert second.before is first


def test_of_parallel_calls_a_program_that_wants_one_gets_the_first():
    async def client(post, session):
        for path, more in (
            ("/chat/completions", {"parallel_tool_calls": False}),
            ("/messages", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
        ):
            tools = [ADD] if path == "/chat/completions" else [ANTHROPIC_ADD]
            _, whole = await post(path, **ASK[path], tools=tools)
            _, one = await post(path, **ASK[path], tools=tools, **more)
            numbers = [
                len(said(a)["tool_calls"])
                if path == "/chat/completions"
                else [block["type"] for block in a["content"]].count("tool_use")
                for a in (whole, one)
            ]
            assert numbers == [2, 1]

    served(client, calling(), scripted(*[CALL + CALL] * 4))


def test_logprobs_are_those_of_the_record():
    from openai import AsyncOpenAI

    async def client(post, session):
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.key) as openai:
            whole = await openai.chat.completions.create(**ASK["/chat/completions"], logprobs=True)
            stream = await openai.chat.completions.create(
                **ASK["/chat/completions"], logprobs=True, stream=True
            )
            pieces = [piece.choices[0].logprobs async for piece in stream]
            return [
                [(token.token, token.logprob) for token in logprobs.content]
                for logprobs in (whole.choices[0].logprobs, *filter(None, pieces))
            ]

    found = []
    trajectory = served(lambda post, session: keep(client(post, session), found), specs("a"))
    for tokens, action in zip(*found, trajectory.actions, strict=True):
        texts = [chr(id).replace("^", "") for id in action.generation.ids]
        assert tokens == list(zip(texts, action.generation.logprobs, strict=True))


async def keep(work, found):
    found.append(await work)


# --- rewards of single answers
# --------------------------------------------------------------------------------------------------


def test_a_program_rewards_single_answers_and_is_refused_what_cannot_be():
    answered = []

    async def client(post, session):
        session._range = (-1.0, 1.0)
        ids = [(await post(model="a", messages=[user(str(n))]))[1]["id"] for n in range(4)]
        assert (await post("/rewards", id=ids[0], reward=-0.5))[0] == 200
        both = [{"id": ids[1], "reward": 1}, {"id": ids[2], "reward": 0}]
        assert (await post("/rewards", raw=json.dumps(both[:1]).encode()))[0] == 200
        for path, text in (("/chat/completions", False), ("/messages", True)):
            rewards = json.dumps(both[1]) if text else {"id": ids[3], "reward": -1}
            status, answer = await post(path, **ASK[path], metadata={"marl": rewards, "user": "x"})
            assert status == 200, answer
        assert session.ignored == {"metadata.user"}
        last = answer["id"]
        answered.extend(ids)
        for wrong in (
            {"id": ids[0], "reward": 0.5},  # has one
            {"id": last, "reward": 10},
            {"id": last, "reward": float("nan")},
            {"id": last, "reward": "0.5"},
            {"id": last, "reward": True},
            {"id": "a.0", "reward": 0.5},
            {"id": last, "reward": 0.5, "more": 1},
            {"id": last},
        ):
            status, answer = await post("/rewards", **wrong)
            assert status == 400 and "reward" in answer["error"]["message"], wrong
            status, _ = await post(**ASK["/chat/completions"], metadata={"marl": wrong})
            assert status == 400
        assert (await post("/rewards", key="other", id=last, reward=0))[0] == 401
        session._range = None
        status, answer = await post("/rewards", id=last, reward=0)
        assert status == 400 and "agent: {rewards" in answer["error"]["message"]

    async def score(action, seen):
        return action.score

    actions = served(client, specs("a"), score_action=score).actions
    scores = {action.path: action.score for action in actions}
    assert [scores.pop(path) for path in answered] == [0.25, 1.0, 0.5, 0.0]
    assert [*scores.values()] == [None, None]


# --- Anthropic's own client
# --------------------------------------------------------------------------------------------------

ANTHROPIC_ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object"},
    "cache_control": {"type": "ephemeral"},
}
THOUGHT = "<think>\nhm, hm\n</think>\n\nForty-two."


def test_the_client_of_anthropic_in_all_its_ways(monkeypatch):
    """Whole and streamed, with calls, thoughts and a message of the system in the middle: each
    continues token for token."""
    anthropic = pytest.importorskip("anthropic")
    from marl_plugins.builtin.agents import server

    monkeypatch.setattr(server, "QUIET_SECONDS", 0.01)
    system = [
        {"type": "text", "text": "Be terse."},
        {"type": "text", "text": " Use tools.", "cache_control": {"type": "ephemeral"}},
    ]

    async def client(post, session):
        base_url = session.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key=session.key) as claude:
            messages, more = claude.messages, {"model": "a", "system": system, "max_tokens": 900}
            more["tools"] = [ANTHROPIC_ADD]
            talk = [{"role": "user", "content": [{"type": "text", "text": "1+2?"}]}]
            talk[0]["content"][0]["cache_control"] = {"type": "ephemeral"}
            counted = await messages.count_tokens(
                model="a", system=system, tools=[ANTHROPIC_ADD], messages=talk
            )
            first = await messages.create(messages=talk, **more)
            assert first.usage.input_tokens == counted.input_tokens
            assert [block.type for block in first.content] == ["text", "tool_use"]
            assert first.content[1].input == {"a": 1, "b": 2} and first.stop_reason == "tool_use"
            result = {
                "type": "tool_result",
                "tool_use_id": first.content[1].id,
                "content": [{"type": "text", "text": "3"}],
                "is_error": True,
            }
            reminder = {"type": "text", "text": "<system-reminder>be brief</system-reminder>"}
            talk = [user("1+2?"), {"role": "assistant", "content": first.content}]
            talk.append({"role": "user", "content": [result, reminder]})
            async with messages.stream(messages=talk, **more) as stream:
                kinds = [event.type async for event in stream]
                second = await stream.get_final_message()
            assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
            assert [block.type for block in second.content] == ["thinking", "text"]
            assert second.content[1].text == "Forty-two."
            talk += [{"role": "assistant", "content": second.content}]
            talk += [{"role": "system", "content": "Now in French."}, user("and 2+3?")]
            third = await messages.create(messages=talk, **more)
            assert third.stop_reason == "max_tokens" and first.id.startswith("a.")
            for wrong, status in (({"model": "nobody"}, 404), ({"max_tokens": 0}, 400)):
                with pytest.raises(anthropic.APIStatusError) as error:
                    await messages.create(**{**more, "messages": talk, **wrong})
                assert error.value.status_code == status
                assert error.value.body["type"] == "error"
            bearer = claude.with_options(api_key=None, auth_token=session.key)
            assert (await bearer.messages.count_tokens(model="a", messages=talk)).input_tokens
            with pytest.raises(anthropic.AuthenticationError):
                await claude.with_options(api_key="other").messages.create(messages=talk, **more)

    answers = iter([f"I add. {CALL}", THOUGHT, "cinq"])

    async def generate(call):
        await asyncio.sleep(0.05)
        ids = tuple(map(ord, next(answers)))
        return Generation(ids, (-0.1,) * len(ids), "length", call.policy, 0)

    first, second, third = served(client, calling(), generate).actions
    assert [(r.tool, r.output, r.ok) for r in first.tool_results] == [("add", "3", False)]
    assert second.before is first and third.before is second
    assert not any(action.notes for action in (first, second, third))
    assert second.shown == (
        ("tool", "3"),
        ("user", "<system-reminder>be brief</system-reminder>"),
    )
    assert third.shown == (("system", "Now in French."), ("user", "and 2+3?"))
    assert first.shown[0] == ("system", "Be terse. Use tools.")


def test_a_stream_that_waits_pings_and_one_that_fails_says_so():
    async def slow(call):
        await asyncio.sleep(0.05)
        raise ZeroDivisionError("a bug")

    async def client(post, session):
        from marl_plugins.builtin.agents import server

        quiet, server.QUIET_SECONDS = server.QUIET_SECONDS, 0.01
        try:
            _, text = await post("/messages", **ASK["/messages"], stream=True)
        finally:
            server.QUIET_SECONDS = quiet
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        assert {"type": "ping"} in events
        assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "overloaded_error"

    served(client, specs("a"), slow)


# --- Claude Code
# --------------------------------------------------------------------------------------------------

STAND_IN = """
import json, os, sys, urllib.request

talk = [{"role": "user", "content": sys.stdin.read()}]
edit = {"name": "Edit", "input_schema": {"type": "object"}}
while True:
    body = {"model": "solver", "max_tokens": 900, "messages": talk, "tools": [edit]}
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"]}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages?beta=true"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    content = json.load(urllib.request.urlopen(request))["content"]
    talk.append({"role": "assistant", "content": content})
    calls = [block for block in content if block["type"] == "tool_use"]
    if not calls:
        break
    for call in calls:
        made = call["input"]
        call["input"] = {"replace_all": False, **made}  # as Claude Code does
        text = open(made["file_path"]).read().replace(made["old_string"], made["new_string"])
        open(made["file_path"], "w").write(text)
    result = {"type": "tool_result", "tool_use_id": calls[0]["id"], "content": "updated"}
    talk.append({"role": "user", "content": [result]})
"""
"""Does in a few lines what Claude Code does of a call; `CLAUDE=PATH pytest` takes the real one."""
RECIPE = Path(__file__).resolve().parent.parent / "examples" / "agents" / "claude_code"


def test_claude_code_corrects_a_module_and_is_paid_by_its_tests(tmp_path, monkeypatch):
    program = tmp_path / "claude"
    program.write_text(f"#!{sys.executable}\n{STAND_IN}")
    program.chmod(0o755)
    real = os.environ.get("CLAUDE")
    monkeypatch.setenv("CLAUDE", real or str(program))
    plan = build_plan(["--recipe", str(RECIPE / "recipe.yaml")])
    task = plan.tasks("train")[0]
    read = json.dumps({"name": "Read", "arguments": {"file_path": "intervals.py"}})
    role = replace(calling()["a"], name="solver", sampling=Sampling(1.0, 1.0, 900, 10**6))

    async def played(spelled):
        line = "return (first, last) if first {} last else None"
        edit = {"file_path": "intervals.py", "old_string": line.format("<")}
        edit["new_string"] = line.format(spelled)
        call = json.dumps({"name": "Edit", "arguments": edit})
        turns = [f"<tool_call>{text}</tool_call>" for text in ([read, call] if real else [call])]
        trajectory = await trajectory_of(
            workflow_of(plan.plugins, plan.run), {"solver": role}, scripted(*turns, "Done."), task
        )
        assert len(trajectory.actions) == len(turns) + 1, trajectory.detail
        assert all(a.extends and not a.notes for a in trajectory.actions)
        return await plan.run.grader_module.score_outcome(trajectory)

    async def both():
        return [await played("<="), await played(">")]

    assert asyncio.run(both()) == [1.0, 0.0]
