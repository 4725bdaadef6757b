"""Programs in place of workflows: what they are answered, what is trained of it, and what becomes
of those that fail."""

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import eventually
from simulated import CharacterChat, simulated_engine, without_seconds

from marl_plugins.builtin.agents.metrics import ProgramCounts
from marl_plugins.builtin.agents.parents import stands_in
from marl_plugins.builtin.agents.section import AgentConfig
from marl_plugins.builtin.agents.server import AgentEndpoint
from marl_plugins.builtin.agents.session import EndpointSession, SentToolFormats
from marl_plugins.builtin.agents.workflow import AgentWorkflow
from marl_plugins.core.calls import TAGGED, parse_call
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import (
    ConfigurationError,
    InfrastructureFailure,
    RunPaused,
)
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.roles import RoleSpec, Sampling
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Generation, Task, ToolResult
from marl_plugins.core.workflow import calls_of, run_workflow
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.plan.workflow_file import workflow_of
from marl_plugins.engine.records.trajectory_record import from_record, to_record

CLIENT = """
import json, os, urllib.error, urllib.request

def ask(role, *messages, key=None, **more):
    shown = [m if isinstance(m, dict) else {"role": "user", "content": m} for m in messages]
    headers = {"Authorization": "Bearer " + (key or os.environ["OPENAI_API_KEY"]), "Content-Type": "application/json"}
    headers |= more.pop("headers", {})
    body = json.dumps({"model": role, "messages": shown, **more}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]
"""
"""A client of a few lines, which is imported in no time."""


def specs(*names, most=5000, **more):
    return {
        name: RoleSpec(
            name,
            "p",
            prompt_renderer("?", None),
            **{"chat": CharacterChat(), "sampling": Sampling(1.0, 1.0, 40, most), **more},
        )
        for name in names
    }


async def trajectory_of(workflow, roles, generate=None, task=None, seconds=20.0, tools=(), **more):
    return await run_workflow(
        workflow,
        task or Task("t", "how many?", "42", {"unit": "boxes"}),
        0,
        step=1,
        run_seed=3,
        roles=roles,
        tools={tool.name: tool for tool in tools},
        generate=generate or simulated_engine(),
        seconds=seconds,
        **more,
    )


def program(folder, text, **config):
    (folder / "client.py").write_text(CLIENT)
    (folder / "agent.py").write_text("from client import ask\n" + textwrap.dedent(text))
    return AgentWorkflow(AgentConfig(file="agent.py", **config), folder)


def played(folder, text, *names, generate=None, seconds=20.0, **config):
    workflow = program(folder, text, **config)
    return asyncio.run(
        trajectory_of(workflow, specs(*(names or ("worker",))), generate, seconds=seconds)
    )


def served(client, roles, generate=None, derive=True, **more):
    """The trajectory of a client that runs in the test itself: `await client(post, session)`."""
    formats = SentToolFormats()

    async def workflow(task, roles, tools):
        async with AgentEndpoint().running() as endpoint, aiohttp.ClientSession() as http:
            session = EndpointSession(calls_of(roles), formats, derive, "here")

            session.base_url = endpoint.base_url

            async def post(path="/chat/completions", key=None, headers=(), raw=None, **body):
                sent = raw if raw is not None else json.dumps(body).encode()
                known = {"Authorization": f"Bearer {key or session.key}", **dict(headers)}
                async with http.post(
                    endpoint.base_url + path, data=sent, headers=known
                ) as response:
                    text = await response.text()
                    return response.status, json.loads(text) if text.startswith("{") else text

            try:
                with endpoint.serving(session):
                    return await client(post, session)
            finally:
                await session.close()

    return asyncio.run(trajectory_of(workflow, roles, generate, **more))


def user(text):
    return {"role": "user", "content": text}


def said(answer):
    return answer["choices"][0]["message"]


# --- the same as a workflow
# -----------------------------------------------------------------------------------------------


def test_mathchat_as_a_program_is_the_workflow():
    """It states its dependencies: paths, seeds, ids, contexts, parents and tools are the
    workflow's, whatever the timing."""
    plans = [
        build_plan(["--recipe", name])
        for name in ("mathchat/tiny.yaml", "mathchat/tiny_program.yaml")
    ]

    async def python(call):
        return ToolResult("python", call.text, "7", ok=True)

    tool = Tool("python", python, find=lambda text: re.findall(r"[0-4]{2}", text)[:1])
    roles = specs("solver", "coder", "verifier")
    roles["coder"] = replace(roles["coder"], tools=(tool,), max_turns=2, endless_tools_fail=False)
    run = plans[0].run
    roles = {
        n: replace(role, render=prompt_renderer(run.prompt(n), None)) for n, role in roles.items()
    }

    async def all_of(plan, delays):
        workflow, tasks = workflow_of(plan.plugins, plan.run), plan.tasks("train")[:6]
        found = [
            trajectory_of(workflow, roles, simulated_engine(delays), task, tools=[tool])
            for task in tasks
        ]
        return [to_record(trajectory) for trajectory in await asyncio.gather(*found)]

    one, other = (
        without_seconds(asyncio.run(all_of(plan, delays)))
        for plan, delays in zip(plans, (False, True), strict=True)
    )
    assert one == other
    assert any(action["tools"] for record in one for action in record["actions"])
    assert not any(
        action["turn"]
        for record in one
        for action in record["actions"]
        if action["role"] != "coder"
    )
    assert (
        plans[1].run.warnings == () and fingerprint(plans[1])["files"]["agent"][0] == "program.py"
    )


# --- conversations
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "echo",
    [
        lambda text: {"role": "assistant", "content": text},
        lambda text: {
            "role": "assistant",
            "content": f"{text}\n",
            "refusal": None,
            "tool_calls": None,
        },
        lambda text: {
            "role": "assistant",
            "content": [{"type": "text", "text": text[:2]}, {"type": "text", "text": text[2:]}],
        },
    ],
)
def test_a_conversation_continues_token_for_token_however_it_is_spelled(echo):
    async def client(post, session):
        _, first = await post(model="a", messages=[user("hello")])
        _, second = await post(
            model="a", messages=[user("hello"), echo(said(first)["content"]), user("and?")]
        )
        return said(second)["content"]

    trajectory = served(client, specs("a"))
    first, second = trajectory.actions
    assert second.before is first and second.extends and second.parents == (first.path,)
    assert second.context_ids[: len(first.context_ids) + len(first.generation.ids)] == (
        *first.context_ids,
        *first.generation.ids,
    )
    assert trajectory.answer == second.text


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        (
            lambda text, other: [user("hello"), {"role": "assistant", "content": f"{text}?"}],
            "edited",
        ),
        (
            lambda text, other: [user("a summary"), {"role": "assistant", "content": text}],
            "history",
        ),
        (lambda text, other: [user("hello"), {"role": "assistant", "content": other}], "role"),
    ],
)
def test_every_sequence_that_begins_with_a_history_has_a_reason(history, reason):
    async def client(post, session):
        _, other = await post(model="b", messages=[user("you?")])
        _, first = await post(model="a", messages=[user("hello")])
        await post(
            model="a",
            messages=[*history(said(first)["content"], said(other)["content"]), user("and?")],
        )

    last = served(client, specs("a", "b")).actions[-1]
    assert last.before is None and last.notes == {"agents": {"reopened": reason}}
    assert [role for role, _ in last.shown] == ["user", "assistant", "user"]


def test_requests_that_are_answered_alike_are_recorded_alike_whatever_the_delays():
    """Equal requests, and branches, get equal answers: which of them is gone on from, and which was
    seen, depends on no delay."""
    noise = random.Random()

    async def yes(call):
        await asyncio.sleep(noise.random() * 0.01)
        return Generation((*map(ord, "yes"), ord("^")), (-0.1,) * 4, "stop", call.policy, 0)

    async def client(post, session):
        async def turn(*more):
            return said((await post(model="a", messages=[*begun, *more]))[1])

        begun = [user("hello")]
        begun.append((await asyncio.gather(turn(), turn()))[0])
        await asyncio.gather(turn(user("left")), turn(user("right")))
        await post(model="b", messages=[user("both said yes")])

    found = [without_seconds(to_record(served(client, specs("a", "b"), yes))) for _ in range(8)]
    assert all(record == found[0] for record in found)
    assert (
        len(found[0]["actions"][-1]["derived"]) == 2
    )  # of the branches and their beginning one, and the other beginning


def test_max_tokens_and_stop_only_shorten():
    asked = []

    async def generate(call):
        asked.append((call.max_tokens, call.sampling.stop, call.sampling.temperature))
        return await simulated_engine()(call)

    async def client(post, session):
        await post(
            model="a",
            messages=[user("1")],
            max_tokens=7,
            stop="x",
            temperature=0.1,
            seed=1,
            top_p=0.2,
        )
        await post(model="a", messages=[user("2")], max_completion_tokens=700, stop=["y", "x"])

    served(client, specs("a"), generate)
    assert asked == [(7, ("x",), 1.0), (40, ("y", "x"), 1.0)]


# --- tools of the program, and the client of OpenAI
# ----------------------------------------------------------------------

TEMPLATE = (
    "{% if tools %}s:{% for tool in tools %}{{ tool | tojson }}{% endfor %}^{% endif %}"
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}^{% endfor %}{% if "
    "add_generation_prompt %}a:{% endif %}"
)


class CharacterTokenizer:
    """One token per character, `^` ends a message; a template that shows tools."""

    chat_template = TEMPLATE
    eos_token_id = ord("^")

    def apply_chat_template(self, conversation, tools=None, add_generation_prompt=False, **kwargs):
        environment = jinja2.Environment()
        return environment.from_string(self.chat_template).render(
            messages=conversation, tools=tools, add_generation_prompt=add_generation_prompt
        )

    def encode(self, text, **kwargs):
        return [ord(c) for c in text]

    def decode(self, ids, skip_special_tokens=False, **kwargs):
        text = "".join(map(chr, ids))
        return text.replace("^", "") if skip_special_tokens else text


class NoTools(CharacterTokenizer):
    """Its template shows no tools."""

    chat_template = TEMPLATE.partition("{% endif %}")[2]


def finder(tools):
    offered = {function.name for tool in tools for function in tool.functions}

    def find(said):
        calls = [parse_call(text.strip()) for text in TAGGED.findall(said)]
        return [call for call in calls if call and call.name in offered]

    return find


def scripted(*texts):
    """An engine that says texts one after the other, whatever it is shown."""
    left = list(texts)

    async def generate(call):
        ids = (*map(ord, left.pop(0)), ord("^"))
        return Generation(ids, (-0.1,) * len(ids), "stop", call.policy, 0)

    return generate


CALL = '<tool_call>{"name": "add", "arguments": {"b": 2, "a": 1}}</tool_call>'
ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}


def calling(tokenizer=None):
    return specs("a", chat=ChatFormat(tokenizer or CharacterTokenizer(), "p"), finder=finder)


async def answering(post, session):
    """A program that answers the calls of a role, whose arguments it spells anew."""
    talk = [user("1+2?")]
    while True:
        status, answer = await post(model="a", messages=talk, tools=[ADD])
        assert status == 200, answer
        message = said(answer)
        talk.append({**message, "content": message["content"] or ""})
        if not message.get("tool_calls"):
            return message["content"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, indent=2)
            talk.append(
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "content": str(arguments["a"] + arguments["b"]),
                }
            )


def test_tools_that_a_program_sends_are_shown_found_and_recorded():
    seen = []

    async def score(action, seen_):
        seen.append((action.text, [result.output for result in action.tool_results]))
        return 1.0

    trajectory = served(
        answering, calling(), scripted(f"Let me see. {CALL}", "It is 3."), score_action=score
    )
    first, second = trajectory.actions
    assert "".join(map(chr, first.context_ids)).startswith('s:{"function": {"description": "Adds."')
    assert second.before is first and second.shown == (("tool", "3"),)
    assert "".join(map(chr, second.shown_ids)) == "t:3^a:"
    assert [(r.tool, r.output, r.ok) for r in first.tool_results] == [("add", "3", True)]
    assert json.loads(first.tool_results[0].call) == {"name": "add", "arguments": {"a": 1, "b": 2}}
    assert json.loads(first.offered)[0]["function"]["name"] == "add"
    assert seen == [
        (f"Let me see. {CALL}", ["3"]),
        ("It is 3.", []),
    ]  # scored once its tools have answered
    assert trajectory.answer == "It is 3."


def test_calls_that_nobody_answers_are_scored_at_the_end():
    async def score(action, seen):
        return 0.5

    async def client(post, session):
        await post(model="a", messages=[user("1+2?")], tools=[ADD])

    trajectory = served(client, calling(), scripted(CALL), score_action=score)
    assert trajectory.actions[0].score == 0.5 and trajectory.actions[0].tool_results == ()


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        (lambda: calling(NoTools()), "chat template"),
        (lambda: specs("a", chat=ChatFormat(CharacterTokenizer(), "p")), "calls"),
    ],
)
def test_tools_that_a_role_cannot_be_shown_are_refused_with_the_reason(roles, reason):
    async def client(post, session):
        status, answer = await post(model="a", messages=[user("x")], tools=[ADD])
        assert status == 400 and reason in answer["error"]["message"]

    assert not served(client, roles()).actions


def test_the_client_of_openai_in_all_its_ways():
    """Chat and responses, whole and streamed, with calls and without: each continues token for
    token."""
    from openai import AsyncOpenAI, BadRequestError

    async def client(post, session):
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.key) as openai:
            assert [model.id async for model in openai.models.list()] == ["a"]
            assert (await openai.models.retrieve("a")).id == "a"
            chat, texts = openai.chat.completions, []
            stream = await chat.create(
                model="a",
                messages=[user("1+2?")],
                tools=[ADD],
                stream=True,
                stream_options={"include_usage": True},
            )
            pieces = [piece async for piece in stream]
            called = [
                call for p in pieces if p.choices for call in p.choices[0].delta.tool_calls or ()
            ]
            assert [call.function.name for call in called] == ["add"] and pieces[
                -1
            ].usage.completion_tokens == len(CALL) + 1
            assert pieces[-2].choices[0].finish_reason == "tool_calls"
            calls = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": "add", "arguments": c.function.arguments},
                }
                for c in called
            ]
            talk = [user("1+2?"), {"role": "assistant", "tool_calls": calls}]
            talk.append({"role": "tool", "tool_call_id": called[0].id, "content": "3"})
            stream = await chat.create(model="a", messages=talk, tools=[ADD], stream=True)
            texts.append("".join([p.choices[0].delta.content or "" async for p in stream]))

            tool = {"type": "function", **ADD["function"], "strict": False}
            first = await openai.responses.create(
                model="a", input="1+2?", instructions="Add.", tools=[tool]
            )
            (item,) = first.output
            assert (item.type, item.name, first.usage.input_tokens > 0) == (
                "function_call",
                "add",
                True,
            )
            items = [
                user("1+2?"),
                item.to_dict(),
                {"type": "function_call_output", "call_id": item.call_id, "output": "3"},
            ]
            async with openai.responses.stream(
                model="a", input=items, instructions="Add.", tools=[tool]
            ) as events:
                kinds = [event.type async for event in events]
                last = await events.get_final_response()
            assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
            texts.append(last.output_text)
            for more in (
                {"previous_response_id": "a.1"},
                {"tools": [{"type": "web_search"}]},
                {"input": []},
            ):
                with pytest.raises(BadRequestError):
                    await openai.responses.create(**{"model": "a", "input": "x", **more})
            return " ".join(texts)

    answers = scripted(CALL, "in several pieces", CALL, "3")
    trajectory = served(client, calling(), answers)
    assert trajectory.answer == "in several pieces 3"
    assert [bool(a.before) for a in trajectory.actions] == [False, False, True, True]
    assert all(len(a.tool_results) == 1 for a in trajectory.actions if not a.before)
    assert not any(a.notes for a in trajectory.actions)


def test_a_client_that_leaves_a_stream_disturbs_nobody():
    async def slow(call):
        await asyncio.sleep(0.3)
        return await simulated_engine()(call)

    async def client(post, session):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(post(model="a", messages=[user("hello")], stream=True), 0.1)
        _, answer = await post(model="a", messages=[user("still there?")])
        return said(answer)["content"]

    trajectory = served(client, specs("a"), slow)
    assert trajectory.answer and trajectory.infrastructure_failure is None


# --- who saw whom
# --------------------------------------------------------------------------------------------------


def test_what_is_stated_is_in_the_path_and_what_is_derived_is_not():
    async def client(post, session, header):
        _, one = await post(model="a", messages=[user("hello")])
        await post(model="a", messages=[user("another")])
        after = {"x-marl-after": one["id"]} if header else {}
        await post(model="b", messages=[user(f"a said {said(one)['content']}.")], headers=after)

    stated, derived = (
        served(lambda p, s, h=h: client(p, s, h), specs("a", "b")) for h in (True, False)
    )
    (seen,) = (a for a in stated.actions if a.role == "b")
    (probably,) = (a for a in derived.actions if a.role == "b")
    assert len(seen.parents) == 1 and seen.parents == probably.parents
    assert (seen.derived, probably.derived) == ((), probably.parents)
    assert seen.path != probably.path
    unrelated = served(lambda p, s: client(p, s, False), specs("a", "b"), derive=False)
    (alone,) = (a for a in unrelated.actions if a.role == "b")
    assert alone.parents == () and alone.path == probably.path
    everything = served(lambda p, s: client(p, s, False), specs("a", "b"), derive="all")
    assert {len(a.parents) for a in everything.actions if a.role == "b"} == {2}
    again = from_record(json.loads(json.dumps(to_record(derived))))
    assert [a.derived for a in again.actions] == [a.derived for a in derived.actions]


@given(st.text("ab_ .é", max_size=4), st.text("ab_ .é", max_size=24))
def test_a_text_stands_in_another_one_at_the_borders_of_words(text, shown):
    found = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", shown)
    assert stands_in(text, shown) == (bool(text) and found is not None)


# --- requests that cannot be answered
# -------------------------------------------------------------------------------------

ANSWER = {"role": "tool", "tool_call_id": "call_1", "content": "7"}
BAD = {
    "an unknown model": (404, {"model": "c", "messages": [user("x")]}),
    "no messages": (400, {"model": "a", "messages": []}),
    "an answer to no call": (400, {"model": "a", "messages": [user("x"), ANSWER]}),
    "a full context": (400, {"model": "a", "messages": [user("x" * 6000)]}),
    "tools without `calls`": (
        400,
        {
            "model": "a",
            "messages": [user("x")],
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    ),
    "an id that is nobody's": (
        400,
        {"model": "a", "messages": [user("x")], "headers": {"x-marl-after": "a.1234"}},
    ),
    "another key": (401, {"model": "a", "messages": [user("x")], "key": "marl-other"}),
    "no JSON": (400, {"raw": b"{"}),
    "65 MB": (413, {"raw": b" " * (65 * 2**20)}),
}


def test_bad_requests_are_told_why_and_nobody_else_notices():
    async def client(post, session):
        _, before = await post(model="a", messages=[user("hello")])
        for what, (status, body) in BAD.items():
            found, answer = await post(**body)
            assert (found, set(answer)) == (status, {"error"}), what
            assert len(answer["error"]["message"]) > 10, what
        _, after = await post(
            model="a", messages=[user("hello"), said(before), user("still there?")]
        )
        return said(after)["content"]

    trajectory = served(client, specs("a"))
    assert (trajectory.agent_failure, trajectory.infrastructure_failure) == (None, None)
    assert len(trajectory.actions) == 2 and trajectory.actions[1].before is trajectory.actions[0]


def test_an_engines_failure_is_503_and_loses_the_trajectory_whatever_the_program_makes_of_it(
    tmp_path,
):
    async def generate(call):
        raise InfrastructureFailure("engines", "none is left")

    text = """
    def main(prompt):
        try:
            ask("worker", prompt)
        except Exception as error:
            return str(error.code)
    """
    trajectory = played(tmp_path, text, generate=generate)
    assert (trajectory.infrastructure_failure, trajectory.answer) == ("engines", None)


def test_a_bug_of_the_run_ends_it(tmp_path):
    async def generate(call):
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        played(
            tmp_path,
            "def main(prompt):\n    return ask('worker', prompt)['content']\n",
            generate=generate,
        )


# --- retries
# --------------------------------------------------------------------------------------------------


def test_a_marked_repeat_gets_the_first_answer_and_an_unmarked_one_another():
    asked = asyncio.Event()

    async def slow(call):
        asked.set()
        await asyncio.sleep(0.2)
        return await simulated_engine()(call)

    async def client(post, session):
        again = {"x-stainless-retry-count": "1"}
        first = asyncio.create_task(post(model="a", messages=[user("hello")]))
        await asked.wait()
        _, repeated = await post(model="a", messages=[user("hello")], headers=again)
        _, answer = await first
        assert repeated["id"] == answer["id"]
        _, other = await post(model="a", messages=[user("hello")])
        assert other["id"] != answer["id"]
        _, later = await post(model="a", messages=[user("hello")], headers=again)
        assert later["id"] == other["id"]

    assert len(served(client, specs("a"), slow).actions) == 2


def test_marked_repeats_of_equal_requests_get_an_answer_each():
    """Some clients leave before there is an answer, and ask again before or after it."""
    answering, asked = asyncio.Event(), asyncio.Barrier(5)

    async def slow(call):
        await asked.wait()
        await answering.wait()
        return await simulated_engine()(call)

    async def client(post, session):
        def vote(**headers):
            return asyncio.create_task(post(model="a", messages=[user("vote")], headers=headers))

        first = [vote() for _ in range(4)]
        await asked.wait()
        for left in first[:3]:
            left.cancel()
        await asyncio.gather(*first[:3], return_exceptions=True)
        again = {"x-stainless-retry-count": "1"}
        early = [vote(**again) for _ in range(2)]
        await asyncio.sleep(0.1)  # by then they have arrived, mostly; the others are late
        answering.set()
        answers = [*await asyncio.gather(first[3], *early), await vote(**again)]
        assert len({answer["id"] for _, answer in answers}) == 4

    assert len(served(client, specs("a"), slow).actions) == 4


# --- programs that fail
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "detail"),
    [
        ("raise ValueError('on purpose')", "ValueError: on purpose"),
        ("raise SystemExit(3)", "SystemExit"),
        ("import os; os._exit(7)", "exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("print('x' * 10**7); print('the last line'); return None", "the last line"),
    ],
)
def test_a_program_without_an_answer_is_lost_before_it_was_answered_and_a_failure_after(
    end, detail, tmp_path
):
    text = (
        "def main(prompt, item):\n    if item.metadata['unit'] == 'boxes':\n        "
        f"ask('worker', prompt)\n    {end}\n"
    )
    workflow = program(tmp_path, text)

    async def both():
        roles = specs("worker")
        return await asyncio.gather(
            trajectory_of(workflow, roles),
            trajectory_of(workflow, roles, task=Task("t", "?", None, {"unit": "none"})),
        )

    after, before = asyncio.run(both())
    assert (after.agent_failure, before.infrastructure_failure) == ("crashed", "program")
    assert detail in after.detail and detail in before.detail


@pytest.mark.parametrize(
    ("order", "end", "ends"),
    [
        ("answered(), waiting()", "raise TimeoutError", (None, "program")),
        ("waiting(), answered()", "raise TimeoutError", (None, "program")),
        ("answered(), waiting()", "raise ExceptionGroup('', [TimeoutError()])", (None, "program")),
        ("answered(), waiting()", "raise KeyError from TimeoutError('5 s')", (None, "program")),
        ("answered(), waiting()", "return None", (None, "program")),
        ("answered(), waiting()", "raise ValueError", ("crashed", None)),
        ("waiting(), answered()", "raise ValueError", ("crashed", None)),
        ("answered()", "raise TimeoutError", ("crashed", None)),
    ],
)
def test_a_program_that_gives_up_on_an_engine_is_no_agents_failure(order, end, ends, tmp_path):
    """Its own failure stays its own while another request is on its way."""

    async def generate(call):
        if call.role == "slow":
            (tmp_path / "asked").touch()
            await asyncio.sleep(60)
        return await simulated_engine()(call)

    text = f"""
    import os, threading, time
    def answered():
        ask("worker", "hello")
    def waiting():
        threading.Thread(target=ask, args=("slow", "hello"), daemon=True).start()
        while not os.path.exists({str(tmp_path / "asked")!r}):
            time.sleep(0.01)
    def main(prompt):
        {order}
        {end}
    """
    trajectory = played(tmp_path, text, "worker", "slow", generate=generate)
    assert (trajectory.agent_failure, trajectory.infrastructure_failure) == ends


def test_a_crash_can_be_lost(tmp_path):
    text = "def main(prompt):\n    ask('worker', prompt)\n    raise ValueError\n"
    assert played(tmp_path, text, crash="lost").infrastructure_failure == "program"


def test_what_an_agent_did_counts_before_the_crash_that_it_leads_to(tmp_path):
    trajectory = played(
        tmp_path, "def main(prompt):\n    return ask('worker', 'x' * 9000)['content']\n"
    )
    assert trajectory.agent_failure == "context"


def runs(number):
    return Path(f"/proc/{number}").exists()


def test_a_program_that_hangs_is_ended_with_all_that_it_has_started(tmp_path):
    text = f"""
    import os, subprocess, sys, time
    def main(prompt):
        ask("worker", prompt)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        away = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        with open({str(tmp_path / "pids")!r}, "w") as file:
            file.write(f"{{os.getpid()}} {{child.pid}} {{away.pid}}")
        time.sleep(600)
    """
    for seconds in (6.0, 30.0):  # a busy machine may need more before it hangs
        trajectory = played(tmp_path, text, seconds=seconds)
        if (tmp_path / "pids").exists():
            break
    assert trajectory.infrastructure_failure == "deadline"
    numbers = (tmp_path / "pids").read_text().split()
    eventually(lambda: not any(map(runs, numbers)))
    assert len(numbers) == 3


def test_a_key_is_good_until_its_trajectory_ends(tmp_path):
    """The second program asks with the first one's key, once that has ended."""
    text = f"""
    import os, time, urllib.error
    def main(prompt, item):
        path = {str(tmp_path / "key")!r}
        if item.id == "first":
            answer = ask("worker", prompt)["content"]
            open(path, "w").write(os.environ["OPENAI_API_KEY"])
            return answer
        while not os.path.exists(path + " has expired"):
            time.sleep(0.01)
        try:
            return ask("worker", prompt, key=open(path).read())["content"]
        except urllib.error.HTTPError as error:
            return str(error.code)
    """
    workflow = program(tmp_path, text)

    async def both():
        first, second = (
            asyncio.create_task(trajectory_of(workflow, specs("worker"), task=Task(name, "?")))
            for name in ("first", "second")
        )
        await first
        (tmp_path / "key has expired").touch()
        return first.result(), await second

    first, second = asyncio.run(both())
    assert len(first.actions) == 1 and second.answer == "401" and not second.actions


def test_requests_on_their_way_end_with_the_program(tmp_path):
    started = []

    async def never(call):
        started.append(call)
        (tmp_path / "asked").touch()
        await asyncio.sleep(60)

    text = f"""
    import os, threading, time
    def main(prompt):
        threading.Thread(target=ask, args=("worker", prompt), daemon=True).start()
        while not os.path.exists({str(tmp_path / "asked")!r}):
            time.sleep(0.01)
        return "done"
    """
    began = time.monotonic()
    trajectory = played(tmp_path, text, generate=never)
    assert (trajectory.answer, trajectory.actions, len(started)) == ("done", (), 1)
    assert time.monotonic() - began < 30


def test_a_run_that_is_killed_leaves_no_program(tmp_path):
    text = f"""
    import os, time
    def main(prompt):
        open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{os.getppid()}} ")
        time.sleep(600)
    """
    program(tmp_path, text)
    code = f"""
    import asyncio, sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from test_agents import AgentConfig, AgentWorkflow, Path, specs, trajectory_of
    asyncio.run(trajectory_of(AgentWorkflow(AgentConfig(file="agent.py"), Path({str(tmp_path)!r})), specs("worker")))
    """
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    pids = tmp_path / "pids"
    try:
        eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    finally:
        run.kill()
        run.wait()
    eventually(lambda: not any(map(runs, pids.read_text().split())))


def test_a_launcher_that_dies_is_replaced(tmp_path):
    text = """
    import os, signal
    def main(prompt, item):
        if item.id == "kill":
            os.kill(os.getppid(), signal.SIGKILL)
        return ask("worker", prompt)["content"]
    """
    workflow = program(tmp_path, text)

    async def one_after_the_other():
        return [
            await trajectory_of(workflow, specs("worker"), task=Task(n, "?"))
            for n in ("kill", "fine")
        ]

    killed, fine = asyncio.run(one_after_the_other())
    assert killed.infrastructure_failure == "program" and fine.answer


def test_waiting_for_a_place_does_not_count_against_the_deadline(tmp_path):
    slow = """
    import asyncio
    async def main(prompt, endpoint):
        await asyncio.sleep(1.1)
        return "done"
    """
    workflow = program(tmp_path, slow, concurrency=1)

    async def four():
        roles = specs("worker")
        tasks = [Task(str(n), "?") for n in range(4)]
        return await asyncio.gather(
            *(trajectory_of(workflow, roles, task=task, seconds=4.0) for task in tasks)
        )

    assert [t.answer for t in asyncio.run(four())] == ["done"] * 4


@pytest.mark.parametrize("kind", ["forked", "command"])
def test_what_a_program_leaves_behind_ends_with_it(kind, tmp_path):
    """A thread that calls for ever, and processes, one of them in a session of its own; the
    trajectory has its answer."""
    text = f"""
    import os, subprocess, sys, threading
    def for_ever():
        while True:
            try:
                ask("worker", "and?")
            except Exception:
                pass
    def leave():
        threading.Thread(target=for_ever, daemon={kind == "command"}).start()
        wait = [sys.executable, "-c", "import time; time.sleep(600)"]
        children = [subprocess.Popen(wait), subprocess.Popen(wait, start_new_session=True)]
        with open({str(tmp_path / "pids")!r}, "w") as file:
            file.write(" ".join(str(child.pid) for child in children))
        return "done"
    """
    workflow = program(
        tmp_path, f"{textwrap.dedent(text)}\ndef main(prompt):\n    return leave()\n"
    )
    if kind == "command":
        words = [sys.executable, "-c", "import agent; print(agent.leave())"]
        workflow = AgentWorkflow(AgentConfig(command=words), tmp_path)
    trajectory = asyncio.run(trajectory_of(workflow, specs("worker")))
    assert trajectory.answer == "done", trajectory.detail
    numbers = (tmp_path / "pids").read_text().split()
    eventually(lambda: not any(map(runs, numbers)))
    assert len(numbers) == 2


def test_a_step_of_which_more_than_half_is_lost_ends_the_run_after_the_step_before(tmp_path):
    """Half of step 1 (tasks 6, 5, 4, 8) is lost, which its ledger says; of step 2 (3, 0, 2, 11)
    more is."""
    text = """
    def main(prompt, item):
        if item.id in ("t6", "t5", "t3", "t0", "t2"):
            raise KeyError(item.id)
        return ask("a", prompt)["content"]
    """
    from simulated_run import simulated_trainer

    trainer = simulated_trainer(
        tmp_path, lambda t: 1.0, steps=3, samples=1, workflow=program(tmp_path, text), eval_steps=-1
    )
    trainer.plugins.parts.append(lambda step: ProgramCounts(len(step.tasks)))
    with pytest.raises(RunPaused, match=r"in 3 of 4 trajectories, .*KeyError: 't[302]'"):
        asyncio.run(trainer.fit(0))
    (entry,) = map(json.loads, (tmp_path / "ledger.jsonl").read_text().splitlines())
    assert entry["lost"] == {"program": 2} and trainer.saving.last == 1


def test_a_program_in_the_sandbox_reaches_the_endpoint_and_nothing_else(tmp_path, monkeypatch):
    """It cannot read or write a file of the user's, connect to a port of the machine, or see the
    run's environment."""
    monkeypatch.setenv("SECRET", "of the run")
    secret = tmp_path / "secret"
    secret.write_text("of the user")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        text = f"""
        import os, socket
        def main(prompt):
            found = [os.getcwd().startswith("/tmp/"), os.listdir("."), os.environ.get("SECRET"), os.path.exists({str(secret)!r})]
            for attempt in (
                lambda: open({str(tmp_path / "agents" / "new")!r}, "w"),
                lambda: socket.create_connection(("127.0.0.1", {listener.getsockname()[1]}), 2),
            ):
                try:
                    attempt()
                    found.append("done")
                except OSError:
                    found.append("refused")
            open("mine", "w").write("x")
            assert found == [True, [], None, False, "refused", "refused"], found
            return ask("worker", prompt)["content"]
        """
        (tmp_path / "agents").mkdir()
        workflow = program(tmp_path / "agents", text, sandbox=True)
        trajectory = asyncio.run(trajectory_of(workflow, specs("worker")))
    assert trajectory.answer, trajectory.detail


# --- commands
# --------------------------------------------------------------------------------------------------


def test_a_command_reads_the_prompt_and_prints_the_answer(tmp_path):
    script = 'read prompt; test -n "$OPENAI_API_KEY" && echo "got $prompt"; echo noise >&2'
    workflow = AgentWorkflow(AgentConfig(command=["sh", "-c", script]), tmp_path)
    assert asyncio.run(trajectory_of(workflow, specs("a"))).answer == "got how many?"
    failing = AgentWorkflow(AgentConfig(command=["sh", "-c", "echo noise >&2; exit 4"]), tmp_path)
    trajectory = asyncio.run(trajectory_of(failing, specs("a")))
    assert trajectory.infrastructure_failure == "program" and "noise" in trajectory.detail


# --- recipes
# --------------------------------------------------------------------------------------------------

RECIPE = """
name: mine
agent: {file: agent.py}
roles: {worker: {max_new_tokens: 16}}
grader: grader.py
tasks: tasks.py
model: tiny
flags: {data.max_len: 256, rollout.batch_size: 4, train.batch_size: 4, ds.zero_stage: 0}
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "agent.py").write_text(
        "from client import ask\n\ndef main(prompt):\n    return ask('worker', prompt)['content']\n"
    )
    (tmp_path / "grader.py").write_text(
        "def score_outcome(trajectory):\n    return float(trajectory.answer == "
        "trajectory.task.label)\n"
    )
    (tmp_path / "tasks.py").write_text(
        "from marl_plugins.core.trajectory import Task\n"
        "def load(split):\n"
        "    numbers = range(200) if split == 'train' else range(200, 220)\n"
        "    return [Task(f'{split}-{n}', f'{n}+{n}=', str(2 * n)) for n in numbers]\n"
    )
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def codes_of(recipe):
    """The problems of a plan, as code and the line of the recipe or of the program."""
    try:
        return [
            (p.code, *p.names("line")[:1])
            for p in build_plan(["--recipe", str(recipe)]).run.warnings
        ]
    except ConfigurationError as error:
        return [(p.code, *p.names("line")[:1]) for p in error.problems]


@pytest.mark.parametrize(
    ("file", "old", "new", "code", "line"),
    [
        ("recipe.yaml", "", "", None, 0),
        ("recipe.yaml", "grader:", "workflow: w.py\ngrader:", "recipe.two_workflows", 3),
        ("recipe.yaml", "agent: {file: agent.py}", "agent: {}", "agents.program", 3),
        ("recipe.yaml", "agent.py}", "agnt.py}", "rehearsal.raises", 0),
        ("recipe.yaml", "agent.py}", "agent.py, function: mian}", "rehearsal.raises", 0),
        ("recipe.yaml", "agent.py}", "agent.py, python: /no/python}", "agents.no_program", 3),
        ("recipe.yaml", "{file: agent.py}", "{command: [no-such-program]}", "agents.no_program", 3),
        ("recipe.yaml", "agent.py}", "agent.py, python: /bin/true}", "agents.start", 3),
        ("recipe.yaml", "{file: agent.py}", "{command: [cat], sandbox: true}", "agents.sandbox", 3),
        ("recipe.yaml", "agent.py}", "agent.py, rewards: [1, 0]}", "agents.range", 3),
        ("agent.py", "def main(prompt):", "def main(prompt:", "rehearsal.raises", 3),
        ("agent.py", "'worker'", "'waiter'", "rehearsal.raises", "client.py:10"),
        (
            "agent.py",
            "prompt)['content']",
            "prompt, temperature=0, seed=1)['content']",
            "agents.sampling",
            0,
        ),
        ("agent.py", "ask('worker', prompt)['content']", "prompt", "rehearsal.no_call", 0),
        ("agent.py", "from client", "import no_such_module\nfrom client", "rehearsal.raises", 1),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said_before_anything_starts(
    file, old, new, code, line, recipe
):
    text = (recipe / file).read_text()
    assert old in text
    (recipe / file).write_text(text.replace(old, new, 1))
    found = codes_of(recipe)
    if code is None:
        assert found == []
    else:
        place = line if isinstance(line, str) else f"{file}:{line}"
        assert (code, *([f"{recipe / place}"] if line else [])) in [
            f[: 1 + bool(line)] for f in found
        ]


def test_rewards_of_a_program_are_scores_of_actions(recipe):
    text = (recipe / "recipe.yaml").read_text()
    (recipe / "recipe.yaml").write_text(text.replace("agent.py}", "agent.py, rewards: [-1, 1]}"))
    plan = build_plan(["--recipe", str(recipe)])
    assert plan.plugins.owners("marl_score_action", plan.run) == ["marl_plugins.builtin.agents"]


@pytest.mark.parametrize("words", ["./run.py", f"{sys.executable}, run.py"])
def test_a_command_is_one_of_the_recipes_folder_wherever_it_is_planned(
    words, recipe, tmp_path_factory, monkeypatch
):
    """It runs there, and a run that is resumed notices that its file has changed."""
    text = (
        f"#!{sys.executable}\nfrom client import ask\n\nprint(ask('worker', input())['content'])\n"
    )
    (recipe / "run.py").write_text(text)
    (recipe / "run.py").chmod(0o755)
    (recipe / "recipe.yaml").write_text(
        RECIPE.replace("{file: agent.py}", f"{{command: [{words}]}}")
    )
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    plan = build_plan(["--recipe", str(recipe / "recipe.yaml")])
    assert plan.run.warnings == ()
    assert fingerprint(plan)["files"][f"agent {words.split()[-1]}"][1]


# --- examples
# --------------------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "agents"
NEEDS = {
    "plain_client": "openai",
    "langgraph": "langgraph",
    "agents_sdk": "agents",
    "autogen": "autogen_agentchat",
}
"""What each example imports."""
PYTHON = os.environ.get("MARL_AGENTS_PYTHON")
"""Another Python in which the frameworks are installed, for people who look at them."""
THERE = [name for name, module in NEEDS.items() if PYTHON or find_spec(module)]


@pytest.mark.parametrize("name", THERE)
def test_examples_go_on_token_for_token(name, tmp_path):
    """The solver calls a tool where it has one; whatever goes on has the very ids before it, and
    nothing is reopened."""
    shutil.copytree(EXAMPLES, tmp_path / "agents")
    file = tmp_path / "agents" / f"{name}.yaml"
    if PYTHON and name != "plain_client":
        file.write_text(
            re.sub(r"(agent: \{file: \w+\.py)", rf"\1, python: {PYTHON}", file.read_text())
        )
    plan = build_plan(["--recipe", str(file)])
    assert {warning.code for warning in plan.run.warnings} <= {"agents.sampling"}
    roles = {
        role: replace(calling()["a"], name=role, finder=finder if role == "solver" else None)
        for role in ("solver", "checker")
    }

    async def generate(call):
        shown = "".join(map(chr, call.context_ids))
        text = "no: 144" if call.role == "checker" else "It is 144."
        if call.role == "solver" and "multiply" in shown and "t:144" not in shown:
            text = '<tool_call>{"name": "multiply", "arguments": {"a": 4, "b": 36}}</tool_call>'
        ids = (*map(ord, text), ord("^"))
        return Generation(ids, (-0.1,) * len(ids), "stop", call.policy, 0)

    workflow = workflow_of(plan.plugins, plan.run)
    trajectory = asyncio.run(
        trajectory_of(workflow, roles, generate, Task("4x36", "4 boxes of 36 pens?", "144"))
    )
    assert (trajectory.agent_failure, trajectory.infrastructure_failure) == (None, None), (
        trajectory.detail
    )
    assert {action.role for action in trajectory.actions} == {
        "solver",
        "checker",
    } and trajectory.answer
    assert not any(action.notes for action in trajectory.actions)
    continued = [action for action in trajectory.actions if action.before]
    assert continued and all(action.extends for action in continued)
    if name != "plain_client":
        assert [r.output for a in trajectory.actions for r in a.tool_results][:1] == ["144"]


def test_branches_that_are_asked_for_at_once_are_recorded_alike_whatever_the_delays():
    """Their answers are shown to another role, each once."""

    async def client(post, session):
        async def branch(text):
            _, answer = await post(model="a", messages=[*begun, user(text)])
            return said(answer)["content"]

        _, first = await post(model="a", messages=[user("hello")])
        begun = [user("hello"), {"role": "assistant", "content": said(first)["content"]}]
        texts = await asyncio.gather(*map(branch, ("left", "right", "up", "down")))
        await post(model="b", messages=[user(", ".join(texts))])

    found = [
        without_seconds(to_record(served(client, specs("a", "b"), simulated_engine(delays=True))))
        for _ in range(5)
    ]
    assert all(record == found[0] for record in found)
    assert len(found[0]["actions"][-1]["parents"]) == 4


def test_a_program_that_states_nothing_repeats_whatever_the_delays(tmp_path):
    text = """
    def main(prompt):
        plan = ask("a", prompt)["content"]
        talk = [{"role": "user", "content": plan}]
        for _ in range(2):
            talk += [ask("b", *talk), {"role": "user", "content": "go on"}]
        return ask("a", talk[-2]["content"])["content"]
    """
    workflow = program(tmp_path, text)

    async def twice():
        return [
            [
                await trajectory_of(
                    workflow, specs("a", "b"), simulated_engine(delays), Task(str(n), "?")
                )
                for n in range(3)
            ]
            for delays in (False, True)
        ]

    one, other = asyncio.run(twice())
    assert [without_seconds(to_record(t)) for t in one] == [
        without_seconds(to_record(t)) for t in other
    ]
    assert all(a.derived for t in one for a in t.actions if a.role == "b" and not a.before)
