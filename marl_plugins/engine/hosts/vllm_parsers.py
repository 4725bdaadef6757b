"""The names of vLLM's parsers of tool calls and of reasoning, read from its source: importing it
takes ten seconds."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

KINDS = {"calls": "tool_parsers", "reasoning": "reasoning"}
"""Packages of vLLM, by the key of a role that names one of their parsers."""


def parser_names(key: str) -> list[str]:
    """Returns the names that a role's `calls` or `reasoning` may have; none where vLLM is not there
    or registers them otherwise.

    A parser is an entry of the mapping `_..._PARSERS_TO_REGISTER` in its package (vLLM 0.11 to
    0.29).
    """
    spec = find_spec("vllm")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        file = Path(folder) / KINDS[key] / "__init__.py"
        if file.is_file():
            return _registered(file)
    return []


def _registered(file: Path) -> list[str]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Dict)
            and "PARSERS_TO_REGISTER" in ast.unparse(node.targets[0])
        ):
            return [
                key.value
                for key in node.value.keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
    return []
