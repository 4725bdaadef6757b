"""recipes/games: games of OpenSpiel as they are played through the recipe, against OpenSpiel's own
and other references."""

import asyncio
import math
import random
from pathlib import Path
from types import SimpleNamespace

import pyspiel
import pytest
from simulated import CharacterChat

from marl_plugins.core.loading import load, load_file
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.trajectory import Generation, Task
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow

FOLDER = recipes_root() / "games"
spiel = load_file(FOLDER / "spiel.py")
workflow = load_file(FOLDER / "workflow.py")
grader = load_file(FOLDER / "grader.py")
tasks = load_file(FOLDER / "tasks.py")
demonstrations = load_file(FOLDER / "demonstrations.py")
plugin = load(str(FOLDER / "exploitability.py"))
kuhn = load_file(recipes_root() / "kuhn_poker" / "game.py")
GAMES = (
    *(
        "kuhn_poker",
        "leduc_poker",
        "liars_dice",
        "tic_tac_toe",
        "backgammon",
        "bargaining",
    ),
    *("breakthrough(rows=5,columns=4)", "phantom_ttt", "universal_poker", "chess"),
)


def played(name, say, seed=0):
    """A game of the recipe's own workflow, in which `say(role, shown)` gives the text and its
    log-prob; both policies are `p`."""
    chat, prompt = CharacterChat(), Path(FOLDER / "prompts" / "move.md").read_text()
    roles = {
        seat: RoleSpec(
            seat, "p", prompt_renderer(prompt, None), chat, Sampling(1.0, 1.0, 99, 99_999)
        )
        for seat in spiel.SEATS
    }

    async def generate(call):
        text, logprob = say(call.role, chat.text(call.context_ids))
        ids = tuple(map(ord, text))
        return Generation(ids, (logprob,) * len(ids), "length", call.policy, 0)

    task = Task(name, "", metadata={"game": name, "seed": seed})
    return asyncio.run(
        run_workflow(
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
    )


@pytest.mark.parametrize("name", GAMES)
def test_a_game_of_random_moves_is_openspiels_own(name):
    """Who moves, what is legal and shown, when it ends and what it pays, by a game beside it that
    OpenSpiel plays."""
    draw, game, moved = random.Random(name), pyspiel.load_game(name), []
    least, most = game.min_utility(), game.max_utility()

    def say(role, shown):
        beside = replay(game, [action for _, action in moved], 0)
        texts = [beside.action_to_string(action) for action in beside.legal_actions()]
        offered = shown.rpartition("Your legal moves: ")[2].partition("\n\nThink")[0]
        assert offered == ", ".join(texts) and role == spiel.SEATS[beside.current_player()]
        place = draw.randrange(len(texts))
        moved.append((role, beside.legal_actions()[place]))
        return f"Let me think.\n{texts[place]}", -0.5

    found = played(name, say)
    state = game.new_initial_state()
    for action in map(int, found.answer.split()):
        assert action in state.legal_actions()
        state.apply_action(action)
    outcomes = grader.score_outcome(found)
    assert len(found.actions) == len(moved)
    if state.is_terminal():
        won = [(each - least) / (most - least) for each in state.returns()]
        assert outcomes == {role: won[spiel.SEATS.index(role)] for role, _ in moved}
        assert all(0 <= outcome <= 1 for outcome in outcomes.values())
    else:
        assert len(moved) == workflow.MOST and set(outcomes.values()) == {0.5}


def replay(game, actions, seed):
    """The position after the players' actions, with the chances of a seed."""
    state, rng, actions = game.new_initial_state(), random.Random(seed), iter(actions)
    while not state.is_terminal():
        if state.is_chance_node():
            outcomes, odds = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(rng.choices(outcomes, odds)[0])
        elif (action := next(actions, None)) is not None:
            state.apply_action(action)
        else:
            break
    return state


def test_samples_of_a_task_have_the_same_cards_and_tasks_do_not():
    """Also the card that comes after the first bets."""
    deals = [
        tuple(
            int(a)
            for a in played("leduc_poker", lambda role, shown: ("Call", -0.5), seed).answer.split()
        )
        for seed in (0, 0, *range(1, 30))
    ]
    assert deals[0] == deals[1] and len(set(deals)) > 15


@pytest.mark.parametrize("text", ["", "Pass or Bet"])
def test_who_says_no_legal_move_has_lost(text):
    found = played(
        "kuhn_poker", lambda role, shown: ("Bet", -0.5) if role == "first" else (text, -0.5)
    )
    assert len(found.actions) == 2 and grader.score_outcome(found) == {"first": 1.0, "second": 0.0}


# --- exploitability
# --------------------------------------------------------------------------------------------------


def test_players_to_whom_all_moves_are_alike_have_known_exploitabilities():
    """NashConv 11/12 in Kuhn poker, and 4.7472 in Leduc poker (Lanctot et al. 2019, OpenSpiel)."""
    assert 2 * plugin.exploitability("kuhn_poker", {}) == pytest.approx(11 / 12)
    assert 2 * plugin.exploitability("leduc_poker", {}) == pytest.approx(4.7472, abs=1e-4)
    assert len(plugin.places("leduc_poker")) == 936
    assert plugin.places("chess") == {} == plugin.places("phantom_ttt")


def strategy_of(bets):
    """A strategy of recipes/kuhn_poker, by OpenSpiel's names of its places."""
    return {
        f"{'JQK'.index(card)}{moves}": {0: 1 - bet, 1: bet} for (card, moves), bet in bets.items()
    }


def run_of(*policies):
    states = {}
    return SimpleNamespace(policies=policies, state=lambda kind: states.setdefault(kind, kind()))


TRAINED = SimpleNamespace(name="p", follows="")


def test_it_is_read_off_the_moves_that_were_sampled():
    draw = random.Random(3)
    bets = {(card, moves): 0.1 + 0.8 * draw.random() for moves in kuhn.SEATS for card in kuhn.CARDS}
    strategy = strategy_of(bets)

    def say(role, shown):
        place = shown.partition(":\n\n")[2].partition("\n")[0]
        action = int(draw.random() < strategy[place][1])
        letters = spiel.letters_of(state_of(place), 2)
        return letters[action], math.log(strategy[place][action])

    games = [played("kuhn_poker", say, seed) for seed in range(200)]
    run, metrics = run_of(TRAINED), {}
    assert plugin.marl_credit_step(games, run) is games
    plugin.marl_log(run, metrics)
    assert metrics == {
        "games/kuhn_poker/exploitability": pytest.approx(kuhn.exploitability(bets), abs=1e-9),
        "games/kuhn_poker/places": 1.0,
    }
    again, later = run_of(TRAINED), {}
    plugin.marl_restore(again, plugin.marl_state(run))
    plugin.marl_log(again, later)
    assert later == metrics
    plugin.marl_credit_step(games, follower := run_of(SimpleNamespace(name="p", follows="left")))
    plugin.marl_log(follower, nothing := {})
    assert nothing == {}


def state_of(place):
    """A position in which a player of Kuhn poker knows this."""
    waiting = [pyspiel.load_game("kuhn_poker").new_initial_state()]
    while waiting:
        state = waiting.pop()
        if state.is_player_node() and state.information_state_string() == place:
            return state
        waiting += [state.child(action) for action in state.legal_actions()]
    raise AssertionError(place)
