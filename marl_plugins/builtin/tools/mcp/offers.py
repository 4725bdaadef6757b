"""Bounds what a server offers: its tools' names, descriptions and schemas are another program's
texts, and go into prompts.

A name is a plain word; a description is bounded, and holds no control character. Tokens of a chat
template that a text spells stay text where it is shown (core/foreign.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from marl_plugins.core.redaction import Redaction, inert
from marl_plugins.core.tools import Function

if TYPE_CHECKING:
    from marl_plugins.builtin.tools.mcp.sdk import OfferedTool

NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
"""As the protocol's specification of 2025-11-25 says."""
MOST_TOOLS = 1000
MOST_CHARACTERS = 4000
"""Of a description; what is longer keeps its head."""
MOST_SCHEMA_CHARACTERS = 50_000


def functions_of(tools: Iterable[OfferedTool]) -> list[Function]:
    """Returns a server's tools as roles are shown them: no text does anything to a terminal."""
    shown = Redaction()
    return [
        Function(
            tool.name,
            shown.text(tool.description or "", MOST_CHARACTERS),
            shown.values(tool.input_schema),
        )
        for tool in tools
    ]


def wrong_offers(functions: Iterable[Function]) -> Iterator[str]:
    """Yields what of a server's tools cannot be offered."""
    listed = list(functions)
    if len(listed) > MOST_TOOLS:
        yield (
            f"it has {len(listed)} tools; at most {MOST_TOOLS} can be offered, name those that "
            "are needed in `tools`"
        )
        return
    for function in listed:
        if not NAME.fullmatch(function.name):
            yield (
                f"its tool {inert(function.name)[:80]!r} has a name that is no word; leave it "
                "out by naming others in `tools`"
            )
        elif (size := len(json.dumps(function.parameters))) > MOST_SCHEMA_CHARACTERS:
            yield (
                f"its tool {function.name!r} has an input schema of {size} characters; at most "
                f"{MOST_SCHEMA_CHARACTERS} are shown"
            )


def leave_unchecked(tools: Iterable[OfferedTool]) -> None:
    """Empties each tool's output schema, in place: the SDK checks every result against it, in the
    event loop, and a pattern may take for ever."""
    for tool in tools:
        if tool.output_schema:
            tool.output_schema.clear()
