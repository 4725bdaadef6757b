"""A program that a service is sent (fusion.py): it runs one program there, and leaves the result in
two files.

    a request   run_program.py and this file as a program of Python's, and PACKED: the program, its
                standard input and its workspace
    there       a child confines itself to its limits and is the program; this process reads what it
                writes and stops it
    the answer  RESULT, and CHANGED: files that were asked for, or that the program has made or
    changed

The protocol of SandboxFusion knows neither the order of two streams nor which files a program has
made, and its server reads what a program writes only when that has ended. Standard library of
Python 3.8 only: it runs wherever the service runs Python.
"""

import base64
import contextlib
import hashlib
import json
import os
import selectors
import signal
import stat
import sys
import time
import zipfile
from collections.abc import Sequence
from typing import Any, BinaryIO

if __package__:  # else run_program.py stands before this file
    from marl_plugins.sandbox.run_program import (
        BASH,
        EXIT_GRACE_SECONDS,
        PROGRAM_FILE,
        limit_each,
        run_program,
    )

PACKED, RESULT, CHANGED = "marl-packed.zip", "marl-result.json", "marl-changed.zip"
BEGUN = "marl: begun"
"""Written by the child just before it is the program. Without it nothing of the program has run."""
CHUNK_BYTES = 1 << 16
LOOK_SECONDS = 0.01
"""Seconds between two looks at whether the program has ended."""
INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "TZ")
"""What programs get of the service's environment."""
MAX_FILE_NAMES = 50


class HeadAndTail:
    """Keeps the first and the last part of a stream of bytes: tracebacks end at the tail."""

    def __init__(self, limit: int):
        self.limit = limit
        self.head = b""
        self.tail = b""
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        half = self.limit // 2
        room = half - len(self.head)
        self.head += chunk[:room]
        tail = self.tail + chunk[room:]
        self.tail = tail[max(0, len(tail) - (self.limit - half)) :]

    @property
    def left_out(self) -> int:
        """Returns how many bytes between the two parts are lost."""
        return self.total - len(self.head) - len(self.tail)

    def text(self) -> str:
        middle = (
            f"\n[... {self.left_out} bytes left out ...]\n".encode() if self.left_out > 0 else b""
        )
        return (self.head + middle + self.tail).decode(errors="replace")


def main(settings: dict[str, Any]) -> None:
    """Runs the program.

    Args:
        settings: `language`; `merged`; `modules`; `seconds`, `cpu_seconds`; `memory`, `file`,
            `disk`, `output` in bytes; `chars`; `wanted`, paths; `sent`, the SHA-256 of each file of
            a kept workspace by its path, or null for a fresh one; `entries` and `returned`, the
            maximum number of files and of bytes that are returned.
    """
    here, sys.dont_write_bytecode = os.getcwd(), True
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    with zipfile.ZipFile(PACKED) as packed:
        packed.extractall(here)
    os.unlink(PACKED)
    os.makedirs("workspace", exist_ok=True)
    begun, beginning = os.pipe()
    pipes = [os.pipe() for _ in range(1 if settings["merged"] else 2)]
    pid = os.fork()
    if pid == 0:
        become(settings, [writing for _, writing in pipes])
        return
    for writing in (beginning, *(writing for _, writing in pipes)):
        os.close(writing)
    os.read(begun, 1)  # closed by the child, which has begun or ended
    kept = {reading: HeadAndTail(settings["chars"]) for reading, _ in pipes}
    result = watch(pid, kept, settings)
    result["streams"] = [
        {"head": text_of(stream.head), "tail": text_of(stream.tail), "total": stream.total}
        for stream in kept.values()
    ]
    result.update(pack(settings))
    save(RESULT, json.dumps(result).encode())


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def save(name: str, content: bytes) -> None:
    """Writes a file, never through a link that the program may have left."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)
    with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
        file.write(content)


def watch(pid: int, kept: dict[int, HeadAndTail], settings: dict[str, Any]) -> dict[str, Any]:
    """Watches the program until it has ended, and returns its exit code, how long it took, and why
    it was stopped: `time`, `output`, or not.

    Args:
        kept: What it writes, by the descriptor on which that is read.
    """
    started = time.monotonic()
    until, seconds, stopped = started + settings["seconds"], 0.0, ""
    with selectors.DefaultSelector() as selector:
        for descriptor in kept:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while not stopped and (selector.get_map() or not seconds):
            for key, _ in selector.select(LOOK_SECONDS):
                if not read(key.fd, kept):
                    selector.unregister(key.fd)
            now = time.monotonic()
            if not seconds and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                seconds, until = now - started, now + EXIT_GRACE_SECONDS
            if sum(stream.total for stream in kept.values()) > settings["output"]:
                stopped = "output"
            elif now >= until:
                if seconds:
                    break
                stopped = "time"
    try:
        os.killpg(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    except PermissionError:  # Landlock before Linux 6.12: the service ends what is left
        status = os.waitpid(pid, os.WNOHANG)[1]
    for descriptor in kept:
        for _ in range(16):  # a pipe holds at most 1 MB
            read(descriptor, kept)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    return {
        "stopped": stopped,
        "code": None if stopped else code,
        "seconds": seconds or time.monotonic() - started,
    }


def read(descriptor: int, kept: dict[int, HeadAndTail]) -> bool:
    """Takes what there is, and returns whether more may come."""
    try:
        chunk = os.read(descriptor, CHUNK_BYTES)
    except BlockingIOError:
        return True
    kept[descriptor].add(chunk)
    return bool(chunk)


def become(settings: dict[str, Any], streams: list[int]) -> None:
    """Becomes the program in the child, to its end."""
    os.setsid()
    if settings["language"] == "bash" and not os.access(BASH, os.X_OK):
        raise FileNotFoundError(f"no {BASH}")
    source = os.open("program", os.O_RDONLY)
    os.dup2(os.open("stdin", os.O_RDONLY), 0)
    os.chdir("workspace")
    folder = os.getcwd()
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    os.environ.clear()
    os.environ.update(inherited, HOME=folder, TMPDIR=folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    limit_each(settings["memory"], settings["cpu_seconds"], settings["file"])
    sys.argv = [PROGRAM_FILE]
    os.write(1, f"{BEGUN}\n".encode())
    os.dup2(streams[0], 1)
    os.dup2(streams[-1], 2)
    run_program(settings["language"], source, settings["modules"])


def pack(settings: dict[str, Any]) -> dict[str, Any]:
    """Saves what is to be returned of the workspace, and what has to be known of it."""
    paths, entries, size = plain_files("workspace", settings["entries"])
    names: list[bytes] = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(b"workspace"))[:MAX_FILE_NAMES]
    about: dict[str, Any] = {
        "names": [printable(name) for name in names],
        "gone": [],
        "exceeded": entries > settings["entries"] or size > settings["disk"],
    }
    if about["exceeded"]:
        return about
    sent, room = settings["sent"], settings["returned"]
    with zipfile.ZipFile(CHANGED + "~", "w") as packed:
        for path in sorted(paths if sent is not None else paths.intersection(settings["wanted"])):
            try:
                opened = os.open(f"workspace/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:  # it may not be read
                continue
            with open(opened, "rb") as file:
                size = os.fstat(opened).st_size
                if size > room and sent is not None:
                    return {**about, "exceeded": True}
                if size > room or not stat.S_ISREG(os.fstat(opened).st_mode):
                    continue
                if sent is not None and sent.get(path) == digest(file):
                    room -= size  # it stays where it is, and is sent to the next program
                    continue
                room -= add(packed, path, file, size)
    os.replace(CHANGED + "~", CHANGED)
    return {**about, "gone": sorted(sent.keys() - paths) if sent is not None else []}


def digest(file: BinaryIO) -> str:
    """Returns the SHA-256 of a file."""
    hasher = hashlib.sha256()
    for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
        hasher.update(chunk)
    file.seek(0)
    return hasher.hexdigest()


def add(packed: zipfile.ZipFile, path: str, file: BinaryIO, size: int) -> int:
    """Adds a file to an archive, at most so many bytes of it, for the program may have left
    something that writes it, and returns how many."""
    left = size
    with packed.open(zipfile.ZipInfo(path), "w") as target:
        while left > 0 and (chunk := file.read(min(CHUNK_BYTES, left))):
            target.write(chunk)
            left -= len(chunk)
    return size - left


def plain_files(folder: str, most: int, ours: Sequence[int] = ()) -> tuple[set[str], int, int]:
    """Returns the plain files below a folder, without following links; how many entries there are,
    counted up to `most`, and their bytes. What cannot be shown, or lies too deep for a path, is
    none of them.

    Raises:
        OSError: One of `ours`: errors that no program is to blame for.
    """
    paths: set[str] = set()
    entries = size = 0
    waiting = [""]
    while waiting and entries <= most:
        above = waiting.pop()
        try:
            with os.scandir(f"{folder}/{above}") as listed:
                for entry in listed:
                    path = f"{above}{entry.name}"
                    entries, size = (
                        entries + 1,
                        size + entry.stat(follow_symlinks=False).st_blocks * 512,
                    )
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{path}/")
                    elif entry.is_file(follow_symlinks=False) and path.isprintable():
                        paths.add(path)
                    if entries > most:
                        break
        except OSError as error:  # closed by the program, or too deep
            if error.errno in ours:
                raise
    return paths, entries, size


def printable(name: bytes) -> str:
    """Returns a file's name as text that can be shown and encoded."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
