"""The coach's endpoint over real HTTP: what may pass is repeated, what cannot ends the run, and no
verdict is made up."""

import asyncio
import json
import threading
import time
from dataclasses import replace

import pytest
from openai_server import Reply, eventually, nonce_in, openai_server, verdict
from refusals import found_by, refused

from marl_plugins.asking.asker import endpoint_asker
from marl_plugins.asking.cache import Cache, KeptAnswers
from marl_plugins.asking.endpoint import CoachEndpoint
from marl_plugins.asking.limits import SpendingBudget
from marl_plugins.asking.request import RequestTally
from marl_plugins.coach.model import PROMPTS, ModelCoach, Questions, read_prompt, trial_request
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused
from marl_plugins.core.redaction import Redaction
from marl_plugins.core.scoring import SeenLast

SECRET = "the-label-42"
CUT_OFF = b'{"choices": [{"message": {"content": null}, "finish_reason": "length"}]}'


def coach_at(url, budget=None, kept=None, **settings):
    prompts = (
        read_prompt(PROMPTS / "action.md", with_label=False),
        read_prompt(PROMPTS / "last_action.md", with_label=True),
    )
    endpoint = CoachEndpoint(
        **{
            "prefix": "coach",
            "base_url": url,
            "model": "m",
            "timeout": 60.0,
            "retries": 3,
            **settings,
        }
    )
    return ModelCoach(
        endpoint_asker(endpoint, budget, kept), Questions(prompts, {"solver": "Solve {problem}"})
    )


def kept_in(file, *more):
    """Judgements that are read from a file, and added to it and to others."""
    kept = KeptAnswers("coach", file, [file, *more])
    kept.open()
    return kept


def replay(file):
    kept = KeptAnswers("coach", file, replay=True)
    kept.load()
    return kept


def probe(coach):
    asyncio.run(coach.asker.probe(trial_request()))


def last_of(seen):
    return SeenLast(**vars(seen), label=SECRET, answer="an answer")


def judge(coach, *pairs):
    async def all_of_them():
        found = await asyncio.gather(
            *(coach.judge(action, seen) for action, seen in pairs), return_exceptions=True
        )
        await coach.asker.transport.close()  # what is kept stays open
        return found

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_verdict_in_either_form_and_the_label_in_the_last_actions_prompt_alone(
    form, action, seen
):
    with openai_server(lambda body, n: verdict(body, 8, correct="no", says="Good.")) as (
        url,
        bodies,
    ):
        coach = coach_at(url, form=form)
        probe(coach)
        first, last = judge(coach, (action, seen), (action, last_of(seen)))
    assert (first.share, first.correct) == (0.8, None)
    assert (last.share, last.correct) == (0.8, False)
    assert "Good." in first.explanation
    prompts = [b["messages"][0]["content"] for b in bodies[1:]]
    assert sum(SECRET in prompt for prompt in prompts) == 1
    assert all(("response_format" in b) == (form == "json") for b in bodies)


def test_the_form_is_settled_by_what_the_endpoint_takes(action, seen):
    def without_structured_output(body, n):
        return (
            Reply("response_format is unknown", 400)
            if "response_format" in body
            else verdict(body, 7)
        )

    def without_a_thought_of_it(body, n):  # takes the field and does not heed it
        return (
            verdict({"messages": body["messages"]}, 7)
            if "response_format" not in body
            else "I would say 7."
        )

    for answer in (without_structured_output, without_a_thought_of_it):
        with openai_server(answer) as (url, bodies):
            coach = coach_at(url)
            probe(coach)
            assert judge(coach, (action, seen))[0].score == 7
            assert "response_format" not in bodies[-1]


def test_an_answer_without_a_verdict_is_asked_about_once_with_the_task_in_sight(action, seen):
    def answer(body, n):
        return verdict(body, 4) if len(body["messages"]) == 3 else "Seven of ten, I think."

    with openai_server(answer) as (url, bodies):
        assert judge(coach_at(url, form="text"), (action, seen))[0].score == 4
    assert "What is it?" in bodies[1]["messages"][0]["content"]
    assert nonce_in(bodies[0]) in bodies[1]["messages"][2]["content"]
    with openai_server(lambda body, n: "Seven of ten, I think.") as (url, bodies):
        (failure,) = judge(coach_at(url, form="text"), (action, seen))
    assert (failure.kind, len(bodies)) == ("coach_verdict", 2)


def different(action, seen, count):
    """A number of actions, no two of them alike."""
    return [(replace(action, text=f"x{n}"), seen) for n in range(count)]


def test_the_same_question_at_the_same_time_is_asked_once_and_has_one_answer(action, seen):
    with openai_server(lambda body, n: Reply(verdict(body, n), seconds=0.1)) as (url, bodies):
        coach = coach_at(url, form="text")
        assert [v.score for v in judge(coach, *[(action, seen)] * 4)] == [1, 1, 1, 1]
        counts, _ = coach.asker.tally.take()
    assert (len(bodies), counts["cached"]) == (1, 3)


def test_who_gives_up_on_a_shared_question_does_not_take_it_from_the_others(action, seen):
    async def two(coach):
        first = asyncio.create_task(coach.judge(action, seen))
        second = asyncio.create_task(coach.judge(action, seen))
        await asyncio.sleep(0.05)
        first.cancel()
        verdict = await second
        third = asyncio.create_task(coach.judge(*different(action, seen, 1)[0]))
        await asyncio.sleep(0.05)
        third.cancel()
        await asyncio.gather(first, third, return_exceptions=True)
        await asyncio.sleep(0.05)
        return verdict, asyncio.all_tasks() - {asyncio.current_task()}

    with openai_server(lambda body, n: Reply(verdict(body, 5), seconds=0.3)) as (url, _):
        found, left = asyncio.run(two(coach_at(url, form="text")))
    assert found.score == 5
    assert not left


def test_a_refusal_is_not_asked_again(action, seen):
    with openai_server(lambda body, n: Reply(refusal="I will not judge this.")) as (url, bodies):
        (failure,) = judge(coach_at(url, form="text"), (action, seen))
    assert (failure.kind, len(bodies)) == ("coach_refused", 1)


def test_a_text_with_half_a_surrogate_pair_is_kept(tmp_path, action, seen):
    file = tmp_path / "verdicts.jsonl"
    with openai_server(lambda body, n: verdict(body, 5, says="Odd: \ud83d and \u2028.")) as (
        url,
        bodies,
    ):
        for _ in range(2):
            (found,) = judge(coach_at(url, form="json", kept=kept_in(file)), (action, seen))
    assert r"\ud83d" + " and \u2028" in found.explanation  # half a pair cannot be printed
    assert len(bodies) == 1


def test_a_budget_needs_an_endpoint_that_counts():
    with (
        openai_server(lambda body, n: Reply(verdict(body, 7), tokens=None)) as (url, _),
        pytest.raises(ConfigurationError) as caught,
    ):
        probe(coach_at(url, SpendingBudget("coach", tokens=100)))
    assert [problem.code for problem in caught.value.problems] == ["endpoint.no_usage"]


@pytest.mark.parametrize(
    "hurdle",
    [
        Reply("slow down", 429),
        Reply("oops", 500),
        Reply(raw=b'{"choices": [{"mess'),
        Reply(reset=True),
    ],
)
def test_what_may_pass_is_repeated(hurdle, action, seen):
    with openai_server(lambda body, n: hurdle if n < 3 else verdict(body, 4)) as (url, bodies):
        coach = coach_at(url, form="text")
        assert judge(coach, (action, seen))[0].score == 4
        counts, seconds = coach.asker.tally.take()
    assert (len(bodies), counts["repeats"], len(seconds)) == (3, 2, 1)


def test_retry_after_is_heeded(action, seen):
    asked = []

    def answer(body, n):
        asked.append(time.monotonic())
        return Reply("slow down", 429, headers={"Retry-After": "1"}) if n == 1 else verdict(body, 4)

    with openai_server(answer) as (url, _):
        judge(coach_at(url, form="text"), (action, seen))
    assert asked[1] - asked[0] >= 1.0


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply("slow down", 429), "coach_busy"),
        (Reply("oops", 500), "coach_server"),
        (Reply(raw=b"not json"), "coach_protocol"),
        (Reply(seconds=3), "coach_timeout"),
        (Reply(reset=True), "coach_unreachable"),
        (Reply("early", 425), "coach_server"),
        (Reply("payload too large", 413), "coach_refused"),
    ],
)
def test_what_does_not_pass_is_a_missing_verdict_with_its_reason(reply, kind, action, seen):
    timeout = 0.2 if kind == "coach_timeout" else 60.0  # a busy machine is slower than 0.2 s
    with openai_server(lambda body, n: reply) as (url, _):
        (failure,) = judge(coach_at(url, form="text", timeout=timeout, retries=1), (action, seen))
    assert isinstance(failure, InfrastructureFailure)
    assert failure.kind == kind


@pytest.mark.parametrize(
    "reply",
    [
        Reply("bad key", 401),
        Reply("no model", 404),
        Reply("no such field", 400),
        Reply("empty", 429, code="insufficient_quota"),
    ],
)
def test_what_cannot_pass_is_asked_once_and_ends_the_run(reply, action, seen):
    with openai_server(lambda body, n: reply) as (url, bodies):
        (failure,) = judge(coach_at(url, form="text"), (action, seen))
    assert isinstance(failure, RunPaused)
    assert url in str(failure) and len(bodies) == 1


@pytest.mark.parametrize("status", [400, 422])
def test_who_has_answered_before_refuses_one_question_alone(status, action, seen):
    with openai_server(
        lambda body, n: Reply("more than the context", status) if n == 2 else verdict(body, 5)
    ) as (url, bodies):
        coach = coach_at(url, form="text", concurrency=1)
        probe(coach)
        missing, judged = judge(coach, *different(action, seen, 2))
    assert (missing.kind, judged.score) == ("coach_refused", 5)
    assert bodies[2] == bodies[0] and len(bodies) == 4


@pytest.mark.parametrize("status", [400, 422])
def test_who_answers_no_question_any_more_ends_the_run(status, action, seen):
    with openai_server(
        lambda body, n: verdict(body, 5) if n == 1 else Reply("no credit", status)
    ) as (url, _):
        coach = coach_at(url, form="text", concurrency=1)
        probe(coach)
        (ended,) = judge(coach, (action, seen))
    assert isinstance(ended, RunPaused) and "no credit" in str(ended)


def test_what_is_refused_while_the_endpoint_is_busy_is_asked_again(action, seen):
    busy = Reply("busy", 503, headers={"Retry-After": "0"})
    with openai_server(
        lambda body, n: {2: Reply("of this kind", 400), 3: busy}.get(n, verdict(body, 5))
    ) as (url, bodies):
        coach = coach_at(url, form="text")
        probe(coach)
        (judged,) = judge(coach, (action, seen))
    assert (judged.score, len(bodies)) == (5, 4)


def test_who_is_cut_off_while_thinking_is_not_asked_the_same_again(action, seen):
    with openai_server(lambda body, n: Reply(raw=CUT_OFF)) as (url, bodies):
        coach = coach_at(url, form="text")
        (failure,) = judge(coach, (action, seen))
    assert (failure.kind, len(bodies)) == ("coach_verdict", 2)


def test_a_verdict_has_a_deadline_with_all_its_repeats(action, seen):
    with openai_server(lambda body, n: Reply("busy", 503, headers={"Retry-After": "30"})) as (
        url,
        _,
    ):
        (failure,) = judge(coach_at(url, form="text", deadline=0.5), (action, seen))
    assert failure.kind == "coach_deadline"


def test_no_more_requests_are_in_flight_than_allowed_and_pauses_hold_no_place(action, seen):
    flying, most = [0], [0]

    def answer(body, n):
        flying[0] += 1
        most[0] = max(most[0], flying[0])
        time.sleep(0.02)
        flying[0] -= 1
        return (
            Reply("busy", 503, headers={"Retry-After": "0.05"}) if n % 3 == 0 else verdict(body, 5)
        )

    with openai_server(answer) as (url, _):
        coach = coach_at(
            url, form="text", concurrency=4, retries=20
        )  # a third of all requests fail, whosever they are
        verdicts = judge(coach, *different(action, seen, 40))
    assert [v.score for v in verdicts] == [5] * 40
    assert 1 < most[0] <= 4


def test_kept_answers_are_not_asked_for_again_and_replay_needs_no_endpoint(tmp_path, action, seen):
    file = tmp_path / "verdicts.jsonl"
    with openai_server(lambda body, n: verdict(body, 6, says="Kept.")) as (url, bodies):
        judge(coach_at(url, form="text", kept=kept_in(file)), (action, seen))
        file.write_text(file.read_text() + '{"key": "torn')  # killed while writing
        (again,) = judge(coach_at(url, form="text", kept=kept_in(file)), (action, seen))
        judge(coach_at(url, form="text", kept=kept_in(file)), (action, last_of(seen)))
    assert (again.score, len(bodies)) == (6, 2)
    offline = coach_at("http://127.0.0.1:9/v1", form="text", kept=replay(file))
    probe(offline)
    assert [v.score for v in judge(offline, (action, seen), (action, last_of(seen)))] == [6, 6]
    action.text = "something else"
    (failure,) = judge(offline, (action, seen))
    assert failure.kind == "coach_replay"


def test_what_the_answer_depends_on_is_in_the_key(action, seen):
    def key(**settings):
        coach = coach_at("http://127.0.0.1:9/v1", **settings)
        return coach.asker.cache.key(coach.questions.of(action, seen))

    keys = [key(), key(model="n"), key(max_tokens=5), key(body={"seed": 1}), key(form="json")]
    action.text = "y"
    keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == key(base_url="http://elsewhere/v1", concurrency=1, timeout=1.0)


def test_tokens_and_dollars_are_counted_and_a_spent_budget_asks_no_more(action, seen):
    with openai_server(lambda body, n: Reply(verdict(body, 6), tokens=(1000, 200))) as (
        url,
        bodies,
    ):
        budget = SpendingBudget("coach", tokens=2400, price=(1.0, 5.0))
        coach = coach_at(url, budget, form="text", concurrency=1)
        found = judge(coach, *different(action, seen, 3))
    assert [getattr(f, "kind", None) or f.score for f in found] == [6, 6, "coach_budget"]
    assert len(bodies) == 2
    assert budget.cost == pytest.approx(2 * (1000 * 1 + 200 * 5) / 1e6)
    assert "2400 tokens of --coach.budget_tokens 2400" in budget.spent()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (lambda b, n: Reply("bad key", 401), "endpoint.key"),
        (lambda b, n: Reply("no such model", 404), "endpoint.refused"),
        (lambda b, n: "I am a teapot", "endpoint.form"),
        (lambda b, n: Reply(raw=b"<html>"), "endpoint.protocol"),
        (lambda b, n: Reply(seconds=3), "endpoint.slow"),
    ],
)
def test_the_probe_says_what_is_wrong_with_an_endpoint(answer, code):
    timeout = 0.2 if code == "endpoint.slow" else 60.0  # a busy machine is slower than 0.2 s
    with openai_server(answer) as (url, _):
        coach = coach_at(url, timeout=timeout)
        with refused((code, str(coach.asker.transport.endpoint))):
            probe(coach)


def test_closing_ends_what_is_being_asked_and_the_connection(action, seen, tmp_path):
    """A server sees the connection closed; what was kept is on the disk, and a later judgement
    connects anew."""

    async def interrupted(coach):
        await coach.judge(action, seen)
        assert open_connections() == 1
        waiting = asyncio.create_task(coach.judge(*different(action, seen, 1)[0]))
        await asyncio.to_thread(eventually, lambda: len(bodies) == 2)
        await coach.asker.close()
        closed.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert coach.asker.cache.kept.files == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    closed = threading.Event()

    def answer(body, n):
        if n == 2:
            closed.wait(60)
        return verdict(body, 5)

    with openai_server(answer) as (url, bodies):
        open_connections = bodies.connections
        coach = coach_at(url, form="text", kept=kept_in(tmp_path / "kept.jsonl"))
        asyncio.run(interrupted(coach))
        eventually(lambda: open_connections() == 0)
        assert judge(coach, *different(action, seen, 1))[0].score == 5
        assert len(bodies) == 3
    assert len((tmp_path / "kept.jsonl").read_text().splitlines()) == 1


def test_the_probe_waits_for_a_busy_endpoint_as_a_run_would():
    def answer(body, n):
        return (
            Reply("loading", 503 if n == 1 else 429, headers={"Retry-After": "0.1"})
            if n < 4
            else verdict(body, 7)
        )

    with openai_server(answer) as (url, bodies):
        probe(coach_at(url))
        assert len(bodies) == 4
    with (
        openai_server(lambda body, n: Reply("loading", 503, headers={"Retry-After": "3600"})) as (
            url,
            bodies,
        ),
        pytest.raises(ConfigurationError, match="HTTP 503: loading; it asks to wait 3600 s"),
    ):
        probe(coach_at(url))
    assert len(bodies) == 1
    with (  # the time may end while it is asked once more
        openai_server(lambda body, n: Reply("slower", 429) if n == 1 else Reply(seconds=4.0)) as (
            url,
            bodies,
        ),
        pytest.raises(ConfigurationError, match="HTTP 429: slower; it is busy"),
    ):
        probe(coach_at(url, timeout=2.0))


def test_an_endpoint_that_is_gone():
    with openai_server(lambda body, n: "") as (url, _):
        pass
    asker = coach_at(url, timeout=2).asker
    assert [code for code, *_ in found_by(asyncio.run, asker.probe(trial_request()))] == [
        "endpoint.unreachable"
    ]


def test_a_question_follows_no_redirect(action, seen):
    with openai_server(lambda body, n: verdict(body, 7)) as (other, elsewhere):
        target = f"{other}/chat/completions"
        with openai_server(lambda body, n: Reply(status=307, headers={"Location": target})) as (
            url,
            bodies,
        ):
            (failure,) = judge(coach_at(url), (action, last_of(seen)))
            with pytest.raises(ConfigurationError) as caught:
                probe(coach_at(url))
    assert [problem.code for problem in caught.value.problems] == ["endpoint.refused"]
    assert isinstance(failure, RunPaused) and target in str(failure)
    assert (len(bodies), elsewhere) == (2, [])


@pytest.mark.parametrize("tokens", [-5, 10**400, "many", None])
def test_a_number_of_tokens_that_is_none_is_not_counted(tokens, action, seen, tmp_path):
    budget = SpendingBudget("coach", tokens=100, price=(1.0, 1.0))
    budget.open(tmp_path / "account.json", resumed=False)
    with openai_server(
        lambda body, n: Reply(verdict(body, 6), tokens=(tokens, 7), total=False)
    ) as (url, _):
        coach = coach_at(url, budget)
        (found,) = judge(coach, (action, seen))
    assert found.score == 6
    assert coach.asker.metrics()["tokens"] == 7 and budget.spent() is None
    again = SpendingBudget("coach", tokens=100)
    again.open(tmp_path / "account.json", resumed=True)
    assert again.spent_out == 7


@pytest.mark.parametrize("number", ["1e400", "null", "9" * 5000])
def test_an_account_that_cannot_be_read_is_refused_by_name(number, tmp_path):
    file = tmp_path / "coach_spent.json"
    for text in (f'{{"tokens_in": 3, "tokens_out": {number}}}', number, "[" * 10**5):
        file.write_text(text)
        with refused(("asking.account", "coach_spent.json")):
            SpendingBudget("coach").open(file, resumed=True)


@pytest.mark.parametrize(
    ("asked", "answering", "noticed"),
    [
        ("gpt-4o", "gpt-4o-2024-08-06", 0),
        ("qwen3", "Qwen3:latest", 0),
        ("m", None, 0),
        ("gpt-4", "gpt-4o", 1),
    ],
)
def test_another_model_than_was_asked_for_is_noticed_once(
    asked, answering, noticed, action, seen, caplog
):
    with openai_server(lambda body, n: Reply(verdict(body, 6), model=answering)) as (url, _):
        found = judge(coach_at(url, model=asked), *different(action, seen, 3))
    assert [f.score for f in found] == [6, 6, 6]
    assert [
        f"the answers are by model '{answering}'" in r.getMessage() for r in caplog.records
    ] == [True] * noticed


def test_an_error_in_place_of_an_answer_means_what_it_says(action, seen):
    quota = {"error": {"message": "pay", "code": "insufficient_quota"}}
    with openai_server(lambda body, n: Reply(raw=json.dumps(quota).encode())) as (url, bodies):
        (failure,) = judge(coach_at(url), (action, seen))
    assert (
        isinstance(failure, RunPaused)
        and "pay; the account has run out of credit" in str(failure)
        and len(bodies) == 1
    )
    other = {"error": {"message": "overloaded", "code": 529}}
    with openai_server(lambda body, n: Reply(raw=json.dumps(other).encode())) as (url, bodies):
        (failure,) = judge(coach_at(url, retries=1), (action, seen))
    assert failure.kind == "coach_protocol" and "overloaded" in str(failure) and len(bodies) == 2


def test_a_full_disk_pauses_the_run(tmp_path, action, seen, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    budget = SpendingBudget("coach")
    budget.open(tmp_path / "coach_spent.json", resumed=False)
    monkeypatch.setattr("os.replace", full)
    with openai_server(lambda body, n: verdict(body, 6)) as (url, _):
        (failure,) = judge(coach_at(url, budget), (action, seen))
    assert isinstance(
        failure, RunPaused
    ) and "what the coach spends cannot be kept: No space left on device" in str(failure)


def test_whoever_asks_while_the_same_question_is_being_cancelled_asks_anew():
    class Slow:
        async def judge(self, request):
            try:
                await asyncio.sleep(asked.append(request) or (60 if len(asked) == 1 else 0))
            finally:
                await asyncio.sleep(0.01)  # closing takes a moment
            return {"score": 1}

    async def main():
        cache = Cache(Slow(), KeptAnswers("coach"), str, RequestTally("cached"), Redaction())
        first = asyncio.create_task(cache.judge("q"))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        return await cache.judge("q")

    asked = []
    assert asyncio.run(main()) == {"score": 1} and len(asked) == 2
