"""The recipes `spread` and `trading`: their rules against references of their own, and what their
agents are rewarded with."""

import random
import re
from fractions import Fraction

import pytest
from recipe_runs import planned, played

from marl_plugins import load_file
from marl_plugins.core.recipe.shipped import recipes_root

network = load_file(recipes_root() / "spread" / "network.py")
market = load_file(recipes_root() / "trading" / "market.py")


def random_rounds(name, rng):
    """Rounds in which every agent speaks to somebody, or, sometimes, to nobody."""
    return [
        {role: rng.choice([*met, None]) for role, met in meetings.items()}
        for meetings in network.Network(name).meetings
    ]


def by_hand(name, rounds):
    """The share of the people who hold the correction, by sets of people."""
    start = network.Network(name)
    people = range(len(network.NAMES))
    holds = {p: "rumour" for p in people if start.beliefs[p]}
    for said in rounds:
        for person in people:
            pro = sum(said[r] == person for r in said if r.startswith("correct"))
            con = sum(said[r] == person for r in said if r.startswith("rumour"))
            if pro != con:
                holds[person] = "correct" if pro > con else "rumour"
        heard = dict(holds)
        for person in people:
            around = [holds.get(p) for p in [person, *start.contacts[person]]]
            if around.count("correct") != around.count("rumour"):
                more = around.count("correct") > around.count("rumour")
                heard[person] = "correct" if more else "rumour"
        holds = heard
    states = [holds.get(person) for person in people]
    return Fraction(2 * states.count("correct") + states.count(None), 2 * len(states))


def test_a_network_spreads_as_it_says_and_no_voice_harms_its_own_side():
    rng = random.Random(1)
    for number in range(50):
        rounds = random_rounds(name := f"n{number}", rng)
        final, added = network.replayed(name, network.written(rounds))
        assert final == pytest.approx(float(by_hand(name, rounds)), abs=1e-12)
        assert min(added.values()) >= -1e-12
        role, place = rng.choice(network.AGENTS), rng.randrange(len(rounds))
        silent = [dict(said) for said in rounds]
        silent[place][role] = None
        change = float(by_hand(name, rounds) - by_hand(name, silent))
        assert added[role, place] == pytest.approx(
            change if role.startswith("correct") else -change, abs=1e-12
        )


def test_agents_speak_to_those_whom_they_meet_and_are_paid_for_what_they_added():
    plan, rng = planned("spread/tiny.yaml"), random.Random(2)
    task = plan.tasks("train")[3]

    def says(role, prompt):
        met = re.findall(r"\d([A-P])", prompt)
        return rng.choice([*met, "Z"])

    trajectory = played(plan, task, says)
    assert len(trajectory.actions) == 24
    final, added = network.replayed(task.id, trajectory.answer)
    assert trajectory.outcome == final
    for role in network.AGENTS:
        mine = [action for action in trajectory.actions if action.role == role]
        assert [a.reward for a in mine] == [added[role, n] for n in range(len(mine))]
        assert len(mine[1].parents) == len(network.AGENTS)
    assert len({a.reward for a in trajectory.actions}) > 1


def test_a_trader_earns_its_position_less_cost_and_impact():
    plan, rng = planned("trading/tiny.yaml"), random.Random(3)
    task = plan.tasks("train")[5]
    said = {trader: [] for trader in market.TRADERS}

    def says(role, prompt):
        said[role].append(rng.choice(["b", "o", "s", "?"]))
        return said[role][-1]

    trajectory = played(plan, task, says)
    returns, held = market.Market(task.id).returns, dict.fromkeys(market.TRADERS, 0)
    total = Fraction(0)
    rewards = {t: [a.reward for a in trajectory.actions if a.role == t] for t in held}
    for day, change in enumerate(returns):
        now = {t: {"b": 1, "o": 0, "s": -1}.get(said[t][day], held[t]) for t in held}
        moved = Fraction(change) - Fraction("0.002") * Fraction(sum(now.values()), len(now))
        for trader in held:
            earned = now[trader] * moved - Fraction("0.001") * abs(now[trader] - held[trader])
            assert rewards[trader][day] == pytest.approx(100 * float(earned), abs=1e-9)
            total += earned
        held = now
    share = float(total) / len(held) / sum(map(abs, returns))
    assert trajectory.outcome == pytest.approx(0.5 + share / 2)


@pytest.mark.parametrize("name", ["spread", "trading"])
def test_splits_share_no_task_and_demonstrations_fit_the_prompts(name):
    plan = planned(f"{name}/tiny.yaml")
    train, held_out = plan.tasks("train"), plan.tasks("eval")
    assert len(train) >= 1000 and not {t.id for t in train} & {t.id for t in held_out}
    rng, roles = random.Random(0), set()
    for shown in plan.run.demonstrations_module.demonstrate(train[0], rng):
        assert len(shown.said[0]) == plan.run.role(shown.role).max_new_tokens
        assert set(shown.fields) >= {"letters"}
        roles.add(shown.role)
    assert roles == set(plan.run.recipe.roles)
