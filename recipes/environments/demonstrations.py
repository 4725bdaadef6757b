"""What the tiny models see before training: players who know the words of Kuhn poker, and use them
whether they are legal or not.

The texts are TextArena's own, of one round.
"""

from marl_plugins import Demonstration

WORDS = ("check", "bet", "call", "fold")
LEGAL = {"": "check, bet", "check": "check, bet", "bet": "fold, call", "check bet": "fold, call"}
"""By the moves before."""
KNOWN = 0.6
"""How often a player minds what is legal."""


def demonstrate(task, rng):
    """One place of the game; sometimes after a move that was not legal."""
    moves = rng.choice(list(LEGAL))
    legal = LEGAL[moves].split(", ")
    opener = moves in ("", "check bet")
    said = rng.choice(legal if rng.random() < KNOWN else WORDS)
    news = of_opener(moves, legal, rng) if opener else of_dealer(moves, legal, rng)
    if rng.random() < 0.2:
        listed = ", ".join(f"[{word}]" for word in legal)
        news = (
            f"[GAME] Player {int(opener)} attempted an invalid move. Reason: Action must be "
            f"{listed}. Please resubmit a valid move and remember to follow the game rules to "
            "avoid penalties."
        )
    yield Demonstration("opener" if opener else "dealer", {"news": news}, [said])


def card(rng):
    return f"[GAME] ### Starting round 1 out of 1 rounds. Your card is: '{rng.choice('JQK')}'"


def actions(legal):
    return "[GAME] Your available actions are: " + ", ".join(f"'[{word}]'" for word in legal)


def moved(player, move, rng):
    """What the other is shown of a move, sometimes of one before it that was not legal."""
    wrong = f"[Player {player}] [{rng.choice(('call', 'fold'))}]\n" if rng.random() < 0.2 else ""
    return f"{wrong}[Player {player}] [{move}]\n[GAME] Player {player}, submitted move: '[{move}]'."


def of_opener(moves, legal, rng):
    """What player 1 is shown: its card; and after its check the dealer's bet."""
    if not moves:
        return "\n".join([card(rng), actions(legal)])
    mine = "[GAME] Player 1, submitted move: '[check]'."
    return "\n".join([mine, moved(0, "bet", rng), actions(legal)])


def of_dealer(moves, legal, rng):
    """What player 0 is shown: its card, twice, and the opener's move."""
    mine = card(rng)
    return "\n".join([mine, mine, moved(1, moves, rng), actions(legal)])
