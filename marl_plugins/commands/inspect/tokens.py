"""The texts of token ids, by policy, from what a run leaves: its own small copy, or a trained
policy's saved tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_plugins.engine.records.tokenizers import recorded_tokenizer


class TokenTexts:
    """Texts of single tokens.

    A byte-level token may be a part of a character: its text is then U+FFFD, and the action's text
    says what it was.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.reason = ""
        """Why there are no texts; empty where there are."""
        self._tokenizers: dict[str, Any] = {}
        self._texts: dict[tuple[str, int], str] = {}

    def of(self, policy: str, ids: Sequence[int]) -> list[str] | None:
        """Returns the texts of a policy's ids; None where its tokenizer is not known."""
        tokenizer = self._tokenizer(policy)
        if tokenizer is None:
            return None
        for token in ids:
            if (policy, token) not in self._texts:
                self._texts[policy, token] = tokenizer.decode([token], skip_special_tokens=False)
        return [self._texts[policy, token] for token in ids]

    def _tokenizer(self, policy: str) -> Any:
        if policy not in self._tokenizers:
            self._tokenizers[policy] = self._load(policy)
        return self._tokenizers[policy]

    def _load(self, policy: str) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            self.reason = "texts of tokens need the package tokenizers"
            return None
        text = recorded_tokenizer(self.folder, policy)
        if text is None:
            self.reason = f"the run has left no tokenizer of policy {policy}"
            return None
        try:
            return Tokenizer.from_str(text)
        except Exception as error:  # the package raises its own bare kind
            self.reason = f"the tokenizer of policy {policy} cannot be read: {error}"
            return None
