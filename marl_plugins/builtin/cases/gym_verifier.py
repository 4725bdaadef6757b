"""The program that runs in the sandbox for `gym_entry_score` (gym.py): one verifier of
reasoning-gym, with one answer.

Some verifiers evaluate an answer, by `eval` or by sympy's `parse_expr`, which is `eval` too. What
could call anything would give itself its score, so here both take values and formulas alone. This
file is sent to the sandbox as text.
"""

from __future__ import annotations

import ast
import contextlib
import json
import sys
from typing import Any

SCORE = "score"
"""The file that the score is left in."""
FORMULA = (
    ast.Expression,
    ast.Call,
    ast.keyword,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)
"""The Python that sympy makes of a formula consists of these."""
PLAIN_FUNCTIONS = ("sqrt", "cbrt", "root", "abs")
"""Functions of formulas that are no classes of sympy's."""


def score(name: str, answer: str | None, entry: dict[str, Any]) -> None:
    """Leaves the score of an answer; what makes the verifier fail is worth nothing."""
    from reasoning_gym import get_score_answer_fn

    with contextlib.suppress(KeyError, ValueError, SyntaxError):
        entry = ast.literal_eval(entry["as_made"])
    restrict()
    verify = get_score_answer_fn(name)
    try:
        value = float(verify(answer, entry))
    except BaseException:
        value = 0.0
    with open(SCORE, "w") as file:
        file.write(repr(value))


def restrict() -> None:
    """Puts what takes values alone in the place of each `eval` that an answer could reach."""
    from sympy.parsing import sympy_parser  # type: ignore[import-untyped]

    for name, module in list(sys.modules.items()):
        if name.startswith(("reasoning_gym.algorithmic.", "reasoning_gym.games.")):
            module.eval = ast.literal_eval  # type: ignore[attr-defined]
    evaluate = sympy_parser.eval_expr

    def eval_checked(code: Any, local_dict: dict[str, Any], global_dict: dict[str, Any]) -> Any:
        check_formula(code, {**global_dict, **local_dict})
        return evaluate(code, local_dict, global_dict)

    sympy_parser.eval_expr = eval_checked


def check_formula(code: Any, names: dict[str, Any]) -> None:
    """Checks that code computes with sympy's own objects and calls nothing else.

    Raises:
        ValueError: It does something else.
    """
    from sympy import Basic  # type: ignore[import-untyped]

    for node in ast.walk(ast.parse(code.strip(), mode="eval")):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Call):  # Function('f')(x)
            called = called.func
        if not isinstance(node, FORMULA) or not isinstance(called, ast.Name | None):
            raise ValueError(f"{type(node).__name__} is no part of a formula")
        if isinstance(node, ast.Name):
            value = names.get(node.id)
            of_sympy = isinstance(value, Basic) or (
                isinstance(value, type) and issubclass(value, Basic)
            )
            if not of_sympy and node.id not in PLAIN_FUNCTIONS:
                raise ValueError(f"{node.id} is no name of a formula")


if __name__ == "__main__":
    score(*json.load(sys.stdin))
