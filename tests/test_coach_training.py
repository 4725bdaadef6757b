"""A coach that is trained: what its verdicts are rewarded with, what becomes of them, and how it is
planned."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import briefs
from simulated import make_trajectory

from marl_plugins.coach.state import CoachState
from marl_plugins.coach.training import JudgeAnswer, lessons, rewards, shares_in_tau
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.run import Answer
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.runtime.session import Session

ROOT = Path(__file__).resolve().parent.parent
SCORES = st.integers(0, 20).map(lambda n: n / 20)
OUTCOMES = st.sampled_from([0.0, 0.0, 1.0, 1.0, 0.25, 0.5])
VERDICTS = st.lists(st.tuples(SCORES, OUTCOMES), min_size=1, max_size=12)


def order(x):
    return int(numpy.sign(round(x, 9)))


# The reward.


@given(VERDICTS)
def test_the_reward_is_brier_and_tau_pair_by_pair(verdicts):
    found = rewards(verdicts)
    for i, (s, o) in enumerate(verdicts):
        others = [v for j, v in enumerate(verdicts) if j != i]
        agreeing = [order(s - t) * order(o - p) for t, p in others]
        ranking = (1 + sum(agreeing) / max(1, len(others))) / 2
        assert found[i] == pytest.approx(((1 - (s - o) ** 2) + ranking) / 2)


def test_it_is_that_of_libraries():
    from scipy.stats import kendalltau
    from sklearn.metrics import brier_score_loss

    draw = numpy.random.default_rng(5)
    outcomes = draw.permutation(40) / 39
    scores = numpy.clip(
        outcomes + draw.normal(0, 0.3, 40),
        0.001 * draw.permutation(40),
        1 - 0.001 * draw.permutation(40),
    )
    verdicts = list(zip(scores.tolist(), outcomes.tolist(), strict=True))
    assert numpy.mean(shares_in_tau(verdicts)) == pytest.approx(
        kendalltau(scores, outcomes).statistic
    )  # no ties
    right = (outcomes > 0.6).astype(float)
    verdicts = list(zip(scores.tolist(), right.tolist(), strict=True))
    rest = numpy.mean(rewards(verdicts)) - (1 + numpy.mean(shares_in_tau(verdicts))) / 4
    assert 1 - 2 * rest == pytest.approx(brier_score_loss(right, scores))


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.6, 0.8])
def test_it_is_best_to_say_how_likely_success_is(chance):
    """In expectation over the outcomes of all, where the others say it: no other score of one
    verdict is rewarded more."""
    others = [0.1] * 3 + [0.3] * 2 + [0.6, 0.8]  # and so much is unlikely to succeed
    expected = {}
    for score in (n / 10 for n in range(11)):
        total = 0.0
        for outcomes in itertools.product((0.0, 1.0), repeat=len(others) + 1):
            chances = [chance, *others]
            weight = numpy.prod([q if o else 1 - q for q, o in zip(chances, outcomes, strict=True)])
            total += weight * rewards(list(zip([score, *others], outcomes, strict=True)))[0]
        expected[score] = total
    assert max(expected, key=expected.get) == chance


def test_an_answer_without_a_verdict_gets_the_lowest_and_changes_no_other():
    with_it = rewards([(None, 1.0), (0.3, 1.0), (0.9, 0.0), (None, 0.0)])
    assert with_it[0] == with_it[3] == 0.0 and with_it[1:3] == rewards([(0.3, 1.0), (0.9, 0.0)])
    assert rewards([(1.0, 0.0), (0.0, 1.0)]) == [0.0, 0.0]  # as low as a verdict can be


# From what was said to rows.


def said(trajectory, *answers):
    """What judge j has said of each action of a trajectory: a score each, or None; and as the same
    tokens where these are given."""
    found = {}
    for action, (score, ids) in zip(trajectory.actions, answers, strict=True):
        answer = Answer((1, 2), Generation(ids, (-0.5,) * len(ids), "stop", "j", 3), "text")
        found[action] = [JudgeAnswer("j", action, answer, score)]
    return found


def outcomes_of(*outcomes):
    found = [make_trajectory({"a": [], "b": ["a"]}, sample=n) for n in range(len(outcomes))]
    for trajectory, outcome in zip(found, outcomes, strict=True):
        trajectory.outcome = outcome
    return found


def test_what_has_no_reward_says_why():
    right, _, lost = trajectories = outcomes_of(1.0, None, None)
    lost.lose("engine", "gone")
    answers = {}
    for trajectory, ids in zip(trajectories, ((4,), (5,), (6,)), strict=True):
        answers |= said(trajectory, (0.5, ids), (0.5, ()))
    found, metrics = lessons(answers, trajectories)
    assert [[a.left_out for a in t.actions] for t in found] == [
        [None, "nothing sampled"],
        ["no outcome"] * 2,
        ["infrastructure:engine"] * 2,
    ]
    ((only, _), *others) = [t.actions for t in found]
    assert only.reward == pytest.approx((0.75 + 0.5) / 2) and all(
        a.reward is None for mine in others for a in mine
    )
    assert (only.role, only.policy, only.generation.version) == ("j/a", "j", 3)
    assert metrics == {
        "coach/trained/j/a/reward": only.reward,
        "coach/trained/j/a/unreadable": 0.0,
        "coach/trained/j/a/brier": 0.25,
        "coach/trained/j/a/tau": 0.0,
    }
    assert right.actions[0].reward == 1.0  # the agents' are as they were


def test_an_effect_is_the_outcome_less_that_of_the_tasks_other_samples():
    trajectories = outcomes_of(1.0, 0.0, 0.5, 1.0, 1.0, 0.0)
    *samples, other_task, fork = trajectories
    other_task.task = replace(other_task.task, id="another")
    fork.forked, fork.sample = (fork.actions[1].path, 1), 0
    samples[3].lose("engine", "gone")
    samples[0].outcomes = {"a": 0.25, "b": 1.0}
    answers = {}
    for number, trajectory in enumerate(trajectories):
        answers |= said(trajectory, (0.1 * number, (number,)), (0.1, (number, 9)))
    found, _ = lessons(answers, trajectories, of_effects=["j"])
    effects = {
        "a": {0: 0.25 - 0.25, 1: 0.0 - (0.25 + 0.5) / 2, 2: 0.5 - 0.125, 5: 0.0 - 0.25},
        "b": {0: 1.0 - 0.25, 1: 0.0 - 0.75, 2: 0.5 - 0.5, 5: 0.0 - 0.25},
    }
    for place, role in enumerate("ab"):
        scores = [0.1 * n if role == "a" else 0.1 for n in effects[role]]
        held_against = [(1 + effect) / 2 for effect in effects[role].values()]
        expected = rewards(list(zip(scores, held_against, strict=True)))
        assert [found[n].actions[place].reward for n in effects[role]] == pytest.approx(expected)
    assert found[4].actions[0].left_out == "no outcome"  # the only sample of its task
    assert found[3].actions[0].left_out == "infrastructure:engine"


def test_a_repeated_answer_is_one_row_with_the_mean_reward():
    trajectories = outcomes_of(1.0, 0.0, 1.0)
    answers = {}
    for trajectory, score, ids in zip(
        trajectories, (0.8, 0.8, 0.4), ((4,), (4,), (5,)), strict=True
    ):
        answers |= said(trajectory, (score, ids), (score, (7, trajectory.sample)))
    found, _ = lessons(answers, trajectories)
    first, second, third = (t.actions[0] for t in found)
    alone = rewards([(0.8, 1.0), (0.8, 0.0), (0.4, 1.0)])
    assert first.reward == pytest.approx(
        (alone[0] + alone[1]) / 2
    ) and third.reward == pytest.approx(alone[2])
    assert (second.reward, second.left_out) == (None, "repeated")
    assert [t.actions[1].reward for t in found] == pytest.approx(alone)


# The plan.


RECIPE = """
extends: tiny.yaml
plugins: [marl_plugins.coach]
policies:
  judge: {model: "tiny:seed=9,positions=8192", flags: {data.max_len: 8192}}
flags:
  coach.policy: judge
  coach.train_every: 4
"""


@pytest.fixture
def recipe(tmp_path):
    folder = tmp_path / "sums"
    shutil.copytree(ROOT / "tests" / "recipes" / "sums", folder)
    (folder / "coached.yaml").write_text(RECIPE)
    return folder / "coached.yaml"


def refused(*words):
    with pytest.raises(ConfigurationError) as caught:
        build_plan([*map(str, words), "--dry-run"])
    return briefs(caught.value.problems)


def without_line(found):
    return [
        (code, *(place for place in places if ".yaml:" not in place)) for code, *places in found
    ]


def test_it_is_planned_as_a_policy_that_is_trained_in_every_nth_step(recipe):
    plan = build_plan(["--recipe", str(recipe)])
    shown = describe(plan)["policies"]
    assert (
        shown["judge"]["trainable"],
        shown["judge"]["train_every"],
        shown["judge"]["ranks"],
    ) == (True, 4, 1)
    assert "train_every" not in shown["solver"]
    session = SimpleNamespace(plan=plan, train_tasks=plan.tasks("train"), args=plan.run.policy_args)
    lengths = Session.schedule_lengths.fget(session)
    steps = plan.counted["steps"]
    assert lengths["solver"] == steps * plan.run.optimiser_steps
    assert lengths["judge"] == steps // 4 * plan.run.optimiser_steps


def test_as_a_member_of_several_it_is_trained_on_its_own_verdicts(recipe):
    text = (
        "coach: {members: {judge: {policy: judge, flags: {train_every: 2}}, other: {policy: "
        "second}}}\n"
    )
    text = RECIPE.partition("flags:\n  coach")[0] + text
    recipe.write_text(
        text.replace("policies:\n", "policies:\n  second: {model: tiny, trainable: false}\n")
    )
    recipe.write_text(
        recipe.read_text().replace(
            "model: tiny,", 'model: "tiny:positions=4096", flags: {data.max_len: 4096},'
        )
    )
    plan = build_plan(["--recipe", str(recipe)])
    assert {
        p.name: p.train_every
        for p in plan.run.policies
        if not p.name.startswith(("sol", "cod", "ver"))
    } == {
        "judge": 2,
        "second": 1,
    }
    members = plan.run.state(CoachState).coach.members
    assert [type(member).__name__ for member in members.values()] == ["TrainedCoach", "ModelCoach"]


def test_what_cannot_be_trained_is_refused_with_the_flag_and_the_cure(recipe):
    rubric = ROOT / "recipes" / "mathchat" / "tiny_rubric.py"
    tiny = [
        "--recipe",
        recipe.with_name("tiny.yaml"),
        "--plugin",
        "marl_plugins.coach",
        "--coach.train_every",
        "2",
    ]
    for words in (["--coach.rubric", rubric], ["--coach.model", "m"]):
        assert ("coach.irrelevant", "coach.train_every") in refused(*tiny, *words)
    words = ["--recipe", recipe]
    recipe.write_text(RECIPE.replace('positions=8192"', 'positions=8192", trainable: false'))
    assert without_line(refused(*words)) == [("coach.untrained", "coach.train_every", "judge")]
    recipe.write_text(RECIPE.replace('model: "tiny:seed=9,positions=8192"', "follows: solver"))
    assert ("coach.untrained", "coach.train_every", "judge") in without_line(refused(*words))
    recipe.write_text(RECIPE)
    found = refused(*words, "--coach.learn", "effect", "--rollout.n_samples_per_prompt", "1")
    assert ("coach.one_sample", "coach.learn", "judge") in without_line(found)
    found = refused(*words, "--mapping", "solver=a,coder=judge,verifier=b")
    assert without_line(found) == [("coach.plays", "coach.train_every", "judge")]
    recipe.write_text(RECIPE.replace("  coach.train_every: 4\n", ""))
    assert without_line(refused(*words)) == [("coach.trained_policy", "coach.policy", "judge")]
