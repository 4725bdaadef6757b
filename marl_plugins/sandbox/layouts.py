"""Tests of programs as public data sets have them, as asserts, which `Checker` runs.

    DeepCoder       [{"type": "stdin_stdout", "input": "1 2\\n", "output": "3\\n"}, ...]
    TACO, APPS      {"inputs": ["1 2\\n", ...], "outputs": ["3\\n", ...], "fn_name": "add"}
    LiveCodeBench   [{"testtype": "stdin", "input": ..., "output": ...}, ...], also compressed

A program that reads standard input becomes a function of it, `printed(stdin)`; one that holds a
function, or a class `Solution` with it, is asked for that. So one program meets all its tests in
one process, and nothing that it writes or ends with can say that it has passed.
"""

from __future__ import annotations

import base64
import inspect
import io
import json
import pickle
import re
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn

ASKED = re.compile(r"\bassert (\w+)\(")
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
        return f"assert printed({given!r}) == {in_words(output)!r}"
    if isinstance(given, str):  # an argument a line
        given, output = [json.loads(line) for line in given.splitlines()], json.loads(output)
    elif isinstance(output, list) and len(output) == 1:  # TACO has a list around what is returned
        (output,) = output
    return f"assert {name}({', '.join(map(repr, given))}) == {output!r}"


def prepared(program: str, tests: str) -> str:
    """Returns a program with what asserts call: itself as `printed`, or the method of its
    `Solution`."""
    asked = ASKED.search(tests)
    name = asked[1] if asked else ""
    if name == "printed":
        ours = "\n\n".join(inspect.getsource(function) for function in (in_words, said_by))
        return f"{ours}\n\ndef printed(stdin):\n    return said_by({program!r}, stdin)\n"
    if not name or not re.search(r"^class Solution\b", program, re.MULTILINE):
        return program
    return f"{program}\n\n{name} = getattr(Solution(), {name!r})\n"


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


def said_by(program: str, stdin: str) -> str:
    """Runs a program on a standard input, and returns what it prints. Runs in the sandbox alone."""
    import contextlib
    import os
    import sys
    import tempfile

    kept, streams = [os.dup(0), os.dup(1)], (sys.stdin, sys.stdout)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(stdin.encode())
        given.seek(0)
        os.dup2(given.fileno(), 0)
        os.dup2(said.fileno(), 1)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        ours = sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        try:
            exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"exit code {end.code}") from None
        finally:
            with contextlib.suppress(ValueError):  # it has closed it
                ours.flush()
            sys.stdin, sys.stdout = streams
            for number, descriptor in enumerate(kept):
                os.dup2(descriptor, number)
                os.close(descriptor)
        said.seek(0)
        return in_words(said.read().decode("utf-8", "replace"))


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
