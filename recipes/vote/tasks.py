"""Which of two decimal numbers is larger? Models compare the digits behind the point as if they
were whole numbers."""

import random

from marl_plugins import Task


def decimal(rng):
    """A number with one or two digits behind the point."""
    return f"{rng.randint(1, 9)}.{rng.randint(1, 9)}" + (
        str(rng.randint(1, 9)) if rng.random() < 0.5 else ""
    )


def generate(split, count):
    """Different questions; whole numbers before the point are equal in half of them."""
    rng, tasks, seen = random.Random(f"vote-{split}"), [], set()
    while len(tasks) < count:
        a, b = decimal(rng), decimal(rng)
        if rng.random() < 0.5:
            b = a[0] + b[1:]
        held_out = (float(a) * 100 + float(b) * 7) % 5 < 1
        if float(a) == float(b) or (a, b) in seen or held_out != (split == "eval"):
            continue
        seen.add((a, b))
        label = "A" if float(a) > float(b) else "B"
        tasks.append(
            Task(f"{a}-{b}", f"Which number is larger? A: {a} B: {b}", label, {"a": a, "b": b})
        )
    return tasks


def load(split):
    """1,000 questions to train on, 200 that are held out."""
    return generate(split, 1000 if split == "train" else 200)
