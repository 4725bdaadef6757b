"""Programs that run in the sandbox for a `Checker` (checker.py): the program alone, answering
calls; or the checks alone, with its answers.

    answers()    loads the program and writes one line of JSON for each call that it was asked for
    verdicts()   runs the checks; writes how they ended, or the calls whose answers they still need

Two programs that never meet: what passes between them is JSON. Each leaves its report in a file of
a random name, so what it prints is no report, and one that leaves early has made none. Standard
library only: this file is sent to the sandbox as text.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import itertools
import json
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

LARGEST_ANSWER_CHARS = 1 << 20
"""Characters of one answer."""
MOST_PARTS = 100_000
"""How much of an iterator crosses."""
BUILDERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "iterator": iter,
    "bytes": lambda parts: bytes.fromhex(*parts),
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
    "dict": lambda parts: dict(zip(*parts)),  # noqa: B905
    "dict_keys": lambda parts: dict.fromkeys(parts).keys(),
    "dict_values": lambda parts: dict(enumerate(parts)).values(),
    "dict_items": lambda parts: dict(parts).items(),
}
"""What makes a value again of its parts, by the name under which it crosses."""
SEVERAL: tuple[type[Any], ...] = (
    list,
    tuple,
    set,
    frozenset,
    deque,
    *map(type, ({}.keys(), {}.values(), {}.items())),
)
"""What crosses part by part."""
MAX_CHECKER_CALLS = 1000
"""Maximum number of calls that checks make."""
CHECKS = "checks.py"
"""Name of the checks' file in tracebacks."""
SETTLE = "_settle_"
"""Name under which the checks call `CheckNames.settle`."""


def allow_long_numbers() -> None:
    """Lets whole numbers have as many digits as an answer may have; in the sandbox, for Python's
    own limit holds elsewhere."""
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(100_000)


# --- values
# --------------------------------------------------------------------------------------------------


def packed(value: Any) -> Any:
    """Turns a plain value into JSON values: of a subclass only what JSON says of its plain class.

    Raises:
        TypeError: It holds something else.
    """
    if value is None or isinstance(value, (int, float, str)):
        return value
    for kind in SEVERAL:
        if isinstance(value, kind):
            return {kind.__name__: [packed(part) for part in value]}
    if isinstance(value, dict):
        return {"dict": [packed([*value]), packed([*value.values()])]}
    if isinstance(value, bytes):
        return {"bytes": [value.hex()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, Iterator):
        parts = list(itertools.islice(value, MOST_PARTS + 1))
        if len(parts) > MOST_PARTS:
            raise OverflowError(f"the iterator gives more than {MOST_PARTS} values")
        return {"iterator": [packed(part) for part in parts]}
    if type(value).__module__ == "numpy":
        return packed(value.tolist())
    raise TypeError(
        f"{type(value).__name__} is no plain value (None, numbers, text, bytes, lists, tuples, "
        "sets, dicts)"
    )


def unpacked(value: Any) -> Any:
    """Returns the plain value that `packed` has packed."""
    if not isinstance(value, dict):
        return value
    ((kind, parts),) = value.items()
    return BUILDERS[kind]([unpacked(part) for part in parts])


class alike:
    """Equals what public data sets take for the same; the checks have it by this name. Its source
    is also a part of programs (layouts.py).

    Args:
        wanted: A float is met by a number within a millionth of it, a list by a tuple, too.
        words: In place of a value, what is printed; a decimal is such a float.
    """

    def __init__(self, wanted: object = None, words: str = "") -> None:
        self.words = words
        self.wanted = [line.split() for line in words.splitlines()] if words else wanted

    def __eq__(self, got: object) -> bool:
        if self.words and isinstance(got, str):
            got = [line.split() for line in got.splitlines()]
        return self.same(got, self.wanted)

    def same(self, got: object, wanted: object) -> bool:
        import math

        if isinstance(wanted, list):
            if not isinstance(got, (list, tuple)) or len(got) != len(wanted):
                return False
            return all(map(self.same, got, wanted))
        if self.words and isinstance(got, str) and isinstance(wanted, str) and got != wanted:
            if "." not in wanted and "e" not in wanted:
                return False
            got, wanted = float(got), float(wanted)
        if isinstance(wanted, float) and isinstance(got, (int, float)):
            return math.isclose(got, wanted, rel_tol=1e-6, abs_tol=1e-6)
        return got == wanted


# --- the program
# --------------------------------------------------------------------------------------------------


def answers(request: dict[str, Any]) -> None:
    """Loads the program as a module, and answers the calls in turn; the first line says whether it
    was loaded."""
    report, program = request["report"], types.ModuleType("program")
    sys.modules["program"] = program
    names = program.__dict__
    try:
        exec(compile(request["program"], "program.py", "exec"), names)
    except BaseException as error:
        write(report, raised(error))
        return
    write(report, {"loaded": True})
    for call in request["calls"]:
        write(report, answered(names, json.loads(call)))


def write(report: str, answer: dict[str, Any]) -> None:
    """Adds a line to the report."""
    text = json.dumps(answer)
    if len(text) > LARGEST_ANSWER_CHARS:
        why = f"the answer has more than {LARGEST_ANSWER_CHARS} characters"
        text = json.dumps(raised(OverflowError(why)))
    with open(report, "a", encoding="utf-8", errors="replace") as file:
        file.write(text + "\n")


def answered(names: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    """Makes one call and returns what comes of it: `value`, with the arguments where they were
    changed; `raised`; `callable` or
    `missing` of a name."""
    if call["name"] not in names:
        return {"missing": True}
    target = names[call["name"]]
    try:
        if "given" not in call:
            return {"callable": True} if callable(target) else {"value": packed(target)}
        arguments, named = map(unpacked, call["given"])
        value = packed(target(*arguments, **named))
        after = [packed(arguments), packed(named)]
        return {"value": value, "changed": after} if after != call["given"] else {"value": value}
    except BaseException as error:
        return raised(error)


def raised(error: BaseException) -> dict[str, Any]:
    """Returns an exception by the first of its classes that is Python's own."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
    text = ""
    with contextlib.suppress(BaseException):
        text = str(error)[:1000]
    return {"raised": kind, "text": text}


# --- the checks
# --------------------------------------------------------------------------------------------------


class MissingAnswer(BaseException):
    """The checks need an answer that there is not yet."""


class TooManyCalls(BaseException):
    """The checks do not come to an end."""


class PendingAnswer:
    """Stands for an answer that there is not yet: an assert passes with it, anything else has to
    wait."""

    def __init__(self, asked: CheckNames, name: str = ""):
        self._asked, self._name = asked, name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not self._name:
            raise MissingAnswer
        return self._asked.call(self._name, arguments, named)

    def __bool__(self) -> bool:
        frame = sys._getframe(1)
        if frame.f_code.co_filename == CHECKS and frame.f_lineno in self._asked.asserts:
            return True
        raise MissingAnswer

    def _as_unknown(self, *others: Any) -> Any:
        return self

    def _waits(self, *others: Any) -> Any:
        raise MissingAnswer

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _as_unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __mod__ = (
        __pow__
    ) = _as_unknown
    __neg__ = __abs__ = __round__ = _as_unknown
    __iter__ = __len__ = __getitem__ = __contains__ = __int__ = __float__ = __index__ = __str__ = (
        __repr__
    ) = _waits
    __getattr__ = __hash__ = _waits


class CheckNames(dict[str, Any]):
    """The names of the checks: one that they do not define is the program's.

    Args:
        known: What the program has answered to each call, in JSON, in turn.
        asserts: The lines of the checks that are asserts.
    """

    def __init__(self, known: dict[str, list[str]], asserts: set[int]):
        super().__init__(__name__="checks", __builtins__=builtins, alike=alike)
        self.known = known
        self.asserts = asserts
        self.unknown: list[str] = []
        """The calls that the program has to answer."""
        self[SETTLE] = self.settle
        self.made = 0
        self._values: dict[str, Any] = {}
        self._changes: list[tuple[Any, Any]] = []

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        if name not in self._values:
            answer = self._answer({"name": name})
            if answer is None:
                self._values[name] = PendingAnswer(self, name)
            elif answer.get("callable"):
                self._values[name] = lambda *arguments, **named: self.call(name, arguments, named)
            elif "missing" in answer:
                raise NameError(f"the program has no {name!r}")
            else:
                self._values[name] = self._told(answer)
        return self._values[name]

    def call(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Calls a function of the program."""
        if any(isinstance(part, PendingAnswer) for part in (*arguments, *named.values())):
            raise MissingAnswer
        answer = self._answer({"name": name, "given": [packed(list(arguments)), packed(named)]})
        if answer is None:
            return PendingAnswer(self)
        return self._told(answer, (*arguments, *named.values()))

    def _answer(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """The program's answer, which a call takes once; None where there is none yet, and it is
        asked for."""
        text = json.dumps(call)
        self.made += 1
        if self.made > MAX_CHECKER_CALLS:
            raise TooManyCalls(f"at most {MAX_CHECKER_CALLS} of the program")
        if not self.known.get(text):
            self.unknown.append(text)
            return None
        try:
            answer = json.loads(self.known[text].pop(0))
        except (ValueError, RecursionError):
            answer = None
        return (
            answer
            if isinstance(answer, dict)
            else {"raised": "ValueError", "text": "the answer cannot be read"}
        )

    def _told(self, answer: dict[str, Any], arguments: tuple[Any, ...] = ()) -> Any:
        """The value of an answer; what was given becomes what the program has made of it.

        Raises:
            Exception: What the program raised, as Python's own class.
        """
        if "raised" in answer:
            name, text = str(answer["raised"]), answer.get("text")
            kind, error = getattr(builtins, name, None), Exception(f"{name}: {text}")
            if isinstance(kind, type) and issubclass(kind, Exception):
                with contextlib.suppress(TypeError):  # of a class that takes more than a text
                    error = kind(text)
            if isinstance(error, (StopIteration, StopAsyncIteration)):
                # as in a generator: either would end a loop of the checks (`all(map(...))`) as if
                # all passed
                error = RuntimeError(text)
            raise error
        try:
            value = unpacked(answer["value"])
            if "changed" in answer:
                after, others = map(unpacked, answer["changed"])
                self._changes += zip(arguments, (*after, *others.values()))  # noqa: B905
            return value
        except Exception:  # whatever the program has written in the place of an answer
            raise ValueError("the answer cannot be read") from None

    def settle(self, apply: bool) -> None:
        """Gives arguments the content that the program has left in them, or leaves them as they
        were given.

        Args:
            apply: Whether the statement was the call alone. Where the checks use what the call
                gives, what they expect is often worked out from the argument
                (`r = f(a); assert r == sum(a)`), which the program could empty.
        """
        for mine, new in self._changes if apply else ():
            renew(mine, new)
        self._changes.clear()


class SettleInserter(ast.NodeTransformer):
    """Adds a `settle` after each statement with a call, and before one that is a call alone;
    `assert A and B` becomes two asserts."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, field, [one for statement in value for one in self._parts(statement)])
        return node

    def _parts(self, statement: ast.stmt) -> list[ast.stmt]:
        match statement:
            case ast.Assert(ast.BoolOp(ast.And(), values), message):
                asserts = [
                    ast.copy_location(ast.Assert(part, message), statement) for part in values
                ]
                return [one for part in asserts for one in self._parts(part)]
        calls = [
            node
            for node in ast.walk(statement)
            if isinstance(node, ast.Call) and not _of_a_builtin(node)
        ]
        if [_alone(statement)] == calls:
            return [self._settle(statement, False), statement, self._settle(statement, True)]
        return [statement, self._settle(statement, False)] if calls else [statement]

    def _settle(self, statement: ast.stmt, apply: bool) -> ast.stmt:
        call = ast.Call(ast.Name(SETTLE, ast.Load()), [ast.Constant(apply)], [])
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), statement))


def _of_a_builtin(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id)


def _alone(statement: ast.stmt) -> ast.expr | None:
    """The expression that a statement is, or of which it asserts that it is None."""
    match statement:
        case ast.Expr(value):
            return value
        case ast.Assert(ast.Compare(left, [ast.Is()], [ast.Constant(None)])):
            return left
    return None


def renew(mine: Any, new: Any) -> None:
    """Gives a list, a set or a dict the content that the program has left in it."""
    if isinstance(mine, list):
        mine[:] = new
    elif isinstance(mine, (set, dict)):
        mine.clear()
        mine.update(new)


def verdicts(request: dict[str, Any]) -> None:
    """Runs checks, each on its own, to their ends, with what pytest would take for tests; writes a
    line for each that says what came of it. Where that is not known yet, writes that they ask, and
    what."""
    known: dict[str, list[str]] = {}
    for call, answer in request["known"]:  # in turn, and each is taken once
        known.setdefault(call, []).append(answer)
    endings, unknown = [], []
    for checks in request["checks"]:
        ending, asked = ended(checks, known)
        endings.append(ending)
        unknown += asked
    with open(request["report"], "w", encoding="utf-8", errors="replace") as file:
        file.writelines(f"{line}\n" for line in (["asks", *unknown] if unknown else endings))


def ended(checks: str, known: dict[str, list[str]]) -> tuple[str, list[str]]:
    """Runs checks to their end; how they ended, and the calls that the program has to answer before
    that is known."""
    asked = None
    try:
        tree = ast.parse(checks)
        asserts = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Assert)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        asked = CheckNames(known, asserts)
        exec(compile(SettleInserter().visit(tree), CHECKS, "exec"), asked)
        for name, value in list(asked.items()):
            run_tests(name, value)
        outcome = "passed" if asked.made else "broken: the checks ask nothing of the program"
    except BaseException as error:
        told = raised(error)
        where = f"checks.py:{line_of(error)}: " if asked is not None else ""
        outcome = (
            f"{'failed' if isinstance(error, Exception) and asked is not None else 'broken'} "
            f"{where}{told['raised']}" + (f": {told['text']}" if told["text"] else "")
        )
    return " ".join(outcome.split())[:500], asked.unknown if asked is not None else []


def run_tests(name: str, value: Any) -> None:
    """Runs what pytest would take for tests: a function `test_*`, and such methods of a class
    `Test*` or of a `TestCase`."""
    if isinstance(value, type):
        is_case = any(
            f"{one.__module__}.{one.__name__}" == "unittest.case.TestCase" for one in value.__mro__
        )
        tests = [
            one for one in dir(value) if one.startswith("test") and callable(getattr(value, one))
        ]
        if tests and (is_case or name.startswith("Test")):
            run_methods(value, tests, is_case)
    elif name.startswith("test_") and callable(value):
        run_to_the_end(value())


def run_methods(kind: type, tests: list[str], is_case: bool) -> None:
    """Runs methods, each on an object of its own, with what is to be done before and after."""
    at_first, before, after = (
        ("setUpClass", "setUp", "tearDown")
        if is_case
        else ("setup_class", "setup_method", "teardown_method")
    )
    run_to_the_end(getattr(kind, at_first, lambda: None)())
    for test in tests:
        made = kind(test) if is_case else kind()
        for name in (before, test, after):
            run_to_the_end(getattr(made, name, lambda: None)())


def run_to_the_end(result: Any) -> None:
    """Runs what a test has only begun: a coroutine, a generator."""
    if inspect.iscoroutine(result):
        import asyncio

        asyncio.run(result)
    elif inspect.isgenerator(result):
        for _ in result:
            pass


def line_of(error: BaseException) -> int:
    """Returns the innermost line of the checks that led to an exception."""
    line, frame = 0, error.__traceback__
    while frame is not None:
        line = frame.tb_lineno if frame.tb_frame.f_code.co_filename == CHECKS else line
        frame = frame.tb_next
    return line
