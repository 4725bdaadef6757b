"""What the grader is held to (`openrlhf recipes check dsbench/tiny.yaml`): submissions, as text of
`submission.csv`."""

import csv
import io
import random
from pathlib import Path

from marl_plugins.contracts.graders import GradedAnswers

from . import layout

SUBMISSION = "submission.csv"


def table(names, rows, **form):
    text = io.StringIO()
    csv.writer(text, **form).writerows([names, *rows])
    return text.getvalue()


def right(names, rows, rng):
    """The right predictions, as programs write them."""
    mixed = rng.sample(rows, len(rows))
    yield table(names, rows)
    yield table(names, mixed, quoting=csv.QUOTE_ALL, lineterminator="\n")
    yield table(names[::-1], [row[::-1] for row in mixed])


def wrong(names, rows, rng):
    """Submissions that are none, or predict nothing."""
    for value in ("", "nan", "inf", "None", "x", "1e999", "1,5", "1 2"):
        yield table(names, [*rows[:-1], [rows[-1][0], value]])
    yield table(names, rows[:-1])
    yield table(names, [*rows, rows[0]])
    yield table(names, [])
    yield table([names[0], "other"], rows)
    yield table(names, [[f"x{row[0]}", row[1]] for row in rows])


def tricks(names, rows, rng):
    """Files that are not a submission, and many predictions at once."""
    text, values = table(names, rows), sorted({row[1] for row in rows})[:9]
    yield table(names, [[row[0], "/".join(values)] for row in rows])
    yield table(names, [[row[0], value] for row in rows for value in values])
    yield table([*names, names[1]], [[*row, row[1]] for row in rows])
    yield table(names, [[row[0], f"={row[1]}"] for row in rows])
    yield from (text[1:], text * 2, text.replace(",", ";"), "\0" + text, text + "x")
    yield from ("../answer.csv", f"@{SUBMISSION}", ",".join(names), "score,1.0")


def answers(tasks):
    rng, task = random.Random(0), next(task for task in tasks if "profits" in task.id)
    with Path(layout.card_of(task.label).answer).open(newline="") as file:
        names, *rows = csv.reader(file)
    kinds = [list(kind(names, rows, rng)) for kind in (right, wrong, tricks)]
    yield GradedAnswers(task, *kinds, file=SUBMISSION)
