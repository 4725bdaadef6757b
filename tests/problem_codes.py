"""The codes of all problems, read from the calls of `Problem` in the package; nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import marl_plugins

PACKAGE = Path(marl_plugins.__file__).resolve().parent


def calls() -> Iterator[ast.Call]:
    """Yields each call of `Problem`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Problem":
                yield node


def code_of(call: ast.Call) -> str:
    """The code, which is written out in every call.

    Raises:
        ValueError: It is not.
    """
    named = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    code = [*call.args, *named][0]
    if not (isinstance(code, ast.Constant) and isinstance(code.value, str)):
        raise ValueError(ast.unparse(call))
    return code.value
