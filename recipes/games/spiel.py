"""Games of OpenSpiel for two players (extra `games`): what a player is shown, and which move a text
makes.

Any game will do in which the players move in turn and see their position as text. What chance does
is drawn from a seed, so that all games of a task have the same cards.
"""

import random
import string
import zlib
from functools import cache

from marl_plugins.grading import final

SEATS = ("first", "second")
LETTERS = string.ascii_letters


@cache
def load(name):
    """A game by its name in OpenSpiel, with parameters as OpenSpiel has them: `leduc_poker`,
    `breakthrough(rows=4,columns=4)`.

    Raises:
        ValueError: It is no game that can be played here.
    """
    try:
        import pyspiel
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "OpenSpiel is not installed: pip install 'openrlhf-marl[games]'"
        ) from error
    try:
        game = pyspiel.load_game(name)
    except pyspiel.SpielError as error:
        raise ValueError(f"OpenSpiel cannot load the game {name!r}: {error}") from error
    kind = game.get_type()
    if game.num_players() != 2 or kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise ValueError(f"{name} is no game of two players who move in turn")
    if not (kind.provides_information_state_string or kind.provides_observation_string):
        raise ValueError(f"{name} shows its players no text")
    return game


class Table:
    """A game while it is played.

    Args:
        name: Of the game, see `load`.
        seed: Of what chance does.
    """

    def __init__(self, name, seed):
        self.state = load(name).new_initial_state()
        self.random = random.Random(seed)
        self.deal()

    def deal(self):
        """What chance does, up to the next move."""
        while self.state.is_chance_node():
            outcomes, odds = zip(*self.state.chance_outcomes(), strict=True)
            self.state.apply_action(self.random.choices(outcomes, odds)[0])

    @property
    def seat(self):
        """Who moves; None where the game has ended."""
        return None if self.state.is_terminal() else SEATS[self.state.current_player()]

    def move(self, action):
        self.state.apply_action(action)
        self.deal()

    def fields(self):
        """What the prompts of the player that moves need."""
        moves = moves_of(self.state)
        return {
            "state": shown(self.state),
            "moves": ", ".join(moves),
            "letters": letters_of(self.state, len(moves)),
        }


def shown(state):
    """What the player that moves knows: all that it has seen so far, or, where the game has no text
    for that, what it sees."""
    player, kind = state.current_player(), state.get_game().get_type()
    if kind.provides_information_state_string:
        return state.information_state_string(player)
    return state.observation_string(player)


def moves_of(state):
    """The legal moves as OpenSpiel writes them, in its order, with their actions."""
    return {
        state.action_to_string(state.current_player(), action): action
        for action in state.legal_actions()
    }


def letters_of(state, moves):
    """A letter for each move, as a tiny model makes it: every position has letters of its own, as
    far as there are enough.

    What is learned in one position then moves another one less (recipes/kuhn_poker/README.md).
    """
    first = zlib.crc32(shown(state).encode()) % (len(LETTERS) // 2) * 2
    return "".join(LETTERS[(first + n) % len(LETTERS)] for n in range(min(moves, len(LETTERS))))


def move_of(text, state):
    """The action of a text: of a move alone on the last line, or of its letter; else None."""
    moves, last = moves_of(state), (text or "").strip().rpartition("\n")[2].strip()
    if last in moves:  # a capture may end with `*`, which `final` would leave out
        return moves[last]
    last = final(text)
    if len(last) == 1 and (place := letters_of(state, len(moves)).find(last)) >= 0:
        return list(moves.values())[place]
    lowered = {move.lower(): action for move, action in moves.items()}
    return moves.get(last, lowered.get(last.lower()))


def replayed(name, history):
    """The state after a history, and the states with the moves that were made in them, without
    those of chance."""
    state, made = load(name).new_initial_state(), []
    for action in history:
        if not state.is_chance_node():
            made.append((state.clone(), action))
        state.apply_action(action)
    return state, made
