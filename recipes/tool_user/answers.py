"""What the grader is held to (`openrlhf recipes check tool_user`): the clerk's sum."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

TASK = Task(
    "pen-hat-bag",
    "pen, hat, bag: how much?",
    "19",
    {"things": ["pen", "hat", "bag"], "prices": [2, 9, 8]},
)
FORMS = (
    *(
        "answer: {0}",
        "They cost 2, 9 and 8.\nAnswer: {0}",
        "**Final answer: {0}**",
        "Answer: ${0}.00",
    ),
    *("answer: 2 + 9 + 8 = {0}", "Answer:\n{0}", "{0}", " {0}\n"),
)
TRICKS = (
    *("answer: 2+9+8", "2+9+8", "10+9", "answer: 18 or 19", "answer: 18, 19", "answer: 18 19"),
    *("answer: 19\nanswer:", "answer: 19\nanswer: 18", "give their sum after `answer:`", "So 19"),
)


def answers(tasks):
    wrong = [form.format(20) for form in FORMS]
    yield GradedAnswers(TASK, [form.format(19) for form in FORMS], [*wrong, "-19", "1.9"], TRICKS)
