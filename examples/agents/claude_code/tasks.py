"""A repository with one bug at a time. The test that fails is shown, and the grader has a copy of
all tests."""

from pathlib import Path

from marl_plugins import Task

FOLDER = Path(__file__).parent / "repository"
BUGS = {
    "length": [("last - first + 1", "last - first"), ("last - first + 1", "first - last + 1")],
    "overlap": [
        ("first <= last else", "first < last else"),
        ("max(a[0], b[0])", "min(a[0], b[0])"),
    ],
    "merged": [
        ("[-1][1] + 1:", "[-1][1]:"),
        ("max(result[-1][1], last)", "last"),
        ("in sorted(intervals)", "in intervals"),
    ],
    "gaps": [("a[1] + 1", "a[1]"), ("b[0] - 1", "b[0]"), ("merged(intervals)\n", "intervals\n")],
    "covered": [("<= number <=", "< number <="), ("<= number <=", "<= number <"), ("any(", "all(")],
}
"""By the function whose test fails: what is right, and what stands in its place."""
HELD_OUT = "length", "covered"


def load(split):
    right = (FOLDER / "intervals.py").read_text()
    tests = (FOLDER / "test_intervals.py").read_text()
    for function, bugs in BUGS.items():
        if (function in HELD_OUT) != (split == "eval"):
            continue
        for number, (good, bad) in enumerate(bugs):
            assert right.count(good) == 1
            yield Task(
                f"{function}-{number}",
                f"test_{function} in test_intervals.py fails. Read both files here, and correct "
                "intervals.py.",
                tests.partition("\n")[2],  # without the import: names are the program's
                {"intervals.py": right.replace(good, bad), "test_intervals.py": tests},
            )
