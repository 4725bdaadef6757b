"""What the grader is held to (`openrlhf recipes check swarm`)."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers
from marl_plugins.grading.forms import ANSWER_FORMS

FORMS = (
    *ANSWER_FORMS,
    *(
        "{0}.0",
        "{0}.00",
        "0{0}",
        "+{0}",
        "= {0}",
        "48-6+3={0}",
        "48 - 6 + 3 = **{0}**",
        "Result: {0}",
        "It is {0}!",
    ),
    *(
        "The result is {0}.",
        "48 - 6 = 42, 42 + 3 = {0}",
        "First 42, then {0}.",
        "So {0}",
        "(48 - 6) + 3 = 42 + 3 = {0}",
    ),
    *(
        "\\boxed{{\\text{{{0}}}}}",
        "\\boxed{{\\mathbf{{{0}}}}}",
        "\\boxed{{\\,{0}}}",
        "\\({0}\\)",
        "\\boxed{{{0}\\text{{ coins}}}}",
    ),
    *(
        "#### Step 1: add\n48-6 is 42.\nSo {0}.",
        "#### 1. Add\nIt is {0}.",
        "The verdict is clear: {0}",
        "The result is not hard to find: {0}",
    ),
    *(
        "The result is clear.\nIt is {0}.",
        "{0} (48-6+3)",
        "Answer: {0} (48-6+3)",
        "It is {0} (= 48-6+3).",
    ),
    *(
        "That makes {0}.",
        "All in all: {0}",
        "```\n{0}\n```",
        "We get {0}",
        "{0} in total",
        "Step 1: 42\nStep 2: {0}",
    ),
)
OPEN = (
    *(
        "48-6+3",
        "48 - 6 + 3",
        "42 + 3",
        "90/2-0",
        "45-0",
        "44 or 45",
        "45 or 46",
        "44, 45, 46",
        "44 45",
        "(44, 45)",
        "[44, 46]",
    ),
    *(
        "45x",
        "45!",
        "2*45",
        "x > 45",
        "45^2",
        "between 44 and 46",
        "not 45",
        "\\boxed{44, 45}",
        "Answer: 44 or 45",
        "45 hundred",
    ),
    *(
        "\\boxed{45 or 46}",
        "\\boxed{45 46}",
        "\\boxed{45; 46}",
        "\\boxed{45 not 46}",
        "\\boxed{45 \\text{ or } 46}",
        "\\boxed{45 x 46}",
    ),
    *(
        "Answer: 45 or 46",
        "Answer: 45 46",
        "Answer: 45; 46",
        "Answer: 45 (or 46)",
        "Answer: 45 to 46",
        "The answer is 45, or 46",
    ),
    *(
        "Answer: not 45",
        "\\boxed{\\text{not }45}",
        "The answer is not 45.",
        "\\boxed{45} no: \\boxed{46",
        "So 45. Answer: none",
    ),
    *("#### 45 or 46",),
)
"""What was not carried out, and what leaves it open."""


def answers(tasks):
    task = Task("chain-0", "48-6+3", "45", {"type": "chain"})
    wrong = [form.format(46) for form in FORMS if "= {0}" not in form and "={0}" not in form]
    yield GradedAnswers(
        task,
        [form.format(45) for form in FORMS],
        [*wrong, "-45", "4.5", "450", "one", "45.5"],
        OPEN,
    )
    minus = Task("minus-0", "10-12", "-2", {"type": "minus"})
    yield GradedAnswers(
        minus,
        ["-2", "\u22122", "= \u22122", "Answer: -2", "minus 2", "It is -2."],
        ["2", "12", "10 - 12"],
    )
