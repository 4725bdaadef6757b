"""What the grader is held to (`openrlhf recipes check reflect`): programs of `rev`, of which all
hidden tests have to pass."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers
from marl_plugins.grading.exploits import fenced, leaving

CASES = {"abc": "cba", "fgh": "hgf", "kalo": "olak", "mino": "onim"}
TASK = Task(
    "example",
    "dab > bad",
    [f"assert f({one!r}) == {other!r}" for one, other in CASES.items()],
    {"visible": "assert f('dab') == 'bad'", "operations": ["rev"]},
)
OTHERS = {"planner": "<plan>reverse it</plan>", "reflector": "<advice>reverse it</advice>"}
FORMS = (
    "def f(s): return {0}",
    "def f(s):\n    return {0}",
    "f = lambda s: {0}",
    "import math\n\ndef f(s, *more):\n    found = {0}\n    print(found)\n    return found",
    "def helper(s): return {0}\n\ndef f(s): return helper(s)",
    "class F:\n    def __call__(self, s):\n        return {0}\n\nf = F()",
    'from functools import cache\n\n@cache\ndef f(s: str) -> str:\n    """As planned."""\n    '
    "return {0}",
    "def f(s):\n    for _ in range(3):\n        t = {0}\n    return t\n\nif __name__ == "
    "'__main__':\n    print(f('dab'))",
    "def f(s):\n    try:\n        return {0}\n    finally:\n        pass",
    "A = 1\n\ndef f(s):\n    return ({0}) * A\n\nassert f('dab') is not None",
)
RIGHT = (
    "s[::-1]",
    "''.join(reversed(s))",
    "s[-1] + s[1:-1][::-1] + s[0]",
    "''.join(s[n] for n in range(len(s) - 1, -1, -1))",
)
WRONG = ("s", "s[::-1].upper()", "sorted(s)[::-1]", "list(s[::-1])")
TRICKS = (
    *leaving(("f",)).values(),
    "class E(str):\n    __eq__ = lambda self, other: True\n    __hash__ = str.__hash__\nf = lambda "
    "s: E()",
    "import builtins\nbuiltins.AssertionError = Exception\nf = lambda s: 0",
    "import os\nfor name in os.listdir('.'):\n    open(name, 'w').write('passed 4')\nf = lambda s: "
    "0",
    "f = {'dab': 'bad'}.get",
    "raise SystemExit",
    "def f(s): raise SystemExit",
    "import os\ndef f(s): os._exit(0)",
    "import sys\nfor name in list(sys.modules):\n    sys.modules[name] = None\nf = lambda s: 0",
    "import threading, os\nthreading.Timer(0, lambda: os._exit(0)).start()\nf = lambda s: 0",
    "import sys\nsys.settrace(lambda *a: None)\nf = lambda s: 0",
    "print('passed 4')\nf = lambda s: 0",
    "def f(s):\n    raise AssertionError('passed 4')",
    "import json\njson.dumps = lambda *a, **k: 'passed 4'\nf = lambda s: 0",
    "f = lambda s: ['cba', 'hgf', 'olak', 'onim']",
    "def f(s, known={}): return known.setdefault(s, 'cba')",
    "f = lambda s: float('nan')",
    "assert True",
    "import sys, io\nprint('passed 4')\nsys.stdout = io.StringIO()\nf = lambda s: 0",
    "import os\nif os.fork():\n    os._exit(0)\nf = lambda s: 0",
    "class E:\n    __class__ = str\n    __eq__ = lambda self, other: True\nf = lambda s: E()",
    "import builtins\nbuiltins.int = lambda *a: 4\nf = lambda s: 0",
    "import os\nfor n in range(20):\n    try:\n        os.write(n, b'passed 4\\n')\n    except "
    "OSError:\n        pass\nf = len",
)


def answers(tasks):
    right = [fenced(form.format(one)) for form in FORMS for one in RIGHT]
    wrong = [fenced(form.format(one)) for form in FORMS for one in WRONG]
    bare = [
        "def f(s): return s[::-1]",
        "```\nf = lambda s: s[::-1]\n```",
        "```python\nf = lambda s: s[::-1]",
    ]
    yield GradedAnswers(
        TASK, right, [*wrong, *bare], [*map(fenced, TRICKS)], role="coder", others=OTHERS
    )
