"""Documents that agents search, from a JSON Lines file or a Python file that makes them, with all
that is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from marl_plugins.asking.reading import UNREADABLE
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.core.problems import Problem, at, first_of

FIX = '{"title": "Ulm", "text": "Ulm is a town on the Danube."}'


@dataclass(frozen=True, slots=True)
class Document:
    """A document.

    Args:
        text: Not empty.
        title: May be empty.
    """

    text: str
    title: str = ""

    def indexed(self, part: str) -> str:
        """Returns what queries are compared with: `title`, `text`, or both (`all`)."""
        return {"title": self.title, "text": self.text}.get(
            part
        ) or f"{self.title}\n{self.text}".strip()

    def shown(self, chars: int) -> str:
        """Returns the text, after the title unless it begins with that; of a long one the head, and
        that there is more."""
        whole = (
            self.text
            if not self.title or self.text.startswith(self.title)
            else f"{self.title}: {self.text}"
        )
        return (
            whole
            if len(whole) <= chars
            else f"{whole[:chars]} (more: at most {chars} characters are shown)"
        )


def read_corpus(path: Path, part: str, limit: int | None = None) -> list[Document]:
    """Returns the documents of a corpus, in its order.

    Args:
        path: A `.jsonl` file, or a `.py` file with `documents()`.
        part: What of them is indexed, which none may lack.
        limit: The number of documents that are read.

    Raises:
        ConfigurationError: With every document that is none, by file and line (or by its number,
            from 1).
    """
    problems: list[Problem] = []
    documents = []
    for place, item in islice(_items(path, problems), limit):
        document = _document(place, item, part, problems)
        if document is not None:
            documents.append(document)
    if not (documents or problems):
        problems.append(
            Problem("search.no_documents", at(file=path), "no documents in it", fix=FIX)
        )
    if problems:
        raise ConfigurationError(first_of(problems, path))
    return documents


def _items(path: Path, problems: list[Problem]) -> Iterator[tuple[str, Any]]:
    """Yields what should be documents, with their places."""
    if path.suffix == ".py":
        made = getattr(load_file(path), "documents", None)
        listed = made() if callable(made) else None
        if isinstance(listed, Iterable):
            yield from (
                (f"{path}: document {number}", item) for number, item in enumerate(listed, 1)
            )
        else:
            got = "has no function documents() that gives a list"
            problems.append(Problem("search.no_function", at(file=path), got, fix=FIX))
        return
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield f"{path}:{number}", json.loads(line)
                except (ValueError, RecursionError) as error:
                    where, got = at(line=f"{path}:{number}"), f"is not JSON: {error}"
                    problems.append(Problem("search.line", where, got, fix=f"a line such as {FIX}"))
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem("search.corpus", at(file=path), f"cannot be read: {error}"))


def document_of(item: Mapping[str, Any]) -> Document:
    """Returns the document that JSON values hold. What has `contents` in the place of `text`, as in
    the corpora of FlashRAG, has its title in the first line of that.

    Raises:
        LookupError, TypeError, AttributeError: They hold none.
    """
    if "contents" in item and "text" not in item:
        title, _, text = item["contents"].partition("\n")
        return Document((text or title).strip(), title.strip('"').strip())
    return Document(item["text"].strip(), (item.get("title") or "").strip())


def _document(place: str, item: Any, part: str, problems: list[Problem]) -> Document | None:
    """Returns a document; None where it is none, or lacks what is indexed, which is noted."""
    try:
        document = document_of(item)
        if document.text and (document.title or part != "title"):
            return document
    except UNREADABLE:
        pass
    expected = "a document with a title" if part == "title" else "a document"
    problems.append(Problem("search.document", at(line=place), f"{item!r:.40}", expected, FIX))
    return None
