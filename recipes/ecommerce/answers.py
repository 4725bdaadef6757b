"""What the grader is held to (`openrlhf recipes check ecommerce/tiny_merchant.yaml`): the
composer's lines."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

MONTHS = ("January", "May", "June", "July")
LABEL = [
    {"form": "number", "value": 4310.0, "tolerance": 0.5},
    {"form": "word", "value": "June", "options": list(MONTHS)},
]
TASK = Task(
    "example", "How much?", LABEL, {"questions": ["How much did I sell?", "In which month?"]}
)
LINES = (
    *(
        "1: {0}\n2: {1}",
        "1: {0}.\n2: {1}.",
        "1. {0}\n2. {1}",
        "1) {0}\n2) {1}",
        "**1:** {0}\n**2:** {1}",
    ),
    "**1.** {0}\n**2.** {1}",
    *(
        "Answer 1: {0}\nAnswer 2: {1}",
        "Question 1: {0}\nQuestion 2: {1}",
        "answer 1: {0}\nanswer 2: {1}",
    ),
    "Q1: {0}\nQ2: {1}",
    *(
        "A1: {0}\nA2: {1}",
        "- 1: {0}\n- 2: {1}",
        "* 1: {0}\n* 2: {1}",
        "1: **{0}**\n2: **{1}**",
        "1: {0} 2: {1}",
    ),
    "1: {0}, 2: {1}",
    *("1: {0}; 2: {1}", "Here you are:\n1: {0}\n2: {1}", "1: {0}\n\n2: {1}\n", "2: {1}\n1: {0}"),
    "1: 7\n2: May\nCorrected:\n1: {0}\n2: {1}",
    *("1: {0} euros\n2: in {1}", "1: you sold {0}\n2: it was {1}", "1: {0} (of 5000)\n2: {1} 2025"),
    "1: in 2025: {0}\n2: {1}",
    *(
        "1: {0}\n2: it may be {1}",
        "1: {0} in all\n2: {1}, by far",
        "1: \u20ac{0}\n2: {1}!",
        "1: `{0}`\n2: `{1}`",
    ),
    "> 1: {0}\n> 2: {1}",
    *(
        "1: the sum is {0}\n2: the month of {1}",
        "1: = {0}\n2: = {1}",
        "1:{0}\n2:{1}",
        "  1: {0}\n  2: {1}",
    ),
    "# 1: {0}\n# 2: {1}",
    "1: {0}\n1.5 percent more than before\n2: {1}",
)
NUMBERS = ("4310", "4,310", "4310.0", "4310.00", "4 310", "+4310", "4.31e3", "4.31 thousand")
TRICKS = (
    *(
        "1: 4309 or 4310\n2: May or July",
        "1: 10 20 4310\n2: May, July",
        "1: 4300 to 4320\n2: May to July",
    ),
    "1: 4300-4320\n2: none",
    *(
        "4310 June",
        "4310\nJune",
        "1 4310\n2 June",
        "one: 4310\ntwo: June",
        "3: 4310\n4: June",
        "10: 4310\n20: June",
    ),
    "1\n2",
    *(
        "1: x4310\n2: Juneau",
        "1: about 1 to 4310\n2: all months",
        "1: 4310/2\n2: January, May, July",
    ),
    "1: 4310 5000\n2: May and July",
    *("1:\n2:", "1: ?\n2: ?", "1: all\n2: all", "1: 1e999\n2: nobody knows"),
    "1: 5000 or 4310 or 4000\n2: January or May or July",
    *(
        "1: not 4310\n2: not June",
        "1: 4310 through 4320\n2: anything but June",
        "1: 4310..4320\n2: June or May",
    ),
    *(
        "1: 4310 ± 10\n2: never June",
        "1: 4310 < x < 4320\n2: June/July",
        "1: 4310 vs 5000\n2: neither June nor July",
    ),
    *(
        "1: 4310-4310\n2: isn't June",
        "1: 4310 up to 5000\n2: all but June",
        "1: between 4310 and 4310\n2: except June",
    ),
    "1: between 1 and 9999\n2: a month of the year",
)


def answers(tasks):
    right = [form.format(number, "June") for form in LINES for number in NUMBERS[:1]]
    right += [f"1: {number}\n2: June" for number in NUMBERS[1:]] + [
        "1: 4310\n2: june",
        "1: 4310\n2: June, not July",
        "1: 4310\n2: JUNE",
    ]
    wrong = [form.format(4210, "January") for form in LINES if "4310" not in form]
    wrong += [
        "1: -4310\n2: May",
        "1: 43.10\n2: July",
        "1: 431\n2: jan",
        "It was 4310 in June.",
        "1: minus 4310\n2: not this year",
        "1: negative 4310\n2: in no month",
        "1: 4310 thousand\n2: in 12 months",
    ]
    yield GradedAnswers(TASK, right, wrong, TRICKS)
    fell = Task(
        "fell",
        "By how much?",
        [{"form": "number", "value": -12.3, "tolerance": 0.05}],
        {"questions": ["By how much?"]},
    )
    yield GradedAnswers(
        fell,
        ["1: -12.3 %", "1: minus 12.3", "1: \u221212.3%"],
        ["1: 12.3", "1: -123"],
        ["1: -12.3 or 12.3"],
    )
