"""Credit by contribution and competence: laws, against references of their own, and the contract
kit."""

import json
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_once import PlannedOnce
from recipe_runs import planned
from simulated import make_trajectory

from marl_plugins import competence, cooperation, mean_group, rae
from marl_plugins.competence import Competence
from marl_plugins.competence import marl_credit_step as with_competence
from marl_plugins.cooperation import marl_credit_step as cooperate
from marl_plugins.cooperation import shares
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.run import AnswerLimits, ShareTemperatures
from marl_plugins.mean_group import GroupPolicies, MeanRewards, controls

ONE_TEAM = {"teams": None, "preset": None, "adapt": 0.0, "bounds": (0.1, 10.0)}
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
    options = SimpleNamespace(factor=1.0, tau=1.0, negative="mirror", **ONE_TEAM)
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
    options = SimpleNamespace(factor=factor, tau=tau, negative="mirror", **ONE_TEAM)
    given_rewards = [dict(zip("ab", each, strict=True)) for each in rewards]
    found, _ = credited(given_rewards, cooperate, cooperation=options)
    for before, t in zip(given_rewards, found, strict=True):
        assert math.fsum(a.reward for a in t.actions) == pytest.approx(
            sum(before.values()), rel=1e-9, abs=1e-9
        )
        if factor == 0:
            assert [a.reward for a in t.actions] == pytest.approx(list(before.values()))


# -- teams, presets, adaptation
# --------------------------------------------------------------------------------------------------

REWARD_LISTS = st.lists(
    st.lists(st.floats(-10, 10), min_size=4, max_size=4), min_size=1, max_size=4
)


def by_team(rewards, teams, names="abcd", tau=1.0):
    """The rewards of actions a, b, c, d of samples of one task, after cooperation."""
    options = SimpleNamespace(factor=1.0, tau=tau, negative="mirror", **ONE_TEAM | {"teams": teams})
    made = [
        make_trajectory(
            {name: [] for name in names}, rewards=dict(zip("abcd", each, strict=True)), sample=n
        )
        for n, each in enumerate(rewards)
    ]
    states = {}
    run = SimpleNamespace(
        args=SimpleNamespace(cooperation=options),
        state=lambda kind: states.setdefault(kind, kind()),
    )
    return [{a.role: a.reward for a in t.actions} for t in cooperate(made, run)]


@given(REWARD_LISTS)
def test_a_team_shares_what_it_alone_would_share(rewards):
    """Each of two teams gets what it gets where the other one's actions have no reward."""
    both = by_team(rewards, "a+c,b+d")
    assert by_team(rewards, "a+c") == both
    for team in ("ac", "bd"):
        alone = [
            [x if name in team else None for name, x in zip("abcd", each, strict=True)]
            for each in rewards
        ]
        for one, other in zip(both, by_team(alone, None), strict=True):
            assert [one[name] for name in team] == pytest.approx([other[name] for name in team])


def planned_flags(*words):
    problems, run = [], None
    try:
        run = planned("task_graph/tiny.yaml", *words).run
    except ConfigurationError as error:
        problems = [problem.code for problem in error.problems]
    return problems, run


BOTH = ("--plugin", "marl_plugins.cooperation", "--plugin", "marl_plugins.competence")


@pytest.mark.parametrize(
    ("preset", "factor", "tau", "eta"),
    [
        ("PG", 0, math.inf, 0),
        ("AC", 1, math.inf, 0),
        ("AP", 0, 1, 0.1),
        ("ACP", 1, 1, 0.1),
        ("Adaptive-OM", 0.5, 2, 0.05),
        ("0.25,0.5", 0.25, 2, 0.05),
    ],
)
def test_a_preset_sets_what_its_factors_stand_for(preset, factor, tau, eta):
    _, run = planned_flags(*BOTH, "--cooperation.preset", preset)
    assert cooperation.factor_and_tau(run) == (factor, tau)
    assert competence.eta_of(run) == pytest.approx(eta)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((*BOTH[:2], "--cooperation.preset", "ACP"), "cooperation.preset"),
        ((*BOTH, "--cooperation.preset", "AC", "--cooperation.tau", "2"), "cooperation.preset"),
        ((*BOTH, "--cooperation.preset", "0.5,1.5"), "flags.value"),
        ((*BOTH, "--cooperation.teams", "solver+nobody"), "cooperation.teams"),
        ((*BOTH, "--cooperation.teams", "solver,solver"), "cooperation.teams"),
        ((*BOTH, "--cooperation.adapt", "1", "--cooperation.tau", "0"), "cooperation.adapt"),
    ],
)
def test_what_has_no_meaning_is_refused(words, code):
    assert code in planned_flags(*words)[0]


def test_adaptive_om_follows_equation_86_within_its_bounds_and_resumes():
    _, run = planned_flags(*BOTH, "--cooperation.preset", "Adaptive-OM")
    tau, before, taus = 2.0, None, []
    for outcome in (0.2, 0.36, 0.36, 0.1, 0.9, 1.0, 1.0, 0.0):
        t = make_trajectory({"solver": []}, rewards={"solver": 0.5})
        t.outcome = outcome
        cooperate([t], run)
        cooperate([t], run)  # a step that is credited again counts once
        metrics = {}
        cooperation.marl_log(run, metrics)
        if before:
            tau = min(max(tau * math.exp(-((1 - outcome) - before) / before), 2), 5)
        before = 1 - outcome
        taus.append(metrics["cooperation/tau"])
        assert taus[-1] == pytest.approx(tau)
        assert cooperation.factor_and_tau(run) == pytest.approx((1 - 1 / tau, tau))
        assert competence.eta_of(run) == pytest.approx(0.1 / tau)
    assert max(taus) == 5 and taus[1] == pytest.approx(2 * math.exp(0.2))
    _, resumed = planned_flags(*BOTH, "--cooperation.preset", "Adaptive-OM")
    cooperation.marl_restore(resumed, cooperation.marl_state(run))
    assert cooperation.factor_and_tau(resumed) == cooperation.factor_and_tau(run)
    assert competence.eta_of(resumed) == competence.eta_of(run)


@given(st.floats(0.1, 10), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1e6))
def test_an_adapting_tau_stays_within_its_bounds_whatever_the_regret(tau, before, regret, rate):
    rule = cooperation.Rule(1.0, tau, rate, 0.1, 10)
    assert 0.1 <= cooperation.adapted(tau, before, regret, rule) <= 10


# -- what was received


def test_what_was_received_is_in_no_mean():
    """It was chosen by those who share it, or by who took it."""
    options = {
        "cooperation": {"factor": 0.5, "tau": 1.0, "negative": "mirror", "teams": None}
        | {"adapt": 1.0, "bounds": [0.1, 10.0], "preset": None},
        "competence": {"eta": 0.1, "decay": 0.1, "most": 1.0, "own": 1.0, "team": 0.0}
        | {"advantage": 0.0, "forgets": "c"},
        "rae": {"decay": 0.5},
    }
    args = SimpleNamespace(**{name: SimpleNamespace(**each) for name, each in options.items()})

    def learned(received):
        states = {}
        run = SimpleNamespace(
            args=args, state=lambda kind: states.setdefault(kind, kind()), recipe=None
        )
        outcomes = [(0.0, ""), (1.0, ""), *[(1.0, "another run")] * received]
        trajectories = [
            make_trajectory({"a": []}, rewards={"a": outcome}, sample=number)
            for number, (outcome, _) in enumerate(outcomes)
        ]
        for trajectory, (outcome, origin) in zip(trajectories, outcomes, strict=True):
            trajectory.outcome, trajectory.origin = outcome, origin
        for credit in (mean_group.marl_credit_step, with_competence, rae.marl_credit_step):
            credit(trajectories, run)
        cooperation.marl_credit_step(trajectories, run)
        return (
            run.state(mean_group.MeanRewards).latest,
            dict(run.state(Competence).following),
            dict(run.state(rae.Baselines)),
            run.state(cooperation.Temperature).latest,
        )

    assert learned(0) == learned(2)


# -- competence
# --------------------------------------------------------------------------------------------------


H = {"own": 1.0, "team": 0.0, "advantage": 0.0}


def after(steps, reward, **changes):
    options = SimpleNamespace(
        **{"eta": 0.1, "decay": 0.1, "most": 1.0, "forgets": "c"} | H | changes
    )
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


def test_competence_grows_by_what_is_weighed_of_reward_team_and_advantage():
    """Algorithm 1, line 8, by hand: u is 0.25 and 0.5, U is 0.75, A is 2 and -1."""
    options = {"eta": 0.1, "decay": 0.1, "most": 9.0, "forgets": "c"}
    options |= {"own": 2.0, "team": 3.0, "advantage": 0.5}
    trajectories, run = credited(
        [{"a": 0.25, "b": 0.5}], with_competence, competence=SimpleNamespace(**options)
    )
    for action, advantage in zip(trajectories[0].actions, (2.0, -1.0), strict=True):
        action.advantage = advantage
    metrics = {}
    competence.marl_log(run, metrics)
    h = {"p": 2 * 0.25 + 3 * 0.75 + 0.5 * 2, "q": 2 * 0.5 + 3 * 0.75 - 0.5}
    assert metrics == pytest.approx(
        {f"competence/{name}": 0.1 * value for name, value in h.items()}
    )


def test_a_step_that_is_credited_again_is_credited_the_same():
    _, run = after(5, 0.5)
    t = make_trajectory({"a": []}, rewards={"a": 0.5})
    t.step = 5
    before = dict(run.state(Competence).now)
    with_competence([t], run)
    assert run.state(Competence).now == before


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
        "policy": "fixed",
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


def learned_run(members, **changes):
    """A run with one group of members, whose policy is learned."""
    defaults = {"scales": "reward", "control": 1.0, "low": 0.5, "high": 2.0, "rate": 0.1}
    defaults |= {"policy": "learned", "budget": 0, "stage": 50, "learning_rate": 0.1}
    options = SimpleNamespace(**defaults | {"discount": 0.0, "groups": "+".join(members)} | changes)
    states = {}
    return SimpleNamespace(
        args=SimpleNamespace(mean_group=options, train=SimpleNamespace(seed=1)),
        recipe=SimpleNamespace(populations={}),
        state=lambda kind: states.setdefault(kind, kind()),
    )


def steps_of(run, members, rewards, steps):
    """Lets the members earn what a function says of a step and of their control before it; returns
    the group's control after each step."""
    found = []
    for step in steps:
        control = found[-1] if found else 1.0
        earned = {name: rewards(step, control, n) for n, name in enumerate(members)}
        t = make_trajectory(
            {name: [] for name in members},
            policies={name: name for name in members},
            rewards=earned,
        )
        t.step = step
        mean_group.marl_credit_step([t], run)
        metrics = {}
        mean_group.marl_log(run, metrics)
        found.append(metrics[f"mean_group/control/{members[0]}"])
    return found


def test_a_learned_control_finds_what_pays_at_each_place_of_a_stage():
    """Reward falls with the distance of log a from a target that moves along the stage, by hand
    from 0.6 to -0.6: a constant can be within 0.3 on average at best."""

    def target(step):
        return 0.6 - 1.2 * ((step % 50) / 50)

    def rewards(step, control, member):
        return 1 - (math.log(control) - target(step - 1)) ** 2 + 0.01 * member

    members = ["a", "b"]
    found = steps_of(learned_run(members), members, rewards, range(1, 4001))
    late = [abs(math.log(a) - target(step)) for step, a in enumerate(found, 1) if step > 3000]
    early = [abs(math.log(a) - target(step)) for step, a in enumerate(found, 1) if step <= 100]
    assert np.mean(early) > 0.27 and np.mean(late) < 0.22


def test_a_learned_policy_resumes_and_has_its_least_control_where_the_budget_is_used_up():
    members = ["a", "b"]
    run = learned_run(members, budget=150)
    whole = steps_of(run, members, lambda step, control, n: control / (n + 2), range(1, 60))
    half = learned_run(members, budget=150)
    steps_of(half, members, lambda step, control, n: control / (n + 2), range(1, 30))
    resumed = learned_run(members, budget=150)
    mean_group.marl_restore(resumed, json.loads(json.dumps(mean_group.marl_state(half))))
    policy = resumed.state(GroupPolicies)["a", "b"]
    assert policy == half.state(GroupPolicies)["a", "b"]
    assert resumed.state(MeanRewards) == half.state(MeanRewards)
    assert policy.used < 150 <= run.state(GroupPolicies)["a", "b"].used
    assert whole[-1] == pytest.approx(math.exp(-1.5)) and whole[20] > whole[-1]


def shared(rewards, tau, negative="mirror", **factors):
    """The shares of one trajectory's actions, each of a policy, in two samples of a task of which
    the other earned nothing."""
    options = SimpleNamespace(factor=1.0, tau=tau, negative=negative, **ONE_TEAM)
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
