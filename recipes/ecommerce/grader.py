"""How right the composer's answer is: one line for each question, `2: 4310`, and a score in [0, 1]
for each line.

Nothing but what the composer says is read. The parts of the outcome are the questions in turn:
`question_1`, `question_2`, ...
"""

import re

from marl_plugins.grading import denied, lone_number, number

BEGIN = re.compile(
    r"(?:^[^\w\n]*|(?<=[\s,;|]))(?:(?:answer|question|a|q)\W?\s*)?(\d{1,3})"
    r"(?:[*_]*(?::|[.)](?!\d))|[ \t]+:(?=[ \t])|[ \t]*\|(?=[^\n|]*\|))[*_:.)]*",
    re.I | re.M,
)
"""Where the answer to a question begins: `2: `, `**2.** `, `Answer 2: `, at the start of a line or
after the answer before."""
LARGEST = 10**15
"""No figure of a store is larger."""
HYPHENS = re.compile("[\u2010-\u2013\u2212]")
NAME = re.compile(r"[a-z]+-\d{3}|\d{4}-\d\d-\d\d")
"""Products and days, which are names where a question gives no options."""


def score_outcome(trajectory):
    said = lines(trajectory.answer)
    parts = [
        score(label, said.get(number, "")) for number, label in enumerate(trajectory.task.label, 1)
    ]
    trajectory.outcome_parts = {f"question_{number}": part for number, part in enumerate(parts, 1)}
    return sum(parts) / len(parts)


def lines(answer):
    """What the numbered lines of an answer say, by number; the last one counts. Several may stand
    on one line, in order."""
    text, begins = HYPHENS.sub("-", answer or ""), []
    for found in BEGIN.finditer(text):
        inside = begins and "\n" not in text[begins[-1].end() : found.start()]
        if not inside or (int(found[1]) == int(begins[-1][1]) + 1 and ":" in found[0]):
            begins.append(found)
    said = {}
    for found, after in zip(begins, [*begins[1:], None], strict=False):
        said[int(found[1])] = (
            text[found.end() : after.start() if after else None].partition("\n")[0].strip()
        )
    return {number: one for number, one in said.items() if one}


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
    """The number of a line that says one."""
    found = number(lone_number(text))
    return None if found is None or abs(found) > LARGEST else float(found)


def names_in(text, options):
    """The options that a line names, in order, each once."""
    words = "|".join(sorted(map(re.escape, options), key=len, reverse=True)).lower()
    pattern = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE) if options else NAME
    text = text if options else text.lower()
    found = [
        one[0] for one in pattern.finditer(text) if not denied(text, *one.span())
    ]  # "June, not July" names June
    exact = [
        one for one in found if one in options or one.isupper()
    ]  # "It may be June" names one month
    said = dict.fromkeys(one.lower() for one in exact or found)
    return [next((option for option in options if option.lower() == one), one) for one in said]


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
