"""How right the composer's answer is: one line for each question, `2: 4310`, and a score in [0, 1]
for each line.

Nothing but what the composer says is read. The parts of the outcome are the questions in turn:
`question_1`, `question_2`, ...
"""

import re

from marl_plugins.grading import number

LINE = re.compile(r"^[ \t>*_#-]*(\d{1,3})[*_]*:[*_]*[ \t]*(\S.*)$", re.MULTILINE)
"""The answer to a question: `2: 4310`."""
LARGEST = 10**15
"""No figure of a store is larger."""


def score_outcome(trajectory):
    said = lines(trajectory.answer)
    parts = [
        score(label, said.get(number, "")) for number, label in enumerate(trajectory.task.label, 1)
    ]
    trajectory.outcome_parts = {f"question_{number}": part for number, part in enumerate(parts, 1)}
    return sum(parts) / len(parts)


def lines(answer):
    """What the numbered lines of an answer say, by number; the last one counts."""
    return {int(line[1]): line[2].strip() for line in LINE.finditer(answer or "")}


def score(label, text):
    """How right one line is."""
    form = label["form"]
    if form in ("number", "change", "order"):
        return of_number(label, number_in(text))
    found, value = names_in(text, label["options"]), label["value"]
    if form == "set":
        return len({*found} & {*value}) / len({*found} | {*value})
    if form == "ranking":
        return sum(one == other for one, other in zip(found, value, strict=False)) / max(
            len(found), len(value)
        )
    return float(found == [value])


def number_in(text):
    """The number that a line is."""
    found = number(text)
    return None if found is None or abs(found) > LARGEST else float(found)


def names_in(text, options):
    """The names between the commas of a line, in order, each once."""
    known = {option.lower(): option for option in options}
    names = [name.strip(" .*_`\"'").lower() for name in text.split(",")]
    return list(dict.fromkeys(known.get(name, name) for name in names if name))


def of_number(label, said):
    """A number within its tolerance; or what a decision is worth, as a share of the best one's
    worth."""
    if said is None:
        return 0.0
    if label["form"] == "number":
        return float(abs(said - label["value"]) <= label["tolerance"] + 1e-9)
    if label["form"] == "change":
        values = label["values"]
        return max(0.0, values.get(f"{said:g}", 0.0) / max(values.values()))
    need, margin, loss = label["need"], label["margin"], label["loss"]
    worth = min(said, need) * margin - max(0.0, said - need) * loss
    return max(0.0, min(1.0, worth / (need * margin)))
