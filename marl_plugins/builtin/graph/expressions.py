"""Expressions of a graph: a part of Python's, checked when the graph is read.

    Expression("first(advice, 'none') + plan.text")        hard: plan; soft: advice

What is not in the table of `_value` is refused by its column, so nothing is called but `FUNCTIONS`,
nothing has side effects, and the names that an expression reads, which are the graph's edges, are
known without running it. What has passed is compiled once. Products and remainders are for numbers
and sums are bounded, because values may be what models say.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from marl_plugins.builtin.graph.values import Absence, as_text, attribute, kind_of, plain
from marl_plugins.core.failures import RecipeError
from marl_plugins.core.problems import meant

MAX_VALUE_LENGTH = 1_000_000
"""Characters of a text, or items of a list, that a sum may make."""
Scope = Mapping[str, Any]
"""Results, and what was skipped, by name."""


class BadExpression(Exception):
    """An expression that cannot be read.

    Args:
        got: What is wrong.
        fix: What to write.
    """

    def __init__(self, got: str, fix: str = ""):
        self.got = got
        self.fix = fix
        super().__init__(got)


def _add(left: Any, right: Any) -> Any:
    total = left + right
    if isinstance(total, str | list) and len(total) > MAX_VALUE_LENGTH:
        raise ValueError(f"a sum of more than {MAX_VALUE_LENGTH} characters or items")
    return total


def _of_numbers(operator: str, calculate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        for value in (left, right):
            if not isinstance(value, int | float):
                raise TypeError(f"{operator} is for numbers, got {kind_of(value)}")
        return calculate(left, right)

    return apply


def _most_common(items: Sequence[Any]) -> Any:
    """The most frequent item but for None, of several the first as a text; None of no items."""
    votes = sorted((item for item in items if item is not None), key=repr)
    return max(votes, key=votes.count, default=None)


def _join(items: Any, between: str = "\n") -> str:
    if not isinstance(items, list):
        raise TypeError(f"join() takes a list, got {kind_of(items)}")
    return between.join(map(as_text, items))


def _first(*candidates: Any) -> Any:
    return next((candidate for candidate in candidates if not isinstance(candidate, Absence)), None)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "len": len,
    "min": min,
    "max": max,
    "sum": sum,
    "abs": abs,
    "round": round,
    "int": int,
    "float": float,
    "str": as_text,
    "sorted": sorted,
    "unique": lambda items: list(dict.fromkeys(items)),
    "mean": lambda items: sum(items) / len(items) if items else 0.0,
    "most_common": _most_common,
    "join": _join,
    "lines": lambda text: [line for line in text.splitlines() if line.strip()],
    "strip": lambda text: text.strip(),
    "lower": lambda text: text.lower(),
    "matches": lambda pattern, text: re.search(pattern, text) is not None,
    "ran": lambda node: not isinstance(node, Absence),
    "first": _first,
}
"""What expressions may call. `ran` and `first` may be given nodes that did not run."""
_KNOWN: dict[str, Any] = {
    "__builtins__": {},
    "_plain": plain,
    "_attribute": attribute,
    "_add": _add,
    "_multiply": _of_numbers("*", lambda a, b: a * b),
    "_remainder": _of_numbers("%", lambda a, b: a % b),
    **{f"_{name}": function for name, function in FUNCTIONS.items()},
}
"""What compiled expressions call, by names that no expression can read."""


class Expression:
    """One expression of a graph.

    Args:
        text: As it stands in the file.
        place, what: File and line, and what it is there, for messages: `node 'plan', when`.

    Attributes:
        hard: The names that it reads, in order; a node that names one that did not run does not run
            either.
        soft: Those that it reads in `ran()` and `first()` alone.
        always: The names on which it depends whatever they are.
        firsts: Names of each `first()`; it depends on those up to the first that ran.
        attributes: Pairs of a name and what is read of it.

    Raises:
        BadExpression: It is none, or reads what expressions must not read.
    """

    def __init__(self, text: str, place: str, what: str):
        self.text = " ".join(text.split("\n")).strip()
        self.place = place
        self.what = what
        self.hard: dict[str, None] = {}
        self._soft: dict[str, None] = {}
        self._always: dict[str, None] = {}
        self._firsts: list[tuple[str, ...]] = []
        self.attributes: dict[tuple[str, str], None] = {}
        try:
            tree = ast.parse(self.text, mode="eval").body
            self.is_name = isinstance(tree, ast.Name)
            body = self._raw(tree, False)
        except SyntaxError as error:
            fix = "a text stands in quotes of its own: \"'like this'\""
            raise BadExpression(f"{self.text!r}: {error.msg}, column {error.offset}", fix) from None
        except (RecursionError, MemoryError, ValueError) as error:
            raise BadExpression(f"cannot be read: {error or type(error).__name__}") from None
        self.soft = tuple(name for name in self._soft if name not in self.hard)
        self.names = (*self.hard, *self.soft)
        self.always = tuple(
            name for name in self.names if name in self.hard or name in self._always
        )
        self.firsts = tuple(names for names in self._firsts if not {*names} <= {*self.always})
        whole = ast.fix_missing_locations(ast.Expression(body))
        self._code = compile(whole, "<expression>", "eval")

    def __call__(self, scope: Scope) -> Any:
        """Returns what it is: a `Result` where it is a name alone, or one that `first`, `or`, `and`
        or `if` has chosen.

        Raises:
            RecipeError: Its values are not what it takes.
        """
        try:
            return eval(self._code, _KNOWN, scope)
        except Exception as error:  # what an expression of the recipe's raises, of any kind
            raise RecipeError(
                self.place, type(error).__name__, f"{self.what}: {self.text}: {_said(error)}"
            ) from error

    def value(self, scope: Scope) -> Any:
        """Returns its value."""
        return plain(self(scope))

    def used_in(self, scope: Scope) -> Iterator[str]:
        """Yields the names on which it depends."""
        yield from self.always
        for names in self.firsts:
            yield from until_one_ran(names, scope)

    def skipped_in(self, scope: Scope) -> bool:
        """Returns whether it reads something that did not run."""
        return any(isinstance(scope[name], Absence) for name in self.hard)

    def _raw(self, node: ast.expr, soft: bool) -> ast.expr:
        """The code of what may be a result as a whole."""
        match node:
            case ast.Name(id=name):
                if name.startswith("_"):
                    raise self._refusal(node, "names that begin with _ are not read")
                (self._soft if soft else self.hard).setdefault(name)
                return node
            case ast.IfExp(test=test, body=body, orelse=other):
                return ast.IfExp(
                    self._value(test, soft), self._raw(body, soft), self._raw(other, soft)
                )
            case ast.BoolOp(op=operator, values=values):
                return ast.BoolOp(operator, [self._raw(value, soft) for value in values])
            case ast.Call(func=ast.Name(id="first"), args=[_, *_] as arguments, keywords=[]):
                code = _call("first", *(self._raw(value, True) for value in arguments))
                self._firsts.append(
                    tuple(value.id for value in arguments if isinstance(value, ast.Name))
                )
                others = [
                    part
                    for value in arguments
                    if not isinstance(value, ast.Name)
                    for part in ast.walk(value)
                ]
                self._always |= dict.fromkeys(
                    part.id
                    for part in others
                    if isinstance(part, ast.Name) and part.id in self._soft
                )
                return code
        return self._value(node, soft)

    def _value(self, node: ast.expr, soft: bool) -> ast.expr:
        """The code of a value."""
        match node:
            case ast.Constant(value=str() | int() | float() | None):
                return node
            case ast.Name() | ast.IfExp() | ast.BoolOp() | ast.Call(func=ast.Name(id="first")):
                if isinstance(node, ast.Call) and (not node.args or node.keywords):
                    raise self._refusal(node, "first() takes names")
                return _call("plain", self._raw(node, soft))
            case ast.Attribute(value=of, attr=name):
                if name.startswith("_"):
                    raise self._refusal(node, "names that begin with _ are not read")
                if isinstance(of, ast.Name):
                    self.attributes.setdefault((of.id, name))
                return _call("attribute", self._raw(of, soft), ast.Constant(name))
            case ast.Subscript(value=ast.Name("task"), slice=index) if not isinstance(
                index, ast.Slice
            ):
                raise self._refusal(node, "write task.prompt, task.id or task.metadata.NAME")
            case ast.Subscript(value=of, slice=ast.Slice(step=None) as bounds):
                return ast.Subscript(self._value(of, soft), self._inside(bounds, soft), ast.Load())
            case ast.Tuple(elts=items):
                return self._value(ast.List(items, ast.Load()), soft)
            case (
                ast.Subscript()
                | ast.List()
                | ast.Compare()
                | ast.UnaryOp(op=ast.Not() | ast.USub())
                | ast.BinOp(op=ast.Div() | ast.FloorDiv() | ast.Sub())
            ):
                return self._inside(node, soft)
            case ast.Dict(keys=keys) if None not in keys:
                return self._inside(node, soft)
            case ast.BinOp(op=ast.Add() | ast.Mult() | ast.Mod() as operator):
                name = {ast.Add: "add", ast.Mult: "multiply", ast.Mod: "remainder"}[type(operator)]
                return _call(name, self._value(node.left, soft), self._value(node.right, soft))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
                if name == "matches":
                    self._check_pattern(node, arguments)
                if name == "ran":
                    self._always |= dict.fromkeys(
                        value.id for value in arguments if isinstance(value, ast.Name)
                    )
                    return _call("ran", *(self._raw(value, True) for value in arguments))
                return _call(name, *(self._value(value, soft) for value in arguments))
            case ast.Call(func=ast.Name(id=name)) if name not in FUNCTIONS:
                raise self._refusal(
                    node,
                    f"there is no function {name!r}",
                    meant(name, FUNCTIONS) or "see docs/graphs.md",
                )
            case ast.Call(func=ast.Attribute()):
                raise self._refusal(
                    node, "methods are not called", f"functions are: {', '.join(sorted(FUNCTIONS))}"
                )
        raise self._refusal(
            node,
            f"{ast.unparse(node)} is not part of an expression here",
            "a workflow in Python can do all else",
        )

    def _inside(self, node: ast.expr, soft: bool) -> ast.expr:
        """The same node, with the code of the values in it."""

        def code(part: Any) -> Any:
            if isinstance(part, list):
                return [*map(code, part)]
            return self._value(part, soft) if isinstance(part, ast.expr) else part

        return type(node)(*(code(part) for _, part in ast.iter_fields(node)))

    def _check_pattern(self, node: ast.expr, arguments: Sequence[ast.expr]) -> None:
        """Refuses a pattern that is not written out: one that a model makes may take for ever."""
        match arguments:
            case [ast.Constant(value=str() as pattern), _]:
                try:
                    re.compile(pattern)
                except re.error as error:
                    got = f"{pattern!r} is no regular expression: {error}"
                    raise self._refusal(node, got) from None
            case _:
                raise self._refusal(
                    node, "matches() takes a pattern that is written out, and a text"
                )

    def _refusal(self, node: ast.expr, got: str, fix: str = "") -> BadExpression:
        return BadExpression(f"{self.text!r}, column {node.col_offset + 1}: {got}", fix)


def until_one_ran(names: Sequence[str], scope: Scope) -> Iterator[str]:
    """Yields names up to the first of a node that ran."""
    for name in names:
        yield name
        if not isinstance(scope[name], Absence):
            return


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(f"_{name}", ast.Load()), list(arguments), [])


def _said(error: Exception) -> str:
    return (
        f"no {error.args[0]!r} in the mapping"
        if type(error) is KeyError and error.args
        else str(error)
    )


def written(value: Any) -> str:
    """Returns a value of YAML as the text of an expression: a text is one, and in lists and
    mappings each item is."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_grouped, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_grouped(item)}' for key, item in value.items())}}}"
    return repr(value)


def _grouped(value: Any) -> str:
    return f"({written(value)})" if isinstance(value, str) else written(value)
