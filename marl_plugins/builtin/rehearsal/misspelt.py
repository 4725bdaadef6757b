"""Functions of a recipe that nobody calls, and whose name is nearly one that is looked up."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from difflib import get_close_matches

from marl_plugins.core.problems import Problem
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.run import Run
from marl_plugins.engine.plan.apart import where_of

CLOSE = 0.8
"""How much of two names is the same where one is meant for the other."""


def misspelt(run: Run) -> list[Problem]:
    """Returns warnings about what a recipe may leave out, and seems to have under another name: a
    missing `run` is an error."""
    found = []
    for file, wanted in ((run.recipe.workflow, "variants"), (run.recipe.grader, "score_action")):
        path = run.folder / str(file)
        defined = (
            dict(_functions(read_text(path))) if path.suffix == ".py" and path.is_file() else {}
        )
        for name in (
            []
            if wanted in defined
            else get_close_matches(wanted, defined, len(defined) or 1, CLOSE)
        ):
            if (
                sum(
                    len(re.findall(rf"\b{name}\b", read_text(other)))
                    for other in run.folder.glob("*.py")
                )
                == 1
            ):
                where, fix = where_of(f"{path}:{defined[name]}"), f"did you mean {wanted!r}?"
                found.append(
                    Problem(
                        "rehearsal.misspelt",
                        where,
                        f"nobody calls {name}",
                        fix=fix,
                        severity="warning",
                    )
                )
    return found


def _functions(text: str) -> Iterator[tuple[str, int]]:
    """The names of a file's own functions, and their lines."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
