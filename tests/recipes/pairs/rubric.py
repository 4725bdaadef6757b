"""A score of each action from its text alone."""

from marl_plugins import Criterion


def even(action, seen):
    return sum(map(ord, action.text)) % 2 == 0


RUBRIC = {role: [Criterion("even", 5, even)] for role in ("proposer", "critic", "earlier_critic")}
