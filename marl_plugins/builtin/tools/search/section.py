"""The recipe's `tools: search:`."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic

from marl_plugins.core.section import Section


class SearchToolConfig(Section):
    """The documents of the `search` tool, and limits of one search."""

    EXAMPLE: ClassVar[str] = "{corpus: documents.jsonl}"

    kind: Literal["bm25", "dense", "http"] = "bm25"
    """How documents are found: by their words, by the angle between embeddings, or by a server."""
    corpus: str = ""
    """JSON Lines, each a document with `text` and perhaps `title`; or a Python file whose
    `documents()` gives such mappings. `--search.corpus FILE` replaces it."""
    index: Literal["all", "title", "text"] = "all"
    """What a query is compared with: title and text, or one of them."""
    embed: str = pydantic.Field("", examples=["embed.py:embed"])
    """With `kind: dense`: `FILE:FUNCTION`, from a list of texts to a vector for each. Documents are
    embedded when the run starts, queries as they come."""
    address: str = pydantic.Field("", examples=["http://127.0.0.1:8000/retrieve"])
    """With `kind: http`, in place of a corpus: the server."""
    seconds: float = pydantic.Field(10.0, gt=0)
    """With `kind: http`: for one request."""
    results: int = pydantic.Field(3, ge=1)
    """Most documents in an answer."""
    query_chars: int = pydantic.Field(300, ge=1)
    """A longer query is wrong."""
    document_chars: int = pydantic.Field(1000, ge=1)
    """A longer document keeps its head, and says so."""
    calls_per_answer: int = pydantic.Field(16, ge=1)
    """Most searches per answer. The last output counts the others."""

    def files(self) -> dict[str, str]:
        files = {"corpus": self.corpus, "embeddings of search": self.embed.rpartition(":")[0]}
        return {what: file for what, file in files.items() if file}
