"""Kuhn poker: three cards, one bet, and an equilibrium that is known exactly (Kuhn 1950).

Both players pay 1 and are dealt one of J, Q, K. A player passes or bets 1. Two passes, or a bet
that is answered by a bet: the higher card wins. A bet that is answered by a pass wins at once.
After pass and bet the first player decides once more.

    histories of moves:  pp  bp  bb  pbp  pbb        at equilibrium the first player loses 1/18 per
        game
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

from marl_plugins.grading import word

CARDS = "JQK"
DEALS = ["".join(deal) for deal in permutations(CARDS, 2)]
"""The first player's card and the second's."""
SEATS = {"": "first", "p": "second", "b": "second", "pb": "first"}
"""Who moves after which moves."""
Strategy = Mapping[tuple[str, str], float]
"""Probability of a bet by (own card, moves so far), of both players."""


def seat_of(role: str) -> str:
    """The seat of a role: `first`, or `earlier_first` where an earlier version plays."""
    return role.removeprefix("earlier_")


def letter(card: str, move: str) -> str:
    """A move as a tiny model makes it: the letter of the card it holds, large for a bet and small
    for a pass."""
    return card if move == "b" else card.lower()


def move_of(text: str) -> str:
    """`b` or `p`: a letter's move (see `letter`), or the move alone on the last line of a text;
    else a pass."""
    if len(text) == 1 and text.upper() in CARDS:
        return "b" if text.isupper() else "p"
    return word(text, ("pass", "bet", "p", "b"))[:1] or "p"


def ended(moves: str) -> bool:
    return moves not in SEATS


def payoff(deal: str, moves: str) -> int:
    """What the first player wins in a game that has ended: -2 to 2."""
    won = 1 if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -1
    return {"pp": won, "bb": 2 * won, "pbb": 2 * won, "bp": 1, "pbp": -1}[moves]


def value(strategy: Strategy, deal: str, moves: str = "") -> float:
    """What the first player wins on average from here on."""
    if ended(moves):
        return payoff(deal, moves)
    bet = strategy[deal[SEATS[moves] == "second"], moves]
    return bet * value(strategy, deal, moves + "b") + (1 - bet) * value(strategy, deal, moves + "p")


def best_response(strategy: Strategy, seat: str) -> float:
    """What the best player in a seat wins on average against the other seat of a strategy, by
    trying every one of its own."""
    sign, own = (1, 0) if seat == "first" else (-1, 1)
    places = [moves for moves, who in SEATS.items() if who == seat]
    total = 0.0
    for card in CARDS:
        deals = [deal for deal in DEALS if deal[own] == card]
        choices = [{}]
        for moves in places:
            choices = [{**choice, (card, moves): bet} for choice in choices for bet in (0.0, 1.0)]
        total += max(
            sum(sign * value({**strategy, **choice}, deal) for deal in deals) for choice in choices
        )
    return total / len(DEALS)


def exploitability(strategy: Strategy) -> float:
    """What best players in both seats win on average against a strategy, per game and seat; 0 at an
    equilibrium."""
    return (best_response(strategy, "first") + best_response(strategy, "second")) / 2


def equilibrium(bluff: float) -> dict[tuple[str, str], float]:
    """One of the equilibria, by the probability (0 to 1/3) that the first player bets with a
    jack."""
    return {
        ("J", ""): bluff,
        ("Q", ""): 0.0,
        ("K", ""): 3 * bluff,
        ("J", "pb"): 0.0,
        ("Q", "pb"): bluff + 1 / 3,
        ("K", "pb"): 1.0,
        ("J", "p"): 1 / 3,
        ("Q", "p"): 0.0,
        ("K", "p"): 1.0,
        ("J", "b"): 0.0,
        ("Q", "b"): 1 / 3,
        ("K", "b"): 1.0,
    }
