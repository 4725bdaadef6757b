"""Credit by contribution and competence: laws, against references of their own, and the contract
kit."""

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_once import PlannedOnce
from simulated import make_trajectory

from marl_plugins import mean_group
from marl_plugins.competence import Competence
from marl_plugins.competence import marl_credit_step as with_competence
from marl_plugins.cooperation import marl_credit_step as cooperate
from marl_plugins.cooperation import shares
from marl_plugins.core.run import AnswerLimits, ShareTemperatures
from marl_plugins.mean_group import MeanRewards, controls

GAINS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)
UTILITIES = st.floats(-1e6, 1e6)
TAUS = st.one_of(st.floats(1e-9, 1e9), st.sampled_from([0.0, math.inf]))


@given(GAINS, UTILITIES, TAUS, st.sampled_from(["mirror", "paper"]))
def test_shares_add_up_to_the_utility_and_are_numbers(gains, utility, tau, negative):
    found = shares(gains, utility, tau, negative)
    assert all(map(math.isfinite, found))
    assert math.fsum(found) == pytest.approx(utility, rel=1e-9, abs=1e-9)


@given(GAINS, UTILITIES, TAUS)
def test_who_gave_more_never_gets_less(gains, utility, tau):
    found = shares(gains, utility, tau)
    for one, mine in zip(gains, found, strict=True):
        for other, theirs in zip(gains, found, strict=True):
            if one > other:
                assert mine >= theirs


def test_the_papers_numbers_and_both_limits():
    """Softmax of (0, 1) is 0.269 and 0.731, in float64 by another way."""
    half = 1 / (1 + math.e)
    assert shares([0, 1], -2, 1.0, "paper") == pytest.approx([-2 * half, -2 * (1 - half)])
    assert shares([0, 1], -2, 1.0) == pytest.approx([-2 * (1 - half), -2 * half])
    assert shares([3, 1, 3], 6, 0.0) == [3, 0, 3]
    assert shares([3, 1, 2], 6, math.inf) == [2, 2, 2]
    assert shares([5], -4, 0.3) == [-4]
    assert shares([], 1, 1.0) == []
    assert shares([1e300, -1e300], 1, 1e-300) == [1, 0]


def credited(rewards, plugin, **options):
    """Two samples of a task with actions a and b; rewards by sample and action."""
    trajectories = [
        make_trajectory(
            {"a": [], "b": ["a"]}, policies={"a": "p", "b": "q"}, rewards=each, sample=n
        )
        for n, each in enumerate(rewards)
    ]
    states = {}
    run = SimpleNamespace(
        args=SimpleNamespace(**options), state=lambda kind: states.setdefault(kind, kind())
    )
    plugin(trajectories, run)
    return trajectories, run


def test_gains_are_over_the_same_role_in_other_samples():
    options = SimpleNamespace(factor=1.0, tau=1.0, negative="mirror")
    found, _ = credited(
        [{"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.5}], cooperate, cooperation=options
    )
    e = [math.exp(0.5), math.exp(-0.5)]  # of a, and of b, in sample 0
    assert [a.reward for a in found[0].actions] == pytest.approx([e[0] / sum(e), e[1] / sum(e)])
    assert [a.reward for a in found[1].actions] == pytest.approx([e[1] / sum(e), e[0] / sum(e)])
    assert all(set(a.terms) == {"cooperation"} for t in found for a in t.actions)


@given(
    st.lists(st.lists(st.floats(-10, 10), min_size=2, max_size=2), min_size=1, max_size=5),
    st.floats(0, 1),
    TAUS,
)
def test_a_step_loses_and_adds_nothing(rewards, factor, tau):
    options = SimpleNamespace(factor=factor, tau=tau, negative="mirror")
    given_rewards = [dict(zip("ab", each, strict=True)) for each in rewards]
    found, _ = credited(given_rewards, cooperate, cooperation=options)
    for before, t in zip(given_rewards, found, strict=True):
        assert math.fsum(a.reward for a in t.actions) == pytest.approx(
            sum(before.values()), rel=1e-9, abs=1e-9
        )
        if factor == 0:
            assert [a.reward for a in t.actions] == pytest.approx(list(before.values()))


# -- competence
# --------------------------------------------------------------------------------------------------


def after(steps, reward, **changes):
    options = SimpleNamespace(**{"eta": 0.1, "decay": 0.1, "most": 1.0, "forgets": "c"} | changes)
    states, found = {}, []
    run = SimpleNamespace(
        args=SimpleNamespace(competence=options), state=lambda kind: states.setdefault(kind, kind())
    )
    for step in range(1, steps + 1):
        t = make_trajectory({"a": []}, rewards={"a": reward})
        t.step = step
        with_competence([t], run)
        found.append(reward - t.actions[0].reward)
    return found, run


def test_competence_is_the_recursion_in_exact_arithmetic():
    found, _ = after(40, 0.75, eta=0.25, decay=0.125)
    c, exact = Fraction(0), []
    for _ in range(40):
        exact.append(c)
        c = min(max(c + Fraction(3, 16) - c / 8, Fraction(0)), Fraction(1))
    assert found == pytest.approx([float(value) for value in exact], abs=1e-12)


def test_a_step_that_is_credited_again_is_credited_the_same():
    _, run = after(5, 0.5)
    t = make_trajectory({"a": []}, rewards={"a": 0.5})
    t.step = 5
    before = dict(run.state(Competence).now)
    with_competence([t], run)
    assert run.state(Competence).now == before


# -- the benchmark of both
# --------------------------------------------------------------------------------------------------


# -- mean group
# --------------------------------------------------------------------------------------------------

VALUES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40)


@given(VALUES, st.floats(0.1, 10), st.floats(0, 1), st.floats(1, 10), st.floats(0.01, 100))
def test_controls_lie_within_bounds_and_in_the_order_of_the_values_whatever_their_unit(
    values, control, low, high, unit
):
    found = controls(values, control, low, high)
    assert all(control * low <= each <= control * high for each in found)
    ordered = [each for _, each in sorted(zip(values, found, strict=True))]
    assert ordered == sorted(found)
    assert controls([unit * value for value in values], control, low, high) == pytest.approx(found)


def grouped(rewards, groups=None, steps=(1, 2), **changes):
    """The factors of the rewards of policies p and q in each of some steps in which they earn the
    same; a step whose number comes again is credited again, before its end."""
    defaults = {
        "groups": groups,
        "scales": "reward",
        "control": 1.0,
        "low": 0.5,
        "high": 2.0,
        "rate": 0.5,
    }
    options = SimpleNamespace(**defaults | changes)
    states, recipe = {}, SimpleNamespace(populations={"a": ("p", "q")})
    run = SimpleNamespace(
        args=SimpleNamespace(mean_group=options),
        recipe=recipe,
        state=lambda kind: states.setdefault(kind, kind()),
    )
    found = []
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        t = make_trajectory(
            {"a": [], "b": ["a"]},
            policies={"a": "p", "b": "q"},
            rewards=dict(zip("ab", rewards, strict=True)),
        )
        t.step = step
        mean_group.marl_credit_step([t], run)
        found.append([a.reward / reward for a, reward in zip(t.actions, rewards, strict=True)])
        if step != following:
            mean_group.marl_log(run, {})
    return found, run


def test_a_members_rewards_have_its_control_from_the_second_step_on():
    assert grouped((0.2, 0.6))[0] == [[1.0, 1.0], pytest.approx([0.5, 1.5])]
    assert grouped((0.2, 0.6), groups="p,q")[0] == [[1.0, 1.0], [1.0, 1.0]]
    assert grouped((0.1, 0.9), low=0.9, high=1.1)[0][1] == pytest.approx([0.9, 1.1])


def test_a_step_that_is_credited_again_has_the_same_controls():
    found, run = grouped((0.2, 0.6), steps=(1, 2, 2, 2))
    assert found[1] == found[2] == found[3]
    assert run.state(MeanRewards) == pytest.approx({"p": 0.2, "q": 0.6})


@pytest.mark.parametrize(
    ("scales", "kind", "other"),
    [("tau", ShareTemperatures, AnswerLimits), ("max_tokens", AnswerLimits, ShareTemperatures)],
)
def test_a_control_multiplies_what_is_named_and_nothing_else(scales, kind, other):
    found, run = grouped((0.2, 0.6), scales=scales)
    assert found == [[1.0, 1.0], [1.0, 1.0]]
    assert run.state(kind) == pytest.approx({"p": 0.5, "q": 1.5}) and not run.state(other)
    states = {}
    resumed = SimpleNamespace(
        args=run.args, recipe=run.recipe, state=lambda kind: states.setdefault(kind, kind())
    )
    mean_group.marl_restore(resumed, mean_group.marl_state(run))
    assert resumed.state(kind) == run.state(kind)


def shared(rewards, tau, negative="mirror", **factors):
    """The shares of one trajectory's actions, each of a policy, in two samples of a task of which
    the other earned nothing."""
    options = SimpleNamespace(factor=1.0, tau=tau, negative=negative)
    states = {ShareTemperatures: ShareTemperatures(factors)}
    run = SimpleNamespace(
        args=SimpleNamespace(cooperation=options),
        state=lambda kind: states.setdefault(kind, kind()),
    )
    roles = {name: [] for name in "abc"[: len(rewards)]}
    made = [
        make_trajectory(
            roles,
            policies={role: role for role in roles},
            rewards=dict(zip(roles, each, strict=True)),
            sample=n,
        )
        for n, each in enumerate([rewards, [0.0] * len(rewards)])
    ]
    return [action.reward for action in cooperate(made, run)[0].actions]


@given(
    st.floats(-10, 10),
    st.floats(-10, 10),
    st.floats(0.1, 10),
    st.floats(0.1, 10),
    st.sampled_from(["paper", "mirror"]),
)
def test_with_a_tau_of_each_policy_gains_are_measured_from_the_trajectorys_mean(
    one, other, tau, factor, negative
):
    """By softmax in float64."""
    mean, utility = (one + other) / 2, one + other
    sign = -1 if negative == "mirror" and utility < 0 else 1
    logits = sign * np.array([(one - mean) / tau, (other - mean) / factor / tau])
    weights = np.exp(logits - logits.max())
    found = shared([one, other], tau, negative, b=factor)
    assert found == pytest.approx(utility * weights / weights.sum(), abs=1e-12)
    if one > mean and negative == "mirror":
        assert found[0] >= found[1]


class TestCooperation(PlannedOnce):
    plugin = "marl_plugins.cooperation"


class TestCompetence(PlannedOnce):
    plugin = "marl_plugins.competence"
