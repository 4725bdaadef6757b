"""Records which lines and branches of a workflow's file the trials have reached, and parts of lines
that hold a branch."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from marl_plugins.builtin.rehearsal.vocabulary import source_of
from marl_plugins.core.failures import written
from marl_plugins.core.loading import NOT_USERS

Arc = tuple[int, int]
"""From one line to the one that is executed next in the same function; 0: its end."""
Part = tuple[int, int, int, int]
"""A part of the source: its first and last line, its first column and the one behind its last."""
NOT_INVENTED = (
    "InfrastructureFailure",
    "TimeoutError",
    "CancelledError",
    "ImportError",
    "ModuleNotFoundError",
    "OSError",
)
"""Exceptions that no invented answer leads to."""


@dataclass(frozen=True)
class TracedSource:
    """A workflow's file.

    Args:
        file: As in the code objects of its functions.
        text: Its content; empty where it cannot be read.
    """

    file: str
    text: str

    @classmethod
    def of(cls, workflow: Any) -> TracedSource:
        """Returns the file of a workflow; one without a text where that is installed, or is
        none."""
        file = (
            inspect.getsourcefile(module)
            if (module := inspect.getmodule(written(workflow)))
            else None
        )
        if (
            module is None
            or file is None
            or any(Path(file).is_relative_to(folder) for folder in NOT_USERS)
        ):
            return cls(file or "", "")
        return cls(file, source_of(module))

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self.text)

    def nodes(self, *kinds: type[ast.AST]) -> list[Any]:
        """Returns the parts of the file of some kinds."""
        return (
            [node for node in ast.walk(self._tree) if isinstance(node, kinds)] if self.text else []
        )

    @cached_property
    def functions(self) -> dict[int, frozenset[int]]:
        """The lines of each function that can be executed, by the line of its `def`."""
        found: dict[int, frozenset[int]] = {}
        if not self.text:
            return found
        skipped = self._skipped
        wanted = list(_inner(compile(self.text, self.file, "exec", dont_inherit=True)))
        for code in wanted:
            if code.co_name.startswith("<") or not code.co_flags & inspect.CO_OPTIMIZED:
                # comprehensions and classes: their lines are those of the function around them
                continue
            lines = (
                {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno} - skipped
            )
            found[code.co_firstlineno] = frozenset(lines)
        return found

    @cached_property
    def branches(self) -> list[tuple[frozenset[int], frozenset[int]]]:
        """Each `if` without `else`: the lines of its test and those of its body."""
        return [
            (
                frozenset(range(node.lineno, (node.test.end_lineno or node.lineno) + 1)),
                _lines(node.body),
            )
            for node in ast.walk(self._tree)
            if isinstance(node, ast.If)
            and not node.orelse
            and node.body[0].lineno > (node.test.end_lineno or 0)
        ]

    @cached_property
    def parts(self) -> frozenset[Part]:
        """The parts that stand in one line with the test that decides whether it is executed:
        `if x: PART`, `case x: PART`."""
        bodies = [
            (
                node.body,
                node.test.end_lineno if isinstance(node, ast.If) else node.pattern.end_lineno,
            )
            for node in self.nodes(ast.If, ast.match_case)
        ]
        return frozenset(
            _part(statement)
            for body, line in bodies
            if body[0].lineno == line
            for statement in body
        )

    def parts_of(self, code: CodeType) -> list[frozenset[Part]]:
        """Returns the parts to which each instruction of a function belongs."""
        return [
            frozenset(p for p in self.parts if _within(position, p))
            for position in code.co_positions()
        ]

    @cached_property
    def returns_none(self) -> bool:
        """Says whether `run`, or a function whose result it returns, says that there is no answer:
        it returns `None`, or a variable that was set to it."""
        functions = {node.name: node for node in self.nodes(ast.FunctionDef, ast.AsyncFunctionDef)}
        todo = [functions["run"]] if "run" in functions else list(functions.values())
        for function in todo:
            inside = list(ast.walk(function))
            unset = {
                n.id
                for a in inside
                if isinstance(a, ast.Assign) and _is_none(a.value)
                for n in a.targets
                if isinstance(n, ast.Name)
            }
            for returned in (
                node.value for node in inside if isinstance(node, ast.Return) and node.value
            ):
                if _is_none(returned) or (isinstance(returned, ast.Name) and returned.id in unset):
                    return True
                called = (
                    n.func.id
                    for n in ast.walk(returned)
                    if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
                )
                todo += [
                    functions[name]
                    for name in called
                    if name in functions and functions[name] not in todo
                ]
        return False

    @cached_property
    def defensive(self) -> set[int]:
        """Lines that nobody wants to reach, and that call no role: branches that end in `raise` or
        in what says that they are never reached, handlers of exceptions, what is for recipes with a
        role or a tool more, tasks that are cancelled."""
        found = {n.lineno for n in self.nodes(ast.Assert) if _is_false(n.test)}
        bodies: list[tuple[list[ast.stmt], list[int]]]
        for node in self.nodes(ast.If, ast.For, ast.match_case, ast.ExceptHandler):
            match node:
                case ast.If():
                    bodies = [
                        (body, []) for body in (node.body, node.orelse) if body and _refuses(body)
                    ]
                    bodies += [(node.body, [])] if _asks_for_a_name(node.test) else []
                case ast.For():
                    bodies = [(node.body, [])] if _is_call(node.body[-1], "cancel") else []
                case ast.match_case():
                    bodies = [(node.body, [node.pattern.lineno])] if _refuses(node.body) else []
                case _:
                    bodies = [(node.body, [node.lineno])]
            found |= {
                line
                for body, head in bodies
                if not _awaits(body) or (isinstance(node, ast.If) and _asks_for_a_name(node.test))
                for line in (*head, *_lines(body))
            }
        return found

    @cached_property
    def _skipped(self) -> set[int]:
        """Lines that no answer leads to: handlers of what infrastructure raises, and `except`
        itself, which a match decides."""
        found: set[int] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                names = {getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node.type)}
                if names & set(NOT_INVENTED) and not names & {
                    "Exception",
                    "ValueError",
                    "AgentFailure",
                }:
                    found |= _lines(node.body) | {node.lineno}
        return found


@dataclass
class Coverage:
    """The parts of a file that one trial, or several, have executed."""

    source: TracedSource
    entered: set[int] = field(default_factory=set)
    """Functions, by the line of their `def`."""
    lines: set[int] = field(default_factory=set)
    arcs: set[Arc] = field(default_factory=set)
    parts: set[Part] = field(default_factory=set)
    raised: list[BaseException] = field(default_factory=list)
    """What was raised in lines of the file, caught there or not."""
    _known: dict[CodeType, list[frozenset[Part]]] = field(default_factory=dict)

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
        before, parts = frame.f_lineno, self._parts_of(frame.f_code)
        frame.f_trace_opcodes = bool(parts)

        def executed(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal before
            if event == "opcode":
                self.parts |= parts[frame.f_lasti // 2]
                return executed
            if event == "exception" and not any(error is argument[1] for error in self.raised):
                self.raised.append(argument[1])
            line = frame.f_lineno if event == "line" else 0
            if event in ("line", "return"):
                self.arcs.add((before, line))
            if line:
                self.lines.add(line)
                before = line
            return executed

        return executed

    def _parts_of(self, code: CodeType) -> list[frozenset[Part]]:
        if not self.source.parts:
            return []
        if code not in self._known:
            self._known[code] = self.source.parts_of(code)
        return self._known[code]

    def add(self, other: Coverage) -> bool:
        """Adds what another one has reached, and returns whether anything of it is new."""
        new = not (
            other.lines <= self.lines and other.arcs <= self.arcs and other.parts <= self.parts
        )
        self.parts |= other.parts
        self.entered |= other.entered
        self.lines |= other.lines
        self.arcs |= other.arcs
        return new

    @property
    def missed(self) -> list[int]:
        """The lines of entered functions that were never executed."""
        known = self.source.functions
        lines = set().union(*(known.get(at, frozenset()) for at in self.entered))
        parts = {part[0] for part in self.source.parts - self.parts if part[0] in lines}
        return sorted((lines - self.lines) | parts)

    @property
    def missed_branches(self) -> list[int]:
        """The `if`s without `else` that were executed and always true, by line."""
        return [
            min(test)
            for test, body in self.source.branches
            if test & self.lines
            and not any(a in test and b not in test | body for a, b in self.arcs)
        ]


def spans(lines: Iterable[int]) -> str:
    """Returns lines as a reader writes them: `12-14, 20`."""
    found: list[list[int]] = []
    for line in sorted(lines):
        if found and line <= found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _part(node: ast.stmt) -> Part:
    return (
        node.lineno,
        node.end_lineno or node.lineno,
        node.col_offset,
        node.end_col_offset or node.col_offset,
    )


def _awaits(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
        for statement in body
        for node in ast.walk(statement)
    )


def _within(position: tuple[int | None, int | None, int | None, int | None], part: Part) -> bool:
    line, end, column, behind = position
    if line is None or end is None or column is None or behind is None:
        return False
    return (line, column) >= (part[0], part[2]) and (end, behind) <= (part[1], part[3])


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


def _lines(body: list[ast.stmt]) -> frozenset[int]:
    return frozenset(range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _is_call(node: ast.AST, *names: str) -> bool:
    """Returns whether a statement is a call of a function, or a method, of one of these names."""
    function = (
        node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    )
    return getattr(function, "id", getattr(function, "attr", None)) in names


def _refuses(body: list[ast.stmt]) -> bool:
    """Returns whether the end of a branch says that nobody should come here."""
    last = body[-1]
    return (
        isinstance(last, ast.Raise)
        or (isinstance(last, ast.Assert) and _is_false(last.test))
        or _is_call(last, "assert_never")
    )


def _asks_for_a_name(test: ast.expr) -> bool:
    """Returns whether a condition asks for a role or a tool that the recipe may have:
    `hasattr(roles, "critic")`."""
    return (
        isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "hasattr"
    )
