"""A role that somebody else's model plays: a real HTTP server answers it, the others are trained,
and what it says is words."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from openai_server import Reply, openai_server
from refusals import briefs
from simulated_session import SimulatedSession, fresh, recorded, run_planned

from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused
from marl_plugins.core.roles import Call, Sampling
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.engines_only import only_players, with_models
from marl_plugins.engine.runtime.served import ServedEngines

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "```python\nprint(6 * 7)\n```"
FEW = ["--rollout.batch_size", "4", "--train.batch_size", "4", "--rollout.micro_batch_size", "4"]
FEW += ["--train.micro_batch_size", "4", "--max_steps", "2"]


@pytest.fixture
def recipe(tmp_path):
    """A recipe whose coder, of several turns with a tool, is behind an endpoint."""
    shutil.copytree(ROOT / "tests" / "recipes" / "sums", tmp_path / "sums")

    def at(url, roles="", **keys):
        served = {"endpoint": url, "model": "m", "key": "CODER_KEY", **keys}
        policies = ", ".join(f"{key}: {value}" for key, value in served.items())
        file = tmp_path / "sums" / "external.yaml"
        file.write_text(f"extends: tiny.yaml\npolicies:\n  coder: {{{policies}}}\n{roles}")
        return file

    return at


def planned(file, folder, *words):
    places = ["--ckpt.output_dir", str(folder / "out"), "--ckpt.path", str(folder / "saved")]
    (folder / "out").mkdir(parents=True, exist_ok=True)
    return build_plan(["--recipe", str(file), *places, *FEW, *words])


def coder(body, count):
    """Runs a program, and is content with what it prints."""
    turns = [message["role"] for message in body["messages"]]
    return "It prints 42." if "assistant" in turns else PROGRAM


def test_others_train_while_it_speaks_and_what_it_was_asked_is_what_was_shown(recipe, tmp_path):
    cache = ("--external.cache", str(tmp_path / "said.jsonl"))
    with openai_server(coder) as (url, bodies):
        plan = planned(recipe(url), tmp_path, *cache)
        trainer = run_planned(plan)
        asked = bodies[1:]  # the first one tried the endpoint
        again = planned(recipe(url), tmp_path / "again", *cache)
        run_planned(again)
        assert len(bodies) == len(asked) + 2  # and the second run's is the only further one
    trajectories = recorded(plan, "trajectories.jsonl")
    actions = [a for t in trajectories for a in t["actions"]]
    coders = [a for a in actions if a["role"] == "coder"]
    assert {a["text"] for a in coders} == {PROGRAM, "It prints 42."}
    assert all(a["advantage"] is None and not a["logprobs"] for a in coders)
    assert all(a["logprobs"] for a in actions if a["role"] != "coder")
    assert any(a["advantage"] for a in actions if a["role"] != "coder")
    assert "coder" not in trainer.session.trained
    opened = [body["messages"] for body in asked if len(body["messages"]) == 1]
    shown = [a["shown"][0][1] for a in coders if a["turn"] == 0]
    assert sorted(messages[0]["content"] for messages in opened) == sorted(shown)
    assert all(body["model"] == "m" and body["max_tokens"] == 12 for body in asked)
    later = [body["messages"] for body in asked if len(body["messages"]) > 1]
    assert {tuple(m["role"] for m in messages) for messages in later} == {
        ("user", "assistant", "user")
    }
    assert {messages[1]["content"] for messages in later} == {PROGRAM}
    assert all("42" in messages[2]["content"] for messages in later)
    for step in recorded(plan, "ledger.jsonl"):
        of_coder = step["roles"]["coder"]
        assert of_coder["generated"] == of_coder["left_out"]["frozen"] == 8
        assert not step["lost"]
    last = recorded(plan, "metrics.jsonl")[-1]
    assert last["policy/coder/external/tokens"] == 110 * (len(asked) + 1)
    first, second = (recorded(p, "trajectories.jsonl") for p in (plan, again))
    assert [texts(t) for t in first] == [texts(t) for t in second]


def texts(trajectory):
    return [(a["role"], a["ids"], a["text"], a["advantage"]) for a in trajectory["actions"]]


def test_samples_are_asked_for_one_by_one_of_an_endpoint_that_takes_no_seed(recipe, tmp_path):
    words = ("--external.body", '{"seed": null}', "--rollout.n_samples_per_prompt", "4")
    few = ("--rollout.batch_size", "1", "--max_steps", "1")
    with openai_server(coder) as (url, bodies):
        plan = planned(recipe(url), tmp_path, *words, *few)
        run_planned(plan)
    asked = [a for t in recorded(plan, "trajectories.jsonl") for a in t["actions"]]
    assert len(bodies) - 1 == sum(a["role"] == "coder" for a in asked) > 4
    assert not any("seed" in body for body in bodies)


def test_an_endpoint_that_is_down_loses_its_trajectories_by_reason_and_pauses_the_run(
    recipe, tmp_path
):
    def gone(body, count):
        return Reply(reset=True) if count > 9 else coder(body, count)

    with openai_server(gone) as (url, _):
        plan = planned(recipe(url), tmp_path, "--external.retries", "0", "--max_steps", "9")
        with pytest.raises(RunPaused, match="policy 'coder'"):
            run_planned(plan)
    steps = recorded(plan, "ledger.jsonl")
    assert steps[0]["roles"]["solver"]["trained"] == 4 and not steps[0]["lost"]
    assert [step["lost"] for step in steps[1:]] == [{"endpoint_unreachable": 4}] * 2


def ask(plan, *messages, stop=()):
    """What the coder says to each of some conversations, or the exception; and its chat format."""

    async def all_of_them():
        async with plan.plugins.started(plan.run, "evaluate"):
            chat = SimulatedSession(plan).chats["coder"]
            engines = ServedEngines(plan.run, chat)
            sampling = Sampling(0.7, 0.9, 12, 2**20, stop)
            calls = [
                Call("coder", chat.opening(m), sampling, 12, 5, "coder", "t", 0, "p", 1)
                for m in messages
            ]
            said = [engines.generate(call, None) for call in calls]
            return chat, await asyncio.gather(*said, return_exceptions=True)

    return asyncio.run(all_of_them())


def test_any_words_reach_the_endpoint_as_they_are_and_come_back_so(recipe, tmp_path):
    rng = random.Random(58)
    hostile = ["<eos>", "\n", "<user>\n", "<assistant>", "<pad>", "\U0010fffd", "é", " ", "{x}", ""]

    def text():
        return "".join(rng.choice(hostile) for _ in range(rng.randrange(9)))

    conversations = [
        [
            {"role": r, "content": text()}
            for r in ("system", "user", "assistant", "user")[: 1 + n % 4]
        ]
        for n in range(60)
    ]
    with openai_server(lambda body, count: body["messages"][-1]["content"]) as (url, bodies):
        plan = fresh(planned(recipe(url), tmp_path))
        chat, said = ask(plan, *conversations, stop=("END",))
    asked = {tuple((m["role"], m["content"]) for m in b["messages"]) for b in bodies[1:]}
    assert asked == {tuple((m["role"], m["content"]) for m in c) for c in conversations}
    assert [chat.text(g.ids) for g in said] == [c[-1]["content"] for c in conversations]
    assert {(g.logprobs, g.finish, g.ids[-1]) for g in said} == {((), "stop", chat.end_of_turn[0])}
    sampled = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 12, "seed": 5, "stop": ["END"]}
    assert all({**body, **sampled} == body for body in bodies[1:])


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply("half", finish="length"), ""),
        (Reply(raw=b"<html>busy</html>"), "endpoint_protocol"),
        (Reply(seconds=4), "endpoint_timeout"),
        (Reply("overloaded", status=503), "endpoint_busy"),
    ],
)
def test_each_failure_has_its_kind_and_an_answer_that_is_cut_off_is_no_failure(
    recipe, tmp_path, reply, kind
):
    timeout = "1.5" if reply.seconds else "30"
    flags = ["--external.retries", "0", "--external.timeout", timeout]
    with openai_server(lambda body, count: "hello" if count == 1 else reply) as (url, _):
        plan = fresh(planned(recipe(url), tmp_path, *flags))
        chat, (said,) = ask(plan, [{"role": "user", "content": "?"}])
    if kind:
        assert isinstance(said, InfrastructureFailure)
        assert said.kind == kind
    else:
        assert (chat.text(said.ids), said.finish) == ("half", "length")
        assert said.ids[-1] != chat.end_of_turn[0]


def test_a_budget_that_is_spent_pauses_the_run(recipe, tmp_path):
    with openai_server(lambda body, count: "hello") as (url, bodies):
        limits = ["--external.budget_tokens", "300", "--external.concurrency", "1"]
        plan = fresh(planned(recipe(url), tmp_path, *limits))
        _, said = ask(plan, *[[{"role": "user", "content": str(n)}] for n in range(4)])
        assert len(bodies) == 3  # each takes 110; the first one tried the endpoint
    assert [isinstance(answer, RunPaused) for answer in said] == [False, False, True, True]


def test_an_endpoint_is_tried_before_an_evaluation_too(recipe, tmp_path):
    plan = fresh(planned(recipe("http://127.0.0.1:1/v1"), tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        ask(plan, [{"role": "user", "content": "?"}])
    assert [brief[:2] for brief in briefs(caught.value.problems)] == [
        ("endpoint.unreachable", "policies.coder")
    ]


def test_what_needs_tokens_is_refused_at_the_plan(recipe, tmp_path):
    def problems(roles="", *words, **keys):
        with pytest.raises(ConfigurationError) as caught:
            planned(recipe("http://127.0.0.1:1/v1", roles, **keys), tmp_path, *words)
        return briefs(caught.value.problems)

    key = "policies.coder."
    found = [p for p in problems(trainable="true") if p[0] == "policies.words_alone"]
    assert found == [("policies.words_alone", "external.yaml:3", key + "trainable")]
    calls = "roles: {coder: {prompt: prompts/coder.md, tools: [python], calls: hermes}}"
    assert ("policies.words_alone", "external.yaml:4", "roles.coder.calls") in problems(calls)
    named = "--policy.coder.actor.model_name_or_path", "tiny"
    assert problems("", *named)[0][0] == "policies.model_of_follower"
    address = ("endpoint.address", "external.yaml:3", key + "endpoint")
    assert problems(endpoint="ftp://x")[0] == address
    assert problems(key="sk-1234")[0][0] == "endpoint.key_name"


def test_saved_weights_are_asked_of_all_policies_but_the_external_one(recipe, tmp_path):
    run = only_players(planned(recipe("http://127.0.0.1:1/v1"), tmp_path).run)
    for name in ("solver", "verifier"):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "config.json").write_text("{}")
    models = {p.name: p.model for p in with_models(run, tmp_path / "run", []).policies}
    assert models["solver"].endswith("solver")
    assert models["coder"] == run.policies[1].model
