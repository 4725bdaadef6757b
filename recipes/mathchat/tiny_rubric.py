"""How the coach judges the tiny models' steps: short rules that need no label, and one that
does."""

import re

from marl_plugins import Criterion

EXPRESSION = re.compile(r"\d+(?:[+*-]\d+)+")


def numbers(text):
    return re.findall(r"\d+", text)


def is_expression(action, seen):
    return EXPRESSION.fullmatch(action.text) is not None


def uses_the_numbers_of_the_problem(action, seen):
    return sorted(numbers(action.text)) == sorted(numbers(seen.prompt))


def is_the_plan_as_a_program(action, seen):
    """One block and not a word more; once its output is there, nothing is left to do but to repeat
    it."""
    if action.before is not None:
        return action.text == action.before.tool_output
    plan = next(a.text for a in seen.before if a.role == "solver")
    return action.text == f"```python\nprint({plan})\n```"


def runs(action, seen):
    """A program that runs in the first turn, none in the second."""
    if action.before is not None:
        return not action.tool_results
    return bool(action.tool_results) and all(result.ok for result in action.tool_results)


def is_a_number(action, seen):
    return re.fullmatch(r"-?\d+", action.text.strip()) is not None


def repeats_the_coder(action, seen):
    return action.text == seen.before[-1].text


def is_right(action, seen):
    label = seen.label  # of a file of one's own it may be a number
    whole = isinstance(label, float) and label.is_integer()
    return action.text.strip() == str(int(label) if whole else label)


RUBRIC = {
    "solver": [
        Criterion("is an expression", 4, is_expression),
        Criterion("uses the problem's numbers", 6, uses_the_numbers_of_the_problem),
    ],
    "coder": [
        Criterion("its program runs", 4, runs),
        Criterion("is the plan and nothing else", 6, is_the_plan_as_a_program),
    ],
    "verifier": [
        Criterion("is a number", 2, is_a_number),
        Criterion("repeats the coder's result", 3, repeats_the_coder),
        Criterion("is right", 5, is_right, needs_label=True),
    ],
}
