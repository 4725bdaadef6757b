"""A coach that sees only whether an action's own program ran: who has broken it is not asked. A
control for tiny_rubric.py."""

from marl_plugins import Criterion

from . import tiny_rubric as tiny


def ran(action, seen):
    return bool(action.tool_results) and all(result.ok for result in action.tool_results)


RAN = Criterion("its program ran", 5, ran)
RUBRIC = {"engineer": [RAN], "modeler": [RAN], "analyst": [RAN, tiny.SOLVED]}
