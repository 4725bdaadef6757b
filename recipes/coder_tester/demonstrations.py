"""What the tiny models see before training; both slip now and then."""

from marl_plugins import Demonstration

SLIPS = 0.25


def program(expression):
    return f"def f(x):\n    return {expression}"


def demonstrate(task, rng):
    right = task.metadata["expression"]
    digits = [n for n, c in enumerate(right) if c.isdigit()]
    place = rng.choice(digits)
    wrong = (
        right[:place]
        + rng.choice([d for d in "23456789" if d != right[place]])
        + right[place + 1 :]
    )
    said = wrong if rng.random() < SLIPS else right
    yield Demonstration("coder", {"problem": task.prompt, "feedback": ""}, said=[program(said)])
    feedback = f"Your program:\n{program(wrong)}\nTests say:\nAssertionError"
    yield Demonstration(
        "coder", {"problem": task.prompt, "feedback": feedback}, said=[program(right)]
    )
    values = {x: eval(right, {"x": x, "max": max, "min": min}) for x in range(1, 8)}
    x = rng.choice(
        [x for x, value in values.items() if value not in (0, x)]
    )  # what no trivial function says
    value = values[x] + (rng.choice((-1, 1)) if rng.random() < SLIPS else 0)
    yield Demonstration("tester", {"problem": task.prompt}, said=[f"assert f({x}) == {value}"])
