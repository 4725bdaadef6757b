"""What a run spends on judgements, and the judgements it keeps so that none is paid for twice."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError


@dataclass
class Budget:
    """What may be spent in a run, its resumed and its killed parts included.

    Args:
        tokens: Of prompts and answers together; None for no limit.
        dollars: None for no limit.
        price: Dollars per million tokens of prompts and of answers.
    """

    tokens: int | None = None
    dollars: float | None = None
    price: tuple[float, float] = (0.0, 0.0)
    spent_in: int = 0
    spent_out: int = 0
    file: Path | None = None

    @property
    def limited(self) -> bool:
        return self.tokens is not None or self.dollars is not None

    @property
    def cost(self) -> float:
        return (self.spent_in * self.price[0] + self.spent_out * self.price[1]) / 1e6

    def spent(self) -> str | None:
        """What is used up, in words, or None. Requests in flight may still go over it."""
        if self.tokens is not None and self.spent_in + self.spent_out >= self.tokens:
            return f"{self.spent_in + self.spent_out} tokens of --coach.budget_tokens {self.tokens}"
        if self.dollars is not None and self.cost >= self.dollars:
            return f"${self.cost:.2f} of --coach.budget {self.dollars:g}"
        return None

    def open(self, file: Path, resumed: bool) -> None:
        """Keep the account in a file, that of the run that is resumed.

        Raises:
            ConfigurationError: The file cannot be read.
        """
        self.file = file
        if resumed and file.exists():
            try:
                kept = json.loads(file.read_text(encoding="utf-8"))
                self.spent_in, self.spent_out = int(kept["tokens_in"]), int(kept["tokens_out"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ConfigurationError(f"{file}: the coach's account cannot be read: {error}") from None

    def add(self, tokens_in: int, tokens_out: int) -> None:
        self.spent_in += tokens_in
        self.spent_out += tokens_out
        if self.file is not None:
            fresh = self.file.with_suffix(".new")
            fresh.write_text(json.dumps({"tokens_in": self.spent_in, "tokens_out": self.spent_out}), encoding="utf-8")
            os.replace(fresh, self.file)


class Answers:
    """Judgements by key, kept in files of one JSON object per line; a half-written last line is passed over.

    Args:
        read: File to answer from; may be missing.
        write: Files to add to; the one that is read may be among them.

    Raises:
        ConfigurationError: A file cannot be read or written.
    """

    def __init__(self, read: Path | None = None, write: Sequence[Path] = ()):
        self.files: list[tuple[Any, set[str]]] = []
        try:
            self.known = _load(read) if read is not None and read.exists() else {}
            for path in write:
                path.parent.mkdir(parents=True, exist_ok=True)
                held = set(_load(path)) if path.exists() else set()
                file = path.open("a", encoding="utf-8")
                if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
                    file.write("\n")
                self.files.append((file, held))
        except OSError as error:
            raise ConfigurationError(f"coach answers in {error.filename}: {error.strerror}") from None

    def get(self, key: str) -> dict[str, Any] | None:
        judgement = self.known.get(key)
        if judgement is not None:
            self._write(key, judgement)
        return judgement

    def put(self, key: str, judgement: dict[str, Any]) -> None:
        if self.files:  # else nothing is kept; what is asked twice at a time is asked once anyway
            self.known[key] = judgement
            self._write(key, judgement)

    def _write(self, key: str, judgement: dict[str, Any]) -> None:
        for file, held in self.files:
            if key not in held:
                held.add(key)
                file.write(json.dumps({"key": key, "judgement": judgement}) + "\n")
                file.flush()


def _load(path: Path) -> dict[str, dict[str, Any]]:
    known = {}
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line)
            known[record["key"]] = dict(record["judgement"])
        except (ValueError, TypeError, KeyError):
            continue
    return known
