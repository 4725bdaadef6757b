"""What the grader is held to (`openrlhf recipes check debate`): the judge's answers, on a question
whose answer is the north."""

from marl_plugins.contracts.graders import GradedAnswers
from marl_plugins.grading.forms import ANSWER_FORMS

FORMS = (
    *ANSWER_FORMS,
    *("\\boxed{{\\text{{{0}}}}}", "- {0}"),
    *(
        "the {0}",
        "The {1}.",
        "answer: the {0}",
        "The answer is the {0}.",
        "Verdict: {1}",
        "**Verdict: {1}**",
    ),
    *(
        "My verdict is {0}.",
        "Decision: {0}",
        "Final decision: {1}.",
        "The winner is the {0}.",
        "Winner: {0}",
    ),
    *("Judgment: {1}", "The north quotes 970, the south 812.\n{1}"),
    *(
        "That's a close one, and it's decided by one month.\n\n{0}",
        "My call: {0}",
        "{1}. It's the better case.",
    ),
    *(
        "I decide for {0}. That's my verdict.",
        "Let's go {0}: that's clear.",
        "It's the {0}'s month.",
    ),
    *("The judge's word: {0}", "The south's best month is lower than the north's.\n{0}"),
    "The answer is {0}, not the other.",
    *(
        "The verdict is clear.\n\n{0}",
        "The judgement: 970 > 812.\n\n{0}",
        "Decision:\n- north 970\n- south 812\n\n{0}",
    ),
    *(
        "Answer: It is {0}.",
        "Answer: the depot in the {0}",
        "The north's 970, the south's 812. The winner is clear.\n{1}",
        "{0}\n```",
    ),
)
OPEN = (
    *(
        "north or south",
        "south or north",
        "north/south",
        "north and south",
        "Both north and south",
        "North, South",
        "neither",
    ),
    *(
        "Answer: north or south",
        "Answer: north/south",
        "\\boxed{north, south}",
        "The winner is north or south.",
        "northsouth",
        "northern",
    ),
    *(
        "It's a tie; that's all.",
        "That's the judge's word.",
        "Answer: the better one",
        "n s",
        "The north's, the south's",
        "east",
    ),
    *(
        "not north",
        "It is not north.",
        "It can't be north.",
        "Anything but north.",
        "The north has lost.",
        "Verdict: not the north",
    ),
    *(
        "north is wrong",
        "Answer: north is wrong",
        "The north loses",
        "Answer: anything but north",
        "\\boxed{\\text{not north}}",
    ),
    *("Answer: north (or south)", "Answer: north vs south", "The north is good. Answer: neither."),
    "The north's case is weaker than the south's, or isn't it?",
)
"""Answers that leave it open, or name no side."""


def answers(tasks):
    task = next(task for task in tasks if task.label == "north")
    others = dict.fromkeys(("north", "south"), task.metadata["reports"]["north"][0])
    right, wrong = (
        [form.format(side, side.capitalize()) for form in FORMS] for side in ("north", "south")
    )
    right += ["North", "NORTH", "Answer: **North**"]
    yield GradedAnswers(task, right, [*wrong, "East", "42"], OPEN, others=others)
