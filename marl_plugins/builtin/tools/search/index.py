"""The `search` tool. By default it is BM25 over a corpus, by bm25s
(https://github.com/xhluca/bm25s; Lucene's form, k1 1.5, b 0.75).

    <search>capital of France</search>

The index is built once per run, before anything is sampled, and shared by all trajectories. Words
are runs of letters, digits and underscores, in lower case; nothing is stemmed, and no word is left
out. Documents of equal score come in the order of the corpus, so that a run repeats. A query of
which no document has a word finds nothing (`ok` false), and that is no fault of the tool.
`kind: dense` and `kind: http` are in dense.py and server.py.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_plugins.builtin.tools.search.corpus import Document, read_corpus
from marl_plugins.builtin.tools.search.dense import DenseIndex, Embed
from marl_plugins.builtin.tools.search.section import SearchToolConfig
from marl_plugins.core.tools import Tool, ToolCall, function_of_text
from marl_plugins.core.trajectory import ToolResult

CALL = re.compile(r"<search>(.*?)</search>", re.DOTALL)
"""A query is what the tag encloses."""
WORD = r"(?u)\b\w+\b"
NOTHING = "nothing was found"
FUNCTION = function_of_text(
    "search",
    "Returns the documents that fit a query best.",
    "query",
    "Words that the document has.",
)
"""For roles with `calls:`."""


class SearchIndex:
    """A corpus by its words.

    Args:
        part: What of the documents is indexed: `title`, `text` or `all`.
    """

    def __init__(self, documents: Sequence[Document], part: str):
        import bm25s

        self.documents = documents
        words = bm25s.tokenize(
            [document.indexed(part) for document in documents],
            token_pattern=WORD,
            stopwords=[],
            show_progress=False,
        )
        self._scores = bm25s.BM25()
        self._scores.index(words, show_progress=False)
        self._known = words.vocab

    def best(self, query: str, most: int) -> list[Document]:
        """Returns the documents of the highest scores above 0, at most so many, the best first."""
        import numpy as np

        words = [word for word in re.findall(WORD, query.lower()) if word in self._known]
        if not words:
            return []
        scores = self._scores.get_scores(words)
        least = np.partition(scores, -most)[-most] if most < len(scores) else 0.0
        candidates = np.flatnonzero((scores >= least) & (scores > 0))
        order = np.argsort(-scores[candidates], kind="stable")[:most]
        return [self.documents[number] for number in candidates[order]]


class SharedIndex:
    """The one index of a run, built when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._built: SearchIndex | DenseIndex | None = None

    def of(self, corpus: Path, part: str, embed: Embed | None = None) -> SearchIndex | DenseIndex:
        """Returns the index of the run's corpus; by its words where nothing embeds.

        Raises:
            ConfigurationError: All that is wrong with the corpus, or with its embeddings.
        """
        with self._lock:
            if self._built is None:
                documents = read_corpus(corpus, part)
                if embed is None:
                    self._built = SearchIndex(documents, part)
                else:
                    self._built = DenseIndex(documents, embed, part)
            return self._built


def search_tool(
    config: SearchToolConfig,
    corpus: Path | None,
    shared: SharedIndex,
    embed: Embed | None = None,
) -> Tool:
    """Returns the tool on one corpus, or on a server where there is none."""

    async def found(query: str) -> list[Document]:
        if corpus is None:
            from marl_plugins.builtin.tools.search.server import found_by_server

            return await found_by_server(config, query)

        def best() -> list[Document]:
            return shared.of(corpus, config.index, embed).best(query, config.results)

        return await asyncio.to_thread(best)

    async def run(call: ToolCall) -> ToolResult:
        query = call.text.strip()
        if len(query) > config.query_chars:
            output = f"the query has {len(query)} characters; write at most {config.query_chars}"
            return ToolResult("search", call.text, output, ok=False)
        documents = await found(query)
        output = "\n".join(document.shown(config.document_chars) for document in documents)
        return ToolResult("search", call.text, output or NOTHING, bool(documents))

    settings: dict[str, Any] = config.model_dump(mode="json")
    return Tool(
        "search",
        run,
        CALL.findall,
        calls_per_answer=config.calls_per_answer,
        settings=settings,
        functions=(FUNCTION,),
    )
