"""The sandbox at a service: the contract at ours and, where it is there, at SandboxFusion's; and
services that misbehave."""

import asyncio
import base64
import contextlib
import gzip
import io
import json
import os
import re
import socket
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
from fusion_servers import SERVERS, answering, free_port, http, ours
from hostile_programs import processes_left
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from sandbox_contract import SandboxContract

from marl_plugins.core.failures import InfrastructureFailure, RunPaused
from marl_plugins.sandbox import Limits, Program, fusion, open_sandbox, remote
from marl_plugins.sandbox.fusion import ServiceSandbox
from marl_plugins.sandbox.section import SandboxConfig
from marl_plugins.sandbox.service import LARGEST_REQUEST_BYTES

LONG = Limits(seconds=60.0)
BEGUN = {
    "status": "Finished",
    "return_code": 0,
    "stdout": f"{remote.BEGUN}\n",
    "stderr": "",
    "execution_time": 0.1,
}


RESULT = {"stopped": "", "exceeded": False, "code": 0, "seconds": 0.1, "names": [], "gone": []}
RESULT["streams"] = [{"head": "", "tail": "", "total": 0}]


@contextlib.asynccontextmanager
async def at(name, workspaces):
    with SERVERS[name]() as url:
        config = SandboxConfig(isolation="service", url=url)
        async with open_sandbox(config, concurrency=8, workspaces=workspaces) as sandbox:
            yield sandbox


class TestOurs(SandboxContract):
    @classmethod
    def open(cls, workspaces):
        return at("ours", workspaces)

    def test_it_says_what_it_is(self):
        assert self._sandbox.isolation == "service"


if "theirs" in SERVERS:

    class TestTheirs(SandboxContract):
        @classmethod
        def open(cls, workspaces):
            return at("theirs", workspaces)


# --- workspaces
# --------------------------------------------------------------------------------------------------


class Seen(ServiceSandbox):
    """Keeps what travels."""

    async def _answered(self, body, seconds):
        response = await super()._answered(body, seconds)
        sent = json.loads(body)
        assert sent["memory_limit_MB"] > 512 and sent["fetch_files"] == [
            remote.RESULT,
            remote.CHANGED,
        ]
        self.sent = archive(sent["files"][remote.PACKED])
        self.returned = archive(response.files.get(remote.CHANGED))
        return response


def archive(text):
    if text is None:
        return {}
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(text))) as packed:
        return {entry.filename: packed.read(entry) for entry in packed.infolist()}


@pytest.fixture(scope="module")
def service():
    """A service, a client that keeps what travels, and the folder of its workspaces."""
    with (
        ours("--isolation", "process") as (url, _),
        tempfile.TemporaryDirectory() as place,
        asyncio.Runner() as runner,
    ):

        async def made():
            return Seen(url, workspaces=Path(place))

        sandbox = runner.run(made())
        yield runner, sandbox, Path(place)
        runner.run(sandbox.close())


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


NAMES = st.sampled_from(["a", "b", "d/a", "d/e/a", "é f", "g/h"])
WRITTEN = st.dictionaries(NAMES, st.binary(max_size=3000), max_size=4)


@settings(max_examples=12)
@given(WRITTEN, WRITTEN, st.sets(NAMES), WRITTEN)
def test_a_kept_workspace_is_as_a_program_leaves_it_and_only_changes_travel(
    service, before, written, removed, brought
):
    """The law: what is here afterwards is what a program would have left here."""
    runner, sandbox, place = service
    steps = (
        "import os\n"
        f"for path, content in {written!r}.items():\n"
        "    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n"
        "    open(path, 'wb').write(content)\n"
        f"for path in {sorted(removed)!r}:\n"
        "    if os.path.exists(path): os.remove(path)\n"
    )
    here = Path(tempfile.mkdtemp(dir=place))
    for path, content in before.items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_bytes(content)
    given_files = {**before, **brought}
    expected = {
        path: content for path, content in {**given_files, **written}.items() if path not in removed
    }
    program = Program(steps, files=brought, wanted=("a", "d/a"), limits=LONG)
    got = runner.run(sandbox.run(program, here))
    assert got.status == "finished", got
    assert files_of(here) == expected
    assert got.files == {path: expected[path] for path in ("a", "d/a") if path in expected}
    assert {
        path.removeprefix("workspace/") for path in sandbox.sent if path.startswith("workspace/")
    } == given_files.keys()
    assert sandbox.returned == {
        path: content for path, content in expected.items() if given_files.get(path) != content
    }


@pytest.mark.parametrize(
    ("source", "limits"),
    [
        ("for n in range(3000): open(str(n), 'w')", LONG),
        ("open('a', 'wb').write(bytes(3 << 20))", Limits(seconds=60, disk_mb=1)),
        ("open('a', 'wb').truncate(400 << 20)", LONG),
    ],
)
def test_files_that_are_too_many_or_too_large_stay_there(service, source, limits):
    runner, sandbox, place = service
    here = Path(tempfile.mkdtemp(dir=place))
    (here / "kept").write_text("1")
    got = runner.run(sandbox.run(Program(source, limits=limits), here))
    assert (got.status, files_of(here)) == ("killed", {"kept": b"1"})
    assert f"{limits.disk_mb} MB" in got.reason and "is lost" in got.reason


def test_a_program_never_leaves_more_than_the_next_one_can_be_sent(service, monkeypatch):
    """Each leaves little, and together they are too much: the fault of the one that went too far,
    and of none after it."""
    monkeypatch.setattr(fusion, "RETURNED_BYTES", 1 << 20)
    runner, sandbox, place = service
    workspace = Path(tempfile.mkdtemp(dir=place))
    wrote = [Program(f"open('{name}', 'wb').write(bytes(600_000))", limits=LONG) for name in "ab"]
    first, second, third = (
        runner.run(sandbox.run(program, workspace))
        for program in (*wrote, Program("print(6 * 7)", limits=LONG))
    )
    assert (first.status, second.status, third.status, third.stdout) == (
        "finished",
        "killed",
        "finished",
        "42\n",
    )
    assert "or 1 MB to be sent" in second.reason
    assert files_of(workspace).keys() == {"a"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "import os, signal; os.kill(os.getppid(), signal.SIGKILL); os._exit(0)",
            "ended without a result",
        ),
        (
            "import os, signal\nopen('../marl-result.json', "
            "'w').write('{}')\nos.kill(os.getppid(), signal.SIGKILL)",
            "what it left cannot be taken",
        ),
        ("import os, shutil; shutil.rmtree('..', ignore_errors=True); open('/dev/null')", ""),
    ],
)
def test_a_program_that_attacks_what_runs_it_has_itself_to_blame(service, source, said):
    runner, sandbox, _ = service
    got = runner.run(sandbox.run(Program(source, limits=LONG)))
    assert got.status in ("killed", "finished") and said in got.reason, got


# --- services that misbehave
# --------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(fusion, "FIRST_PAUSE_SECONDS", 0.01)


SMALL = Program("print(1)")


def meets(answer, program=SMALL):
    """What comes of a program at a server that answers like that, and how many requests it got."""

    async def run():
        async with answering(answer) as (url, taken):
            sandbox = ServiceSandbox(url)
            try:
                return await sandbox.run(program), len(taken)
            except (InfrastructureFailure, RunPaused) as failure:
                return failure, len(taken)
            finally:
                await sandbox.close()

    return asyncio.run(run())


def said(**fields):
    return http(json.dumps({"status": "Success", "message": "", "files": {}, **fields}))


def encoded(data):
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("answer", "kind", "text", "requests"),
    [
        (
            http("not found", 404, "text/plain"),
            RunPaused,
            "HTTP 404 in place of an answer: not found",
            1,
        ),
        (
            http(json.dumps({"detail": [{"loc": ["body", "files"], "msg": "no such path"}]}), 422),
            RunPaused,
            "HTTP 422 in place of an answer: .*no such path",
            1,
        ),
        (http("too large", 413), "sandbox_refused", "files of a program are too large", 1),
        (http("[" * 100_000), "sandbox_protocol", "not in SandboxFusion's protocol", 1),
        (
            said(status="SandboxError", message="no conda"),
            "sandbox_service",
            "could not run a program: no conda, 5 times",
            5,
        ),
        (http("overloaded", 503), "sandbox_service", "HTTP 503: overloaded, 5 times", 5),
        (b"", "sandbox_unreachable", "cannot be reached: Server disconnected, 5 times", 5),
        (
            said(
                run_result={
                    **BEGUN,
                    "stdout": "",
                    "stderr": "python: not found",
                    "return_code": 127,
                }
            ),
            "sandbox_service",
            "did not begin a program .Finished, exit code 127: python: not found",
            1,
        ),
    ],
)
def test_what_a_service_does_wrong_is_never_a_programs_failure(answer, kind, text, requests):
    failure, got = meets(lambda *_: answer)
    if isinstance(kind, str):
        assert isinstance(failure, InfrastructureFailure) and failure.kind == kind, failure
    else:
        assert type(failure) is kind
    assert re.search(text, str(failure)) and "service http://127.0.0.1:" in str(failure), failure
    assert got == requests


def printing(output):
    """The answer of a service whose program has written this."""
    result = RESULT | {"streams": [{"head": encoded(output), "tail": "", "total": len(output)}]}
    return said(run_result=BEGUN, files={remote.RESULT: encoded(json.dumps(result).encode())})


def test_a_service_that_comes_back():
    good = printing(b"1\n")
    bad = (b"", http("", 502), said(status="SandboxError"))
    got, requests = meets(lambda path, body, number, head: good if number > 3 else bad[number - 1])
    assert (got.status, got.stdout, requests) == ("finished", "1\n", 4)


async def forever():
    await asyncio.sleep(3600)


def test_a_service_that_hangs(monkeypatch):
    monkeypatch.setattr(fusion, "STARTING_SECONDS", 0.1)
    monkeypatch.setattr(fusion, "QUEUE_SECONDS", 0.2)
    failure, requests = meets(lambda *_: forever(), Program("1", limits=Limits(seconds=0.1)))
    assert failure.kind == "sandbox_timeout" and "no answer within 0.5 s" in str(failure)
    assert requests <= 1  # none where the machine was too busy even for that


def test_an_answer_without_end(monkeypatch):
    monkeypatch.setattr(fusion, "MOST_BYTES", 1 << 20)
    failure, _ = meets(lambda *_: http(b"x" * (3 << 20)))
    assert failure.kind == "sandbox_protocol" and "more than 1 MB" in str(failure)


def zipped(**files):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", files.pop("how", zipfile.ZIP_STORED)) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


@pytest.mark.parametrize(
    ("result", "changed"),
    [
        (b"[" * 1000, b""),
        (json.dumps(RESULT | {"seconds": -1}).encode(), b""),
        (json.dumps(RESULT | {"gone": ["../outside"]}).encode(), b""),
        (json.dumps(RESULT).encode(), b"PK nothing"),
        (json.dumps(RESULT).encode(), zipped(**{"../outside": b"x"})),
        (json.dumps(RESULT).encode(), zipped(**{"/tmp/marl-outside": b"x"})),
        (json.dumps(RESULT).encode(), zipped(how=zipfile.ZIP_DEFLATED, a=bytes(10**7))),
        (json.dumps(RESULT).encode(), zipped(**{"a": b"x", "a/b": b"x"})),
        (json.dumps(RESULT).encode(), zipped(**{"old": b"x"})),  # a folder with a file
        (json.dumps(RESULT).encode(), zipped(**{f"{n}/x": b"" for n in range(1000)})),
    ],
)
def test_what_a_program_has_forged_is_its_own_failure_and_leads_nowhere(result, changed, tmp_path):
    workspaces = tmp_path / "workspaces"
    here = workspaces / "here"
    (here / "old").mkdir(parents=True)
    kept = dict.fromkeys(("outside", "workspaces/outside", "workspaces/here/old/file"), b"kept")
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    answer = said(
        run_result=BEGUN, files={remote.RESULT: encoded(result), remote.CHANGED: encoded(changed)}
    )

    async def run():
        async with answering(lambda *_: answer) as (url, _):
            sandbox = ServiceSandbox(url, workspaces=workspaces)
            try:
                return await sandbox.run(Program("print(1)"), here)
            finally:
                await sandbox.close()

    got = asyncio.run(run())
    assert got.status == "killed" and "cannot be taken" in got.reason, got
    assert files_of(tmp_path) == kept
    assert not Path("/tmp/marl-outside").exists()


def test_a_time_limit_that_only_the_service_noticed():
    got, _ = meets(
        lambda *_: said(
            status="Failed",
            run_result={**BEGUN, "status": "TimeLimitExceeded", "return_code": None},
        )
    )
    assert (got.status, got.code, got.reason) == ("time", None, "stopped after 5 s")


def test_a_service_that_is_killed_during_calls(tmp_path, monkeypatch):
    """Everybody is told, nothing hangs, nothing is left of it; and another one at its address takes
    over."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = ["--port", str(free_port()), "--concurrency", "6", "--isolation", "process"]

    async def calls():
        with ours(*words) as (url, process):
            sandbox = ServiceSandbox(url, concurrency=6)
            endless = [
                asyncio.create_task(sandbox.run(Program("while True: pass", limits=LONG)))
                for _ in range(6)
            ]
            while len(list(tmp_path.glob("*/*/workspace/workspace"))) < 6:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            process.kill()
            failures = await asyncio.wait_for(asyncio.gather(*endless, return_exceptions=True), 60)
        with ours(*words):
            after = await sandbox.run(Program("print(1)", limits=LONG))
        await sandbox.close()
        return failures, after

    failures, after = asyncio.run(calls())
    assert {type(failure) for failure in failures} == {InfrastructureFailure}, failures
    assert {failure.kind for failure in failures} == {"sandbox_unreachable"}
    assert after.stdout == "1\n"
    until = time.monotonic() + 30
    while (os.listdir(tmp_path) or processes_left(tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert (os.listdir(tmp_path), processes_left(tmp_path)) == ([], [])


# --- recipes, plans, the doctor
# -----------------------------------------------------------------------------------------


def refusal(url):
    """Why a sandbox at an address does not start."""

    async def run():
        async with open_sandbox(SandboxConfig(isolation="service", url=url)):
            raise AssertionError("it started")

    with refused(("sandbox.unreachable", "tools.sandbox.url")) as caught:
        asyncio.run(run())
    return str(caught.value)


def test_a_service_that_is_not_there_is_said_at_the_start_with_the_cure():
    port = free_port()
    said = refusal(f"http://127.0.0.1:{port}")
    assert (
        said.count(f"service http://127.0.0.1:{port}") == 1 and "`openrlhf sandbox serve`" in said
    )


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (http("not here", 404), "sandbox.unreachable", "404"),
        (printing(b"41\n"), "sandbox.answer", "41"),
    ],
)
def test_a_service_of_another_kind_is_said_at_the_start(answer, code, text):
    async def run():
        async with answering(lambda *_: answer) as (url, _):
            sandbox = ServiceSandbox(url)
            try:
                await sandbox.start()
            finally:
                await sandbox.close()

    with refused((code, "tools.sandbox.url")) as caught:
        asyncio.run(run())
    assert text in caught.value.problems[0].got


def test_credentials_are_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("SANDBOX_PASSWORD", "open sesame/1")
    seen = []

    def answer(path, body, number, head):
        seen.append(head)
        return http("wrong password: open sesame/1, open%20sesame%2F1", 401)

    async def run():
        async with answering(answer) as (url, _):
            sandbox = ServiceSandbox(
                url.replace("//", "//me:$SANDBOX_PASSWORD@").replace(
                    "$SANDBOX_PASSWORD", "open%20sesame%2F1"
                )
            )
            try:
                await sandbox.run(Program("print(1)"))
            finally:
                await sandbox.close()

    with pytest.raises(RunPaused) as refused:
        asyncio.run(run())
    basic = base64.b64encode(b"me:open sesame/1").decode()
    assert f"Basic {basic}" in seen[0]
    assert "sesame" not in str(refused.value) and "***" in str(refused.value)


def told(url, lines, body=b""):
    """The status that a service answers a request with, whose lines after the first are given."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall("\r\n".join(["POST /run_code HTTP/1.1", *lines, "", ""]).encode() + body)
        return int(connection.recv(100).split()[1])


def test_a_service_answers_to_its_own_names_alone_and_reads_no_more_than_it_may(service):
    """A page in a browser whose name leads here, a bomb, a body without an end and one that is too
    large: none is read."""
    url, request = service[1]._url, json.dumps({"code": "print(1)", "language": "python"}).encode()
    plain = ["Content-Type: application/json", f"Content-Length: {len(request)}"]
    for host in ("localhost:1", "[::1]:80", "10.1.2.3:8080"):
        assert told(url, [f"Host: {host}", *plain], request) == 200, host
    for host in (
        "evil.example",
        "127.0.0.1.nip.io:80",
        "",
        "[::1",
    ):
        assert told(url, [f"Host: {host}", *plain], request) in (400, 403), host
    for host in (
        "127.0.0.1:80.evil.example",
        "evil@localhost",
        "localhost/evil",
        "::1",
    ):
        assert told(url, [f"Host: {host}", *plain], request) in (400, 403), host
    for origin, code in (
        ("http://localhost:3000", 200),
        ("http://evil.example", 403),
        ("null", 403),
    ):
        assert told(url, ["Host: localhost", f"Origin: {origin}", *plain], request) == code, origin
    bomb = gzip.compress(bytes(50 << 20))
    packed = [
        "Host: localhost",
        "Content-Type: application/json",
        "Content-Encoding: gzip",
        f"Content-Length: {len(bomb)}",
    ]
    assert told(url, packed, bomb) == 415
    endless = ["Host: localhost", "Content-Type: application/json", "Transfer-Encoding: chunked"]
    assert told(url, endless, b"5\r\nhello\r\n") == 411
    assert (
        told(url, ["Host: localhost", plain[0], f"Content-Length: {LARGEST_REQUEST_BYTES + 1}"])
        == 413
    )
