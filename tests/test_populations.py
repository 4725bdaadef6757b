"""Roles that several policies play: who plays on which task, what a run makes of it, and what is
refused."""

import asyncio
import dataclasses
import json
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import brief, found_by, refused
from simulated import CharacterChat, make_trajectory, without_seconds
from simulated_run import SimulatedPolicy, simulated_trainer
from transformers import AutoTokenizer

from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.policy import Policy
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.roles import RoleSpec, Sampling
from marl_plugins.core.run import AnswerLimits
from marl_plugins.core.trajectory import EVALUATION, Generation, Task
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.engines_only import only_players
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.records.pairs import markdown, pairs_of
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.engine.records.report import write_report
from marl_plugins.engine.runtime.penalties import penalise_lengths
from marl_plugins.engine.runtime.roles import Cast, make_cast
from marl_plugins.engine.runtime.tiny_model import resolve

POPULATION = "kuhn_poker/population.yaml"
TASK = Task("t", "q", "l")


def spec(role, policy):
    return RoleSpec(
        role,
        policy,
        lambda f: [{"role": "user", "content": f["q"]}],
        CharacterChat(),
        Sampling(1.0, 1.0, 8, 100),
    )


def cast_of(members, seed=1, roles=("a",)):
    return Cast({role: [spec(role, f"p{n}") for n in range(members)] for role in roles}, seed)


def player(cast, step, place, task=TASK, role="a"):
    return cast(task, step, place)[role].policy


# --- who plays
# --------------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 10**6), st.integers(0, 2**31))
def test_members_play_equally_often_in_a_step(members, tasks, step, seed):
    counts = Counter(player(cast_of(members, seed), step, place) for place in range(tasks))
    each = [counts[f"p{n}"] for n in range(members)]
    assert sum(each) == tasks and max(each) - min(each) <= 1


def test_who_plays_depends_on_seed_step_and_role():
    def players(seed=1, step=1, role="a"):
        return [player(cast_of(4, seed, ("a", "b")), step, n, role=role) for n in range(40)]

    assert players() == players()
    assert (
        len(
            {
                tuple(each)
                for each in (players(), players(seed=2), players(step=2), players(role="b"))
            }
        )
        == 4
    )


def test_all_pairs_of_players_meet():
    cast = cast_of(3, roles=("a", "b"))
    met = Counter(
        (s["a"].policy, s["b"].policy)
        for step in range(1, 11)
        for n in range(9)
        for s in [cast(TASK, step, n)]
    )
    assert len(met) == 9 and min(met.values()) > 1


def test_a_task_of_another_step_is_played_by_its_name_alone():
    """What enters from elsewhere must be said by the same policy when the step is repeated, in
    whatever order it is read."""
    cast = cast_of(4)
    found = {n: player(cast, 3, None, Task(f"t{n}", "q", "l")) for n in range(200)}
    assert found == {n: player(cast, 3, None, Task(f"t{n}", "another", "l")) for n in range(200)}
    assert min(Counter(found.values()).values()) > 30


# --- a run
# --------------------------------------------------------------------------------------------------


async def game(task, roles, tools):
    first = await roles.a(q=task.prompt)
    await roles.b(q=task.prompt, after=[first])


def trained(
    folder,
    members=("p", "q"),
    outcome=lambda t: {"a": 1.0, "b": 0.0},
    frozen=(),
    factors=(),
    **more,
):
    """A simulated run of a game of the roles a and b, each played by all of the policies; factors
    are of their answers' limits."""
    trainer = simulated_trainer(folder, outcome, workflow=game, **more)
    session, run = trainer.session, trainer.run
    policies = {name: SimulatedPolicy(name) for name in members}
    session.policies.clear()
    session.policies.update(policies)
    session.trained = {name: policy for name, policy in policies.items() if name not in frozen}
    session.rollout.pools = dict.fromkeys(members)
    run.recipe.roles["b"] = None
    run.state(AnswerLimits).update(factors)
    (alone,) = session.cast.members["a"]
    for role in ("a", "b"):
        session.cast.members[role] = tuple(
            dataclasses.replace(alone, name=role, policy=name) for name in members
        )
    asyncio.run(trainer.fit(0))
    return trainer


def lines(trainer, name):
    return [json.loads(line) for line in (trainer.records.folder / name).read_text().splitlines()]


def test_all_samples_of_a_task_have_the_same_players_who_are_trained_on_their_own(tmp_path):
    trainer = trained(tmp_path, steps=3, samples=3)
    players = {}
    for t in RunReader(tmp_path).trajectories():
        players.setdefault((t.step, t.task.id), set()).add(
            tuple((a.role, a.policy) for a in t.actions)
        )
        assert all(a.generation.policy == a.policy and a.left_out is None for a in t.actions)
    assert {len(found) for found in players.values()} == {1} and len(players) == 12
    for name, policy in trainer.session.policies.items():
        rows = [row for computed in policy.computed for row in computed]
        mine = [
            f"{t.name}/{a.path}"
            for t in RunReader(tmp_path).trajectories()
            for a in t.actions
            if a.policy == name
        ]
        assert sorted(rows) == sorted(mine)


def test_answers_of_training_alone_have_a_share_of_their_limit(tmp_path):
    limits = {}

    def asked(call):
        limits.setdefault((call.policy, call.step == EVALUATION), set()).add(call.max_tokens)

    trained(tmp_path, factors={"p": 0.001, "q": 0.6}, steps=2, eval_steps=1, answer=asked)
    assert limits == {("p", False): {1}, ("q", False): {5}, ("p", True): {8}, ("q", True): {8}}


def test_outcomes_are_counted_by_policy_and_by_pair(tmp_path):
    """The first seat wins whoever has it, so a policy's outcome is the share of the games in which
    it had that seat."""
    trainer = trained(tmp_path, steps=4, tasks=6, samples=1)
    seats = Counter(
        (t.step, a.policy, a.role) for t in RunReader(tmp_path).trajectories() for a in t.actions
    )
    for m in lines(trainer, "metrics.jsonl"):
        for name in ("p", "q"):
            if m["step"]:
                games = list(RunReader(tmp_path).trajectories(Filter((m["step"], m["step"]))))
                means = [
                    sum(t.outcomes[role] for role in mine) / len(mine)
                    for t in games
                    if (mine := [a.role for a in t.actions if a.policy == name])
                ]
                assert m[f"policy/{name}/outcome"] == pytest.approx(sum(means) / len(means))
            assert 0 <= m[f"eval/policy/{name}/outcome"] <= 1
    pairs = {(p["policy"], p["against"]): p for p in pairs_of(RunReader(tmp_path), (1, 4))}
    assert sum(p["outcomes"] for p in pairs.values()) == 48 == sum(seats.values())
    assert pairs["p", "p"]["outcome"] == 0.5 and pairs["p", "q"]["outcome"] + pairs["q", "p"][
        "outcome"
    ] == pytest.approx(1)
    path = tmp_path / "trajectories.jsonl"
    whole, line = path.read_text(), path.read_text().splitlines()[0]
    fork = json.loads(line) | {"forked": [json.loads(line)["actions"][0]["action"], 1]}
    path.write_text(whole.replace(line, f"{line}\n{json.dumps(fork)}", 1))
    assert pairs_of(RunReader(tmp_path), (1, 4)) == list(pairs.values())  # forks do not count
    path.write_text(whole)
    write_report(tmp_path, ["a", "b"], "a game", populations=True)
    report = (tmp_path / "report.md").read_text()
    assert all(line in report for line in markdown(pairs_of(RunReader(tmp_path), (4, 4))) if line)
    assert "| p | 0.500 (" in report


def test_each_member_is_penalised_by_its_own_limit():
    """10 tokens are 2 over what p may say without a penalty, and fine for q."""

    def args(limit):
        reward = SimpleNamespace(
            overlong_buffer_len=4,
            overlong_penalty_factor=1.0,
            stop_properly_penalty_coef=None,
            clip_range=None,
        )
        return SimpleNamespace(
            reward=reward,
            rollout=SimpleNamespace(max_new_tokens=limit),
            data=SimpleNamespace(max_len=100),
        )

    run = SimpleNamespace(
        policies=[Policy("p", "tiny"), Policy("q", "tiny")],
        policy_args={"p": args(12), "q": args(24)},
        role=lambda name: SimpleNamespace(max_new_tokens=None),
    )
    made = [
        make_trajectory({"a": []}, policies={"a": name}, rewards={"a": 1.0}, sample=n)
        for n, name in enumerate("qp")
    ]
    for t in made:
        t.actions[0].generation = Generation((5,) * 10, (0.0,) * 10, "stop", t.actions[0].policy, 0)
    penalise_lengths(made, run)
    assert [t.actions[0].reward for t in made] == pytest.approx([1.0, 0.5])


def test_a_run_repeats(tmp_path):
    for folder in ("one", "two"):
        trained(tmp_path / folder, steps=2)
    one, two = (
        without_seconds(list(map(json.loads, (tmp_path / n / "trajectories.jsonl").open())))
        for n in ("one", "two")
    )
    assert one == two


# --- plans
# --------------------------------------------------------------------------------------------------


def test_a_population_in_a_plan():
    plan = build_plan(["--recipe", POPULATION])
    run, shown = plan.run, describe(plan)
    assert [p.name for p in run.policies] == ["left", "right"]
    assert run.recipe.populations == {"first": ("left", "right"), "second": ("left", "right")}
    assert run.recipe.roles_of("right") == ["first", "second"] and run.trained_roles.keys() == {
        "first",
        "second",
    }
    assert (
        shown["roles"]["first"]["policies"] == ["left", "right"]
        and "policy" not in shown["roles"]["first"]
    )
    assert fingerprint(plan)["roles"] == {"first": ["left", "right"], "second": ["left", "right"]}
    assert [p.name for p in only_players(run).policies] == ["left", "right"]
    shared = build_plan(["--recipe", POPULATION, "--mapping", "shared"])
    assert describe(shared)["roles"]["first"]["policy"] == "shared"
    assert fingerprint(shared)["roles"] == {"first": "shared", "second": "shared"}


@pytest.fixture
def recipe(tmp_path):
    """Writes a recipe that extends the tiny one of a copy of kuhn_poker, and returns its file."""

    def write(text):
        shutil.copytree(recipes_root() / "kuhn_poker", tmp_path / "copy", dirs_exist_ok=True)
        file = tmp_path / "copy" / "mine.yaml"
        file.write_text(f"extends: tiny.yaml\n{text}\n")
        return str(file)

    return write


def test_a_member_may_follow_another(recipe):
    mapping = "mapping: {first: [player, earlier], second: [player, earlier]}"
    policies = (
        "policies: {earlier: {follows: player}}\nplugins: [marl_plugins.rae, "
        "marl_plugins.opponent_pool]"
    )
    run = build_plan(["--recipe", recipe(f"{mapping}\n{policies}")]).run
    assert [(p.name, p.trainable, p.follows) for p in run.policies] == [
        ("player", True, ""),
        ("earlier", False, "player"),
    ]
    assert run.trained_roles.keys() == {"first", "second"} and not run.warnings


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ("{first: [], second: b}", [("recipe.value", "mine.yaml:2", "mapping.first")]),
        ("{first: [a, a b], second: b}", [("policies.name", "a b")]),
    ],
)
def test_what_is_no_population(recipe, mapping, expected):
    assert found_by(build_plan, ["--recipe", recipe(f"mapping: {mapping}")]) == expected


@pytest.mark.parametrize("mapping", ["first=a+,second=b", "first=+a,second=b"])
def test_what_is_none_on_the_command_line(mapping):
    with refused(("flags.mapping", "mapping")):
        build_plan(["--recipe", "kuhn_poker/tiny.yaml", "--mapping", mapping])


def test_one_mean_over_all_of_a_population_is_a_warning():
    words = ["--recipe", "kuhn_poker/tiny.yaml", "--mapping", "first=a+b,second=c"]
    # the recipe's estimator is a plugin's, REINFORCE++ is that of others
    other = ["--recipe", "mathchat/tiny_outcome.yaml", "--mapping", "solver=a+b,coder=c,verifier=c"]
    coupled = ("reinforce_pp.population", "reinforce_pp.normalise")
    assert coupled not in [brief(w)[:2] for w in build_plan(words).run.warnings]
    assert coupled in [brief(w)[:2] for w in build_plan(other).run.warnings]
    apart = build_plan([*other, "--reinforce_pp.normalise", "policy"]).run
    assert coupled not in [brief(w)[:2] for w in apart.warnings]


def test_members_of_different_tokenizers_are_refused():
    run = build_plan(["--recipe", POPULATION]).run
    chats = {
        name: ChatFormat(AutoTokenizer.from_pretrained(resolve("tiny")), name)
        for name in ("left", "right")
    }
    cast = make_cast(run, run.policy_args, chats, {})
    assert [s.policy for s in cast.members["first"]] == ["left", "right"] and cast.has_population
    chats["right"].tokenizer.add_tokens(["another"])
    with refused(("roles.member_tokenizers", "first"), ("roles.member_tokenizers", "second")):
        make_cast(run, run.policy_args, chats, {})
