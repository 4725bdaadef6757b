"""Zero-sum: what one seat wins the other loses. Winnings of -2 to 2 are scores of 0 to 1, whose sum
is 1."""

from . import game


def score_outcome(trajectory):
    won = game.payoff(trajectory.task.metadata["cards"], trajectory.answer)
    scores = {"first": 0.5 + won / 4, "second": 0.5 - won / 4}
    return {action.role: scores[game.seat_of(action.role)] for action in trajectory.actions}
