"""What the grader is held to (`openrlhf recipes check games`): the first player's moves with a
jack, against one who bets.

Who passes loses 1 of at most 2. Who bets loses 2, and whoever says no move has forfeited the game.
"""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers
from marl_plugins.grading.forms import ANSWER_FORMS

from . import spiel

FORMS = (
    *ANSWER_FORMS,
    *("\\boxed{{\\text{{{0}}}}}", "- {0}"),
    *(
        "{0}!",
        "Move: {0}",
        "My move: {0}",
        "**Move: {0}**",
        "Decision: {0}",
        "Final decision: {0}.",
        "I {0}.",
    ),
    *("My choice is clear.\n{0}", "The winner is the higher card.\n\n{0}", "Decision: I will {0}."),
    *("I'll {0}.", "I will {0} here", "I have a jack.\n{0}", "The jack loses.\n\n**{0}**"),
    *(
        "I could pass or bet. With a jack, it's clear.\n{0}",
        "To pass is weak, to bet is strong.\nMy move: {0}",
    ),
    *(
        "So: {0}",
        "My choice is {0}.",
        "It's a jack, so my decision is {0}.",
        "J < Q < K\n{0}",
        "(thinking)\n{0}.",
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
    ),
    *(
        "I will not pass.",
        "I won't pass",
        "never pass",
        "Decision: not to pass",
        "\\boxed{\\text{not pass}}",
    ),
    *(
        "raise",
        "call",
        "I'd bet; it's better than to pass",
        "Answer: bet or pass",
        "\\boxed{bet, pass}",
    ),
    *(
        "The answer is pass or bet",
        "a bit of a bet/pass",
        "better",
        "I have a jack.",
        "K J",
        "move0x",
        "movex0x",
        "The move is mine.",
    ),
)
"""Answers that leave it open."""


def answers(tasks):
    task = Task("kuhn_poker", "", metadata={"game": "kuhn_poker", "seed": seed_with_a_jack()})
    passes, bets = ([form.format(move) for form in FORMS] for move in ("Pass", "Bet"))
    yield GradedAnswers(
        task,
        [*passes, "pass", "PASS"],
        [*bets, "bet", "fold"],
        OPEN,
        role="first",
        others={"second": "Bet"},
        paid=0.25,
    )


def seed_with_a_jack():
    return next(
        seed for seed in range(1000) if spiel.Table("kuhn_poker", seed).fields()["state"] == "0"
    )
