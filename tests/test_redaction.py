"""Secrets of flags and servers are written nowhere, and control characters do nothing on the
console."""

import json
import logging
import shutil
from pathlib import Path

import pytest
from openai_server import Reply, openai_server, verdict
from test_coach_client import coach_at, judge, kept_in, probe

from marl_plugins.asking.limits import SpendingBudget
from marl_plugins.cli import main
from marl_plugins.commands.tables import print_table
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused
from marl_plugins.core.redaction import (
    Redaction,
    holds_secret,
    inert,
    shown_args,
    shown_flag,
    shown_url,
)
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.run_folder import record_start, replayed

KEY = "sk-not-to-be-seen-0123456789"
PASSWORD = "p@ss/w:rd#not-to-be-seen"
HARM = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\x00\r"
SUMS = Path(__file__).parent / "recipes" / "sums"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1"),
        ("https://me:secret@host/v1", "https://***@host/v1"),
        ("https://u:p@ss@host/v1", "https://***@host/v1"),
        ("https://u:p?w#x@host:1/v1", "https://***@host:1/v1"),
        ("u:p@host/v1", "***@host/v1"),
        ("https://host/v1?api-key=secret&x=1", "https://host/v1?***"),
        ("https://host/v1#secret", "https://host/v1#***"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url, shown):
    assert shown_url(url) == shown


def test_a_flag_is_shown_without_its_secrets():
    body = {
        "api_key": KEY,
        "seed": 3,
        "max_tokens": None,
        "stop_tokens": ["x"],
        "extra_headers": {"X-Team": [KEY]},
    }
    shown = shown_flag("coach.body", json.dumps(body))
    assert json.loads(shown) == body | {"api_key": "***", "extra_headers": {"X-Team": ["***"]}}
    assert (
        shown_flag("logger.wandb.key", KEY) == "***"
        and shown_flag("logger.wandb.key", None) is None
    )
    assert shown_flag("reward.remote_url", [f"http://u:{KEY}@host/", "rule.py"]) == [
        "http://***@host/",
        "rule.py",
    ]
    for harmless in (
        '{"seed": 3}',
        "{% for message in messages %}{{ bos_token }}",
        "see http://a?b=c for more",
        3,
        None,
    ):
        assert shown_flag("any", harmless) == harmless
    assert holds_secret("coach.base_url", ["https://u:p@host"]) and not holds_secret(
        "coach.base_url", ["https://host"]
    )


def test_a_secret_is_taken_out_however_it_is_spelled_and_a_word_is_not():
    redaction = Redaction(
        [KEY, "local"],
        f"https://me:{PASSWORD}@host/v1?api-key=query-secret-1",
        {"user_token": "field-secret-1"},
    )
    for text in (
        f"Bearer {KEY}, or {json.dumps(KEY)}",
        f"the password is {PASSWORD}",
        "the password is p%40ss%2Fw%3Ard%23not-to-be-seen",
        "Basic bWU6cEBzcy93OnJkI25vdC10by1iZS1zZWVu",
        "query-secret-1 and field-secret-1",
    ):
        said = redaction.text(text)
        assert (
            "***" in said
            and "secret" not in said
            and "not-to-be-seen" not in said
            and "bWU6" not in said
        )
    assert redaction.text("a local server") == "a local server"
    assert redaction.values({"a": [f"x{KEY}", 3], KEY: None}) == {"a": ["x***", 3], "***": None}


def test_control_characters_are_shown_and_do_nothing():
    assert inert(HARM) == r"\x1b[2J\x1b]0;title\x07\x9b31m\u202e\x00\r"
    assert inert("naïve \t日本\n\ud83d") == "naïve \t日本\n" + r"\ud83d"


@pytest.mark.parametrize(
    "error", [ConfigurationError([f"a {HARM}", "b"]), RunPaused(HARM), KeyboardInterrupt(HARM)]
)
def test_an_error_does_nothing_to_the_console(error, capsys, monkeypatch):
    def fail(words):
        raise error

    monkeypatch.setattr("marl_plugins.cli.dispatch", fail)
    assert main(["train"]) in (1, 2, 130)
    assert inert(HARM) in capsys.readouterr().err


def test_a_recipe_a_table_and_a_line_of_a_run_do_nothing_to_the_console(tmp_path, capsys):
    recipe = tmp_path / "sums" / "harmful.yaml"
    shutil.copytree(SUMS, recipe.parent)
    harmful = {
        "extends": "tiny.yaml",
        "description": HARM,
        "flags": {"coach.base_url": f"https://me:{KEY}@host/v1"},
    }
    recipe.write_text(json.dumps(harmful))
    assert main(["recipes", "show", str(recipe)]) == 0
    print_table("t", ["x"], [[HARM]])
    Display(as_json=False).say(HARM)
    said = capsys.readouterr().out
    assert said.count(r"\x1b[2J") == 3 and inert(said) == said and KEY not in said


COACHED = ["--coach.model", "m", "--coach.base_url", f"https://me:{KEY}@host/v1?api-key={KEY}"]
COACHED += ["--coach.body", json.dumps({"seed": 3, "user_key": KEY})]


def test_flags_that_hold_secrets_are_written_nowhere_and_asked_for_on_resume(tmp_path, capsys):
    words = ["--recipe", "mathchat/tiny.yaml", *COACHED, "--ckpt.output_dir", str(tmp_path / "run")]
    assert main(["train", *words, "--dry-run"]) == 0
    assert main(["train", *words, "--dry-run", "--json"]) == 0
    plan = build_plan(words)
    record_start(plan, words, 0)
    written = "".join(p.read_text() for p in (tmp_path / "run").rglob("*") if p.is_file())
    logged = str(shown_args(plan.run.args))
    for text in (
        written,
        logged,
        json.dumps(describe(plan)),
        json.dumps(fingerprint(plan)),
        *capsys.readouterr(),
    ):
        assert KEY not in text
    assert KEY in str(plan.run.args)  # the run itself has them
    again, remarks = replayed(["--resume", str(tmp_path / "run")])
    assert not [w for w in again if "base_url" in w or "coach.body" in w]
    assert [r.names("flag") for r in remarks] == [("coach.base_url",), ("coach.body",)]


def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n{KEY}")
    with pytest.raises(
        ConfigurationError, match=r"\$OPENAI_API_KEY .* holds characters that no HTTP header"
    ) as caught:
        build_plan(["--recipe", "mathchat/tiny.yaml", "--coach.model", "m"])
    assert KEY not in str(caught.value)


# What a server says of the key that it was sent.


def whole(body, **parts):
    return json.dumps(
        {"choices": [{"message": {"content": verdict(body, 6), **parts}, "finish_reason": "stop"}]}
    ).encode()


SAYINGS = {
    "500": lambda b: Reply(f"wrong {KEY}", 500),
    "413": lambda b: Reply(f"too large for {KEY}", 413),
    "context length": lambda b: Reply(f"{KEY}: too long", 400, code="context_length_exceeded"),
    "400": lambda b: Reply(f"no such field {KEY}", 400),
    "401": lambda b: Reply(f"not {KEY}", 401),
    "404": lambda b: Reply(f"no model {KEY}", 404),
    "429": lambda b: Reply(f"slower, {KEY}", 429, code=KEY, headers={"Retry-After": KEY}),
    "quota": lambda b: Reply(f"pay, {KEY}", 429, code="insufficient_quota"),
    "error in 200": lambda b: Reply(
        raw=json.dumps({"error": {"message": KEY, "code": KEY}}).encode()
    ),
    "html": lambda b: Reply(status=502, raw=f"<html>{KEY}</html>".encode()),
    "not json": lambda b: Reply(raw=f"Bearer {KEY}".encode()),
    "another form": lambda b: Reply(raw=json.dumps({KEY: [KEY]}).encode()),
    "refusal": lambda b: Reply(refusal=f"not for {KEY}"),
    "no verdict": lambda b: Reply(f"I saw {KEY}"),
    "explanation": lambda b: Reply(verdict(b, 6, says=f"It has {KEY}. {HARM}")),
    "explanation, escaped": lambda b: Reply(
        raw=whole(b).replace(b"It was fine", b"\\\\u0073" + KEY[1:].encode())
    ),
    "criteria": lambda b: Reply(
        verdict(b, 6).replace("[]", json.dumps([{"name": KEY, "score": 1}]))
    ),
    "header": lambda b: Reply(verdict(b, 6), headers={"Set-Cookie": f"key={KEY}", "X-Key": KEY}),
    "location": lambda b: Reply(
        status=307, headers={"Location": f"https://evil.example/{KEY}?key={KEY}"}
    ),
    "encoding": lambda b: Reply(verdict(b, 6), headers={"Content-Encoding": KEY}),
    "model": lambda b: Reply(raw=json.dumps({**json.loads(whole(b)), "model": KEY}).encode()),
    "usage": lambda b: Reply(
        raw=json.dumps({**json.loads(whole(b)), "usage": {"prompt_tokens": KEY}}).encode()
    ),
}


@pytest.mark.parametrize(
    ("kind", "form"),
    [*((kind, "json") for kind in SAYINGS), ("no verdict", "text"), ("explanation", "text")],
)
def test_a_server_that_repeats_the_key_is_not_repeated(
    kind, form, tmp_path, monkeypatch, action, seen, caplog, capsys
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(logging.DEBUG, "marl_plugins")
    kept, budget = (
        tmp_path / "kept.jsonl",
        SpendingBudget("coach", file=tmp_path / "coach_spent.json"),
    )
    with openai_server(lambda body, n: SAYINGS[kind](body)) as (url, _):
        coach = coach_at(url, budget, kept_in(kept), form=form, retries=0, timeout=1.0)
        (found,) = judge(coach, (action, seen))
        try:
            said = str(probe(coach))
        except ConfigurationError as error:
            said = str(error)
        coach.asker.cache.kept.close()
    assert not isinstance(found, Exception) or isinstance(found, InfrastructureFailure | RunPaused)
    files = "".join(p.read_text() for p in tmp_path.iterdir())
    explanation = found.model_dump_json() if hasattr(found, "model_dump_json") else str(found)
    for text in (
        explanation,
        said,
        files,
        caplog.text,
        *capsys.readouterr(),
        str(coach.asker.transport.endpoint),
    ):
        assert KEY not in text and "\x1b" not in text
