"""Scores to rewards to returns along the dependency graph."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from simulated import make_trajectory

from marl_plugins.builtin import recipe
from marl_plugins.builtin.reinforce_pp import ReinforcePlusPlus
from marl_plugins.core.credit import (
    ActionScores,
    check_rewards,
    rewards_from_scores,
    sum_over_scope,
)
from marl_plugins.core.estimators import check_estimator, group_key
from marl_plugins.core.failures import RunPaused
from marl_plugins.core.policy import Policy
from marl_plugins.core.rows import Row, rows_of
from marl_plugins.core.run import Run
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.plan.build import build_plan

ROOT = Path(__file__).resolve().parent.parent
CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def returns(edges, scope, **given):
    trajectory = make_trajectory(edges, **given)
    sum_over_scope([trajectory], scope)
    return {a.path: a.returns for a in trajectory.actions}


def test_action_scope_is_the_reward_itself():
    assert returns(CHAIN, "action", rewards={"a": 0.1, "b": 0.2, "c": 0.7}) == {
        "a": 0.1,
        "b": 0.2,
        "c": 0.7,
    }


def test_trajectory_scope_sums_descendants_of_a_chain():
    assert returns(CHAIN, "trajectory", rewards={"a": 1, "b": 2, "c": 4}) == {
        "a": 7,
        "b": 6,
        "c": 4,
    }


def test_a_diamonds_end_is_counted_once():
    assert returns(DIAMOND, "trajectory", rewards={"a": 1, "b": 2, "c": 4, "d": 8}) == {
        "a": 15,
        "b": 10,
        "c": 12,
        "d": 8,
    }


def test_what_merely_came_later_is_not_credited():
    edges = {"a": [], "x": [], "b": ["a"]}
    assert returns(edges, "trajectory", rewards={"a": 1, "x": 2, "b": 4}) == {
        "a": 5,
        "x": 2,
        "b": 4,
    }


def test_policy_scope_keeps_to_the_same_policy():
    got = returns(
        CHAIN, "policy", policies={"a": "p", "b": "q", "c": "p"}, rewards={"a": 1, "b": 2, "c": 4}
    )
    assert got == {"a": 5, "b": 2, "c": 4}


def test_missing_rewards_add_nothing_and_get_no_return():
    got = returns(CHAIN, "trajectory", rewards={"a": 1, "b": None, "c": 4})
    assert got == {"a": 5, "b": None, "c": 4}


def scored(scores, outcome, scorer=True):
    trajectory = make_trajectory(CHAIN)
    for action, score in zip(trajectory.actions, scores, strict=True):
        action.score = score
    trajectory.outcome = outcome
    trajectory.actions_scored = scorer
    rewards_from_scores([trajectory])
    return [a.reward for a in trajectory.actions]


def test_without_any_action_score_the_outcome_is_shared():
    assert scored([None, None, None], 0.5, scorer=False) == [0.5, 0.5, 0.5]


def test_every_role_is_rewarded_with_its_own_outcome():
    trajectory = make_trajectory(
        {"a": [], "b": ["a"], "c": ["b"]}, roles={"a": "pro", "b": "con", "c": "pro"}
    )
    trajectory.outcome, trajectory.outcomes = 0.5, {"pro": 1.0, "con": 0.0}
    rewards_from_scores([trajectory])
    assert [a.reward for a in trajectory.actions] == [1.0, 0.0, 1.0]


def test_a_role_without_an_outcome_is_not_trained_on():
    trajectory = make_trajectory({"pro": [], "judge": ["pro"]})
    trajectory.outcome, trajectory.outcomes = 1.0, {"pro": 1.0}
    rewards_from_scores([trajectory])
    sum_over_scope([trajectory], "action")
    assert [row.action.role for row in rows_of([trajectory], frozenset({"p"}))] == ["pro"]
    assert trajectory.actions[1].left_out == "no score"


def test_scores_of_actions_count_before_outcomes_of_roles():
    trajectory = make_trajectory({"pro": [], "con": ["pro"]})
    trajectory.outcome, trajectory.outcomes, trajectory.actions_scored = (
        0.5,
        {"pro": 1.0, "con": 0.0},
        True,
    )
    trajectory.actions[0].score = 0.25
    rewards_from_scores([trajectory])
    assert [a.reward for a in trajectory.actions] == [0.25, None]


def test_a_missing_score_is_not_replaced_by_the_outcome():
    assert scored([0.2, None, 0.9], 1.0) == [0.2, None, 0.9]
    assert scored([None, None, None], 1.0) == [None, None, None]


def test_lost_and_frozen_and_unscored_actions_are_left_out_with_a_reason():
    lost, good = (
        make_trajectory(CHAIN),
        make_trajectory(CHAIN, policies={"b": "judge"}, rewards={"c": None}),
    )
    lost.infrastructure_failure = "engine"
    sum_over_scope([lost, good], "action")
    rows = rows_of([lost, good], frozenset({"p"}))
    assert [row.action.path for row in rows] == ["a"]
    assert {a.left_out for a in lost.actions} == {"infrastructure:engine"}
    assert [a.left_out for a in good.actions] == [None, "frozen", "no score"]


def test_what_is_no_estimator_is_said():
    (problem,) = check_estimator("mine", 4, 1)
    assert (
        problem.code == "estimator.kind"
        and problem.names("hook") == ("marl_estimator",)
        and problem.got == "str"
    )


def test_valid_groupings_are_not():
    assert (
        check_estimator(ReinforcePlusPlus(scope="group", group_by="task+role+turn"), 4, 3, turns=3)
        == []
    )
    assert check_estimator(ReinforcePlusPlus(scope="group", group_by="task+role"), 4, 3) == []
    assert check_estimator(ReinforcePlusPlus(), 1, 3) == []


def test_group_keys_name_what_is_compared():
    trajectory = make_trajectory({"solver": []}, task="t9")
    row = Row(trajectory, trajectory.actions[0], 0.0)
    assert [group_key(row, g) for g in ("task", "task+role", "task+role+turn")] == [
        "t9",
        "t9/solver",
        "t9/solver/0",
    ]


def test_an_action_without_a_score_never_gets_the_outcome_where_anybody_scores_actions():
    """Also in a trajectory that ended before the scored role acted: its other roles would learn
    from failures alone."""
    ended_early = make_trajectory({"solver": []})
    whole = make_trajectory({"solver": [], "verifier": ["solver"]})
    ended_early.outcome, whole.outcome = 0.0, 1.0
    whole.actions_scored = True
    whole.actions[1].score = 0.9
    rewards_from_scores([ended_early, whole])
    assert [a.reward for t in (ended_early, whole) for a in t.actions] == [None, None, 0.9]


# --- whether somebody scores actions is one thing for the whole run
# ----------------------------------------------------------


def step(number, scored=False, roles=("solver", "verifier"), lost=False):
    trajectory = make_trajectory({role: [] for role in roles})
    trajectory.step, trajectory.actions_scored = number, scored
    if lost:
        trajectory.lose("engine", "gone")
    return [trajectory]


ROLES = ("solver", "verifier")
BY = ("plugin mine.py",)


def said(*steps, scores=None):
    scores = scores or ActionScores()
    return [scores.of(trajectories, ROLES, BY) for trajectories in steps]


def test_the_first_step_that_shows_it_says_it_of_the_run():
    assert said(step(1, scored=True), step(2, roles=["solver"]), step(3, lost=True)) == [
        True,
        True,
        True,
    ]
    assert said(step(1), step(2, roles=["solver"]), step(3)) == [False, False, False]


def test_a_step_in_which_a_role_did_not_act_shows_nothing():
    """Perhaps nobody was asked: the role that is scored may be the one that did not act."""
    unknown = [step(1, roles=["solver"]), step(2, lost=True), step(3, scored=True, lost=True)]
    assert said(*unknown, step(4, scored=True)) == [False, False, False, True]
    assert said(*unknown, step(4)) == [False, False, False, False]


@pytest.mark.parametrize("first", [True, False])
def test_a_contradiction_names_the_plugin_both_steps_and_the_cure(first):
    with pytest.raises(
        RunPaused, match=r"step 5: .* by plugin mine\.py .* in step 2 .* None from an awaitable"
    ):
        said(step(2, scored=first), step(5, scored=not first))


def test_a_resumed_run_knows_it_and_one_with_another_scorer_is_told_anew():
    run = Run(None, None, None, "cpu")
    said(step(2, scored=True), scores=run.state(ActionScores))
    resumed = Run(None, None, None, "cpu")
    recipe.marl_restore(resumed, json.loads(json.dumps(recipe.marl_state(run))))
    assert said(step(7, roles=["solver"]), scores=resumed.state(ActionScores)) == [True]
    assert resumed.state(ActionScores).of(step(8), ROLES, ("plugin other.py",)) is False


def test_what_is_known_holds_for_a_trajectory_alone():
    (alone,) = step(3, roles=["solver"])
    alone.outcome = 1.0
    rewards_from_scores([alone], actions_scored=True)
    assert alone.actions[0].reward is None
    rewards_from_scores([alone], actions_scored=False)
    assert alone.actions[0].reward == 1.0


# --- rewards that cannot be trained on
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", [float("nan"), 1e39, "0.5"])
def test_a_reward_that_is_not_finite_names_the_plugin_and_the_action(tmp_path, reward):
    """At once, and before the plugins that come later."""
    (tmp_path / "broken.py").write_text(
        "from math import inf, nan\nfrom marl_plugins import hookimpl\n\n@hookimpl\ndef "
        "marl_credit(trajectories):\n"
        f"    trajectories[0].actions[1].reward = {reward!r}\n    return trajectories\n"
    )
    (tmp_path / "later.py").write_text(
        "from marl_plugins import hookimpl\n\n@hookimpl\ndef marl_credit(trajectories):\n    raise "
        "AssertionError('asked')\n"
    )
    words = ["--plugin", str(tmp_path / "broken.py"), "--plugin", str(tmp_path / "later.py")]
    plan = build_plan(["--recipe", str(ROOT / "tests" / "recipes" / "sums" / "tiny.yaml"), *words])

    def check(plugin, given, answer):
        check_rewards(plugin, "marl_credit", given)

    with pytest.raises(RunPaused) as raised:
        asyncio.run(
            plan.plugins.chain("marl_credit", [make_trajectory(CHAIN)], check, run=plan.run)
        )
    message = str(raised.value)
    assert "broken.py" in message
    assert f"gave action t/0/b the reward {reward!r}; expected a finite number" in message


def test_numbers_of_any_type_are_rewards():
    trajectory = make_trajectory(CHAIN, rewards={"a": np.float32(0.5), "b": None, "c": -3})
    check_rewards("mine", "marl_credit", [trajectory])


# --- length penalties
# --------------------------------------------------------------------------------------------------


def penalised(edges, rewards, role_limit=None, lengths=None, cut_off=(), trainable=True, **flags):
    """Rewards and returns over the trajectory of actions of `p`, whose flag for the longest answer
    is 40 tokens."""
    penalties = pytest.importorskip("marl_plugins.engine.runtime.penalties")
    trajectory = make_trajectory(edges, rewards=rewards)
    for action in trajectory.actions:
        count = (lengths or {}).get(action.path, 2)
        finish = "length" if action.path in cut_off else "stop"
        action.generation = Generation((4,) * count, (-0.1,) * count, finish, "p", 0)
    given = {
        "overlong_buffer_len": None,
        "overlong_penalty_factor": 1.0,
        "stop_properly_penalty_coef": None,
        **flags,
    }
    args = SimpleNamespace(
        reward=SimpleNamespace(**given),
        rollout=SimpleNamespace(max_new_tokens=40),
        data=SimpleNamespace(max_len=99),
    )
    run = SimpleNamespace(
        policies=[Policy("p", "tiny", trainable=trainable)],
        policy_args={"p": args},
        role=lambda name: SimpleNamespace(max_new_tokens=role_limit),
    )
    penalties.penalise_lengths([trajectory], run)
    sum_over_scope([trajectory], "trajectory")
    return {a.path: (a.reward, a.returns, a.terms) for a in trajectory.actions}


@pytest.mark.parametrize(("coefficient", "own", "total"), [(0.5, 0.25, 1.25), (-0.5, -0.5, 0.5)])
def test_what_was_cut_off_loses_by_its_own_reward_alone(coefficient, own, total):
    got = penalised(
        {"a": [], "b": ["a"]},
        {"a": 0.5, "b": 1.0},
        cut_off={"a"},
        stop_properly_penalty_coef=coefficient,
    )
    assert got["a"] == (own, total, {"length": pytest.approx(own - 0.5)})
    assert got["b"] == (1.0, 1.0, {})


def test_too_long_is_measured_by_the_roles_own_limit():
    lengths = {"a": 16, "b": 12, "c": 8}
    got = penalised(
        CHAIN, dict.fromkeys("abc", 1.0), role_limit=16, lengths=lengths, overlong_buffer_len=8
    )
    assert [got[path][0] for path in "abc"] == [0.0, 0.5, 1.0]
    got = penalised(
        CHAIN, dict.fromkeys("abc", 1.0), lengths={"a": 40, "b": 36, "c": 32}, overlong_buffer_len=8
    )
    assert [got[path][0] for path in "abc"] == [0.0, 0.5, 1.0]


def test_no_penalty_gives_a_reward_to_what_has_none():
    got = penalised(
        CHAIN, {"a": 1.0, "b": None, "c": 1.0}, cut_off=set("abc"), stop_properly_penalty_coef=-0.5
    )
    assert [got[path][0] for path in "abc"] == [-0.5, None, -0.5]
    frozen = penalised(
        CHAIN,
        dict.fromkeys("abc", 1.0),
        cut_off={"a"},
        trainable=False,
        stop_properly_penalty_coef=0.0,
    )
    assert frozen["a"][0] == 1.0
