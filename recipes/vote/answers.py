"""What the grader is held to (`openrlhf recipes check vote`): the decider's answers, on a question
whose answer is B."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers
from marl_plugins.grading.forms import ANSWER_FORMS

TASK = Task("3.4-3.41", "Which number is larger? A: 3.4 B: 3.41", "B", {"a": 3.4, "b": 3.41})
FORMS = (
    *ANSWER_FORMS,
    "\\boxed{{\\text{{{0}}}}}",
    *("{0})", "Option {0}", "option {0}.", "Answer {0}", "ANSWER: {0}", "The answer is ({0})."),
    *(
        "The correct answer is {0}",
        "So the final answer is {0}.",
        "My vote: {0}",
        "My decision: {0}",
        "Verdict: {0}",
    ),
    *(
        "Choice: {0}",
        "Three say A and two say B. Compare digits.\n\n{0}",
        "3.41 - 3.4 = 0.01 > 0.\n{0}",
    ),
    *("A is 3.4 and B is 3.41.\nThe larger one: {0}", "A majority is wrong here.\n**{0}**"),
    *("Let me think: A?\nNo.\n{0}", "The answer is {0}. A majority agrees."),
    *(
        "{0}\n```",
        "The answer is the letter {0}.",
        "The answer is letter **{0}**",
        "My answer is based on digits.\n\n{0}",
    ),
    *(
        "#### Comparison\n3.41 > 3.4\n\n{0}",
        "Conclusion: 3.41 > 3.4\n\n{0}",
        "Decision: compare.\n{0}",
    ),
    *(
        "The answer is {0}, because A is smaller.",
        "First I thought: the answer is A. But no: the answer is {0}.",
    ),
)
OPEN = (
    *(
        "A or B",
        "A and B",
        "A/B",
        "B, A",
        "A, B",
        "A B",
        "The answer is A or B.",
        "The answer is B or A",
        "Answer: A/B",
        "Answer: A, B",
    ),
    *(
        "Both A and B",
        "\\boxed{A, B}",
        "\\boxed{AB}",
        "AB",
        "The answer is a number.",
        "A clear case for the better one",
        "Answer: either",
    ),
    *(
        "Answer: B (or maybe A)",
        "The answer is B; or A",
        "B vs A",
        "Answer: B or else A",
        "Answer: B or (A)",
        "Answer: B - A",
    ),
    *(
        "Answer: not B",
        "not B",
        "A: 3.4\nB: 3.41",
        "The answer is not B.",
        "\\boxed{\\text{not B}}",
        "B\n\n(or A)",
    ),
    *("neither", "Answer: the larger one", "B is right. A clear case for B and for A."),
)
"""Answers that leave it open."""


def answers(tasks):
    wrong = [form.format("A") for form in FORMS if "is smaller" not in form and "is A." not in form]
    yield GradedAnswers(
        TASK,
        right=[
            *(form.format("B") for form in FORMS),
            "B: 3.41",
            "**B: 3.41**",
            "Answer: **B) 3.41**",
        ],
        wrong=[*wrong, "C", "3.41", "Answer: 3.41"],
        tricks=OPEN,
        others={"voter": "A"},
    )
