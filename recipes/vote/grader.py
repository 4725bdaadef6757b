"""An answer is the last of its letters A and B that stands alone."""

import re

LETTER = re.compile(r"\b[AB]\b")


def letter(text):
    found = LETTER.findall(text or "")
    return found[-1] if found else ""


def score_outcome(trajectory):
    found = letter(trajectory.answer)
    return float(found != "" and found == trajectory.task.label)
