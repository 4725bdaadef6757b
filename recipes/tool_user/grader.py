"""The last number of the final answer is the sum."""

import re

NUMBER = re.compile(r"(?:(?<![\w.])-)?\d+(?:,\d{3})*(?:\.\d+)?")


def score_outcome(trajectory):
    found = NUMBER.findall(trajectory.answer or "")
    return float(bool(found) and found[-1].replace(",", "") == str(trajectory.task.label))
