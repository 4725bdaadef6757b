"""The recipe's `tools: search:`."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic

from marl_plugins.core.section import Section


class SearchToolConfig(Section):
    """The documents of the `search` tool, and limits of one search."""

    EXAMPLE: ClassVar[str] = "{corpus: documents.jsonl}"

    corpus: str = ""
    """JSON Lines, each a document with `text` and perhaps `title`; or a Python file whose
    `documents()` gives such mappings. `--search.corpus FILE` replaces it."""
    index: Literal["all", "title", "text"] = "all"
    """What a query is compared with: title and text, or one of them."""
    results: int = pydantic.Field(3, ge=1)
    """Most documents in an answer."""
    query_chars: int = pydantic.Field(300, ge=1)
    """A longer query is wrong."""
    document_chars: int = pydantic.Field(1000, ge=1)
    """A longer document keeps its head, and says so."""
    calls_per_answer: int = pydantic.Field(16, ge=1)
    """Most searches per answer. The last output counts the others."""

    def files(self) -> dict[str, str]:
        return {"corpus": self.corpus} if self.corpus else {}
