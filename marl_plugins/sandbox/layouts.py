"""Tests of programs as public data sets have them, as asserts, which `Checker` runs.

    DeepCoder       [{"type": "stdin_stdout", "input": "1 2\\n", "output": "3\\n"}, ...]
    TACO, APPS      {"inputs": ["1 2\\n", ...], "outputs": ["3\\n", ...], "fn_name": "add"}
    LiveCodeBench   [{"testtype": "stdin", "input": ..., "output": ...}, ...], also compressed

A program that reads standard input becomes a function of it, `printed(stdin)`, which forks a
process for each test; one that holds a function, or a class `Solution` with it, is asked for that.
Nothing that a program writes or ends with can say that it has passed. Expected floats and lists
are compared by `alike` (checker_programs.py).
"""

from __future__ import annotations

import base64
import inspect
import io
import json
import pickle
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from marl_plugins.sandbox import run_program
from marl_plugins.sandbox.checker_programs import alike

ASKED = re.compile(r"\bassert (\w+)\(")
DECIMAL = re.compile(r"\d(?:[.]|e[-+]?)\d")
MOST_BYTES = 2**28
"""Of tests that were compressed."""


def asserts_of(tests: Any, name: str = "") -> list[str]:
    """Returns tests in any of the layouts as asserts.

    Args:
        tests: JSON values or their text; a text of asserts, or a list of them, stays as it is.
        name: Of the function that tests call, where they do not say it themselves (LiveCodeBench
            has it in its metadata).

    Raises:
        ValueError: They are in none of these layouts.
    """
    if isinstance(tests, str):
        tests = _unpacked(tests)
    if isinstance(tests, str):
        if "assert" not in tests:  # it would pass no program, or every one
            raise ValueError("a text of tests is neither JSON nor asserts")
        return [tests]
    if isinstance(tests, Mapping) and "inputs" in tests:
        pairs = zip(tests["inputs"], tests["outputs"], strict=True)
        tests = [{"input": i, "output": o, "fn_name": tests.get("fn_name")} for i, o in pairs]
    if not isinstance(tests, list) or not tests:
        raise ValueError("expected a list of tests, or `inputs` and `outputs`")
    try:
        return [one if isinstance(one, str) else _assert(one, name) for one in tests]
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"a test has another form: {type(error).__name__} {error}") from None


def _assert(test: Mapping[str, Any], name: str) -> str:
    """Returns one test as an assert: what is printed, or what a function returns."""
    given, output = test["input"], test["output"]
    of_function = test.get("testtype") == "functional" or test.get("type") == "function_call"
    name = test.get("fn_name") or (name if of_function else "")
    if of_function and not name:
        raise ValueError("a test of a function does not say the function's name")
    if not name:
        given, output = (
            text if isinstance(text, str) else "".join(f"{line}\n" for line in text)
            for text in (given, output)
        )
        has_floats = DECIMAL.search(output)
        wanted = f"alike(words={output.strip()!r})" if has_floats else repr(in_words(output))
        return f"assert printed({given!r}) == {wanted}"
    if isinstance(given, str):  # an argument a line
        given, output = [json.loads(line) for line in given.splitlines()], json.loads(output)
    elif isinstance(output, list) and len(output) == 1:  # TACO has a list around what is returned
        (output,) = output
    wanted = f"alike({output!r})" if isinstance(output, (float, list)) else repr(output)
    return f"assert {name}({', '.join(map(repr, given))}) == {wanted}"


def prepared(program: str, tests: str) -> str:
    """Returns a program with what asserts call: itself as `printed`, or the method of its
    `Solution`; and `alike`."""
    asked = ASKED.search(tests)
    name = asked[1] if asked else ""
    parts = [program]
    if name == "printed":
        run = f"RUNS = {{}}\nexec({inspect.getsource(run_program)!r}, RUNS)"
        known = f"PROGRAM = {program!r}\nimports_of(PROGRAM)"
        call = "def printed(stdin):\n    return said_by(PROGRAM, stdin, RUNS['run_program'])"
        ours = *map(inspect.getsource, [imports_of, in_words]), inspect.getsource(said_by)
        parts = ["from collections.abc import Callable", *ours, run, known, call]
    elif name and re.search(r"^class Solution\b", program, re.MULTILINE):
        parts.append(f"{name} = getattr(Solution(), {name!r})")
    if "alike(" in tests:
        parts.append(inspect.getsource(alike))
    return "\n\n".join(parts)


def in_words(text: str) -> str:
    """Returns what a program prints as these data sets compare it: words, with numbers by their
    value, by lines without space around them. Runs in the sandbox, too."""
    import re
    from decimal import Decimal

    def by_value(word: str) -> str:
        if not re.fullmatch(r"[-+]?[0-9]+(?:[.][0-9]+)?(?:e[-+]?[0-9]{1,2})?", word):
            return word
        value = Decimal(word)
        return word if "." not in word and "e" not in word else format(value.normalize() + 0, "f")

    lines = text.strip().splitlines()
    return "\n".join(" ".join(map(by_value, line.split())) for line in lines)


def imports_of(program: str) -> None:
    """Makes the imports of a program, which the processes of its tests then share: numpy takes a
    tenth of a second. Nothing of its own runs or is found: it has written no file yet. Runs in the
    sandbox alone."""
    import ast
    from contextlib import suppress

    with suppress(BaseException):  # no Python
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                with suppress(BaseException):  # its tests say so, where they come to it
                    exec(compile(ast.Module([node], []), "imports", "exec"), {})


def said_by(program: str, stdin: str, run: Callable[[str, int, bool], None]) -> str:
    """Runs a program to its end in a process of its own, and returns what it prints. Runs in the
    sandbox alone.

    Args:
        run: `run_program`.

    Raises:
        RuntimeError: Its exit code is not 0; with the last line of its errors.
    """
    import os
    import sys
    import tempfile

    opened = tempfile.TemporaryFile
    with opened() as source, opened() as given, opened() as said, opened() as errors:
        for file, text in ((source, program), (given, stdin)):
            file.write(text.encode(errors="replace"))
            file.seek(0)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                for number, file in enumerate((given, said, errors)):
                    os.dup2(file.fileno(), number)
                run("python", source.fileno(), False)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (said, errors):
            file.seek(0)
        complaint = errors.read().decode(errors="replace")
        sys.stderr.write(complaint)
        if code:
            last = complaint.rstrip().rpartition("\n")[2]
            raise RuntimeError(f"exit code {code}: {last}")
        return in_words(said.read().decode(errors="replace"))


def _unpacked(text: str) -> Any:
    """Returns the values of a text: JSON, compressed or not; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9+/]{16,}=*", text):
            return text
    try:
        packed = zlib.decompressobj().decompress(base64.b64decode(text), MOST_BYTES)
        return json.loads(_PlainPickle(io.BytesIO(packed)).load())
    except (zlib.error, pickle.UnpicklingError, TypeError, EOFError) as error:
        raise ValueError(f"compressed tests are damaged: {error}") from None


class _PlainPickle(pickle.Unpickler):
    """Reads a text that somebody has pickled, and nothing that would run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"compressed tests name {module}.{name}: they are no text")
