"""Transfer within a population: who learns from whom, and what of it is trained on."""

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest
from simulated import make_trajectory
from simulated_run import SimulatedPolicy, simulated_trainer
from test_exchange import Chat
from test_forking import Forks

from marl_plugins.core.estimators import Estimator
from marl_plugins.core.policy import Policy
from marl_plugins.core.roles import RoleSpec
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.transfer import sources

PLUGIN = "marl_plugins.transfer"
POPULATIONS = {"a": ("p", "q")}


async def team(task, roles, tools):
    first = await roles.a(q=task.prompt)
    return await roles.b(q=f"{first}!")


def trained(
    folder,
    outcome=lambda t: float(t.sample == 0),
    frozen=(),
    plugins=(PLUGIN,),
    parts=(),
    **options,
):
    """A run in which the policies p and q play the role a, and r plays b."""
    trainer = simulated_trainer(
        folder,
        outcome,
        workflow=team,
        steps=3,
        eval_steps=-1,
        plugins=plugins,
        estimator=Estimator(),
    )
    run, session = trainer.run, trainer.session
    policies = {name: SimulatedPolicy(name) for name in "pqr"}
    session.policies.clear()
    session.policies.update(policies)
    session.trained = {name: policy for name, policy in policies.items() if name not in frozen}
    session.rollout.pools = dict.fromkeys(policies)
    run.recipe.roles["b"] = None
    run.recipe.populations = POPULATIONS
    run.policies = [Policy(name, "tiny", name not in frozen) for name in policies]
    no_penalty = SimpleNamespace(overlong_buffer_len=None, stop_properly_penalty_coef=None)
    run.policy_args = dict.fromkeys(policies, SimpleNamespace(reward=no_penalty))
    run.args.transfer = SimpleNamespace(**{"groups": 1, "outcome": 1.0} | options)
    (old,) = session.cast.members["a"]
    members = session.cast.members
    members["a"] = tuple(RoleSpec("a", name, old.render, Chat(), old.sampling) for name in "pq")
    members["b"] = (dataclasses.replace(members["a"][0], name="b", policy="r"),)
    trainer.plugins.parts += parts
    asyncio.run(trainer.fit(0))
    return trainer, list(RunReader(folder).trajectories(Filter(received=True)))


def test_each_member_learns_from_groups_of_the_other_in_its_own_voice(tmp_path):
    _, found = trained(tmp_path)
    own = {(t.step, t.task.id, t.sample): t for t in found if not t.origin}
    new = [t for t in found if t.origin]
    assert len(new) == 3 * 2 * 2  # steps, members, samples
    for t in new:
        source, member = t.origin.split(" to ")
        before = own[t.step, t.task.id, t.sample]
        assert {source, member} == {"p", "q"} and [a.policy for a in before.actions] == [
            source,
            "r",
        ]
        assert [(a.role, a.policy, a.text) for a in t.actions] == [
            ("a", member, before.actions[0].text), ("b", "r", before.actions[1].text)
        ]  # fmt: skip
        mine, others = t.actions
        assert mine.left_out is None and others.left_out and mine.generation.policy == member
        assert mine.generation.ids == before.actions[0].generation.ids


def test_only_good_groups_travel_and_none_to_a_frozen_member(tmp_path):
    assert not [t for t in trained(tmp_path / "bad", outcome=lambda t: 0.5)[1] if t.origin]
    frozen = [t.origin for t in trained(tmp_path / "frozen", frozen=("q",))[1] if t.origin]
    assert frozen and all(origin == "q to p" for origin in frozen)


def test_forks_do_not_travel(tmp_path):
    def outcome(t):
        """No original is good, and every fork is."""
        first = (t.step, t.task.id, t.sample) not in played
        played.add((t.step, t.task.id, t.sample))
        return 0.0 if first else 1.0

    played = set()
    parts = [lambda step: Forks(step, [])]
    _, trajectories = trained(tmp_path, outcome=outcome, parts=parts)
    assert sum(t.outcome for t in trajectories if t.forked) == 3 * 4 * 4
    assert not [t for t in trajectories if t.origin]


def test_without_groups_the_run_is_the_run_without_the_plugin(tmp_path):
    one, two = trained(tmp_path / "one", groups=0)[1], trained(tmp_path / "two", plugins=())[1]
    assert [(t.name, [a.advantage for a in t.actions]) for t in one] == [
        (t.name, [a.advantage for a in t.actions]) for t in two
    ]


@pytest.mark.parametrize(
    ("policies", "member", "found"),
    [
        ({"a": "p", "b": "r"}, "q", ["p"]),
        ({"a": "q", "b": "r"}, "q", []),
        ({"a": "p", "b": "r"}, "r", []),
        ({"a": "p", "b": "r"}, "x", []),
    ],
)
def test_nothing_goes_to_other_teams(policies, member, found):
    assert sources([played(policies)], member, learning(POPULATIONS)) == found


def played(policies, **outcomes):
    trajectory = make_trajectory({"a": [], "b": ["a"]}, policies=policies)
    trajectory.outcome, trajectory.outcomes = (
        sum(outcomes.values()) / 2 if outcomes else 1.0,
        outcomes,
    )
    return trajectory


def learning(populations):
    return SimpleNamespace(
        recipe=SimpleNamespace(populations=populations),
        args=SimpleNamespace(transfer=SimpleNamespace(outcome=1.0)),
    )


def test_in_a_game_the_winner_is_learned_from():
    """Of zero-sum outcomes the mean is always one half."""
    run = learning({"a": ["p", "q", "s"], "b": ["p", "q", "s"]})
    won, lost = (
        played({"a": "p", "b": "q"}, a=float(won), b=float(not won)) for won in (True, False)
    )
    assert sources([won, won], "s", run) == ["p"] and sources([lost], "s", run) == ["q"]
    assert sources([won, lost], "s", run) == ["p", "q"] and sources([won], "q", run) == []
