"""What the grader is held to (`openrlhf recipes check search`): short answers in their tag, paid by
the words that are right."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

TASK = Task("example", "Which rivers meet in Ulm?", "Danube and Iller", {"people": []})
SEVERAL = Task("several", "What is Ulm's church?", ["Ulm Minster", "the Minster"], {"people": []})
FORMS = (
    *(
        "<answer>{0}</answer>",
        "<answer> {0}. </answer>",
        "So:\n<answer>{0}</answer>",
        "<answer>\n{0}\n</answer>\n",
    ),
    *(
        "<answer>no</answer> I mean <answer>{0}</answer>",
        "<answer>The {0}!</answer>",
        '<answer>"{0}"</answer>',
    ),
)
BARE = (
    "{0}",
    "Answer: {0}",
    "<answer>{0}",
    "{0}</answer>",
    "\\boxed{{{0}}}",
    "<answer>{0}</answer> <answer></answer>",
)
"""Without the form, or taken back."""


def answers(tasks):
    for task, right, wrong in (
        (
            TASK,
            ["Danube and Iller", "danube, and iller", "Iller and Danube"],
            ["Rhine", "Danubes", "", "?", "yes"],
        ),
        (SEVERAL, ["Ulm Minster", "the minster", "Minster"], ["church", "Ulms"]),
    ):
        said = [form.format(one) for form in FORMS for one in right]
        bare = [form.format(one) for form in BARE for one in right]
        yield GradedAnswers(
            task, said, [form.format(one) for form in FORMS for one in wrong], bare, role="answerer"
        )
    half = ["<answer>Danube</answer>", "<answer>Danube and Iller " + "or Rhine " * 20 + "</answer>"]
    yield GradedAnswers(TASK, [], [], half, role="answerer", unpaid=0.5)
