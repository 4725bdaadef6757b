"""The recipe kuhn_poker: the game's known values, and the exploitability read off sampled moves."""

import asyncio
import itertools
import math
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import CharacterChat

from marl_plugins.core.loading import load, load_file
from marl_plugins.core.recipe.prompts import followup_renderer, prompt_renderer
from marl_plugins.core.trajectory import Generation
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow

FOLDER = Path(__file__).resolve().parent.parent / "recipes" / "kuhn_poker"
game = load_file(FOLDER / "game.py")
workflow = load_file(FOLDER / "workflow.py")
grader = load_file(FOLDER / "grader.py")
tasks = load_file(FOLDER / "tasks.py")
demonstrations = load_file(FOLDER / "demonstrations.py")
pool = load_file(FOLDER / "pool_tasks.py")
PLACES = [(card, moves) for moves in game.SEATS for card in game.CARDS]


def won_by_first(first, second, history):
    """The rules in other words than the recipe's: who folds loses 1, a showdown is about 1, or 2
    where there was a bet."""
    if history.endswith("bp"):
        return 1.0 if len(history) == 2 else -1.0
    return (2.0 if "b" in history else 1.0) * (
        1 if "JQK".index(first) > "JQK".index(second) else -1
    )


def brute_force(strategy):
    """Exploitability by its definition and without `game`: each of the 64 pure strategies of a
    seat, over all deals."""
    total = 0.0
    for sign, places in ((1, ("", "pb")), (-1, ("p", "b"))):
        mine = [(card, moves) for moves in places for card in "JQK"]
        values = []
        for pure in itertools.product((0.0, 1.0), repeat=len(mine)):
            bets = {**strategy, **dict(zip(mine, pure, strict=True))}
            value = 0.0
            for deal in itertools.permutations("JQK", 2):
                for history in ("pp", "bp", "bb", "pbp", "pbb"):
                    chance = [bets[deal[n % 2], history[:n]] for n in range(len(history))]
                    chance = [
                        bet if move == "b" else 1 - bet
                        for bet, move in zip(chance, history, strict=True)
                    ]
                    value += math.prod(chance) * won_by_first(*deal, history)
            values.append(sign * value / 6)
        total += max(values)
    return total / 2


@settings(max_examples=20, deadline=None)
@given(st.fixed_dictionaries({place: st.floats(0, 1) for place in PLACES}))
def test_exploitability_is_that_of_its_definition(strategy):
    assert game.exploitability(strategy) == pytest.approx(brute_force(strategy), abs=1e-12)


def play(strategy, rounds, seed=0, load=tasks.load, earlier=None):
    """Games of the recipe's own workflow, sampled from a strategy (and an earlier one); what the
    roles were shown, by place."""
    draw, shown = random.Random(seed), {}
    system, chat = None, CharacterChat()
    texts = {
        name: (FOLDER / "prompts" / "tiny" / f"{name}.md").read_text() for name in ("seat", "again")
    }
    roles = {
        name: RoleSpec(
            name,
            name,
            prompt_renderer(texts["seat"], system),
            chat,
            Sampling(1.0, 1.0, 1, 64),
            render_next=followup_renderer(texts["again"]) if name.endswith("first") else None,
        )
        for name in ("first", "second", "earlier_first", "earlier_second")
    }

    def one(task):
        async def generate(call):
            text, seat = chat.text(call.context_ids), game.seat_of(call.role)
            card = task.metadata["cards"][seat == "second"]
            moves = (
                "pb"
                if text.count("a:") == 2
                else {"first": "", "second": "p" if "pass" in text else "b"}[seat]
            )
            shown[card, moves] = text
            likely = (strategy if call.role == seat else earlier)[card, moves]
            bet = draw.random() < likely
            likely = likely if bet else 1 - likely
            said = game.letter(card, "b" if bet else "p")
            return Generation((ord(said),), (math.log(likely),), "length", call.policy, 0)

        return run_workflow(
            workflow.run,
            task,
            0,
            step=1,
            run_seed=0,
            roles=roles,
            tools={},
            generate=generate,
            seconds=60.0,
        )

    async def all_of_them():
        return [await one(task) for n in range(rounds) for task in load("train")[6 * n : 6 * n + 6]]

    return asyncio.run(all_of_them()), shown


def test_exploitability_is_read_off_the_moves_that_were_sampled():
    draw = random.Random(3)
    strategy = {place: 0.1 + 0.8 * draw.random() for place in PLACES}
    games, _ = play(strategy, 60)
    plugin, states = load(str(FOLDER / "exploitability.py")), {}
    run = SimpleNamespace(state=lambda kind: states.setdefault(kind, kind()))
    metrics = {}
    assert plugin.marl_credit_step(games, run) is games
    plugin.marl_log(run, 1, metrics)
    assert metrics["kuhn/exploitability"] == pytest.approx(game.exploitability(strategy), abs=1e-9)
    again = SimpleNamespace(state=lambda kind, found={}: found.setdefault(kind, kind()))
    plugin.marl_restore(again, plugin.marl_state(run))
    assert again.state(plugin.Strategy) == states[plugin.Strategy]


def test_a_bet_has_the_probability_of_all_the_answers_that_bet():
    """Models with a probability for every byte; who says another card's letter moves by its size,
    who says anything else passes."""
    draw, plugin = random.Random(5), load(str(FOLDER / "exploitability.py"))
    letters = "JQKjqkx"
    for _ in range(50):
        weights = [draw.random() + 0.05 for _ in letters]
        likely = {
            said: weight / sum(weights) for said, weight in zip(letters, weights, strict=True)
        }
        sampled = draw.choices(letters, weights, k=400)
        answers = [
            (
                Generation((ord(said),), (math.log(likely[said]),), "length", "", 0),
                game.move_of(said),
            )
            for said in sampled
        ]
        assert set(sampled) == set(letters)
        assert plugin.bet_probability(answers) == pytest.approx(
            likely["J"] + likely["Q"] + likely["K"], abs=1e-12
        )


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("K", "b"),
        ("k", "p"),
        ("j", "p"),
        ("b", "b"),
        ("P", "p"),
        ("I hold a king.\n**Bet**", "b"),
        ("I'd bet.", "p"),
        ("bet or pass", "p"),
        ("", "p"),
        ("x", "p"),
        ("ace", "p"),
    ],
)
def test_a_move_is_a_letter_or_stands_alone_on_the_last_line(text, move):
    assert game.move_of(text) == move


@given(st.floats(0, 1), st.integers(1, 400))
def test_the_earlier_version_has_its_share_of_the_games_and_both_seats_alike(share, games):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "SHARE", share)
        seats = [pool.earlier(number) for number in range(games)]
    assert abs(sum(seat is not None for seat in seats) - share * games) < 1.001
    assert 0 <= seats.count("first") - seats.count("second") <= 1


def test_the_earlier_version_plays_its_seat_and_its_moves_do_not_count():
    """It always bets, the player never does; each has outcomes of its own, and a memory."""
    player, earlier = dict.fromkeys(PLACES, 1e-9), dict.fromkeys(PLACES, 1 - 1e-9)
    games, _ = play(player, 4, load=pool.load, earlier=earlier)
    roles = {
        (t.task.metadata["earlier"], tuple(sorted({a.role for a in t.actions}))) for t in games
    }
    assert roles == {
        (None, ("first", "second")),
        ("first", ("earlier_first", "second")),
        ("second", ("earlier_second", "first")),
    }
    for t in games:
        outcomes = grader.score_outcome(t)
        assert outcomes.keys() == {a.role for a in t.actions} and sum(outcomes.values()) == 1.0
        assert t.answer == {None: "pp", "first": "bp", "second": "pbp"}[t.task.metadata["earlier"]]
        later = [a for a in t.actions if a.before is not None]
        assert [a.before.role for a in later] == ["first"] * len(later)
    plugin, states = load(str(FOLDER / "exploitability.py")), {}
    plugin.marl_credit_step(
        games, SimpleNamespace(state=lambda kind: states.setdefault(kind, kind()))
    )
    found = states[plugin.Strategy]
    assert {moves for _, moves in found} == set(game.SEATS) and max(found.values()) < 1e-6
