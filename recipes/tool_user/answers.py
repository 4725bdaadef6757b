"""What the grader is held to (`openrlhf recipes check tool_user`): the clerk's sum."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers
from marl_plugins.grading.forms import ANSWER_FORMS

TASK = Task(
    "pen-hat-bag",
    "pen, hat, bag: how much?",
    "19",
    {"things": ["pen", "hat", "bag"], "prices": [2, 9, 8]},
)
FORMS = (
    *ANSWER_FORMS,
    *(
        "${0}",
        "\u20ac{0}",
        "{0} euros",
        "{0} in total",
        "{0}.0",
        "{0}.00",
        "0{0}",
        "+{0}",
        "= {0}",
        "2+9+8={0}",
    ),
    *(
        "2 + 9 + 8 = {0}",
        "2+9+8 = **{0}**",
        "Sum: {0}",
        "Total: ${0}.00",
        "The sum is {0}.",
        "It is {0}!",
    ),
    *(
        "The answer is {0} (pen 2, hat 9, bag 8).",
        "pen 2, hat 9 and bag 8 make {0}.",
        "They cost {0}",
    ),
    *(
        "The three things cost {0} together.",
        "pen: 2\nhat: 9\nbag: 8\ntotal: {0}",
        "All in all: {0}",
    ),
    *(
        "That's {0}, thank you.",
        "The total price is {0} coins.",
        "So {0}",
        "(2 + 9) + 8 = 11 + 8 = {0}",
    ),
    "```\n{0}\n```",
    *(
        "{0} (2+9+8)",
        "The total is {0} (2+9+8).",
        "\\boxed{{\\text{{{0}}}}}",
        "\\boxed{{{0}\\text{{ coins}}}}",
        "\\({0}\\)",
    ),
    *("#### Step 1: prices\nThey cost {0}.", "The answer is easy to find.\n{0} euros"),
)
CALCULATIONS = (
    *(
        "2+9+8",
        "2 + 9 + 8",
        "10+9",
        "19-0",
        "38/2-0",
        "18 or 19",
        "19 or 20",
        "18, 19, 20",
        "18 19",
        "(18, 19)",
        "[17, 19]",
        "17-19",
    ),
    *(
        "19x",
        "19i",
        "2*19",
        "19!",
        "19^2",
        "x > 19",
        "\\boxed{18, 19}",
        "\\boxed{2+9+8}",
        "Answer: 18 or 19",
        "between 18 and 19",
    ),
    *(
        "\\boxed{19 or 20}",
        "\\boxed{19 20}",
        "Answer: 19 or 20",
        "Answer: 19; 20",
        "Answer: 19 20",
        "Answer: not 19",
        "(2+9+8)",
    ),
    *("minus 19", "not 19", "19²", "19½", "19₈", "19 hundred", "≥ 19", "19‰"),
)
"""What was not carried out, and what leaves it open."""


def answers(tasks):
    wrong = [form.format(20) for form in FORMS if "= {0}" not in form]
    wrong += ["9", "-19", "- 19", "\u221219", "1.9", "190", "one", "19.5", "Answer: 20 (not 19)"]
    yield GradedAnswers(TASK, [form.format(19) for form in FORMS], wrong, CALCULATIONS)
    minus = Task("minus", "what is left?", "-5")
    yield GradedAnswers(
        minus,
        [
            "-5",
            "\u22125",
            "= \u22125",
            "x = -5",
            "It is -5.",
            "Answer: -5",
            "minus 5",
            "negative 5",
        ],
        ["5", "10 - 5", "15-20"],
    )
