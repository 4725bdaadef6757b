"""A folder of records that peers share: a local folder, a network share, an object store, or
memory, by any fsspec address.

    ROUND/PEER-RUN-KEY.json.gz      one task's trajectories of one peer; written once, by its peer
                                    alone
    answers/PEER-RUN-KEY.json.gz    answers of people and of other services, which belong to no
                                    round

Rounds are the store's time, and nobody's clock: a peer writes in the newest round that there is, or
in the one after its own last, whichever is later (Lamport 1978). So who joins or lags is in the
swarm's present at once, and what those have left who are gone grows old as the others go on.

There is no server and no lock. A name appears only when its content is complete: a local file is
written under another name in the *same* folder and renamed, an object is put at once. Readers
validate what they read, and unpickle nothing.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from marl_plugins import Problem, at, replace_bytes

MOST_RECORD_BYTES = 4 << 20
"""Bytes of a record as it is stored; larger ones are neither written nor read."""
MOST_UNPACKED_BYTES = 16 << 20
PEER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]{0,63}")
ANSWERS = "answers"
"""The folder of records that belong to no round."""
NAME = re.compile(
    rf"(?:(\d{{6,12}})|{ANSWERS})/({PEER.pattern})-([0-9a-f]{{8}})-([0-9a-f]{{16}})\.json\.gz"
)
MOST_ROUND = 999_999_999
"""Rounds after this one move nobody but who writes them: a peer that names a far future makes
others jump, once, and takes the rounds after it from nobody."""


@dataclass(frozen=True, order=True)
class RecordName:
    """The name of a record.

    Args:
        round: Of the store, in which it was written; None: it belongs to none.
        peer, run: Who wrote it, in which run.
        key: Digest of the task's id.
    """

    round: int | None
    peer: str
    run: str
    key: str

    @classmethod
    def of(cls, path: str) -> RecordName | None:
        """Returns the name of a file of the store; None where it is no record's."""
        if (match := NAME.fullmatch(path)) is None:
            return None
        folder, *others = match.groups()
        return cls(int(folder) if folder else None, *others)

    @property
    def path(self) -> str:
        """The place in the store, and the name in a journal."""
        folder = ANSWERS if self.round is None else f"{self.round:06d}"
        return f"{folder}/{self.peer}-{self.run}-{self.key}.json.gz"

    @property
    def origin(self) -> str:
        """The name of its trajectories' maker (`Trajectory.origin`)."""
        return f"{self.peer}-{self.run}" + ("" if self.round is None else f" round {self.round}")


def wrong_peer(peer: str, flag: str) -> list[Problem]:
    """Returns what is wrong with a peer's name, which a flag gave."""
    expected = "letters, digits, dots and underscores, 64 at most, the first a letter or a digit"
    return (
        [] if PEER.fullmatch(peer) else [Problem("swarm.peer", at(flag=flag), repr(peer), expected)]
    )


@contextmanager
def reaching() -> Iterator[None]:
    """A store that is away is an `OSError`, whatever the library of its protocol raises."""
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class RecordStore:
    """The records under an address.

    Args:
        address: As fsspec has it: a path, `s3://bucket/folder`, `memory://name`.

    Raises:
        ValueError: There is no such protocol.
        ImportError: The package for the protocol is not installed; fsspec names it.
    """

    def __init__(self, address: str):
        opened = fsspec.core.url_to_fs(address)
        self.files: Any = opened[0]
        self.root = str(opened[1]).rstrip("/")

    @reaching()
    def put(self, name: RecordName, content: bytes) -> bool:
        """Writes a record that is not there yet; returns whether it was written.

        Raises:
            OSError: It cannot be written.
            ValueError: It is larger than `MOST_RECORD_BYTES`.
        """
        if len(content) > MOST_RECORD_BYTES:
            raise ValueError(
                f"{name.path} has {len(content)} bytes, of at most {MOST_RECORD_BYTES}"
            )
        place = f"{self.root}/{name.path}"
        if self.files.exists(place):
            return False
        self.files.makedirs(place.rpartition("/")[0], exist_ok=True)
        if isinstance(self.files, LocalFileSystem):
            replace_bytes(Path(place), content)
        else:
            self.files.pipe_file(place, content)
        return True

    @reaching()
    def get(self, name: RecordName) -> bytes:
        """Returns the unpacked content of a record.

        Raises:
            OSError: It cannot be read.
            ValueError: It is too large, packed or unpacked, or no gzip.
        """
        place = f"{self.root}/{name.path}"
        if (size := int(self.files.size(place) or 0)) > MOST_RECORD_BYTES:
            raise ValueError(f"{size} bytes, of at most {MOST_RECORD_BYTES}")
        unpacker = zlib.decompressobj(wbits=31)
        try:
            content = unpacker.decompress(self.files.cat_file(place), MOST_UNPACKED_BYTES)
        except zlib.error as error:
            raise ValueError(f"it is no gzip: {error}") from None
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError(
                f"it is cut off, or has more than {MOST_UNPACKED_BYTES} bytes unpacked"
            )
        return content

    @reaching()
    def names(self, rounds: range | None = None) -> list[RecordName]:
        """Returns the names of the records of some rounds, and of those of no round, sorted; what
        has another name is no record.

        Args:
            rounds: Default: all.

        Raises:
            OSError: The store cannot be read.
        """
        self.files.invalidate_cache()
        names = []
        for folder in self._folders():
            if folder == ANSWERS or rounds is None or int(folder) in rounds:
                names += [RecordName.of(f"{folder}/{file}") for file in self._listed(folder)]
        return sorted(filter(None, names), key=lambda name: name.path)

    @reaching()
    def newest(self) -> int:
        """Returns the newest round that anything lies in; 0 if there is none.

        Raises:
            OSError: The store cannot be read.
        """
        self.files.invalidate_cache()
        rounds = (int(folder) for folder in self._folders() if folder != ANSWERS)
        return max((each for each in rounds if each <= MOST_ROUND), default=0)

    @reaching()
    def remove(self, names: Iterable[RecordName]) -> None:
        """Removes records, if they are there; their peer alone may.

        Raises:
            OSError: One cannot be removed.
        """
        for name in names:
            if self.files.exists(place := f"{self.root}/{name.path}"):
                self.files.rm_file(place)

    def _folders(self) -> list[str]:
        return [
            name for name in self._listed("") if name == ANSWERS or re.fullmatch(r"\d{6,12}", name)
        ]

    def _listed(self, folder: str) -> list[str]:
        place = f"{self.root}/{folder}".rstrip("/")
        try:
            return [
                str(path).rstrip("/").rpartition("/")[2]
                for path in self.files.ls(place, detail=False)
            ]
        except FileNotFoundError:
            return []
