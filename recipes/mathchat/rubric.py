"""How the coach judges the steps of full-size models when no other model is to be asked: form and
tools, not style."""

import re

from marl_plugins import Criterion
from marl_plugins.grading import boxed, right, same


def ended(action, seen):
    return action.generation.finish == "stop"


def boxes_one_answer(action, seen):
    return action.text.count("\\boxed{") == 1


def shows_a_calculation(action, seen):
    return any(sign in action.text for sign in ("=", "\\frac", "+", "*", "\\times"))


def runs(action, seen):
    """The first turn has a program that runs; a later one repairs a failed program, or has none."""
    if action.before is not None and not action.tool_results:
        return all(result.ok for result in action.before.tool_results)
    return bool(action.tool_results) and all(result.ok for result in action.tool_results)


def prints(action, seen):
    """Something is printed, and an answer without a program repeats what was."""
    if action.tool_results:
        return any(result.ok and result.output.strip() for result in action.tool_results)
    printed = action.before.tool_output.split() if action.before else []
    return (
        bool(printed)
        and re.search(rf"(?<![\w.]){re.escape(printed[-1])}(?!\w|\.\d)", action.text) is not None
    )


async def boxes_what_was_computed(action, seen):
    printed = [
        word for a in seen.before for r in a.tool_results if r.ok for word in r.output.split()
    ]
    answer = boxed(action.text)
    return bool(printed) and answer is not None and await same(answer, printed[-1])


async def is_right(action, seen):
    return await right(action.text, seen.label)


RUBRIC = {
    "solver": [
        Criterion("comes to its end", 2, ended),
        Criterion("shows a calculation", 3, shows_a_calculation),
        Criterion("boxes one answer", 5, boxes_one_answer),
    ],
    "coder": [
        Criterion("comes to its end", 2, ended),
        Criterion("its program runs", 4, runs),
        Criterion("its result is printed", 4, prints),
    ],
    "verifier": [
        Criterion("boxes one answer", 2, boxes_one_answer),
        Criterion("boxes what was computed", 3, boxes_what_was_computed),
        Criterion("is right", 5, is_right, needs_label=True),
    ],
}
