"""Judgements that are kept, so that none is paid for twice; and the same question at the same time,
asked once."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Generic, TypeVar

from marl_plugins.asking.reading import UNREADABLE
from marl_plugins.asking.request import Judgement, JudgementLayer, RequestTally
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused
from marl_plugins.core.problems import Problem
from marl_plugins.core.redaction import Redaction


@dataclass
class _PendingJudgement:
    """A judgement that is being asked for, and how many wait for it."""

    task: asyncio.Task[Judgement]
    waiting: int = 0


R = TypeVar("R")


class Cache(Generic[R]):
    """Answers from what is kept, joins what is being asked for, and asks for the rest.

    Args:
        inner: Asked for judgements that are not kept.
        kept: Judgements of earlier runs, and the files that they are added to.
        key: Names a question by all that its answer depends on.
        redaction: Of judgements that others have kept.
    """

    def __init__(
        self,
        inner: JudgementLayer[R],
        kept: KeptAnswers,
        key: Callable[[R], str],
        tally: RequestTally,
        redaction: Redaction,
    ):
        self.inner = inner
        self.kept = kept
        self.key = key
        self.tally = tally
        self.redaction = redaction
        self.pending: dict[str, _PendingJudgement] = {}

    async def judge(self, request: R) -> Judgement:
        """Returns the judgement, kept or fresh; one that nobody waits for any more is cancelled."""
        key = self.key(request)
        known = self.kept.get(key)
        if known is not None:
            self.tally.counts["cached"] += 1
            return {name: self.redaction.values(value) for name, value in known.items()}
        if self.kept.replay:
            raise InfrastructureFailure("coach_replay", "the recorded answers hold none for this")
        shared = self.pending.get(key)
        if shared is None:
            shared = self.pending[key] = _PendingJudgement(
                asyncio.create_task(self._ask(key, request))
            )
            shared.task.add_done_callback(functools.partial(self._finished, key, shared))
        else:
            self.tally.counts["cached"] += 1
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                self._forget(key, shared)  # at once: whoever asks next asks anew
                shared.task.cancel()

    async def _ask(self, key: str, request: R) -> Judgement:
        judgement = await self.inner.judge(request)
        self.kept.put(key, judgement)
        return judgement

    def _forget(self, key: str, shared: _PendingJudgement) -> None:
        if self.pending.get(key) is shared:
            del self.pending[key]

    def _finished(self, key: str, shared: _PendingJudgement, task: asyncio.Task[Judgement]) -> None:
        self._forget(key, shared)
        if not task.cancelled():
            task.exception()  # whoever still waits raises it

    async def close(self) -> None:
        """Cancels what is being asked for, and closes the files."""
        tasks = [shared.task for shared in self.pending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.kept.close()


class KeptAnswers:
    """Judgements by key, kept in files of one JSON object per line; a half-written line is skipped.

    Args:
        prefix: Of the flags that messages name.
        read: File to answer from; may be missing.
        write: Files to add to; the one that is read may be among them.
        replay: Whether to answer from the file alone, without asking anybody.
    """

    def __init__(
        self,
        prefix: str,
        read: Path | None = None,
        write: Sequence[Path] = (),
        replay: bool = False,
    ):
        self.prefix = prefix
        self.read = read
        self.write = tuple(write)
        self.replay = replay
        self.known: dict[str, Judgement] = {}
        self.files: list[tuple[IO[str], set[str]]] = []

    def load(self) -> None:
        """Reads what the file holds.

        Raises:
            ConfigurationError: It cannot be read.
        """
        try:
            self.known = (
                _judgements_in(self.read) if self.read is not None and self.read.exists() else {}
            )
        except OSError as error:
            raise self._unusable(error) from None

    def open(self) -> None:
        """Reads what the file holds, and opens those that are added to.

        Raises:
            ConfigurationError: A file cannot be read or written.
        """
        if self.files:  # several ask through one
            return
        self.load()
        try:
            for path in self.write:
                path.parent.mkdir(parents=True, exist_ok=True)
                held = set(_judgements_in(path)) if path.exists() else set()
                file = path.open("a", encoding="utf-8")
                self.files.append((file, held))
                if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
                    file.write("\n")
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            Problem(
                "asking.answers_file",
                got=f"{self.prefix} answers in {error.filename}: {error.strerror}",
            )
        )

    def close(self) -> None:
        for file, _ in self.files:
            file.close()
        self.files = []

    def get(self, key: str) -> Judgement | None:
        judgement = self.known.get(key)
        if judgement is not None:
            self._append(key, judgement)
        return judgement

    def put(self, key: str, judgement: Judgement) -> None:
        # otherwise nothing is kept; what is asked twice at the same time is asked once anyway
        if self.files:
            self.known[key] = judgement
            self._append(key, judgement)

    def _append(self, key: str, judgement: Judgement) -> None:
        for file, held in self.files:
            if key not in held:
                held.add(key)
                try:
                    file.write(json.dumps({"key": key, "judgement": judgement}) + "\n")
                    file.flush()
                except OSError as error:
                    raise RunPaused(
                        f"{self.prefix} answers cannot be kept in {file.name}: {error.strerror}"
                    ) from None


def _judgements_in(path: Path) -> dict[str, Judgement]:
    """The judgements of a file, by key."""
    known = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line)
            known[str(record["key"])] = dict(record["judgement"])
        except UNREADABLE:
            continue
    return known
