"""How right the composer's answer is: one line for each question, `2: 4310`, and a score in [0, 1] for each line.

Nothing but what the composer says is read. The parts of the outcome are the questions in turn: `question_1`, `question_2`, ...
"""

import re

LINE = re.compile(r"^\W*(\d+)[*_]*[:.)]+[*_]*\s*(.*\S)", re.MULTILINE)
NUMBER = re.compile(r"(?:(?<![\w.])[-\u2212])?\d+(?:,\d{3})*(?:\.\d+)?")
NAME = re.compile(r"[a-z]+-\d{3}|\d{4}-\d\d-\d\d")
"""Products and days, which are names where a question gives no options."""


def score_outcome(trajectory):
    said = lines(trajectory.answer)
    parts = [score(label, said.get(number, "")) for number, label in enumerate(trajectory.task.label, 1)]
    trajectory.outcome_parts = {f"question_{number}": part for number, part in enumerate(parts, 1)}
    return sum(parts) / len(parts)


def lines(answer):
    """What the numbered lines of an answer say, by number; the last one counts."""
    return {int(number): text for number, text in LINE.findall(answer or "")}


def score(label, text):
    """How right one line is."""
    form = label["form"]
    if form in ("number", "change", "order"):
        return of_number(label, number_in(text))
    found, value = names_in(text, label["options"]), label["value"]
    if form == "set":
        return len({*found} & {*value}) / len({*found} | {*value})
    if form == "ranking":
        return sum(one == other for one, other in zip(found, value, strict=False)) / max(len(found), len(value))
    return float(found == [value])


def number_in(text):
    """The last number of a line."""
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "").replace("\u2212", "-")) if found else None


def names_in(text, options):
    """The options that a line names, in order, each once."""
    words = "|".join(sorted(map(re.escape, options), key=len, reverse=True)).lower()
    pattern = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])") if options else NAME
    return [
        next((o for o in options if o.lower() == found), found) for found in dict.fromkeys(pattern.findall(text.lower()))
    ]


def of_number(label, said):
    """A number within its tolerance; or what a decision is worth, as a share of the best one's worth."""
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
