"""Documents by the angle between their embedding and a query's, over all of them: exact, and quick
enough for a million documents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from marl_plugins.builtin.tools.search.corpus import Document
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at

if TYPE_CHECKING:
    from numpy import ndarray

Embed = Callable[[list[str]], Any]
"""Texts to a vector each, as anything that numpy takes."""
AT_A_TIME = 256


class DenseIndex:
    """A corpus by its embeddings, of length 1 each.

    Args:
        embed: Is called by one thread at a time.
        part: What of the documents is embedded: `title`, `text` or `all`.

    Raises:
        ConfigurationError: It does not give a vector of finite numbers for each text.
    """

    def __init__(self, documents: Sequence[Document], embed: Embed, part: str = "all"):
        import numpy as np

        self.documents = documents
        self._embed, self._lock = embed, threading.Lock()
        texts = [document.indexed(part) for document in documents]
        parts = [
            self._vectors(texts[start : start + AT_A_TIME])
            for start in range(0, len(texts), AT_A_TIME)
        ]
        self._vectors_of_all = np.concatenate(parts)

    def _vectors(self, texts: list[str]) -> ndarray[Any, Any]:
        import numpy as np

        with self._lock:
            answer = self._embed(texts)
        try:
            vectors: ndarray[Any, Any] = np.asarray(answer, dtype=np.float32)
        except (TypeError, ValueError):
            vectors = np.zeros(0)
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            got = f"an array of shape {vectors.shape} for {len(texts)} texts"
            expected = "a vector of finite numbers for each"
            raise ConfigurationError(
                Problem("search.embeddings", at(key="tools.search.embed"), got, expected)
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: ndarray[Any, Any] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
        return unit

    def best(self, query: str, most: int) -> list[Document]:
        """Returns the documents nearest to a query, at most so many, the nearest first; of equal
        ones in the order of the corpus."""
        import numpy as np

        scores = self._vectors_of_all @ self._vectors([query])[0]
        order = np.argsort(-scores, kind="stable")[:most]
        return [self.documents[number] for number in order]
