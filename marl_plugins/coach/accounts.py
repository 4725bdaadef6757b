"""What a run spends on judgements, and the judgements it keeps so that none is paid for twice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError


@dataclass
class Budget:
    """What may be spent in a run, its resumed parts included.

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


class Answers:
    """Judgements by key, kept in a file of one JSON object per line; a half-written last line is passed over.

    Args:
        read: File to answer from; may be missing.
        write: File to add to; may be the same.

    Raises:
        ConfigurationError: A file cannot be read or written.
    """

    def __init__(self, read: Path | None = None, write: Path | None = None):
        self.known: dict[str, dict[str, Any]] = {}
        self.file: Any = None
        self.written: set[str] = set()
        try:
            if read is not None and read.exists():
                self.known = self._load(read)
            if write is not None:
                write.parent.mkdir(parents=True, exist_ok=True)
                self.written = set(self.known if write == read else self._load(write) if write.exists() else ())
                self.file = write.open("a", encoding="utf-8")
                if write.stat().st_size and not write.read_bytes().endswith(b"\n"):
                    self.file.write("\n")
        except OSError as error:
            raise ConfigurationError(f"coach answers in {error.filename}: {error.strerror}") from None

    @staticmethod
    def _load(path: Path) -> dict[str, dict[str, Any]]:
        known = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
                known[record["key"]] = dict(record["judgement"])
            except (ValueError, TypeError, KeyError):
                continue
        return known

    def get(self, key: str) -> dict[str, Any] | None:
        judgement = self.known.get(key)
        if judgement is not None:
            self._write(key, judgement)
        return judgement

    def put(self, key: str, judgement: dict[str, Any]) -> None:
        self.known[key] = judgement
        self._write(key, judgement)

    def _write(self, key: str, judgement: dict[str, Any]) -> None:
        if self.file is not None and key not in self.written:
            self.written.add(key)
            self.file.write(json.dumps({"key": key, "judgement": judgement}, ensure_ascii=False) + "\n")
            self.file.flush()
