"""Returns along the dependency graph, discounted: laws on random graphs, with a float64 reference
of its own."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import make_trajectory

from marl_plugins.core.credit import depths_of, distances, sum_over_scope
from marl_plugins.core.estimators import Estimator, check_estimator, idle_scope_flags
from marl_plugins.engine.plan.build import build_plan

DISTANCES = ("shortest", "longest", "depth")


@st.composite
def trajectories(draw, unrewarded=True):
    """Random graphs of up to nine actions of two policies, some without a reward."""
    size = draw(st.integers(1, 9))
    edges, rewards, policies = {}, {}, {}
    for n in range(size):
        edges[f"n{n}"] = [f"n{m}" for m in range(n) if draw(st.booleans())]
        rewards[f"n{n}"] = draw(st.floats(-4, 4, width=32))
        policies[f"n{n}"] = draw(st.sampled_from(["p", "q"]))
    trajectory = make_trajectory(edges, policies, rewards)
    for action in trajectory.actions:
        if unrewarded and draw(st.integers(0, 5)) == 0:
            action.reward = None
    trajectory.sort()
    return trajectory


def ways(trajectory, start, end):
    """Lengths of all ways from one action to another along the graph, counted one by one."""
    by_path = {a.path: a for a in trajectory.actions}
    if start == end:
        return [0]
    return [
        1 + length for parent in by_path[end].parents for length in ways(trajectory, start, parent)
    ]


def reference(trajectory, action, scope, discount, distance, origin):
    """The formula, over all pairs of actions, in float64."""

    def depth(path):
        return max(
            (length for a in trajectory.actions for length in ways(trajectory, a.path, path)),
            default=0,
        )

    total = np.float64(0)
    for other in trajectory.actions:
        lengths = ways(trajectory, action.path, other.path)
        inside = (
            other is action
            if scope == "action"
            else scope == "trajectory" or other.policy == action.policy
        )
        if not lengths or not inside:
            continue
        far = {
            "shortest": min(lengths),
            "longest": max(lengths),
            "depth": depth(other.path) - depth(action.path),
        }[distance]
        total += np.float64(discount) ** far * np.float64(other.reward or 0.0)
    return total * (np.float64(discount) ** depth(action.path) if origin == "start" else 1.0)


@settings(max_examples=60, deadline=None)
@given(
    trajectories(),
    st.sampled_from(["action", "policy", "trajectory"]),
    st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    st.sampled_from(DISTANCES),
    st.sampled_from(["action", "start"]),
)
def test_returns_are_the_formula(trajectory, scope, discount, distance, origin):
    sum_over_scope([trajectory], scope, discount, distance, origin)
    for action in trajectory.actions:
        if action.reward is None:
            assert action.returns is None
        else:
            expected = reference(trajectory, action, scope, discount, distance, origin)
            assert action.returns == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(trajectories(), st.sampled_from(DISTANCES), st.sampled_from(["action", "start"]))
def test_a_discount_of_one_is_the_plain_sum_and_of_zero_the_actions_own(
    trajectory, distance, origin
):
    for scope in ("policy", "trajectory"):
        sum_over_scope([trajectory], scope)
        plain = [a.returns for a in trajectory.actions]
        sum_over_scope([trajectory], scope, 1.0, distance, origin)
        assert [a.returns for a in trajectory.actions] == plain
        sum_over_scope([trajectory], scope, 0.0, distance)
        assert [a.returns for a in trajectory.actions] == [a.reward for a in trajectory.actions]


@settings(max_examples=60, deadline=None)
@given(trajectories())
def test_distances_are_ordered_and_what_is_not_reached_adds_nothing(trajectory):
    depths = depths_of(trajectory.actions)
    for action in trajectory.actions:
        found = [distances(trajectory, action.path, distance, depths) for distance in DISTANCES]
        assert all(f.keys() == trajectory.descendants(action.path) for f in found)
        assert all(found[0][path] <= found[1][path] <= found[2][path] for path in found[0])
    for other in trajectory.actions:
        sum_over_scope([trajectory], "trajectory", 0.5)
        before = {a.path: a.returns for a in trajectory.actions}
        if other.reward is None:
            continue
        other.reward += 100.0
        sum_over_scope([trajectory], "trajectory", 0.5)
        for action in trajectory.actions:
            if other.path not in trajectory.descendants(action.path):
                assert action.returns == before[action.path]


def test_the_variance_of_a_return_is_that_of_its_descendants_share():
    """(1 + descendants) / V of the variance of the sum of all rewards, for independent rewards of
    one variance."""
    rng, shape = random.Random(3), random.Random(5)
    edges = {f"n{n}": [f"n{m}" for m in range(n) if shape.random() < 0.2] for n in range(11)}
    trajectory = make_trajectory(edges)
    trajectory.sort()
    returns, sums = {a.path: [] for a in trajectory.actions}, []
    for _ in range(4000):
        for action in trajectory.actions:
            action.reward = rng.gauss(0, 1)
        sum_over_scope([trajectory], "trajectory")
        sums.append(sum(a.reward for a in trajectory.actions))
        for action in trajectory.actions:
            returns[action.path].append(action.returns)
    for path, found in returns.items():
        share = len(trajectory.descendants(path)) / len(edges)
        assert np.var(found) / np.var(sums) == pytest.approx(share, rel=0.12)


def test_the_diamond_of_the_paper():
    """start -> a -> b -> end and start -> end: shortest 1, longest and depth 3."""
    trajectory = make_trajectory(
        {"start": [], "a": ["start"], "b": ["a"], "end": ["start", "b"]}, rewards={"end": 1.0}
    )
    for action in trajectory.actions[:-1]:
        action.reward = 0.0
    found = {}
    for distance in DISTANCES:
        sum_over_scope([trajectory], "trajectory", 0.5, distance)
        found[distance] = trajectory.actions[0].returns
    assert found == {"shortest": 0.5, "longest": 0.125, "depth": 0.125}
    sum_over_scope([trajectory], "trajectory", 0.5, "depth", "start")
    assert [a.returns for a in trajectory.actions] == [0.125, 0.125, 0.125, 0.125]


@pytest.mark.parametrize(
    ("plugin", "estimator"), [("reinforce_pp", "reinforce"), ("groups", "rloo"), ("gae", "gae")]
)
def test_every_estimator_has_the_flags(plugin, estimator):
    words = ["--recipe", "mathchat/tiny.yaml", "--algo.advantage.estimator", estimator]
    words += [
        f"--{plugin}.scope",
        "trajectory",
        f"--{plugin}.discount",
        "0.5",
        f"--{plugin}.distance",
        "depth",
    ]
    words += [f"--{plugin}.origin", "start"]
    if plugin == "groups":
        words += ["--rollout.n_samples_per_prompt", "2", "--groups.by", "task+role+turn"]
    made = build_plan(words)
    got = made.plugins.hook.marl_estimator(run=made.run)
    assert (got.return_discount, got.return_distance, got.return_origin) == (0.5, "depth", "start")


@pytest.mark.parametrize(
    ("options", "given_flags", "idle"),
    [
        ({"scope": "action", "discount": 0.5}, {"discount"}, {"discount"}),
        ({"scope": "action", "discount": 0.5, "origin": "start"}, {"discount", "origin"}, set()),
        (
            {"scope": "trajectory", "discount": 1.0},
            {"distance", "origin", "scope"},
            {"distance", "origin"},
        ),
        ({"scope": "trajectory", "discount": 0.5}, {"distance", "origin", "discount"}, set()),
    ],
)
def test_flags_of_returns_that_change_nothing_are_refused(options, given_flags, idle):
    values = SimpleNamespace(**{"distance": "longest", "origin": "action", **options})
    problems = idle_scope_flags("x", values, {f"x.{name}" for name in given_flags})
    assert {p.names("flag")[0] for p in problems} == {f"x.{name}" for name in idle}
    assert {p.code for p in problems} <= {"estimator.idle_flag"}


@pytest.mark.parametrize(
    "field", [{"return_discount": 2.0}, {"return_distance": "far"}, {"return_origin": "end"}]
)
def test_an_estimator_of_a_plugin_is_checked(field):
    (problem,) = check_estimator(Estimator(**field), 1, 1)
    assert problem.code in ("estimator.gamma", "estimator.field")
