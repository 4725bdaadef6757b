"""A workflow's file, and which of its lines were executed."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from marl_plugins.core.failures import written
from marl_plugins.core.loading import NOT_USERS

REFUSALS = (ast.Raise, ast.Assert)
AWAITING = (ast.Await, ast.AsyncFor, ast.AsyncWith)


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
    def functions(self) -> dict[int, set[int]]:
        """The lines of each function that can be executed, by the line of its `def`."""
        codes = _inner(compile(self.text, self.file, "exec", dont_inherit=True))
        return {
            code.co_firstlineno: {line for *_, line in code.co_lines() if line}
            - {code.co_firstlineno}
            for code in codes
            if not code.co_name.startswith("<") and code.co_flags & inspect.CO_OPTIMIZED
        }  # the lines of comprehensions and classes are those of the function around them

    @cached_property
    def defensive(self) -> set[int]:
        """Lines that no example is wanted for: handlers of exceptions, and branches that end in
        `raise` or `assert`; but for those that call a role."""
        lines: set[int] = set()
        for node in ast.walk(ast.parse(self.text)):
            if not isinstance(node, ast.If | ast.match_case | ast.ExceptHandler):
                continue
            for body in filter(None, (node.body, getattr(node, "orelse", None))):
                ends = isinstance(node, ast.ExceptHandler) or isinstance(body[-1], REFUSALS)
                if ends and not any(isinstance(n, AWAITING) for s in body for n in ast.walk(s)):
                    # a handler, and a case, begins with a line of its own
                    head: Any = getattr(node, "pattern", node) if body is node.body else body[0]
                    lines |= set(range(head.lineno, body[-1].end_lineno + 1))
        return lines


@dataclass
class Trace:
    """The lines of a file that one trial, or several, have executed."""

    source: TracedSource
    entered: set[int] = field(default_factory=set)
    """Functions, by the line of their `def`."""
    lines: set[int] = field(default_factory=set)
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
        return self._executed

    def _executed(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines.add(frame.f_lineno)
        elif event == "exception" and not any(error is argument[1] for error in self.raised):
            self.raised.append(argument[1])
        return self._executed

    def add(self, other: Trace) -> None:
        """Adds what another one has reached."""
        self.entered |= other.entered
        self.lines |= other.lines

    @property
    def missed(self) -> list[int]:
        """The lines of entered functions that were never executed, and should be."""
        known = self.source.functions
        lines = set[int]().union(*(known.get(function, ()) for function in self.entered))
        missed = lines - self.lines
        return sorted(missed - self.source.defensive) if missed else []


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)
