"""The strict coach of the tiny recipe: whether each word is the right one; for the last, also
whether the task is solved."""

from marl_plugins import Criterion

from . import judging, pipeline


def stage_of(action):
    """The decision that an action makes: its role's first, second, ... in the order of its
    turns."""
    return pipeline.BY_ROLE[action.role][action.turn]


def is_right(action, seen):
    card = seen.messages[0][1].splitlines()[0]
    return action.text.strip() == pipeline.right(stage_of(action).name, card)


async def is_solved(action, seen):
    result = await judging.judged(seen.label, seen)
    return result is not None and result.gap >= judging.ENOUGH


SOLVED = Criterion("the task is solved", 5, is_solved, needs_label=True)
RUBRIC = {
    "engineer": [Criterion("the right word", 5, is_right)],
    "modeler": [Criterion("the right word", 5, is_right)],
    "analyst": [Criterion("the right word", 5, is_right), SOLVED],
}
