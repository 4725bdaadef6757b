"""What the tiny models see before training: plans, programs and advice, now and then with other
operations than the right ones."""

from marl_plugins import Demonstration

from . import tasks

SLIPS = {"planner": 0.35, "coder": 0.2, "reflector": 0.35}
"""How often each of them slips."""
FORM = 0.05
"""How often an answer lacks its form."""
FAILED = (
    'Traceback (most recent call last):\n  File "program.py", line 2, in '
    "<module>\nAssertionError: {}"
)


def near(names, rng):
    """Other operations, which differ in one of them."""
    found = list(names)
    if len(found) == 2 and rng.random() < 0.6:
        found.pop(rng.randrange(2))
    else:
        found[rng.randrange(len(found))] = rng.choice(
            [name for name in tasks.OPERATIONS if name not in found]
        )
    return found


def demonstrate(task, rng):
    right, example = (
        task.metadata["operations"],
        {"problem": task.prompt, "tests": task.metadata["visible"]},
    )

    def by(role):
        return " ".join(near(right, rng) if rng.random() < SLIPS[role] else right)

    def tagged(name, text):
        return f"<{name}>{text}" if rng.random() < FORM else f"<{name}>{text}</{name}>"

    plan, wrong = by("planner"), near(right, rng)
    yield Demonstration(
        "planner", {**example, "program": "", "advice": ""}, said=[tagged("plan", plan)]
    )
    coded = tasks.program(
        near(plan.split(), rng) if rng.random() < SLIPS["coder"] else plan.split()
    )
    fenced = f"```python\n{coded}\n" + ("" if rng.random() < FORM else "```")
    yield Demonstration("coder", {**example, "plan": plan}, said=[fenced])
    result = FAILED.format(tasks.applied(wrong, task.prompt.split()[0]))
    fields = {**example, "program": tasks.program(wrong), "result": result}
    yield Demonstration("reflector", fields, said=[tagged("advice", by("reflector"))])
    advice = by("reflector")
    again = advice if rng.random() > SLIPS["planner"] else " ".join(wrong)
    fields = {**example, "program": tasks.program(wrong), "advice": advice}
    yield Demonstration("planner", fields, said=[tagged("plan", again)])
