"""Deterministic scores in [0, 1]: how the final answer compares with the label, and a little for
each role's form."""

import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def last_number(text):
    """The last number in a text, or None."""
    found = NUMBER.findall(text.replace(",", ""))
    return float(found[-1]) if found else None


def score_outcome(trajectory):
    """1 for the right number."""
    answer = last_number(trajectory.answer or "")
    return float(answer is not None and abs(answer - float(trajectory.task.label)) < 1e-6)


def score_action(action, seen):
    """Form only, never the label: the solver and the verifier should give digits, the coder a
    program that runs."""
    if action.role == "coder":
        if action.tool_results:
            return 1.0 if all(result.ok for result in action.tool_results) else 0.5
        return 0.3 if "```python" in action.text else 0.0
    text = action.text.strip()
    return sum(c.isdigit() for c in text) / len(text) if text else 0.0
