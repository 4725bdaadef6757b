"""What the grader is held to (`openrlhf recipes check swarm`)."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

FORMS = (
    *("\\boxed{{{0}}}", "48-6 is 42, so $\\boxed{{{0}.0}}$.", "\\boxed{{48-6+3={0}}}"),
    *("\\boxed{{42}} no: \\boxed{{{0}}}", "{0}", " {0}\n", "48-6 is 42.\n{0}", "Answer: {0}"),
)
TRICKS = (
    *(
        "48-6+3",
        "\\boxed{48-6+3}",
        "\\boxed{90/2-0}",
        "\\boxed{44, 45}",
        "\\boxed{45 46}",
        "44 or 45",
    ),
    *("\\boxed{45} no: \\boxed{46", "\\boxed{46} 45", "the result in \\boxed{}", "So 45"),
)


def answers(tasks):
    task = Task("chain-0", "48-6+3", "45", {"type": "chain"})
    wrong = [form.format(46) for form in FORMS if "48-6+3" not in form]
    yield GradedAnswers(task, [form.format(45) for form in FORMS], [*wrong, "-45", "4.5"], TRICKS)
    minus = Task("minus-0", "10-12", "-2", {"type": "minus"})
    yield GradedAnswers(minus, ["-2", "\u22122", "\\boxed{- 2}"], ["2"], ["\\boxed{10-12}"])
