"""What the grader is held to (`openrlhf recipes check games`): the first player's moves with a
jack, against one who bets.

Who passes loses 1 of at most 2. Who bets loses 2, and whoever says no move has forfeited the game.
"""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

from . import spiel

FORMS = ("{0}", " **{0}**\n", "`{0}`", "I could pass or bet.\n{0}", "Answer: {0}")
TRICKS = (
    *("pass or bet", "pass/bet", "pass, bet", "pass\nor bet", "pass\nbet", "passing", "raise"),
    *("K J", "your move alone in the last line", "My move is to pass."),
)


def answers(tasks):
    task = Task("kuhn_poker", "", metadata={"game": "kuhn_poker", "seed": seed_with_a_jack()})
    passes, bets = ([form.format(move) for form in FORMS] for move in ("Pass", "Bet"))
    yield GradedAnswers(
        task,
        [*passes, "pass"],
        [*bets, "bet", "fold"],
        TRICKS,
        role="first",
        others={"second": "Bet"},
        paid=0.25,
    )


def seed_with_a_jack():
    return next(
        seed for seed in range(1000) if spiel.Table("kuhn_poker", seed).fields()["state"] == "0"
    )
