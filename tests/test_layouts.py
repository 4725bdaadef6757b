"""Tests of programs in the layouts of public data sets: generated here in each layout, run in the
sandbox, and what they say compared with running the program by itself."""

import asyncio
import base64
import json
import pickle
import random
import subprocess
import sys
import zlib

import pytest

from marl_plugins.sandbox import Checker, asserts_of, prepared

SUM = "a, b = map(int, input().split())\nprint(a + b)"
RIGHT = (
    SUM,
    "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
    "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))",
    "import sys\nsys.stdout.write(str(sum(map(int, sys.stdin.buffer.readline().split()))))",
    "print(sum(map(int, open(0).read().split())))",
    "import os\nos.write(1, str(sum(map(int, os.read(0, 99).split()))).encode())",
    "def main():\n    print(sum(map(int, input().split())))\n\nif __name__ == '__main__':\n    main()",
    f"import sys\n{SUM}\nsys.exit(0)",
    "class A:\n    def go(self):\n        return sum(map(int, input().split()))\nprint(A().go(), end=' \\n\\n')",
    "print(sum(map(int, input().split())) + 0.0)",
    f"{SUM}\nexit()",
    "import threading\ndef main():\n    print(sum(map(int, input().split())))\n"
    "threading.Thread(target=main).start()",
    "import atexit, io, sys\nsys.stdout = io.StringIO()\n"
    "atexit.register(lambda said: sys.__stdout__.write(said.getvalue()), sys.stdout)\n"
    f"{SUM}",
    "import os, sys\nclass Out:\n    said = ''\n"
    "    def write(self, text):\n        self.said += text\n"
    "    def flush(self):\n        os.write(1, self.said.encode())\n"
    f"sys.stdout = Out()\n{SUM}",
    f"import builtins\nassert not hasattr(builtins, 'seen')\nbuiltins.seen = 1\n{SUM}",
)
ENDLESS = "while True: pass"
WRONG = (
    "print(7)",
    "",
    "a, b = map(int, input().split())\nprint(a - b)",
    f"{SUM}\nraise ValueError",
    f"{SUM}\nimport sys\nsys.exit(1)",
    f"{SUM}\nprint('more')",
    f"{SUM}\nimport os\nos._exit(0)",
    ENDLESS,
    "def printed(x):\n    return '3'",
    "import builtins, sys\nsys.stdout.close()",
    "print(input(), input())",
)


def pairs(rng):
    found = [(rng.randrange(99), rng.randrange(99)) for _ in range(5)]
    return [(f"{a} {b}\n", f"{a + b}\n") for a, b in found]


def layouts(pairs):
    """The same tests as each data set has them."""
    deep = [{"type": "stdin_stdout", "input": i, "output": o} for i, o in pairs]
    taco = {"inputs": [i for i, _ in pairs], "outputs": [o for _, o in pairs]}
    lines = {"inputs": [i.splitlines() for i, _ in pairs], "outputs": [[o] for _, o in pairs]}
    live = [{"input": i, "output": o, "testtype": "stdin"} for i, o in pairs]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(live)))).decode()
    return [deep, json.dumps(deep), taco, json.dumps(taco), lines, live, json.dumps(live), packed]


def test_every_layout_says_the_same_and_programs_are_told_apart_by_what_they_print():
    patient, hasty, given = Checker(seconds=60), Checker(seconds=3), pairs(random.Random(58))
    (asserts,) = {tuple(asserts_of(layout)) for layout in layouts(given)}
    assert len(asserts) == 5

    async def all_of_them():
        tests = "\n".join(asserts)
        found = [
            (hasty if one == ENDLESS else patient).passed(prepared(one, tests), tests)
            for one in (*RIGHT, *WRONG)
        ]
        return await asyncio.gather(*found)

    results = asyncio.run(all_of_them())
    assert [result.passed for result in results] == [True] * len(RIGHT) + [False] * len(WRONG)


@pytest.mark.parametrize(
    "imports",
    ["from xml.dom import minidom", "def never():\n    import absent\nimport xml.dom.minidom"],
)
def test_what_a_program_imports_is_imported_once_for_all_of_its_tests(imports):
    program = f"import sys\nprint('xml.dom.minidom' in sys.modules)\n{imports}\n"
    (test,) = asserts_of([{"input": "", "output": "True", "testtype": "stdin"}])
    result = asyncio.run(Checker(seconds=60).passed(prepared(program, test), test))
    assert result.passed, result.reason


def test_a_program_that_reads_nothing_is_no_trouble_however_much_there_is_to_read():
    tests = asserts_of([{"input": "x" * 10**6, "output": "42", "type": "stdin_stdout"}])
    result = asyncio.run(Checker(seconds=60).passed(prepared("print(42)", tests[0]), tests[0]))
    assert result.passed, result.reason


def test_what_is_printed_is_what_a_process_of_its_own_prints():
    """Programs of many kinds of output, by `asserts_of` and by Python itself."""
    programs = [
        "print('a  b ', end='')\nprint('\\n\\n c')",
        "print(1.50, -2.0, 1e-07, '007', 'é')",
        "import sys\nprint('x', file=sys.stderr)\nprint('y')",
        "print(*range(3), sep='\\n')\nimport os\nos.system('true')",
        "print(input()[::-1])",
    ]

    def passes(program):
        out = subprocess.run(
            [sys.executable, "-c", program], input="abc\n", capture_output=True, text=True
        ).stdout
        (test,) = asserts_of([{"input": "abc\n", "output": out, "testtype": "stdin"}])
        return asyncio.run(Checker(seconds=60).passed(prepared(program, test), test)).passed

    assert [passes(program) for program in programs] == [True] * 5


def test_functions_and_solutions_of_all_three_layouts():
    taco = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}
    live = [{"input": "1\n2", "output": "3", "testtype": "functional"}]
    deep = [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}]
    plain = "def add(a, b):\n    return a + b"
    solution = "class Solution:\n    def add(self, a, b):\n        return a + b"

    async def passed(program, tests):
        asserts = "\n".join(tests)
        return (await Checker(seconds=60).passed(prepared(program, asserts), asserts)).passed

    for tests in (asserts_of(taco), asserts_of(live, "add"), asserts_of(deep)):
        for program in (plain, solution):
            assert asyncio.run(passed(program, tests))
        assert not asyncio.run(passed(plain.replace("+", "-"), tests))


@pytest.mark.parametrize(
    ("program", "printed", "returned", "right"),
    [
        ("print(1 / 3)", "0.333333333", None, True),
        ("print('YES', 2)", "YES 2.0", None, True),
        ("print(1 / 3)", "0.334", None, False),
        ("print('0.3', 1.9999999999)", "0.3 2", None, False),
        ("def f(x): return x / 3", "", 0.333333, True),
        ("def f(x): return (x, [(x / 3,)])", "", [1, [[0.333333]]], True),
        ("def f(x): return 1.9999999999", "", 2, False),
        ("def f(x): return [x, x, x]", "", [1, 1], False),
        ("import numpy\ndef f(x): return numpy.arange(x + 1)", "", [0, 1], True),
    ],
)
def test_floats_are_met_nearly_and_lists_by_tuples(program, printed, returned, right):
    of_f = {"fn_name": "f", "inputs": [[1]], "outputs": [[returned]]}
    (test,) = asserts_of([{"input": "", "output": printed}] if printed else of_f)
    result = asyncio.run(Checker(seconds=60).passed(prepared(program, test), test))
    assert result.passed is right


def test_a_program_that_is_run_with_its_tests_can_compare_as_they_do():
    (test,) = asserts_of({"fn_name": "f", "inputs": [[1]], "outputs": [[[1, 0.333333]]]})
    exec(f"{prepared('def f(x): return (x, x / 3)', test)}\n{test}", {})


@pytest.mark.parametrize(
    "tests",
    [
        [],
        {"inputs": ["1"], "outputs": []},
        [{"input": "1"}],
        [{"input": "1", "output": "1", "testtype": "functional"}],
        base64.b64encode(zlib.compress(pickle.dumps(print))).decode(),
        '[{"input": "1", "output": ',
    ],
)
def test_what_is_in_no_layout_is_refused_and_runs_nothing(tests):
    with pytest.raises(ValueError, match=r"test|inputs|argument|list"):
        asserts_of(tests)


def test_asserts_stay_as_they_are():
    text = "assert f(1) == 2\nassert f(2) == 3"
    assert asserts_of(text) == [text]
    assert asserts_of(text.splitlines()) == text.splitlines()
    assert prepared("def f(x): return x + 1", text) == "def f(x): return x + 1"
