"""What the grader is held to (`openrlhf recipes check kuhn_poker`): the first player's move with a
king, against one who bets."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers
from marl_plugins.grading.forms import ANSWER_FORMS

TASK = Task("KQ", "deal KQ", metadata={"cards": "KQ"})
FORMS = (
    *ANSWER_FORMS,
    *("\\boxed{{\\text{{{0}}}}}", "- {0}"),
    *(
        "{1}!",
        "{2}",
        "Move: {1}",
        "My move: {0}",
        "**Move: {1}**",
        "Decision: {0}",
        "Final decision: {1}.",
        "I {0}.",
    ),
    *(
        "Decision: I will {0}.",
        "My decision is to {0}",
        "The answer is to {0}.",
        "Answer: I'd {0}",
        "My choice is clear.\n{0}",
    ),
    *(
        "The winner is the higher card. I hold K.\n\n{0}",
        "To pass or to bet?\nI will {0}.",
        "\\boxed{{\\text{{to {0}}}}}",
    ),
    *("I'll {0}.", "I will {0} here", "I have a king.\n{0}", "The king wins.\n\n**{1}**"),
    *(
        "I could pass or bet. With a king, it's clear.\n{0}",
        "To pass is weak, to bet is strong.\nMy move: {0}",
    ),
    *(
        "So: {0}",
        "My choice is {0}.",
        "It's a king, so my decision is {0}.",
        "J < Q < K\n{0}",
        "(thinking)\n{1}.",
    ),
)
OPEN = (
    *(
        "bet or pass",
        "pass or bet",
        "bet/pass",
        "pass, bet",
        "bet, pass",
        "Both: bet and pass",
        "neither",
        "betting",
        "raise",
        "call",
    ),
    *(
        "I'd bet; it's better than to pass",
        "Answer: bet or pass",
        "\\boxed{bet, pass}",
        "The answer is pass or bet",
        "a bit of a bet/pass",
    ),
    *(
        "I will not bet.",
        "I won't bet",
        "don't bet",
        "never bet",
        "I refuse to bet",
        "Decision: not to bet",
        "\\boxed{\\text{not bet}}",
    ),
    *("better", "I have a king.", "K J", "b p", "The move is mine."),
)
"""Answers that leave it open: a pass, as the recipe says."""


def answers(tasks):
    bets, passes = (
        [form.format(move, move.capitalize(), move[0]) for form in FORMS]
        for move in ("bet", "pass")
    )
    bets += ["Bet", "BET", "Answer: **Bet**"]
    others = {"second": "bet"}
    yield GradedAnswers(
        TASK,
        [*bets, "K"],
        [*passes, "k", "fold", "check"],
        OPEN,
        role="first",
        others=others,
        paid=1.0,
        unpaid=0.25,
    )
