"""What the grader is held to (`openrlhf recipes check trading`): the position of one trader in a
market that rises, where all others hold nothing."""

from marl_plugins import Task
from marl_plugins.contracts.graders import GradedAnswers

from .market import COST, IMPACT, TRADERS, Market

FORMS = ("{0}", " **{0}**\n", "{0}.", "Two of three say it will rise.\n\n{0}", "Answer: {0}")
TRICKS = (
    *("buy or sell", "buy/sell", "buy, sell", "buy sell", "buy\nor sell", "buying", "not buy"),
    *("your position alone in the last line: buy, sell or out", "up", "+", "long"),
)


def answers(tasks):
    markets = (Market(f"check-{number}") for number in range(100))
    number, market = next(
        (number, market)
        for number, market in enumerate(markets)
        if sum(market.returns) > 0.5 * sum(map(abs, market.returns))
    )
    others = len(TRADERS)
    earned = sum(change - IMPACT / others for change in market.returns) - COST
    buys, others_say = ([form.format(say) for form in FORMS] for say in ("Buy", "Sell"))
    yield GradedAnswers(
        Task(f"check-{number}", "a market"),
        [*buys, "buy", "b"],
        [*others_say, "out", "o"],
        TRICKS,
        role=TRADERS[0],
        others=dict.fromkeys(TRADERS[1:], "out"),
        paid=0.5 + earned / others / sum(map(abs, market.returns)) / 2 - 1e-9,
        unpaid=0.5,
    )
