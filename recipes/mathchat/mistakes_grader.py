"""`grader.py`, and which kinds of mistakes the three make and who puts them right, as parts of the
outcome.

    plan            the solver's expression is not the problem's
    calculation     a number, but not the result
    incomplete      no number
    verification    the verifier turned a right number into another answer
"""

from marl_plugins.grading import final, mistake_parts, number, same

KINDS = ("plan", "calculation", "incomplete", "verification")


async def score_outcome(trajectory):
    task, kinds, last = trajectory.task, [], ""
    answers = [
        action for action in trajectory.actions if action.turn == last_turn(trajectory, action)
    ]
    for action in answers:
        last = await kind_of(action, task, last)
        kinds.append(last)
    trajectory.outcome_parts = mistake_parts(kinds, [a.role for a in answers], KINDS)
    return float(bool(kinds) and not kinds[-1])


def last_turn(trajectory, action):
    """The last turn of the role's conversation."""
    return max(other.turn for other in trajectory.actions if other.role == action.role)


async def kind_of(action, task, before):
    """The kind of mistake of a role's answer, after one of another kind; empty: it is right."""
    text = final(action.text)
    if action.role == "solver":
        return "" if text == task.metadata["expression"] else "plan"
    if await same(text, task.label):
        return ""
    if number(text) is None:
        return "incomplete"
    return "verification" if action.role == "verifier" and not before else "calculation"
