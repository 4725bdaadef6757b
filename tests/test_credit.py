"""Scores to rewards to returns along the dependency graph."""

import pytest
from simulated import make_trajectory

from marl_plugins.core.credit import rewards_from_scores, sum_over_scope
from marl_plugins.core.estimators import check_estimator, group_key
from marl_plugins.core.rows import Row, rows_of
from marl_plugins.reinforce_pp import ReinforcePlusPlus

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def returns(edges, scope, **given):
    trajectory = make_trajectory(edges, **given)
    sum_over_scope([trajectory], scope)
    return {a.path: a.returns for a in trajectory.actions}


def test_action_scope_is_the_reward_itself():
    assert returns(CHAIN, "action", rewards={"a": 0.1, "b": 0.2, "c": 0.7}) == {"a": 0.1, "b": 0.2, "c": 0.7}


def test_trajectory_scope_sums_descendants_of_a_chain():
    assert returns(CHAIN, "trajectory", rewards={"a": 1, "b": 2, "c": 4}) == {"a": 7, "b": 6, "c": 4}


def test_a_diamonds_end_is_counted_once():
    assert returns(DIAMOND, "trajectory", rewards={"a": 1, "b": 2, "c": 4, "d": 8}) == {"a": 15, "b": 10, "c": 12, "d": 8}


def test_what_merely_came_later_is_not_credited():
    edges = {"a": [], "x": [], "b": ["a"]}
    assert returns(edges, "trajectory", rewards={"a": 1, "x": 2, "b": 4}) == {"a": 5, "x": 2, "b": 4}


def test_policy_scope_keeps_to_the_same_policy():
    got = returns(CHAIN, "policy", policies={"a": "p", "b": "q", "c": "p"}, rewards={"a": 1, "b": 2, "c": 4})
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
    trajectory = make_trajectory({"a": [], "b": ["a"], "c": ["b"]}, roles={"a": "pro", "b": "con", "c": "pro"})
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
    trajectory.outcome, trajectory.outcomes, trajectory.actions_scored = 0.5, {"pro": 1.0, "con": 0.0}, True
    trajectory.actions[0].score = 0.25
    rewards_from_scores([trajectory])
    assert [a.reward for a in trajectory.actions] == [0.25, None]


def test_a_missing_score_is_not_replaced_by_the_outcome():
    assert scored([0.2, None, 0.9], 1.0) == [0.2, None, 0.9]
    assert scored([None, None, None], 1.0) == [None, None, None]


def test_lost_and_frozen_and_unscored_actions_are_left_out_with_a_reason():
    lost, good = make_trajectory(CHAIN), make_trajectory(CHAIN, policies={"b": "judge"}, rewards={"c": None})
    lost.infrastructure_failure = "engine"
    sum_over_scope([lost, good], "action")
    rows = rows_of([lost, good], frozenset({"p"}))
    assert [row.action.path for row in rows] == ["a"]
    assert {a.left_out for a in lost.actions} == {"infrastructure:engine"}
    assert [a.left_out for a in good.actions] == [None, "frozen", "no score"]


@pytest.mark.parametrize(
    ("settings", "samples", "roles", "message"),
    [
        ({"scope": "group"}, 4, 1, "does not say which"),
        ({"scope": "group", "group_by": "task"}, 4, 3, "saw different inputs"),
        ({"scope": "group", "group_by": "task+role"}, 1, 3, "every advantage is 0"),
        ({"scope": "action", "group_by": "task"}, 4, 1, "group_by='task' and scope 'action'"),
        ({"needs_critic": True}, 4, 1, "uses a critic and the run has none"),
    ],
)
def test_invalid_groupings_are_refused(settings, samples, roles, message):
    problems = check_estimator(ReinforcePlusPlus(**settings), samples, roles)
    assert len(problems) == 1
    assert message in problems[0]


@pytest.mark.parametrize("group_by", ["task", "task+role"])
def test_turns_of_a_role_are_different_inputs(group_by):
    estimator = ReinforcePlusPlus(scope="group", group_by=group_by)
    (problem,) = check_estimator(estimator, 4, 1, turns=3)
    assert "3 turns of a role saw different inputs; use task+role+turn" in problem


def test_what_is_no_estimator_is_said():
    (problem,) = check_estimator("mine", 4, 1)
    assert problem == "marl_estimator gave str, expected an Estimator of marl_plugins.core.estimators"


def test_valid_groupings_are_not():
    assert check_estimator(ReinforcePlusPlus(scope="group", group_by="task+role+turn"), 4, 3, turns=3) == []
    assert check_estimator(ReinforcePlusPlus(scope="group", group_by="task+role"), 4, 3) == []
    assert check_estimator(ReinforcePlusPlus(), 1, 3) == []


def test_group_keys_name_what_is_compared():
    trajectory = make_trajectory({"solver": []}, task="t9")
    row = Row(trajectory, trajectory.actions[0], 0.0)
    assert [group_key(row, g) for g in ("task", "task+role", "task+role+turn")] == ["t9", "t9/solver", "t9/solver/0"]


def test_an_action_without_a_score_never_gets_the_outcome_where_anybody_scores_actions():
    """Also in a trajectory that ended before the scored role acted: its other roles would learn from failures alone."""
    ended_early = make_trajectory({"solver": []})
    whole = make_trajectory({"solver": [], "verifier": ["solver"]})
    ended_early.outcome, whole.outcome = 0.0, 1.0
    whole.actions_scored = True
    whole.actions[1].score = 0.9
    rewards_from_scores([ended_early, whole])
    assert [a.reward for t in (ended_early, whole) for a in t.actions] == [None, None, 0.9]
