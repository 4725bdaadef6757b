"""What the grader is held to (`openrlhf recipes check vote`): the decider's answers, on a question
whose answer is B."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

TASK = Task("3.4-3.41", "Which number is larger? A: 3.4 B: 3.41", "B", {"a": 3.4, "b": 3.41})
FORMS = ("{0}", " **{0}**\n", "({0}).", "Three say A and two say B.\n\n{0}", "Answer: {0}")
TRICKS = (
    *("AB", "A B", "A or B", "A, B", "B\nor A", "B\n\nA", "A: 3.4\nB: 3.41", "B is the letter"),
    "the letter of the right answer alone on the last line",
)


def answers(tasks):
    right, wrong = ([form.format(letter) for form in FORMS] for letter in "BA")
    yield GradedAnswers(TASK, right, [*wrong, "C", "3.41"], TRICKS, others={"voter": "A"})
