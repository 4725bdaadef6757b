"""Programs elsewhere: at a service that speaks SandboxFusion's protocol, theirs or
`openrlhf sandbox serve`.

    POST URL/run_code    remote.py as a program of Python's, and the program with its files in one
                         archive
    the answer           what remote.py has left: what the program wrote, how it ended, and files
                         that are new or changed

The service keeps nothing between two requests. So a program that was lost on the way is run again,
and what it does to its workspace is done here only once its answer is here. What the program can
have touched (remote.py's two files) is its own doing, whatever stands in it; the rest is the
service's, and is never a program's failure.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Literal

import aiohttp
import pydantic
from pydantic.v1 import ValidationError as NotInProtocol
from sandbox_fusion.models import CommandRunStatus, RunCodeResponse, RunStatus
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from marl_plugins.core.deadlines import in_turn
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused
from marl_plugins.core.machine_limits import usable_cores
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.redaction import Redaction, shown_url
from marl_plugins.core.workspace import (
    MAX_WORKSPACE_FILES,
    OURS,
    folders_of,
    path_problem,
    read_files,
    tree_problem,
)
from marl_plugins.sandbox import remote, run_program
from marl_plugins.sandbox.files import own_workspace, remove_files, write_files
from marl_plugins.sandbox.local import RETURNED_BYTES
from marl_plugins.sandbox.program import Program, ProgramResult, Status, excess, judge

ATTEMPTS, FIRST_PAUSE_SECONDS = 5, 0.5
"""How often a program is sent, and seconds between: random, up to the first, then up to twice that,
..."""
STARTING_SECONDS = 30.0
"""Seconds that the service has to begin a program, and to return its files, in addition to the
program's own."""
QUEUE_SECONDS = 60.0
"""Seconds that a program may wait for its turn at the service, and travel."""
CONNECTING_SECONDS = 10.0
OWN_MEMORY_MB = 64
"""Memory of remote.py, in addition to the program's."""
MOST_BYTES = 2 * RETURNED_BYTES
"""Maximum size of an answer: base64, and room for what a program wrote."""
LAST_WORDS_CHARS = 300


class _TransientFailure(Exception):
    """The service is unavailable, and repeating the request may help."""

    def __init__(self, kind: str, detail: str):
        self.kind = kind
        super().__init__(detail)


class _StreamEnds(pydantic.BaseModel):
    """The ends of a stream."""

    head: pydantic.Base64Bytes
    tail: pydantic.Base64Bytes
    total: int = pydantic.Field(ge=0)

    def text(self, limit: int) -> str:
        """The stream as it is shown."""
        kept = remote.HeadAndTail(limit)
        kept.head, kept.tail = self.head[:limit], self.tail[-limit:]
        kept.total = max(self.total, len(kept.head) + len(kept.tail))
        return kept.text()


class _Result(pydantic.BaseModel):
    """remote.RESULT, which the program may have written itself."""

    stopped: Literal["", "time", "output"]
    exceeded: bool
    code: int | None = pydantic.Field(ge=-64, le=255)
    seconds: float = pydantic.Field(ge=0, allow_inf_nan=False)
    streams: list[_StreamEnds] = pydantic.Field(min_length=1, max_length=2)
    names: list[str]
    gone: list[str]


class ServiceSandbox:
    """Programs at a service, over one session that is kept open (program.StartableSandbox).

    Args:
        url: Its address; `$NAME` stands for a variable of the environment.
        concurrency: Maximum number of programs that are sent at the same time; default: the
            cores that this process may use.
        workspaces: An existing folder in which all workspaces lie that are kept.
    """

    isolation = "service"

    def __init__(
        self,
        url: str,
        *,
        concurrency: int | None = None,
        workspaces: Path | None = None,
    ):
        filled = Template(url).safe_substitute(os.environ)
        self.shown = f"service {shown_url(filled)}"
        self._url = filled.rstrip("/")
        self._redaction = Redaction(url=filled)
        self._workspaces = workspaces.resolve(strict=True) if workspaces is not None else None
        self._free = asyncio.Semaphore(concurrency or usable_cores())
        self._session: aiohttp.ClientSession | None = None
        self._source = "\n".join(map(inspect.getsource, (run_program, remote)))

    async def start(self) -> None:
        """Runs a small program.

        Raises:
            ConfigurationError: It does not run, with what can be done about it.
        """
        where = at(key="tools.sandbox.url")
        cure = "start one with `openrlhf sandbox serve`, or correct tools.sandbox.url"
        try:
            ran = await self.run(Program("print(6 * 7)"))
        except (InfrastructureFailure, RunPaused) as failure:
            raise ConfigurationError(
                Problem("sandbox.unreachable", where, str(failure), fix=cure)
            ) from failure
        if (ran.status, ran.stdout) != ("finished", "42\n"):
            reason = ran.reason or ran.stderr[-LAST_WORDS_CHARS:] or ran.stdout
            got = f"{self.shown}: print(6 * 7) gave {ran.status}: {reason!r}"
            raise ConfigurationError(Problem("sandbox.answer", where, got, fix=cure))

    async def close(self) -> None:
        """Ends the session, and with it what is being waited for."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def run(self, program: Program, workspace: Path | None = None) -> ProgramResult:
        """Runs a program to its end (program.Sandbox.run)."""
        workspace = own_workspace(workspace, self._workspaces)
        async with in_turn(self._free):
            try:
                job = await asyncio.to_thread(_Job, program, workspace)
                body = await asyncio.to_thread(job.body, self._source)
                response = await self._answered(
                    body, program.limits.seconds + 2 * STARTING_SECONDS + QUEUE_SECONDS
                )
                return await asyncio.to_thread(job.completed, response)
            except OSError as error:
                raise InfrastructureFailure("sandbox", f"workspace {workspace}: {error}") from error

    async def _answered(self, body: bytes, seconds: float) -> RunCodeResponse:
        """The service's answer to a request, which is repeated where that may help."""

        async def asked() -> RunCodeResponse:
            status, answer = await self._exchange(body, seconds)
            return await asyncio.to_thread(self._read, status, answer)

        attempts = AsyncRetrying(
            retry=retry_if_exception_type(_TransientFailure),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(FIRST_PAUSE_SECONDS),
            reraise=True,
        )
        try:
            return await attempts(asked)
        except _TransientFailure as failure:
            raise self._failure(failure.kind, f"{failure}, {ATTEMPTS} times") from failure

    async def _exchange(self, body: bytes, seconds: float) -> tuple[int, bytes]:
        """One request: the status and the body of its answer.

        Raises:
            _TransientFailure: There was none.
            InfrastructureFailure: There was none in time, or too large a one.
        """
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(seconds),
                self._opened().post(
                    f"{self._url}/run_code", data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                return response.status, await self._body_of(response)
        except aiohttp.ConnectionTimeoutError as error:
            raise _TransientFailure(
                "sandbox_unreachable", f"no connection within {CONNECTING_SECONDS:g} s"
            ) from error
        except TimeoutError as error:
            raise self._failure("sandbox_timeout", f"no answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _TransientFailure(
                "sandbox_unreachable", f"cannot be reached: {error or type(error).__name__}"
            ) from error

    async def _body_of(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > MOST_BYTES:
                raise self._failure(
                    "sandbox_protocol", f"an answer of more than {MOST_BYTES >> 20} MB"
                )
            parts.append(part)
        return b"".join(parts)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECTING_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, trust_env=True
            )
        return self._session

    def _read(self, status: int, answer: bytes) -> RunCodeResponse:
        """An answer in the protocol, to a program that has begun."""
        if status == 200:
            try:
                response = RunCodeResponse(**json.loads(answer))
            except (ValueError, TypeError, RecursionError, NotInProtocol) as error:
                text = answer[:LAST_WORDS_CHARS].decode(errors="replace")
                raise self._failure(
                    "sandbox_protocol",
                    f"an answer that is not in SandboxFusion's protocol: {text!r}",
                ) from error
            if response.status is RunStatus.SandboxError:
                raise _TransientFailure(
                    "sandbox_service",
                    f"could not run a program: {response.message[-LAST_WORDS_CHARS:]}",
                )
            ran = response.run_result
            if ran is None or remote.BEGUN not in (ran.stdout or ""):
                detail = (
                    f"{ran.status.value}, exit code {ran.return_code}: "
                    f"{(ran.stderr or '')[-LAST_WORDS_CHARS:]}"
                    if ran
                    else "no result"
                )
                raise self._failure("sandbox_service", f"did not begin a program ({detail})")
            return response
        text = " ".join(answer[:LAST_WORDS_CHARS].decode(errors="replace").split())
        if status in (408, 425, 429) or status >= 500:
            raise _TransientFailure("sandbox_service", f"HTTP {status}: {text}")
        if status == 413:
            raise self._failure(
                "sandbox_refused",
                "HTTP 413: the files of a program are too large for it, or for a proxy before it",
            )
        raise RunPaused(self._shown(f"HTTP {status} in place of an answer: {text}"))

    def _shown(self, text: str) -> str:
        return self._redaction.text(f"{self.shown}: {text}")

    def _failure(self, kind: str, text: str) -> InfrastructureFailure:
        return InfrastructureFailure(kind, self._shown(text))


class _Job:
    """A program with its files, as it travels; and what comes back of it. It reads and writes
    files: not for the event loop.

    Raises:
        OSError: The workspace cannot be read.
    """

    def __init__(self, program: Program, workspace: Path | None):
        self.program = program
        self.workspace = workspace
        self.files = dict(program.files)
        if workspace is not None:
            write_files(workspace, program.files)
            paths, entries, _ = remote.plain_files(os.fspath(workspace), MAX_WORKSPACE_FILES, OURS)
            if entries > MAX_WORKSPACE_FILES:
                raise OSError(
                    f"more than {MAX_WORKSPACE_FILES} files and folders, and no more travel to a "
                    "service"
                )
            self.files = read_files(workspace, paths, RETURNED_BYTES)
            if missing := sorted(paths - self.files.keys()):
                raise OSError(
                    f"{missing[0]} cannot be read, or all files have more than "
                    f"{RETURNED_BYTES >> 20} MB"
                )

    def body(self, source: str) -> bytes:
        """The request.

        Args:
            source: Of run_program.py and remote.py.
        """
        limits, program = self.program.limits, self.program
        settings = {
            "language": program.language,
            "merged": program.merged,
            "modules": program.modules,
            "seconds": limits.seconds,
            "cpu_seconds": limits.whole_cpu_seconds,
            "memory": limits.memory_mb << 20,
            "file": limits.file_mb << 20,
            "disk": limits.disk_mb << 20,
            "output": limits.output_mb << 20,
            "chars": limits.output_chars,
            "wanted": list(program.wanted),
            "sent": self._digests(),
            "entries": MAX_WORKSPACE_FILES,
            "returned": RETURNED_BYTES,
        }
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr(zipfile.ZipInfo("program"), program.source.encode(errors="replace"))
            archive.writestr(zipfile.ZipInfo("stdin"), program.stdin)
            for path, content in self.files.items():
                archive.writestr(zipfile.ZipInfo(f"workspace/{path}"), content)
        request = {
            "code": f"{source}\nmain(json.loads({json.dumps(settings)!r}))\n",
            "language": "python",
            "run_timeout": limits.seconds + STARTING_SECONDS,
            "memory_limit_MB": limits.memory_mb + OWN_MEMORY_MB,
            "files": {remote.PACKED: base64.b64encode(packed.getbuffer()).decode()},
            "fetch_files": [remote.RESULT, remote.CHANGED],
        }
        return json.dumps(request).encode()

    def _digests(self) -> dict[str, str] | None:
        """The files of a kept workspace, of which only what has changed comes back."""
        if self.workspace is None:
            return None
        return {path: hashlib.sha256(content).hexdigest() for path, content in self.files.items()}

    def completed(self, response: RunCodeResponse) -> ProgramResult:
        """Returns the result of the program; a kept workspace is brought up to date.

        Raises:
            OSError: The workspace cannot be written.
        """
        ran = response.run_result
        assert ran is not None
        status: Status = "killed"
        if remote.RESULT in response.files:
            try:
                left = self._left(response)
            except ValueError as error:
                reason = f"what it left cannot be taken: {str(error).splitlines()[0]}"
            else:
                return self._judged(*left)
        elif ran.status is CommandRunStatus.TimeLimitExceeded:
            status, reason = "time", excess("time", self.program.limits)
        else:
            detail = (ran.stderr or "").strip()[-LAST_WORDS_CHARS:]
            reason = f"its processes ended without a result (exit code {ran.return_code}) {detail}"
        return ProgramResult(status, None, "", "", ran.execution_time or 0.0, reason.rstrip())

    def _left(self, response: RunCodeResponse) -> tuple[_Result, dict[str, bytes]]:
        """Returns what a program has left: its result, and what has changed of its files.

        Raises:
            ValueError: The program has forged it: it cannot be read, or the workspace cannot become
                what it says.
        """
        left, archive = (
            base64.b64decode(response.files.get(name, ""), validate=True)
            for name in (remote.RESULT, remote.CHANGED)
        )
        result, changed = _Result.model_validate_json(left), _unpacked(archive)
        for path in (*changed, *result.gone):
            if problem := path_problem(path):
                raise ValueError(f"path {path[:200]!r} {problem}")
        if self.workspace is not None:
            files = self.files | changed
            paths = (self.files.keys() - result.gone) | changed.keys()
            size = sum(len(files[path]) for path in paths)
            if len(paths) + len(folders_of(paths)) > MAX_WORKSPACE_FILES or size > RETURNED_BYTES:
                raise ValueError("files that are too many or too large")
            if problem := tree_problem(paths):
                raise ValueError(problem)
        return result, changed

    def _judged(self, result: _Result, changed: Mapping[str, bytes]) -> ProgramResult:
        """Returns the result of the program by what it has left; a kept workspace is brought up to
        date."""
        limits = self.program.limits
        texts = [kept.text(limits.output_chars) for kept in result.streams]
        status, reason = judge(result.code, texts[-1])
        if result.stopped:
            status, reason = result.stopped, excess(result.stopped, limits)
        elif result.exceeded:
            status = "killed"
            reason = (
                f"it left more than {MAX_WORKSPACE_FILES} files and folders, or {limits.disk_mb} "
                f"MB of them on the disk, or {RETURNED_BYTES >> 20} MB to be sent; what it changed "
                "is lost"
            )
        files = {path: changed[path] for path in self.program.wanted if path in changed}
        if self.workspace is not None and not result.exceeded:
            remove_files(self.workspace, result.gone)
            write_files(self.workspace, changed)
            files = read_files(self.workspace, self.program.wanted, RETURNED_BYTES)
        names = result.names[: remote.MAX_FILE_NAMES]
        return ProgramResult(
            status,
            None if result.stopped or result.exceeded else result.code,
            texts[0],
            "".join(texts[1:]),
            min(result.seconds, limits.seconds + STARTING_SECONDS),
            reason,
            tuple(name for name in names if name.isprintable() and len(name) < 1000),
            files,
        )


def _unpacked(archive: bytes) -> dict[str, bytes]:
    """The files of an archive that a program may have made.

    Raises:
        ValueError: It is none, is compressed, or holds more than it is long.
    """
    if not archive:
        return {}
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            entries = packed.infolist()
            stored = all(
                entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size
                for entry in entries
            )
            if not stored or sum(entry.file_size for entry in entries) > len(archive):
                raise ValueError("an archive that is larger than it seems")
            return {entry.filename: packed.read(entry) for entry in entries}
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        OSError,
        OverflowError,
    ) as error:
        raise ValueError(f"not an archive: {error}") from error
