"""A workflow's file, and which of its lines were executed."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from marl_plugins.core.failures import written
from marl_plugins.core.loading import NOT_USERS

NOT_INVENTED = {"InfrastructureFailure", "TimeoutError", "CancelledError", "ImportError", "OSError"}
"""Exceptions that no invented answer leads to."""


@dataclass(frozen=True)
class TracedSource:
    """A workflow's file.

    Args:
        file: As in the code objects of its functions.
        text: Its content; empty where it cannot be read, or is not the user's.
    """

    file: str
    text: str

    @classmethod
    def of(cls, function: Any) -> TracedSource:
        """Returns the file in which a function stands."""
        module = inspect.getmodule(written(function))
        file = inspect.getsourcefile(module) if module else None
        if (
            module is None
            or file is None
            or any(Path(file).is_relative_to(folder) for folder in NOT_USERS)
        ):
            return cls(file or "", "")
        try:
            return cls(file, inspect.getsource(module))
        except (OSError, TypeError):
            return cls(file, "")

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))

    def nodes(self, *kinds: type[ast.AST]) -> list[Any]:
        """Returns the parts of the file of some kinds."""
        return [node for node in self._nodes if isinstance(node, kinds)]

    @cached_property
    def functions(self) -> dict[int, set[int]]:
        """The lines of each function that can be executed, by the line of its `def`."""
        if not self.text:
            return {}
        codes = _inner(compile(self.text, self.file, "exec", dont_inherit=True))
        return {
            code.co_firstlineno: {line for *_, line in code.co_lines() if line}
            - {code.co_firstlineno}
            for code in codes
            if not code.co_name.startswith("<") and code.co_flags & inspect.CO_OPTIMIZED
        }  # the lines of comprehensions and classes are those of the function around them

    @cached_property
    def one_line(self) -> dict[int, int]:
        """Lines in which a test and what it decides about stand together (`if x: BODY`), with the
        column at which that begins."""
        tests = [(node.test, node.body[0]) for node in self.nodes(ast.If)]
        tests += [(node.pattern, node.body[0]) for node in self.nodes(ast.match_case)]
        return {body.lineno: body.col_offset for t, body in tests if t.end_lineno == body.lineno}

    @cached_property
    def defensive(self) -> set[int]:
        """Lines that no example is wanted for: branches that end in `raise` or in what says that
        they are never reached, handlers of exceptions, what is for recipes with a role or a tool
        more, tasks that are cancelled; but for those that call a role."""
        found = {node.lineno for node in self.nodes(ast.Assert) if _is(node.test, False)}
        for node in self.nodes(ast.If, ast.For, ast.match_case, ast.ExceptHandler):
            for body in (node.body, getattr(node, "orelse", None)):
                if body and _guards(node, body):
                    found |= set(range(_head(node, body).lineno, body[-1].end_lineno + 1))
        return found


@dataclass
class Trace:
    """The lines of a file that one trial, or several, have executed."""

    source: TracedSource
    entered: set[int] = field(default_factory=set)
    """Functions, by the line of their `def`."""
    lines: set[int] = field(default_factory=set)
    bodies: set[int] = field(default_factory=set)
    """Of the lines with a test and its body, those whose body was executed."""
    raised: list[BaseException] = field(default_factory=list)
    """What was raised in lines of the file, caught there or not."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notes what this thread executes meanwhile; nothing where a debugger has the thread."""
        if sys.gettrace() is not None or not self.source.text:
            yield
            return
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != self.source.file:
            return None
        self.entered.add(frame.f_code.co_firstlineno)
        frame.f_trace_opcodes = bool(self.source.one_line)
        return self._executed

    def _executed(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines.add(frame.f_lineno)
        elif event == "opcode":
            if frame.f_lineno in self.source.one_line:
                part = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
                if (part[2] or 0) >= self.source.one_line[frame.f_lineno]:
                    self.bodies.add(frame.f_lineno)
        elif event == "exception" and not any(error is argument[1] for error in self.raised):
            self.raised.append(argument[1])
        return self._executed

    def add(self, other: Trace) -> None:
        """Adds what another one has reached."""
        self.entered |= other.entered
        self.lines |= other.lines
        self.bodies |= other.bodies

    @property
    def missed(self) -> list[int]:
        """The lines of entered functions that were never executed, and should be."""
        known = self.source.functions
        lines = set[int]().union(*(known.get(function, ()) for function in self.entered))
        missed = (lines - self.lines) | (lines & self.source.one_line.keys() - self.bodies)
        return sorted(missed - self.source.defensive) if missed else []


def spans(lines: Iterable[int]) -> str:
    """Returns lines as a reader writes them: `12-14, 20`."""
    found: list[list[int]] = []
    for line in sorted(lines):
        if found and line <= found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _calls(node: ast.AST, *names: str) -> bool:
    """Returns whether an expression is a call of a function, or a method, of one of these names."""
    node = getattr(node, "value", node)
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "id", getattr(function, "attr", None)) in names


def _guards(node: Any, body: list[ast.stmt]) -> bool:
    """Returns whether nobody needs to come to a branch."""
    last = body[-1]
    if isinstance(node, ast.If) and body is node.body and _calls(node.test, "hasattr"):
        return True
    if isinstance(node, ast.ExceptHandler) and node.type is not None:
        names = {getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node.type)}
        if names & NOT_INVENTED and not names & {"Exception", "ValueError", "AgentFailure"}:
            return True
    awaiting = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    if any(isinstance(n, awaiting) for statement in body for n in ast.walk(statement)):
        return False
    if isinstance(node, ast.For):
        return _calls(last, "cancel")
    return (
        isinstance(node, ast.ExceptHandler)
        or isinstance(last, ast.Raise)
        or (isinstance(last, ast.Assert) and _is(last.test, False))
        or _calls(last, "assert_never")
    )


def _head(node: Any, body: list[ast.stmt]) -> Any:
    """Returns where a branch begins that is entered by its own line: `except X:`, `case X:`."""
    if isinstance(node, ast.ExceptHandler):
        return node
    return node.pattern if isinstance(node, ast.match_case) else body[0]
