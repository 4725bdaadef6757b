"""F1 of the answer, as SQuAD has it; exact match is recorded beside it.

`value` is that of one answer of a role, for `rewards:` which pays what a round has gained.
"""

from marl_plugins.grading import exact_match, f1
from marl_plugins.graph.reading import object_in, tagged


def score_outcome(trajectory):
    answer, label = trajectory.answer, trajectory.task.label
    trajectory.outcome_parts = {"f1": f1(answer, label), "exact_match": exact_match(answer, label)}
    return trajectory.outcome_parts["f1"]


def value(action, task):
    """How right an answer is: the planner's stands in its JSON, others in a tag. One without its form is worth nothing."""
    if action.role == "planner":
        said = (object_in(action.text) or {}).get("answer")
        return f1(said, task.label) if isinstance(said, str) else 0.0
    return f1(tagged(action.text, "answer"), task.label)
