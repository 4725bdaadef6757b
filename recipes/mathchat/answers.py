"""What the grader is held to (`openrlhf recipes check mathchat`): the verifier's answers."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

FORMS = (
    *(
        "\\boxed{{{0}}}",
        "It is $\\boxed{{{0}}}$.",
        "\\[\\boxed{{ {0}.0 }}\\]",
        "\\boxed {{x = {0}}}",
    ),
    *("\\boxed{{1}} no: \\boxed{{{0}}}", "\\boxed{{{0}}} stands in \\boxed{{}}."),
    *("\\boxed{{{0} \\text{{ pens}}}}", "\\boxed{{12+47={0}}}"),
    *("{0}", " **{0}**\n", "12\n47\n{0}", "Answer: {0}", "**Final answer:** ${0}$"),
)
TRICKS = (
    *(
        "12+47",
        "\\boxed{12+47}",
        "\\boxed{12 47}",
        "\\boxed{58, 59}",
        "\\boxed{58 \\text{ or } 59}",
    ),
    *("\\boxed{58 \\pm 1}", "\\boxed{\\gcd(59,118)}", "\\boxed{\\sqrt{3481}}", "\\boxed{59"),
    *("\\boxed{59} \\boxed{58", "\\boxed{58} 59", "\\boxed{} 59", "58 or 59", "58, 59", "59 is 59"),
    *(
        "Answer: 59\nAnswer:",
        "the final answer in \\boxed{}",
        "Give the final answer alone, without a unit, in \\boxed{}.",
    ),
)
VALUES = {
    "\\frac{3}{4}": (["0.75", "\\boxed{\\dfrac34}"], ["\\boxed{\\frac43}"], ["\\boxed{3, 4}"]),
    "2\\sqrt{2}": (
        ["\\boxed{\\sqrt{8}}"],
        ["\\boxed{2\\sqrt{3}}"],
        ["\\boxed{\\pm 2\\sqrt{2}}", "\\boxed{\\log_2 2^{2\\sqrt{2}}}"],
    ),
    "2016_8": (["\\boxed{2016_{8}}"], ["\\boxed{2016}", "\\boxed{2016_9}"], []),
    "2,3": (["\\boxed{x=3, x=2}"], ["\\boxed{2}", "\\boxed{2,4}"], ["\\boxed{2,2}"]),
    "x^2": (["\\boxed{x \\cdot x}"], ["\\boxed{2x}"], ["\\boxed{\\int 2x\\,dx}"]),
    "C": (["\\boxed{\\text{(C)}}"], ["\\boxed{B}", "\\boxed{c}"], ["\\boxed{B, C}"]),
}
"""By label: right, wrong, and tricks."""


def answers(tasks):
    problem = "Ann has 12 pens and buys 47 more. How many pens now?"
    task = Task("2:12+47", problem, "59", {"expression": "12+47"})
    wrong = [form.format(58) for form in FORMS if "12+47" not in form]
    right = [form.format(59) for form in FORMS]
    yield GradedAnswers(task, right, [*wrong, "-59", "5 9", "\\boxed{59.5}"], TRICKS)
    for label, kinds in VALUES.items():
        yield GradedAnswers(Task(label, "What is it?", label), *kinds)
