"""What each estimator's gradient is worth: its exact expectation on a process whose true gradient
is known.

An agent takes one or two turns and decides which: in the first it stops (0.6) or goes on (0.1), in
the second it does well (1) or badly (0.2); at even odds going on is worth 0.7 and so the better
choice. The expectation of the policy gradient, the sum over rows of the score times the advantage
over the number of trajectories, is enumerated over all groups of n trajectories in float64, through
the package's own credit, rows and estimators.

Normalising *rewards* by turn before they are summed subtracts from going on what going on brings on
average, whatever it
brings: the first turn is left with 0.1 against 0.6, and the agent learns to stop. A baseline that
is subtracted from the *return* and does not depend on the own trajectory has no such effect: its
product with the score is 0 in expectation.
"""

import math
from itertools import product

import numpy as np
import pytest
import torch
from simulated import make_trajectory

from marl_plugins.builtin.groups import GroupMean, LeaveOneOut
from marl_plugins.builtin.reinforce_pp import FlashReinforce, ReinforcePlusPlus
from marl_plugins.core.credit import sum_over_scope
from marl_plugins.core.estimators import Estimator
from marl_plugins.core.rows import rows_of

STOP, GO, BADLY, WELL = 0.6, 0.1, 0.2, 1.0
P, Q = 0.5, 0.5
"""Chances of going on and of doing well."""
KINDS = {(STOP,): 1 - P, (GO, BADLY): P * (1 - Q), (GO, WELL): P * Q}
"""Trajectories, as the rewards of their turns, with their chances."""
TRUE = np.array(
    [P * (1 - P) * (GO + BADLY + Q * (WELL - BADLY) - STOP), P * Q * (1 - Q) * (WELL - BADLY)]
)
"""Gradient of the expected sum of rewards by the logits of going on and of doing well."""


def score(turn, reward):
    """Gradient of the log-probability of what a turn's reward shows was chosen."""
    return (
        np.array([(reward == GO) - P, 0.0]) if turn == 0 else np.array([0.0, (reward == WELL) - Q])
    )


def gradient(kinds, estimator, rewards=lambda kinds: kinds):
    """The policy gradient of one group of trajectories; `rewards` changes the turns' rewards before
    they are summed."""
    trajectories = []
    for sample, (kind, given) in enumerate(zip(kinds, rewards(kinds), strict=True)):
        edges = {f"a{turn}": [f"a{turn - 1}"] if turn else [] for turn in range(len(kind))}
        trajectory = make_trajectory(edges, sample=sample)
        for turn, action in enumerate(trajectory.actions):
            action.role, action.turn, action.reward, action.score = (
                "agent",
                turn,
                given[turn],
                kind[turn],
            )
        trajectories.append(trajectory)
    sum_over_scope(trajectories, "trajectory")
    rows = rows_of(trajectories, frozenset({"p"}))
    mask = torch.ones(len(rows), 1)
    shaped = estimator.shape(rows, torch.tensor([row.reward for row in rows], dtype=torch.float64))
    raw, _ = estimator.estimate(shaped[:, None], mask, None)
    advantages = estimator.apply(rows, raw, estimator.statistics([(rows, raw, mask)]))[
        :, 0
    ].tolist()
    total = sum(
        score(row.action.turn, row.action.score) * a
        for row, a in zip(rows, advantages, strict=True)
    )
    return total / len(kinds)


def expected(n, estimator, **more):
    return sum(
        np.prod([KINDS[kind] for kind in kinds]) * gradient(kinds, estimator, **more)
        for kinds in product(KINDS, repeat=n)
    )


def by_turn(kinds):
    """Rewards minus the mean of their turn over the group, what the negative control does before
    summing."""
    means = [
        np.mean([kind[turn] for kind in kinds if len(kind) > turn])
        for turn in range(max(map(len, kinds)))
    ]
    return [[reward - means[turn] for turn, reward in enumerate(kind)] for kind in kinds]


def aside(found):
    """The part of a gradient that is at right angles to the true one: bias that no factor
    explains."""
    return np.linalg.norm(found - TRUE * (found @ TRUE) / (TRUE @ TRUE))


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("group_by", ["task", "task+role", "task+role+turn"])
def test_leave_one_out_is_exact(n, group_by):
    """Factor 1, whatever is grouped; the task's fallback for a turn that nobody else reached
    included."""
    np.testing.assert_allclose(expected(n, LeaveOneOut(group_by=group_by)), TRUE, atol=1e-14)


def test_a_mean_that_holds_the_own_return_shrinks_each_turn_by_the_size_of_its_group():
    """(n - 1)/n for the first turn, which all reach; for the second the expectation of 1 - 1/n', n'
    reaching it."""
    for n in (2, 3, 4):
        found = expected(n, GroupMean(group_by="task+role+turn"))
        assert found[0] == pytest.approx(TRUE[0] * (n - 1) / n)
        others = [
            np.prod([P if went else 1 - P for went in w]) * (1 - 1 / (1 + sum(w)))
            for w in product([0, 1], repeat=n - 1)
        ]
        assert found[1] == pytest.approx(TRUE[1] * sum(others))


@pytest.mark.parametrize("estimator", [ReinforcePlusPlus(divide=False), FlashReinforce()])
def test_the_batchs_mean_is_biased_by_one_over_the_number_of_trajectories(estimator):
    """It holds the own trajectory's returns, and the own choice decides how many: no factor, but n
    times it is bounded."""
    for n in (2, 4, 6):
        assert 0.015 < n * aside(expected(n, estimator)) < 0.021


def test_normalising_rewards_by_turn_teaches_to_stop():
    """The negative control: the first turn's gradient has the wrong sign, for every n."""
    for n in (2, 4, 6):
        found = expected(n, Estimator(), rewards=by_turn)
        assert TRUE[0] > 0 > found[0]
        assert aside(found) > 0.06  # and growing with n, where the batch's mean gives 0.02 / n


def test_and_returns_as_they_are_do_not():
    np.testing.assert_allclose(expected(2, Estimator()), TRUE, atol=1e-14)


# --- an end token that may not come first
# ---------------------------------------------------------------------------------


def first_token(logits, end=0):
    """Log-probs of the policy, and of the distribution that engines sample the first token from
    (`min_tokens=1`)."""
    policy = torch.log_softmax(logits, -1)
    return policy, torch.log_softmax(logits.index_fill(-1, torch.tensor(end), -math.inf), -1)


def test_masking_the_end_at_the_first_token_shifts_its_log_prob_by_what_the_end_had():
    """engine - trainer = -log(1 - p_end), the same for every token but the end; nothing but the
    first token is concerned."""
    for p_end in (1e-6, 1e-3, 0.01, 0.1, 0.5, 0.9):
        others = torch.randn(7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        logits = torch.cat(
            [torch.tensor([math.log(p_end / (1 - p_end))]), others - others.logsumexp(0)]
        )
        policy, sampled = first_token(logits)
        drift = (sampled - policy)[1:]
        torch.testing.assert_close(drift, torch.full_like(drift, -math.log1p(-p_end)))


def test_what_the_mask_adds_to_the_gradient_vanishes_with_the_end_or_with_the_baseline():
    """E[A grad log p] over what is sampled is the true gradient plus E[A] p_end / (1 - p_end) grad
    log p_end, with its sign."""
    logits = torch.tensor([-2.0, 0.3, -0.4, 1.1], dtype=torch.float64, requires_grad=True)
    policy, sampled = first_token(logits)
    chances, advantages = (
        sampled.detach().exp(),
        torch.tensor([0.0, 1.0, -0.5, 0.25], dtype=torch.float64),
    )

    def gradient(value):
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    def both(values):
        return [
            gradient((chances[1:] * values[1:] * logprobs[1:]).sum())
            for logprobs in (policy, sampled)
        ]

    p_end, mean = policy[0].exp().item(), (chances * advantages).sum().item()
    trained, true = both(advantages)
    torch.testing.assert_close(trained - true, -mean * p_end / (1 - p_end) * gradient(policy[0]))
    trained, true = both(advantages - mean)
    torch.testing.assert_close(trained, true)
