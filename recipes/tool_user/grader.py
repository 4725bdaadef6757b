"""The last whole number of the final answer is the sum."""

import re


def score_outcome(trajectory):
    found = re.findall(r"\d+", trajectory.answer or "")
    return float(bool(found) and found[-1] == trajectory.task.label)
