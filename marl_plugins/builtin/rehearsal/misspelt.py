"""Functions of a recipe that nobody calls, and whose name is nearly one that is looked up."""

from __future__ import annotations

import ast
import re
from difflib import get_close_matches

from marl_plugins.core.problems import Problem
from marl_plugins.core.run import Run
from marl_plugins.engine.plan.user_code_thread import where_of

CLOSE = 0.8
"""How much of two names is the same where one is meant for the other."""


def misspelt(run: Run) -> list[Problem]:
    """Returns warnings about what a recipe may leave out, and seems to have under another name: a
    missing `run` is an error."""
    sources = {path: path.read_bytes() for path in run.folder.glob("*.py")}  # of any encoding
    found = []
    for file, wanted in ((run.recipe.workflow, "variants"), (run.recipe.grader, "score_action")):
        path = run.folder / str(file)
        functions = {
            node.name: node.lineno
            for node in ast.parse(sources.get(path, b"")).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for name in get_close_matches(wanted, functions, 1, CLOSE):
            word = re.compile(rf"\b{name}\b".encode())
            times = sum(len(word.findall(source)) for source in sources.values())
            if name != wanted and times == 1:
                where, fix = where_of(f"{path}:{functions[name]}"), f"did you mean {wanted!r}?"
                said = f"nobody calls {name}"
                found.append(
                    Problem("rehearsal.misspelt", where, said, fix=fix, severity="warning")
                )
    return found
