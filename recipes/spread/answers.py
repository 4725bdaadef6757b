"""What the grader is held to (`openrlhf recipes check spread`): whom one agent speaks to, where all
others are silent."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

from .network import AGENTS, NAMES, ROUNDS, Network, share

ROLE = "correct1"
FORMS = ("{0}", " **{0}**\n", "{0}.", "Ann or Ben? He has more contacts.\n\n{0}", "Answer: {0}")
TRICKS = (
    "{0} {0}",
    "{0} or {0}",
    "everybody",
    "{0} has",
    "not {0}",
    "{0}\nnobody",
    "-",
    "+",
    "Zoe",
)


def answers(tasks):
    for number in range(100):
        task = Task(f"check-{number}", "whom to speak to")
        silent = outcome(task.id, None)
        person = max(range(len(NAMES)), key=lambda p: outcome(task.id, p))
        if outcome(task.id, person) > silent + 0.1:
            break
    met = {p for meetings in Network(task.id).meetings for p in meetings[ROLE]}
    strangers = [NAMES[p] for p in range(len(NAMES)) if p not in met]
    yield GradedAnswers(
        task,
        [form.format(NAMES[person]) for form in FORMS] + [NAMES[person][0], NAMES[person].upper()],
        strangers,
        [trick.format(NAMES[person]) for trick in TRICKS],
        role=ROLE,
        others=dict.fromkeys(AGENTS[1:], "nobody"),
        paid=outcome(task.id, person),
        unpaid=silent,
    )


def outcome(name, person):
    """The final share where one agent speaks to a person in every round in which it meets him or
    her."""
    silent = dict.fromkeys(AGENTS)
    return share(
        name,
        [
            silent | {ROLE: person if person in meetings[ROLE] else None}
            for meetings in Network(name).meetings[:ROUNDS]
        ],
    )
