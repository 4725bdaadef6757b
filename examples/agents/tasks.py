"""Products of two numbers, in words; held-out ones have other numbers."""

from marl_plugins import Task


def load(split):
    pairs = [
        (a, b)
        for a in range(2, 40)
        for b in range(2, 10)
        if (a * 7 + b) % 5 != 0 or split == "eval"
    ]
    held = [(a, b) for a, b in pairs if (a * 7 + b) % 5 == 0] if split == "eval" else pairs
    return [Task(f"{a}x{b}", f"{a} boxes of {b} pens. How many pens?", str(a * b)) for a, b in held]
