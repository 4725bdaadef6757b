"""What the grader is held to (`openrlhf recipes check kuhn_poker`): the first player's move with a
king, against one who bets."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

TASK = Task("KQ", "deal KQ", metadata={"cards": "KQ"})
FORMS = ("{0}", " **{0}**\n", "{0}.", "I could pass or bet. With a king, it's clear.\n{0}")
TRICKS = (
    *("bet or pass", "bet/pass", "pass, bet", "bet pass", "bet\npass", "betting", "raise", "K J"),
    *("b p", "your move alone in the last line: pass or bet", "My move is to bet."),
)
"""What is no move, and so a pass."""


def answers(tasks):
    bets, passes = ([form.format(move) for form in FORMS] for move in ("Bet", "Pass"))
    yield GradedAnswers(
        TASK,
        [*bets, "bet", "b", "K"],
        [*passes, "pass", "k", "fold"],
        TRICKS,
        role="first",
        others={"second": "bet"},
        paid=1.0,
        unpaid=0.25,
    )
