"""Our service, driven by SandboxFusion's own client and by requests that are wrong; where theirs is
there, it is driven too."""

import asyncio
import base64
import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from fusion_servers import SERVERS, ours
from hypothesis import given
from hypothesis import strategies as st
from refusals import found_by
from sandbox_fusion import RunCodeRequest, RunStatus, run_code, run_code_async, run_concurrent
from sandbox_fusion.models import CommandRunStatus

from marl_plugins.cli import dispatch
from marl_plugins.core.workspace import path_problem
from marl_plugins.sandbox.service import RequestLimits, RunCode

SUCCESS, FAILED = RunStatus.Success, RunStatus.Failed


@pytest.fixture(scope="module", params=SERVERS)
def url(request):
    with SERVERS[request.param]() as url:
        yield url


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def asked(url, code, language="python", **fields):
    """What SandboxFusion's client makes of a request."""
    request = RunCodeRequest(code=code, language=language, **{"run_timeout": 60, **fields})
    return run_code(request, url, max_attempts=1, client_timeout=120)


# --- what both do
# --------------------------------------------------------------------------------------------------


def test_a_program(url):
    got = asked(url, "import sys\nprint(6 * 7)\nprint('no', file=sys.stderr)")
    ran = got.run_result
    assert (got.status, ran.status, ran.return_code) == (SUCCESS, CommandRunStatus.Finished, 0)
    assert (ran.stdout, ran.stderr, got.compile_result, got.files) == ("42\n", "no\n", None, {})
    assert ran.execution_time > 0


def test_bash_and_pytest(url):
    assert asked(url, "echo $((1 + 1)); exit 4", "bash").run_result.return_code == 4
    good, bad = (asked(url, f"def test_it():\n    assert 1 + 1 == {n}\n", "pytest") for n in (2, 3))
    assert (good.status, bad.status, bad.run_result.return_code) == (SUCCESS, FAILED, 1)


def test_files(url):
    code = (
        "import os, mine\nos.makedirs('out')\nopen('out/b', 'wb').write(open('in/a', "
        "'rb').read()[::-1])\nprint(mine.x)"
    )
    files = {"in/a": "AAH/", "mine.py": encoded("x = 5"), "absent": None}
    got = asked(
        url, code, files=files, fetch_files=["out/b", "missing", "out", "absent"], compile_timeout=3
    )
    assert (got.status, got.files, got.run_result.stdout) == (SUCCESS, {"out/b": "/wEA"}, "5\n")


def test_time(url):
    """What was written before is kept."""
    code = "print('begins', flush=True)\nopen('a', 'w').write('x')\nwhile True: pass"
    got = asked(url, code, run_timeout=1, fetch_files=["a"])
    ran = got.run_result
    assert (got.status, ran.status, ran.return_code) == (
        FAILED,
        CommandRunStatus.TimeLimitExceeded,
        None,
    )
    assert (ran.stdout, got.files) == ("begins\n", {"a": encoded("x")}) and ran.execution_time >= 1


def test_many_at_once(url):
    requests = [RunCodeRequest(code=f"print({n})", language="python") for n in range(10)]
    got = run_concurrent(run_code, args=[[request, url] for request in requests])
    assert [g.run_result.stdout for g in got] == [f"{n}\n" for n in range(10)]

    async def together():
        return await asyncio.gather(*[run_code_async(request, url) for request in requests])

    assert [g.run_result.stdout for g in asyncio.run(together())] == [f"{n}\n" for n in range(10)]


@pytest.mark.parametrize(
    "fields",
    [
        {"language": "klingon"},
        {"run_timeout": "soon"},
        {"files": ["a"]},
    ],
    ids=str,
)
def test_a_request_that_is_wrong(url, fields):
    status, got = posted(url, {"code": "print(1)", "language": "python", **fields})
    (name,) = fields
    assert (
        status == 422 and got["detail"][0]["loc"][:2] == ["body", name] and got["detail"][0]["msg"]
    )


def posted(url, request, kind="application/json"):
    data = request if isinstance(request, bytes) else json.dumps(request).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/run_code", data, {"Content-Type": kind}), timeout=60
        ) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read()
        return error.code, json.loads(text) if text.startswith(b"{") else text


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"{", "application/json"), (b"{}", "text/plain")],
)
def test_what_is_no_request(url, body, kind):
    assert posted(url, body, kind)[0] == 422


# --- ours alone
# --------------------------------------------------------------------------------------------------

PATHS = st.lists(
    st.sampled_from(["a", "b", "..", ".", "", "a\n", "é", "\x1b"]), min_size=1, max_size=4
).map("/".join)


@given(
    st.dictionaries(
        PATHS, st.binary(max_size=9).map(lambda b: encoded(b.hex())) | st.none(), max_size=3
    ),
    st.lists(PATHS),
)
def test_a_request_that_is_taken_stays_in_its_folder(files, fetched):
    request = {"code": "", "language": "python", "files": files, "fetch_files": fetched}
    there = {path for path, text in files.items() if text is not None}
    both = {str(parent) for path in there for parent in Path(path).parents} & there
    asked = RunCode.model_validate(request)
    if both or any(map(path_problem, [*there, *fetched])):
        with pytest.raises(ValueError, match=r"path|a file and a folder"):
            asked.program(RequestLimits(60, 100))
    else:
        assert asked.program(RequestLimits(60, 100)).files.keys() == there


def test_so_many_run_at_once_and_no_more():
    code = "import time\nprint(time.time())\ntime.sleep(0.3)\nprint(time.time())"
    with ours("--concurrency", "2", "--isolation", "process") as (url, _):
        got = run_concurrent(asked, args=[[url, code]] * 8)
    spans = [tuple(map(float, g.run_result.stdout.split())) for g in got]
    assert max(sum(a <= moment < b for a, b in spans) for moment, _ in spans) == 2


def test_a_program_that_nobody_waits_for_is_ended():
    with ours("--concurrency", "1", "--isolation", "process") as (url, _):
        with pytest.raises(OSError, match="timed out"):
            asked_within(url, "while True: pass", 1.0)
        assert asked(url, "print(1)").run_result.stdout == "1\n"


def asked_within(url, code, seconds):
    body = json.dumps({"code": code, "language": "python", "run_timeout": 500}).encode()
    request = urllib.request.Request(f"{url}/run_code", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return answer.read()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--host", "192.0.2.1", "--isolation", "process"], ("sandbox.port",)),
        (
            ["--imports", "antigravity2", "--port", "0"],
            ("sandbox.prepare", "tools.sandbox.imports"),
        ),
    ],
)
def test_what_the_command_cannot_serve(words, expected):
    assert found_by(dispatch, ["sandbox", "serve", *words]) == [expected]
