"""Whatever an endpoint answers is a missing verdict, the right one, or a pause; nothing that it
says leaks or acts."""

import asyncio
import re

import pytest
from hostile_answers import IN_TEXT, KINDS, hostile_server

from marl_plugins.asking.asker import endpoint_asker
from marl_plugins.asking.endpoint import CoachEndpoint
from marl_plugins.asking.marked_answers import kept_as
from marl_plugins.coach.model import trial_request
from marl_plugins.coach.verdict import Verdict
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused

KEY = "sk-not-to-be-seen-0123456789"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def asker_at(url, kind, form="json"):
    limits = (
        {"timeout": 0.5, "deadline": 1.5}
        if kind.slow
        else {"timeout": 30.0 if kind.becomes == "verdict" else 4.0}
    )
    return endpoint_asker(
        CoachEndpoint("coach", f"{url}/{kind.name}/v1", "m", form=form, retries=0, **limits)
    )


async def outcome(url, kind):
    """What becomes of a judgement, and what is said about it."""
    asker = asker_at(url, kind)
    try:
        found = kept_as(Verdict, await asker.judge(trial_request()))
        return (
            "verdict" if found.score == 7 else f"a wrong verdict of {found.score}"
        ), found.model_dump_json()
    except InfrastructureFailure as failure:
        return "missing", str(failure)
    except RunPaused as failure:
        return "paused", str(failure)
    finally:
        await asker.close()


async def start(url, kind):
    """What becomes of the question before a run."""
    asker = asker_at(url, kind, form="auto")
    try:
        await asker.probe(trial_request())
        return "started", ""
    except ConfigurationError as error:
        return "refused", str(error)


def of_all(what, kinds=KINDS):
    """What becomes of each kind; eight at a time, so that a small machine keeps the time-outs."""

    async def everything(url):
        free = asyncio.Semaphore(8)

        async def one(kind):
            async with free:
                return await what(url, kind)

        return await asyncio.gather(*map(one, kinds.values()), return_exceptions=True)

    with hostile_server() as url:
        return dict(zip(kinds, asyncio.run(everything(url)), strict=True))


def no_harm_in(text):
    return (
        KEY not in text
        and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
        and len(text) < 100_000
    )


def test_every_answer_is_a_missing_verdict_the_right_one_or_a_pause():
    assert len(KINDS) >= 111
    found = of_all(outcome)
    assert {name: said for name, said in found.items() if isinstance(said, BaseException)} == {}
    assert {name: said for name, said in found.items() if said[0] != KINDS[name].becomes} == {}
    assert {name: said for name, (_, said) in found.items() if not no_harm_in(said)} == {}


def test_every_start_ends_in_time_and_only_on_verdicts():
    good = {name for name, kind in KINDS.items() if kind.becomes == "verdict"} | IN_TEXT
    found = of_all(
        start,
        {name: k for n, (name, k) in enumerate(KINDS.items()) if name in good or n % 4 == 0},
    )
    assert {name: said for name, said in found.items() if isinstance(said, BaseException)} == {}
    started = {name for name, (what, _) in found.items() if what == "started"}
    assert started == good
    assert {name: said for name, (_, said) in found.items() if not no_harm_in(said)} == {}
