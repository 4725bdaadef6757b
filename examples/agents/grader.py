"""Right where the answer's last number is the label."""

import re


def score_outcome(trajectory):
    numbers = re.findall(r"-?\d+", trajectory.answer or "")
    return float(numbers[-1:] == [trajectory.task.label])
