"""F1 of the answer, as SQuAD has it; exact match is recorded beside it.

`value` is that of one answer of a role, for `rewards:` which pays what a round has gained.
"""

from marl_plugins.grading import exact_match, f1, normalised, object_in, tagged


def score_outcome(trajectory):
    answer, label = trajectory.answer, trajectory.task.label
    trajectory.outcome_parts = {
        "f1": fair(f1, answer, label),
        "exact_match": fair(exact_match, answer, label),
    }
    return trajectory.outcome_parts["f1"]


def fair(measure, answer, label):
    """A measure; an answer of articles and punctuation alone (`A`, `%`), which it does not see, has
    to be the label's text."""
    if normalised(answer or ""):
        return measure(answer, label)
    rights = label if isinstance(label, list) else [label]
    said = (answer or "").strip().lower()
    return float(said != "" and said in [str(one).strip().lower() for one in rights])


def value(action, task):
    """How right an answer is: the planner's stands in its JSON, others in a tag. One without its
    form is worth nothing."""
    if action.role == "planner":
        said = (object_in(action.text) or {}).get("answer")
        return fair(f1, said, task.label) if isinstance(said, str) else 0.0
    return fair(f1, tagged(action.text, "answer"), task.label)
