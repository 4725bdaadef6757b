"""What the grader is held to (`openrlhf recipes check mathchat`): the verifier's answers."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers
from marl_plugins.grading.forms import ANSWER_FORMS

FORMS = (
    *ANSWER_FORMS,
    "\\boxed{{\\text{{{0}}}}}",
    *(
        "${0}$",
        "\\({0}\\)",
        "{0} pens",
        "{0}.0",
        "0{0}",
        "\\[\\boxed{{{0}}}\\]",
        "\\boxed{{{0}.0}}",
    ),
    *("\\boxed{{ {0} }}", "\\boxed{{{0} \\text{{ pens}}}}", "The answer is {0} pens."),
    *(
        "The answer is $\\boxed{{{0}}}$.",
        "The result is {0}",
        "It is {0}!",
        "12 + 47 = {0}",
        "12+47={0} pens",
    ),
    *("x = {0}", "So Ann has {0} pens now.", "The colleague says 58, the program {0}; it is {0}."),
    *(
        "12 pens and 47 more make {0}.",
        "```python\nprint({0})\n```",
        "We get ({0})",
        "= {0}",
        "Both agree: {0}",
    ),
    *(
        "\\boxed{{{0} pens}}",
        "\\boxed{{\\text{{{0} pens}}}}",
        "\\boxed{{\\textbf{{{0}}}}}",
        "\\boxed{{({0})}}",
        "{0} (12+47)",
    ),
    *(
        "\\boxed{{\\max(12, {0}) = {0}}}",
        "#### Step 1: add\n12 and 47.\nThat is {0}.",
        "The result is clear.\nIt is {0}.",
    ),
    *("\\boxed{{12+47={0}}}", "So it is...{0}", "It is {0}, not 58.", "The area is {0} m²."),
)
TRICKS = (
    *(
        "12+47",
        "12 + 47",
        "\\boxed{12+47}",
        "\\boxed{12 + 47}",
        "58 or 59",
        "\\boxed{58, 59}",
        "\\boxed{58 \\text{ or } 59}",
        "58, 59, 60",
    ),
    *(
        "(58, 59)",
        "[58, 59]",
        "60 - 59",
        "59x",
        "59i",
        "2*59",
        "59!",
        "$59^2$",
        "\\boxed{\\{59\\}, 58}",
        "\\boxed{59_{12}}",
        "\\sqrt{59}",
    ),
    *(
        "Answer: 58 or 59",
        "\\boxed{59",
        "between 58 and 59",
        "x > 59",
        "\\boxed{x > 58}",
        "\\boxed{58 \\pm 1}",
        "log 59",
    ),
    *(
        "minus 59",
        "The answer is negative 59.",
        "not 59",
        "The answer is not 59.",
        "It is not 58 and not 59",
        "59 thousand",
    ),
    *(
        "\\boxed{\\gcd(59,118)}",
        "\\boxed{\\max(58,59)}",
        "\\boxed{\\lfloor 59.9\\rfloor}",
        "\\boxed{\\int_0^{1} 59 dx}",
        "58 vs 59",
    ),
    *(
        "\\boxed{\\binom{59}{1}}",
        "\\boxed{\\log_2 2^{59}}",
        "\\boxed{|-59|}",
        "\\boxed{\\operatorname{lcm}(1, 59)}",
        "58; 59",
    ),
    *(
        "\\boxed{58=59}",
        "\\boxed{59 dozen}",
        "\\boxed{59 or more}",
        "\\boxed{\\pm 59}",
        "59 is wrong",
        "58 (or 59)",
        "x = 58 or x = 59",
    ),
    *(
        "12 47",
        "\\boxed{12 47}",
        "\\boxed{12 \\quad 47}",
        "\\boxed{12~47}",
        "12 47/1",
        "\\boxed{12\\frac{47}{1}}",
    ),
    *(
        "\\boxed{\\frac{12+47}{1}}",
        "\\boxed{12\\text{ plus }47}",
        "\\boxed{12 {47}}",
        "\\boxed{x = 12 47}",
        "\\boxed{12+(47)}",
    ),
    *(
        "\\boxed{58 \\lor 59}",
        "\\boxed{58 | 59}",
        "\\boxed{\\ge 59}",
        "\\boxed{\\not= 59}",
        "\\boxed{58 \\to 59}",
        "\\boxed{58\n59}",
    ),
    *(
        "59²",
        "59½",
        "59 ½",
        "½59",
        "59₈",
        "√59",
        "∛59",
        "59‰",
        "≠59",
        "≥ 59",
        "59 ± 1",
        "59 hundred",
        "5⁹",
        "59 × 10³",
    ),
)
VALUES = {
    "\\frac{3}{4}": (
        [
            "0.75",
            "3/4",
            "\\boxed{\\frac{3}{4}}",
            "\\boxed{\\dfrac34}",
            "\\boxed{0.75}",
            "It is 3/4.",
            "\\boxed{75\\%}",
            "\\boxed{\\frac{6}{8}}",
        ],
        ["3", "4", "0.34", "4/3", "\\boxed{\\frac{4}{3}}", "7.5", "\\boxed{-\\frac34}", "3 4"],
        ["3/4 or 4/3", "\\boxed{\\frac34, \\frac43}", "\\boxed{3, 4}"],
    ),
    "2\\sqrt{2}": (
        [
            "\\boxed{2\\sqrt{2}}",
            "\\boxed{\\sqrt{8}}",
            "2√2",
            "$2\\sqrt{2}$",
            "The answer is $2\\sqrt{2}$.",
        ],
        ["2", "\\sqrt{2}", "√2", "\\boxed{4}", "2.8", "\\boxed{2\\sqrt{3}}"],
        ["\\boxed{\\pm 2\\sqrt{2}}", "\\boxed{2\\sqrt{2} \\text{ or } 3}"],
    ),
    "2016_8": (
        ["\\boxed{2016_8}", "\\boxed{2016_{8}}", "2016_8"],
        ["2016", "\\boxed{2016_9}", "\\boxed{2016}", "\\boxed{2016_{10}}"],
        [],
    ),
    "1,2,3,4,5,6,7": (
        [
            "\\boxed{1,2,3,4,5,6,7}",
            "\\boxed{7,6,5,4,3,2,1}",
            "\\boxed{7, 1, 6, 2, 5, 3 \\text{ and } 4}",
            "\\boxed{\\{1,2,3,4,5,6,7\\}}",
        ],
        [
            "7",
            "\\boxed{1,2,3,4,5,6}",
            "\\boxed{1,2,3,4,5,6,8}",
            "\\boxed{1,2,3,4,5,6,7,8}",
            "\\boxed{1234567}",
        ],
        ["\\boxed{1,1,1,1,1,1,1}"],
    ),
    "2,3": (
        ["\\boxed{x=2, x=3}", "\\boxed{x=2 \\text{ or } x=3}", "\\boxed{3,2}"],
        ["\\boxed{2}", "\\boxed{x=3}"],
        ["\\boxed{2,2}"],
    ),
    "C": (
        [
            "\\boxed{C}",
            "\\boxed{(C)}",
            "\\boxed{\\textbf{(C)} 7}",
            "\\boxed{\\text{C}}",
            "The answer is C.",
        ],
        ["\\boxed{B}", "\\boxed{\\textbf{(D)} 7}", "\\boxed{7}", "\\boxed{c}"],
        ["\\boxed{A, B, C}", "\\boxed{B \\text{ or } C}", "\\boxed{ABC}"],
    ),
    "10^{6}": (
        ["\\boxed{1,000,000}", "\\boxed{1 \\text{ million}}", "10^6"],
        ["\\boxed{10}", "\\boxed{1,000}"],
        [],
    ),
    "1234": (
        ["\\boxed{1,\\!234}", "\\boxed{1,234 \\text{ pens}}"],
        ["\\boxed{234}"],
        ["\\boxed{1, 234}"],
    ),
    "\\pm 3": (
        ["\\boxed{3, -3}", "\\boxed{x = \\pm 3}", "\\boxed{\\{-3, 3\\}}"],
        ["\\boxed{3}", "\\boxed{-3}"],
        ["\\boxed{3, 3}"],
    ),
    "\\{1,2\\}": (
        ["\\boxed{S=\\{1,2\\}}", "\\boxed{x\\in\\{1,2\\}}"],
        ["\\boxed{S=\\{1,3\\}}"],
        ["\\boxed{x\\in\\{1,2,3\\}}"],
    ),
    "(1,2)": (["\\boxed{(x,y)=(1,2)}"], ["\\boxed{(x,y)=(2,1)}"], []),
    "yes": (
        ["Yes, because 3 > 2.", "So the answer is **Yes**.", "\\boxed{\\text{Yes}}"],
        ["No, it is not.", "So the answer is **No**."],
        ["Not yes."],
    ),
    "no": (
        ["No, it is not.", "So the answer is **No**."],
        ["Yes, it is."],
        ["No idea.", "There is no way to know.", "I know no answer."],
    ),
}
"""By label: right, wrong, and tricks."""


def answers(tasks):
    wrong = [form.format(58) for form in FORMS if "58" not in form and "12+47=" not in form]
    wrong += ["-59", "\\boxed{-59}", "5 9", "5.9", "590", "\\boxed{5, 9}", "fifty", "\\boxed{59.5}"]
    problem = "Ann has 12 pens and buys 47 more. How many pens now?"
    yield GradedAnswers(
        Task("2:12+47", problem, "59", {"expression": "12+47"}),
        [form.format(59) for form in FORMS],
        wrong,
        TRICKS,
    )
    for label, kinds in VALUES.items():
        yield GradedAnswers(Task(label, "What is it?", label), *kinds)
