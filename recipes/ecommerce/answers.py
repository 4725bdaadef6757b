"""What the grader is held to (`openrlhf recipes check ecommerce/tiny_merchant.yaml`): the
composer's lines."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

LABEL = [
    {"form": "number", "value": 4310.0, "tolerance": 0.5},
    {"form": "word", "value": "June", "options": ["January", "May", "June", "July"]},
]
TASK = Task(
    "example", "How much?", LABEL, {"questions": ["How much did I sell?", "In which month?"]}
)
LINES = (
    *("1: {0}\n2: {1}", "1: {0}.\n2: {1}.", "**1:** {0}\n**2:** {1}", "> 1:{0}\n> 2:{1}"),
    *("Here you are:\n1: {0}\n\n2: {1}\n", "2: {1}\n1: {0}", "1: 7\n2: May\n1: {0}\n2: {1}"),
)
TRICKS = (
    *(
        "4310\nJune",
        "1 4310\n2 June",
        "3: 4310\n4: June",
        "1:\n2:",
        "1: 4310 June",
        "1: 1e999\n2: ?",
    ),
    *("1: 4309 or 4310\n2: May or June", "1: 4310 5000\n2: May, June", "1: 8620/2-0\n2: in June"),
)


def answers(tasks):
    right = [form.format("4310", "June") for form in LINES] + ["1: 4,310.0\n2: JUNE"]
    wrong = [form.format("4210", "July") for form in LINES] + ["1: -4310\n2: Jan"]
    yield GradedAnswers(TASK, right, wrong, TRICKS)
    label = [{"form": "number", "value": -12.3, "tolerance": 0.05}]
    fell = Task("fell", "By how much?", label, {"questions": ["By how much?"]})
    yield GradedAnswers(fell, ["1: -12.3 %", "1: \u221212.3"], ["1: 12.3"], ["1: -12.3 or 12.3"])
