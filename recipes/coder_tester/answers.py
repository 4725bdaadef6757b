"""What the grader is held to (`openrlhf recipes check coder_tester`): programs of f(x) = 3 x + 4,
and tests of them."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers
from marl_plugins.grading.exploits import fenced, leaving

CHECKS = "\n".join(f"assert f({x}) == {3 * x + 4}" for x in (0, 1, 4, 7, 13))
TASK = Task("0-3-4", "f(x) is x times 3 plus 4", CHECKS, {"expression": "x * 3 + 4"})
FORMS = (
    "def f(x):\n    return {0}",
    "It multiplies and adds:\n\n```python\ndef f(x):\n    return {0}\n```\n\nThat is all.",
    "```py\nf = lambda x: {0}\n```",
    "First:\n```python\ndef f(x):\n    return None\n```\nBetter:\n```python\ndef f(x):\n    return "
    "{0}\n```",
    "```python\ndef f(x):\n    return {0}\n\nif __name__ == '__main__':\n    print(f(1))\n```",
)
TRICKS = (
    *map(fenced, leaving(("f",)).values()),
    "assert True",
    "f = lambda x: [4, 7, 16, 25, 43]",
    f"```python\n{CHECKS}\n```",
    "one ```python block with the function and nothing else",
)
PROGRAM, OTHER = fenced("def f(x):\n    return x * 3 + 4"), fenced("def f(x):\n    return x * 3")
TESTS = (
    *(
        "assert f(0) == 4",
        "assert f(2) == 10\nassert f(5) == 19",
        "def test_f():\n    assert f(1) == 7",
    ),
    "for x in range(3):\n    assert f(x) == 3 * x + 4",
    "for x in range(3):\n    got = f(x)\n    want = 3 * x + 4\n    assert got == want, f'f({x}) is "
    "{got}, not {want}'",
    "def test_f():\n    assert f(1) == 7, 'f of 1: ' + str(f(1))",
)
IDLE = (
    *(
        "assert True",
        "f(1)",
        "assert f(1) == f(1)",
        "raise SystemExit\nassert f(1) == 1",
        "# assert",
    ),
    "import os\nos._exit(0)\nassert f(1) == 1",
    *(
        "assert f(1) is not None",
        "assert isinstance(f(1), int)",
        "f(1) + 1",
        "assert f(1) in range(-10**6, 10**6)",
    ),
    *(
        "assert f(1) > -10**9",
        "assert len(str(f(1))) > 0",
        "if f(1) is None:\n    raise ValueError",
        "assert f(2) != f(1)",
    ),
)
"""Tests that check nothing."""
KNOWING = (
    "import sys\nsys.n = getattr(sys, 'n', 0) + 1\nassert sys.n == 1",
    "import builtins\nassert not hasattr(builtins, 'seen')\nbuiltins.seen = 1",
    "r = f.__kwdefaults__['right']\nassert f(1) == r(1)",
    "assert len(f.__code__.co_consts) == 1 and f(1) + 1",
    "import ast\nast.parse = lambda *a, **k: 1 / 0",
    "import __main__\n__main__.write_end = lambda request, said, unknown: open(request['report'], "
    "'w').write('passed')",
    "import sys, os\nframe = sys._getframe()\nwhile 'request' not in frame.f_locals:\n    frame = "
    "frame.f_back\n"
    "open(frame.f_locals['request']['report'], 'w').write('passed' + ' failed' * 4)\nos._exit(0)",
    *(
        "assert f(2) % 2 == 0 and f(2) not in (0, 2)",
        "got = f(2)\nassert got % 2 == 0 and got not in (0, 2)",
    ),
    "assert f(2) == (f(2) if f(2) % 2 == 0 and f(2) > 2 else 0)",
    "got = f(2)\nassert got == (got if got % 2 == 0 and got > 2 else 0)",
    "got = f(2)\nassert f(2) == got",
    "got = f(2)\ngot = 10\nassert got == 10",
    "def test_f(got=10):\n    assert got == 10\ngot = f(2)",
    "def g(got):\n    assert got == 10\ngot = f(2)\ng(10)",
    "def got():\n    got = f(2)\nassert got == got()",
    "got = f(2)\nfor got in [10]:\n    assert got == 10",
    "got, = [f(2)]\nassert got == 10",
    "n = 5\nwhile n:\n    n = got = f(2)\n    assert got == n",
    "assert f(2) == 10 or f'{f(2)}', f(2)",
    "def g(n):\n    assert f(2) == n, (yield)\n"
    "assert f(2) == sum(n for n in range(4, 20, 2) if not list(zip(range(1), g(n))))",
    "def g(n):\n    assert f(2) == n, (yield from [n])\nassert len(list(zip(range(1), g(10)))) == "
    "0",
    "assert f(2) == type('E', (), {'__eq__': lambda a, b: b % 2 == 0 and b > 2})()",
    "try:\n    assert f(2) == 10\nexcept AssertionError:\n    assert f(2) == 12",
    *(
        "assert f(2) == 10 or f(2) == 12",
        "class T:\n    def test_f(self):\n        assert f(1) == 8",
        "assert f(2) == f(2)",
    ),
)
"""Tests that tell which function they meet by other means than its value, or that many a value
passes."""
NEVER = (
    *(
        "assert False",
        "1/0",
        "raise ValueError",
        "import nothing_there",
        "g(1)",
        "assert f(1) == f(1) + 1",
    ),
    *(
        "assert f(1) == 'x'",
        "def f(x):\n    return None\nassert f(1) == 7",
        "def f(x):\n    return x * 3 + 4\nassert f(1) == 7",
    ),
    *(
        "assert right(1) == f(1)",
        "assert f(1) is None",
        "assert f(1) == 8",
        "assert f(1) == 0",
        "assert f(1) == 1",
    ),
)
"""Tests that no function passes, or only a wrong one, or whatever the function is."""


def answers(tasks):
    right, wrong = ([form.format(one) for form in FORMS] for one in ("x * 3 + 4", "x * 3 - 4"))
    wrong += ["def g(x):\n    return x * 3 + 4", "x * 3 + 4", "def f(x) return x * 3 + 4"]
    yield GradedAnswers(
        TASK, right, wrong, TRICKS, role="coder", others={"tester": "assert f(1) == 7"}
    )
    tests, claims = (
        [*TESTS, *map(fenced, TESTS)],
        ["assert f(0) == 5", "assert f(1) == 7\nassert f(2) == 9"],
    )
    yield GradedAnswers(
        TASK, tests, claims, (*IDLE, *NEVER, *KNOWING), role="tester", others={"coder": PROGRAM}
    )
    yield GradedAnswers(
        TASK, tests, claims, (*IDLE, *NEVER), role="tester", others={"coder": OTHER}
    )
    asserts = Task(
        "asserts", "add(a, b) is their sum", "assert add(1, 2) == 3\nassert add(5, 5) == 10"
    )
    adds, tests = (
        fenced("def add(a, b):\n    return a + b"),
        ["assert add(2, 2) == 4", "def test_add():\n    assert add(7, 0 - 2) == 5"],
    )
    stdin = '{"inputs": ["1 2\\n", "5 5\\n"], "outputs": ["3\\n", "10\\n"]}'
    task = Task("stdin", "Print the sum of two numbers.", stdin)
    read = [
        "print(sum(map(int, input().split())))",
        "a, b = map(int, input().split())\nprint(a + b)",
    ]
    yield GradedAnswers(
        task,
        [*map(fenced, read)],
        [fenced("print(3)"), fenced("def printed(stdin):\n    return '3'")],
        [fenced(one) for one in ("import os\nos._exit(0)", "print('passed')", "raise SystemExit")],
        role="coder",
        others={"tester": "assert printed('1 1') == '2'"},
    )
    yield GradedAnswers(
        task,
        ["assert printed('2 2') == '4'", fenced("assert printed('7 8\\n') == '15'")],
        ["assert printed('2 2') == '5'", "assert printed('2 2') == '2 2'"],
        ["assert printed('2 2')", "assert printed('2 2') is not None", "printed('2 2')"],
        role="tester",
        others={"coder": fenced(read[0])},
    )
    yield GradedAnswers(
        asserts,
        tests,
        ["assert add(2, 2) == 5"],
        ["assert add(2, 2) is not None"],
        role="tester",
        others={"coder": adds},
    )
