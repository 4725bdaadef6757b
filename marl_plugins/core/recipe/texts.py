"""Text files: those that users write (prompts and data), and lines of JSON."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at


def read_text(path: Path) -> str:
    """Returns the text of a file in UTF-8, without a byte-order mark.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        problem = Problem("files.unreadable", at(file=path), f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        got = f"is not UTF-8 text (byte {error.start})"
        problem = Problem("files.encoding", at(file=path), got, fix="save it as UTF-8")
    raise ConfigurationError(problem)


def syntax_tree(path: Path) -> ast.Module:
    """Returns the syntax tree of a file of Python.

    Raises:
        ConfigurationError: The file cannot be read, or is not Python.
    """
    try:
        return ast.parse(read_text(path), str(path))
    except SyntaxError as error:
        where, got = at(line=f"{path}:{error.lineno}"), f"is not Python ({error.msg})"
        raise ConfigurationError(Problem("files.syntax", where, got)) from None


LINE_ENDS = "\x85\u2028\u2029"
"""What JSON has as it is and Python's `str.splitlines` takes for the end of a line."""


def json_line(value: Any) -> str:
    """Returns a value as one line of JSON, without its end: one line for whatever splits the file,
    too."""
    text = json.dumps(value, ensure_ascii=False)
    for end in LINE_ENDS:
        text = text.replace(end, f"\\u{ord(end):04x}")
    return text
