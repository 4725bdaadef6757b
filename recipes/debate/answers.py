"""What the grader is held to (`openrlhf recipes check debate`): the judge's answers, on a question
whose answer is the north."""

from marl_plugins.contracts.graders import GradedAnswers

FORMS = ("{0}", " **{0}**\n", "{0}.", "970 is more than 812.\n{0}", "Answer: {0}")
TRICKS = (
    *("north or south", "north/south", "north, south", "north south", "northsouth", "northern"),
    *(
        "north\nor south",
        "north\nsouth",
        "The north's case.",
        "one word: north or south",
        "not north",
    ),
)


def answers(tasks):
    task = next(task for task in tasks if task.label == "north")
    others = dict.fromkeys(("north", "south"), task.metadata["reports"]["north"][0])
    right, wrong = ([form.format(side) for form in FORMS] for side in ("North", "South"))
    yield GradedAnswers(task, [*right, "north"], [*wrong, "East", "42"], TRICKS, others=others)
