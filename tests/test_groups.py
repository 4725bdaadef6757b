"""Group baselines against independent float64 computations, and what may be compared with what."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulated import make_trajectory

from marl_plugins.builtin import groups
from marl_plugins.builtin.groups import (
    ESTIMATORS,
    GroupMean,
    GroupNorm,
    LeaveOneOut,
    ReinforceBaseline,
)
from marl_plugins.core.credit import sum_over_scope
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.rows import Row, rows_of


def one_action_rows(rewards):
    """A row per (task, sample) of a table of rewards, in a shuffled order, and their rewards."""
    rows = []
    for task, samples in enumerate(rewards):
        for sample, reward in enumerate(samples):
            trajectory = make_trajectory(
                {"a": []}, task=f"t{task}", sample=sample, rewards={"a": float(reward)}
            )
            rows.append(Row(trajectory, trajectory.actions[0], float(reward)))
    order = np.random.default_rng(0).permutation(len(rows))
    return [rows[i] for i in order], order


def upstreams_rule(name, rewards):
    """experience_maker.py:266-275 of upstream in float64: rewards (tasks, samples) to shaped
    ones."""
    rewards = rewards.astype(np.float64)
    n = rewards.shape[1]
    mean = rewards.mean(-1, keepdims=True)
    if name == "rloo":
        return rewards - (rewards.sum(-1, keepdims=True) - rewards) / (n - 1)
    if name == "group_norm":
        return (rewards - mean) / (rewards.std(-1, ddof=1, keepdims=True) + 1e-9)
    return rewards - mean


scores = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=32))


@given(st.sampled_from(list(ESTIMATORS)), st.integers(1, 5), st.integers(2, 6), st.data())
def test_one_role_and_one_action_is_upstreams_rule(name, tasks, samples, data):
    flat = data.draw(st.lists(scores, min_size=tasks * samples, max_size=tasks * samples))
    rewards = np.array(flat, np.float32).reshape(tasks, samples)
    rows, order = one_action_rows(rewards)
    got = ESTIMATORS[name]().shape(rows, torch.tensor(rewards.reshape(-1)[order]))
    want = upstreams_rule(name, rewards).reshape(-1)[order]
    spread = np.repeat(np.ptp(rewards, 1), samples)[order]
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), np.where(spread == 0, 0.0, want), rtol=1e-5, atol=1e-6)


def test_equal_rewards_give_exactly_nothing():
    """In float32 the mean of three times 0.7 is not 0.7, and the rest over a deviation of the same
    size is of order 1."""
    rows, _ = one_action_rows([[0.7, 0.7, 0.7]])
    for name, estimator in ESTIMATORS.items():
        shaped = estimator().shape(rows, torch.full((3,), 0.7))
        assert torch.equal(shaped, torch.zeros(3)), name


def test_the_baseline_is_taken_from_the_return_not_from_rewards_before_they_are_summed():
    """Two actions each; with scope trajectory the first's return is the sum, and the group compares
    sums."""
    trajectories = [
        make_trajectory({"a": [], "b": ["a"]}, sample=n, rewards={"a": x, "b": y})
        for n, (x, y) in enumerate([(1.0, 0.0), (0.0, 4.0)])
    ]
    sum_over_scope(trajectories, "trajectory")
    rows = rows_of(trajectories, frozenset({"p"}))
    rewards = torch.tensor([row.reward for row in rows])
    assert rewards.tolist() == [1.0, 0.0, 4.0, 4.0]
    shaped = GroupMean(group_by="task+role").shape(rows, rewards)
    assert shaped.tolist() == [-1.5, -2.0, 1.5, 2.0]


def turns(counts):
    """Trajectories of one role with so many turns each; contexts differ between turns and
    samples."""
    rows = []
    for sample, count in enumerate(counts):
        trajectory = make_trajectory(
            {f"a{n}": [] for n in range(count)}, sample=sample, roles=dict.fromkeys(["a0"], "a")
        )
        for turn, action in enumerate(trajectory.actions):
            action.role, action.turn, action.shown_ids = "a", turn, (turn, sample)
            rows.append(Row(trajectory, action, float(10 * turn + sample)))
    return rows, torch.tensor([row.reward for row in rows])


def test_a_row_alone_in_its_group_has_no_advantage_and_is_counted():
    rows, rewards = turns([1, 1, 2])
    for estimator in (GroupMean(group_by="task+role+turn"), GroupNorm(group_by="task+role+turn")):
        assert estimator.shape(rows, rewards)[3] == 0.0
        assert estimator.metrics(rows) == {"groups/count": 2.0, "groups/alone": 1.0}


def test_leave_one_out_falls_back_to_the_task_and_then_to_nothing():
    rows, rewards = turns([1, 1, 2])
    assert LeaveOneOut(group_by="task+role+turn").shape(rows, rewards).tolist() == [
        -1.5,
        0.0,
        1.5,
        12.0 - 0.5,
    ]
    alone, reward = turns([1])
    assert LeaveOneOut(group_by="task+role+turn").shape(alone, reward).tolist() == [0.0]


def test_leave_one_out_leaves_out_the_whole_trajectory():
    """Two parallel actions of one trajectory share what they led to; neither is a baseline for the
    other."""
    trajectories = [
        make_trajectory({"a": [], "a+1": []}, sample=n, roles={"a": "a", "a+1": "a"})
        for n in range(2)
    ]
    rows = [Row(t, action, 0.0) for t in trajectories for action in t.actions]
    assert LeaveOneOut().shape(rows, torch.tensor([3.0, 3.0, 1.0, 2.0])).tolist() == [
        1.5,
        1.5,
        -2.0,
        -1.0,
    ]


@pytest.mark.parametrize("group_by", ["task", "task+role"])
def test_rows_that_were_shown_different_contexts_are_not_compared(group_by):
    rows, rewards = turns([1, 1])
    with pytest.raises(
        RunEnded,
        match=r"group 't(/a)?' \(role a\) .* first two t/0/a0 and t/1/a0.*task\+role\+turn",
    ):
        GroupMean(group_by=group_by).shape(rows, rewards)
    GroupMean(group_by="task+role+turn").shape(rows, rewards)


def test_reinforce_baseline_is_whitened_over_all_policies_afterwards():
    estimator = ReinforceBaseline()
    rows, order = one_action_rows(np.arange(6.0).reshape(2, 3) ** 2)
    shaped = estimator.shape(rows, torch.tensor((np.arange(6.0) ** 2)[order]))
    tokens = shaped[:, None] * torch.tensor([[0.0, 1.0]])
    mask = torch.tensor([[0, 1]]).expand(6, 2)
    raw, returns = estimator.estimate(tokens, mask, None)
    assert torch.equal(raw, returns)
    parts = [(rows[:2], raw[:2], mask[:2]), (rows[2:], raw[2:], mask[2:])]
    got = estimator.apply(rows, raw, estimator.statistics(parts))[:, 1]
    torch.testing.assert_close(got, (shaped - shaped.mean()) / shaped.std(unbiased=False))


def test_groups_are_counted_in_the_metrics_of_their_step():
    run = SimpleNamespace(
        args=SimpleNamespace(
            algo=SimpleNamespace(advantage=SimpleNamespace(estimator="dr_grpo")),
            groups=SimpleNamespace(
                by="task+role+turn",
                scope="policy",
                discount=1.0,
                distance="longest",
                origin="action",
            ),
        )
    )
    estimator = groups.marl_estimator(run)
    assert (type(estimator), estimator.group_by, estimator.return_scope) == (
        GroupMean,
        "task+role+turn",
        "policy",
    )
    rows, _ = turns([1, 1, 2])
    assert estimator.metrics(rows) == {"groups/count": 2.0, "groups/alone": 1.0}
