"""Sums and differences, generated; train and eval are disjoint by construction: eval takes every
fifth pair."""

from marl_plugins import Task


def load(split):
    tasks = []
    for a in range(2, 40):
        for b in range(2, 40):
            held_out = (a * 41 + b) % 5 == 0
            if held_out == (split == "eval"):
                sign, label = ("+", a + b) if (a + b) % 2 else ("-", a - b)
                tasks.append(Task(f"{a}{sign}{b}", f"{a} {sign} {b} = ?", str(label)))
    return tasks[:40] if split == "eval" else tasks
