"""Winnings as outcomes of 0 to 1, one for each seat: 0 is the least that the game can pay, 1 the
most.

Where a game has not ended, the player to move has said nothing legal: it has 0 and the other one 1.
After `workflow.MOST` moves it is a draw.
"""

from . import spiel, workflow


def score_outcome(trajectory):
    name = trajectory.task.metadata["game"]
    game = spiel.load(name)
    state, _ = spiel.replayed(name, map(int, (trajectory.answer or "").split()))
    if state.is_terminal():
        least, most = game.min_utility(), game.max_utility()
        scores = [(won - least) / (most - least) for won in state.returns()]
    elif len(trajectory.actions) >= workflow.MOST:
        scores = [0.5, 0.5]
    else:
        scores = [float(player != state.current_player()) for player in range(2)]
    return {action.role: scores[spiel.SEATS.index(action.role)] for action in trajectory.actions}
