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
    {
        "visible": "assert f('dab') == 'bad'",
        "tests": "assert f('dab') == 'bad'",
        "operations": ["rev"],
    },
)
OTHERS = {"planner": "<plan>reverse it</plan>", "reflector": "<advice>reverse it</advice>"}
FORMS = (
    "```python\ndef f(s):\n    return {0}\n```",
    "As planned:\n\n```python\nf = lambda s: {0}\n```\n",
    "```python\nf = len\n```\nBetter:\n```python\ndef f(s): return {0}\n```",
    "```python\ndef f(s):\n    return {0}\n\nassert f('dab') is not None\n```",
)
TRICKS = (
    *map(fenced, leaving(("f",)).values()),
    *map(fenced, ("f = {'dab': 'bad'}.get", "assert True", "print('passed 4')\nf = lambda s: 0")),
    "Write the whole program in one ```python block",
)


def answers(tasks):
    right, wrong = ([form.format(one) for form in FORMS] for one in ("s[::-1]", "sorted(s)[::-1]"))
    bare = [
        "def f(s): return s[::-1]",
        "```\nf = lambda s: s[::-1]\n```",
        "```python\nf = lambda s: s[::-1]",
    ]
    yield GradedAnswers(TASK, right, [*wrong, *bare], TRICKS, role="coder", others=OTHERS)
