"""What each role should say on a training task: the tiny models are warm-started on it.

The demonstrators are human: some of what they write holds a slip of one digit, so a model that has
learned from them does each part well, most of the time. What is left to learn is left to the
training.
"""

from marl_plugins import Demonstration

SLIPS = {"solver": 0.2, "program": 0.15, "result": 0.1, "verifier": 0.15}
"""How often each of them slips."""


def slip(text, rng):
    """The text with one digit changed, never to 0: Python reads no number that begins with it."""
    place = rng.choice([i for i, c in enumerate(text) if c.isdigit()])
    digit = rng.choice([d for d in "123456789" if d != text[place]])
    return text[:place] + digit + text[place + 1 :]


def demonstrate(task, rng):
    """One demonstration of every role; each works with what it is given, right or wrong."""

    def written(text, by):
        return slip(text, rng) if rng.random() < SLIPS[by] else text

    plan = written(task.metadata["expression"], "solver")
    yield Demonstration("solver", {"problem": task.prompt}, said=[plan])
    program = written(plan, "program")
    printed = str(eval(program))  # digits and signs of our own
    result = written(printed, "result")
    yield Demonstration(
        "coder",
        {"problem": task.prompt, "solution": plan},
        said=[f"```python\nprint({program})\n```", result],
        shown=[printed],
    )
    answer = written(result, "verifier")
    yield Demonstration(
        "verifier", {"problem": task.prompt, "solution": plan, "computed": result}, said=[answer]
    )
