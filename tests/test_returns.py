"""Returns along the dependency graph, discounted: laws on random graphs, with a float64 reference
of its own."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import make_trajectory

from marl_plugins.core.credit import sum_over_scope
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


@settings(max_examples=40, deadline=None)
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
