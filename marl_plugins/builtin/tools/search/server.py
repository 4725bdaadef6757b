"""Documents by a server: `POST {"queries": [QUERY], "topk": N}`, as Search-R1's retriever has it.

It answers `{"result": [[DOCUMENT, ...]]}`; a document has `text` (and `title`) or `contents`,
itself or in `document`. A server that is down, slow, or answers anything else is no agent's fault.
"""

from __future__ import annotations

import asyncio
import itertools

from marl_plugins.asking.exchange import ConnectionFailure, HttpAnswer, HttpConnection
from marl_plugins.asking.reading import UNREADABLE, MalformedAnswer, read_json
from marl_plugins.asking.repeats import pause_after
from marl_plugins.builtin.tools.search.corpus import Document, document_of
from marl_plugins.builtin.tools.search.section import SearchToolConfig
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.redaction import inert, shown_url

REPEATS = 3
"""Of a request that failed in a way that may pass."""


async def found_by_server(config: SearchToolConfig, query: str) -> list[Document]:
    """Returns the documents that the server finds, at most `results`.

    Raises:
        InfrastructureFailure: It does not answer, or with something else.
    """
    base, _, path = config.address.rpartition("/")
    connection = HttpConnection(base, "none", config.seconds)
    body = {"queries": [query], "topk": config.results, "return_scores": False}
    try:
        for attempt in itertools.count(1):
            try:
                answer = await connection.post(path, body)
                if answer.status < 500 and answer.status != 429:
                    return documents_in(answer)[: config.results]
                why = f"HTTP {answer.status}"
            except TimeoutError:
                why = f"no answer within {config.seconds:g} s (tools.search.seconds)"
            except ConnectionFailure as error:
                why = str(error)
            if attempt > REPEATS:
                break
            await asyncio.sleep(pause_after(attempt, None))
    except MalformedAnswer as error:
        why = str(error)
    finally:
        await connection.close()
    raise InfrastructureFailure("search", f"{shown_url(config.address)}: {inert(why)[:300]}")


def documents_in(answer: HttpAnswer) -> list[Document]:
    """Returns the documents of an answer.

    Raises:
        MalformedAnswer: It is in another form.
    """
    if answer.status >= 300:
        said = answer.elsewhere or answer.data[:200].decode("utf-8", "replace")
        raise MalformedAnswer(f"HTTP {answer.status}: {said}")
    try:
        (items,) = read_json(answer.data)["result"]
        return [document_of(item.get("document", item)) for item in items]
    except UNREADABLE as error:
        raise MalformedAnswer(f"an answer of another form: {error}") from None
