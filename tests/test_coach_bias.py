"""The bias monitor against numpy's least squares, and over seeds: an injected bias is found and taken out, none is invented."""

import json
import random
import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import make_trajectory

from marl_plugins import coach as plugin
from marl_plugins.coach.bias import DECAY, RELEVANT, BiasMonitor, Sums, contrast
from marl_plugins.coach.metrics import Judged
from marl_plugins.coach.state import CoachState
from marl_plugins.coach.verdict import Verdict
from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.trajectory import Task

BIAS = 0.12
"""1.2 points of ten."""


def least_squares(data, weights):
    """(bias, error) of a contrast of types by numpy: scores on one column a type and the outcome."""
    kinds = sorted({kind for kind, _, _ in data})
    x = np.array([[float(kind == k) for k in kinds] + [outcome] for kind, _, outcome in data])
    y = np.array([score for _, score, _ in data])
    found, *_ = np.linalg.lstsq(x, y, rcond=None)
    residual = y - x @ found
    variance = residual @ residual / (len(y) - x.shape[1])
    c = np.array([weights.get(k, 0.0) for k in kinds] + [0.0])
    return c @ found, np.sqrt(variance * c @ np.linalg.inv(x.T @ x) @ c)


@given(st.integers(0, 10**6), st.integers(2, 4))
def test_the_bias_and_its_error_are_those_of_least_squares(seed, types):
    draw = random.Random(seed)
    kinds = [f"k{n}" for n in range(types)]
    data = [(kind, draw.random(), draw.random()) for kind in kinds for _ in range(draw.randint(4, 12))]
    sums = {kind: Sums() for kind in kinds}
    for kind, score, outcome in data:
        sums[kind].add(score, outcome)
    weights = {kind: 1.0 if kind == "k0" else -1 / (types - 1) for kind in kinds}
    found = contrast(sums, weights)
    bias, error = least_squares(data, weights)
    assert (found.bias, found.error) == pytest.approx((bias, error), rel=1e-6, abs=1e-9)
    means = {k: statistics.fmean(s for kind, s, _ in data if kind == k) for k in kinds}
    assert found.score == pytest.approx(sum(w * means[k] for k, w in weights.items()))
    assert found.degrees == len(data) - types - 1


def test_old_steps_fade_like_weights():
    """As many equally weighted tasks as Kish's formula says, and means that are the weighted ones."""
    sums, draw, values = Sums(), random.Random(3), []
    for _ in range(50):
        sums.fade()
        values.append([draw.random() for _ in range(4)])
        for value in values[-1]:
            sums.add(value, 0.0)
    weights = np.repeat(DECAY ** np.arange(49, -1, -1.0), 4)
    assert sums.s / sums.w == pytest.approx(np.average(np.array(values).ravel(), weights=weights))
    assert sums.count == pytest.approx(weights.sum() ** 2 / (weights**2).sum())


def test_a_type_that_comes_no_more_is_not_held_against_the_others():
    """And is forgotten, as are types of which each comes once."""
    monitor, draw = BiasMonitor(), random.Random(5)

    def take_in(step, **scores):
        seen = []
        for kind, score in scores.items():
            for task in range(1 if kind.startswith("once") else 10):
                trajectory = make_trajectory({"a": []})
                about = {
                    "task": Task(f"{step}/{task}", "p", metadata={"type": kind}),
                    "outcome": float(draw.random() < 0.5),
                }
                trajectory = replace(trajectory, **about)
                seen.append((trajectory, Judged(trajectory.actions[0], Verdict(score=10 * score + draw.random()), False)))
        monitor.observe(seen)

    for step in range(10):
        take_in(step, early=0.7, late=0.2)
    assert monitor.metrics()["alarm/coach_bias"] == 1.0
    for step in range(10, 110):
        take_in(step, late=0.2, **{f"once {step}": 0.5})
    assert monitor.metrics() == {} == monitor.corrections("a")
    for step in range(110, 210):
        take_in(step, late=0.2, **{f"once {step}": 0.5})
    assert "early" not in monitor.sums["a"] and len(monitor.sums["a"]) < 150


def test_types_that_have_one_outcome_each_cannot_be_told_from_success():
    sums = {"a": Sums(), "b": Sums()}
    for n in range(20):
        sums["a"].add(0.9 + n / 1000, 1.0)
        sums["b"].add(0.1 + n / 1000, 0.0)
    monitor = BiasMonitor({"r": sums})
    assert monitor.differences("r") == {} and monitor.corrections("r") == {} and monitor.metrics() == {}


# --- over seeds, through the plugin's own hooks ---------------------------------------------------------------------------------

ROLES = ("engineer", "analyst")
SUCCESS = {"classification": 0.35, "regression": 0.65}
"""Regression is easier, and its scores are higher for that alone."""


def run_of(debias=False):
    states = {}
    args = SimpleNamespace(coach=SimpleNamespace(debias=debias, max_missing=0.2, corrections_coef=0.0))
    return SimpleNamespace(args=args, state=lambda kind: states.setdefault(kind, kind()))


def step_of(draw, bias, tasks=16, samples=2):
    """Trajectories of a step with their verdicts; the coach adds `bias` to the engineer's scores of regression tasks."""
    found = []
    for kind, rate in SUCCESS.items():
        for task in range(tasks):
            for sample in range(samples):
                trajectory = make_trajectory({role: [] for role in ROLES}, task=f"{kind}{task}", sample=sample)
                trajectory.task.metadata["type"] = kind
                trajectory.outcome, trajectory.actions_scored = float(draw.random() < rate), True
                for action in trajectory.actions:
                    added = bias if (kind, action.role) == ("regression", "engineer") else 0.0
                    score = 0.3 + 0.25 * trajectory.outcome + draw.gauss(0, 0.12) + added
                    action.score = round(20 * min(1.0, max(0.0, score))) / 20  # half points
                found.append(trajectory)
    return found


def take(run, trajectories):
    """A step's credit and log, as a run calls them."""
    state = run.state(CoachState)
    for action in (a for t in trajectories for a in t.actions):
        state.verdicts[id(action)] = Judged(action, Verdict(score=10 * action.score), False)
    rewards_from_scores(trajectories)
    plugin.marl_credit(trajectories, run)
    metrics = {}
    plugin.marl_log(run, metrics)
    return metrics


def difference(trajectories, role):
    by_kind = {
        kind: [a.score for t in trajectories if t.task.metadata["type"] == kind for a in t.actions if a.role == role]
        for kind in SUCCESS
    }
    return statistics.fmean(by_kind["regression"]) - statistics.fmean(by_kind["classification"])


NAME = "engineer/classification"
"""Of two types the monitor has one line; a bias for regression is one against classification."""


@pytest.mark.parametrize("bias", [BIAS, -BIAS])
def test_an_injected_bias_is_found_with_its_sign_in_every_seed(bias):
    for seed in range(20):
        draw, run = random.Random(seed), run_of()
        told = [take(run, step_of(draw, bias)) for _ in range(12)]
        last = told[-1]
        assert last["alarm/coach_bias"] == 1.0, seed
        assert last[f"alarm/coach_bias/{NAME}"] * bias < 0
        assert not any(f"alarm/coach_bias/analyst/{kind}" in metrics for metrics in told for kind in SUCCESS)
        assert abs(last[f"coach/bias/{NAME}"] + bias) < 0.04
        assert abs(last[f"coach/bias/{NAME}/success"] + 0.3) < 0.15


def test_the_intervals_hold_the_bias_as_often_as_they_say():
    """95 % of 200 seeds, by the binomial at least 181; the noise is not normal and the scores are rounded."""
    inside = 0
    for seed in range(200):
        monitor, draw = BiasMonitor(), random.Random(seed)
        for _ in range(3):
            monitor.observe(
                (t, Judged(a, Verdict(score=10 * a.score), False)) for t in step_of(draw, BIAS, 8) for a in t.actions
            )
        low, high = monitor.differences("engineer")["regression"].interval()
        inside += low <= BIAS <= high
    assert inside >= 181


def test_there_is_no_alarm_without_a_bias():
    """Although the scores of the two types differ by far more than an alarm needs, because their success does."""
    for seed in range(20):
        draw, run = random.Random(seed), run_of()
        told = [take(run, step_of(draw, 0.0)) for _ in range(40)]
        assert not any(metrics.get("alarm/coach_bias") for metrics in told), seed
        assert abs(told[-1][f"coach/bias/{NAME}/score"]) > RELEVANT
    assert "alarm/coach_bias" in told[-1]


def test_it_is_taken_out_to_within_a_fifth_of_a_point():
    """Against the same coach without the bias, whose scores are the independent reference."""
    for seed in range(10):
        plain, biased, run = random.Random(seed), random.Random(seed), run_of(debias=True)
        left = []
        for number in range(30):
            reference, trajectories = step_of(plain, 0.0), step_of(biased, BIAS)
            take(run, trajectories)
            if number >= 10:
                left.append(difference(trajectories, "engineer") - difference(reference, "engineer"))
            for action in (a for t in trajectories for a in t.actions):
                assert action.reward == action.score and 0.0 <= action.score <= 1.0
        assert abs(statistics.fmean(left)) <= 0.02, seed


def test_nothing_is_changed_unless_it_is_asked_for():
    draw, run = random.Random(1), run_of()
    for _ in range(10):
        trajectories = step_of(draw, BIAS)
        before = [a.score for t in trajectories for a in t.actions]
        take(run, trajectories)
        assert [a.score for t in trajectories for a in t.actions] == before
        assert not any(a.terms for t in trajectories for a in t.actions)


def test_the_first_step_has_nothing_to_take_out_and_a_resumed_run_repeats():
    def follow(run, draw, steps):
        found = []
        for _ in range(steps):
            trajectories = step_of(draw, BIAS)
            metrics = take(run, trajectories)
            found.append(
                (
                    metrics,
                    [a.score for t in trajectories for a in t.actions],
                    [a.terms for t in trajectories for a in t.actions],
                )
            )
        return found

    whole = follow(run_of(True), random.Random(5), 6)
    assert not any(whole[0][2]) and any(whole[-1][2])
    first, draw = run_of(True), random.Random(5)
    follow(first, draw, 3)
    kept = json.loads(json.dumps(plugin.marl_state(first)))
    second = run_of(True)
    plugin.marl_restore(second, kept)
    assert follow(second, draw, 3) == whole[3:]


def test_tasks_without_a_type_or_an_outcome_are_nobodys():
    run, trajectories = run_of(True), [make_trajectory({"engineer": []}, task=str(n)) for n in range(40)]
    for n, trajectory in enumerate(trajectories):
        trajectory.actions_scored, trajectory.actions[0].score = True, 0.5
        trajectory.outcome = None if n % 2 else 1.0
        if n % 2:
            trajectory.task.metadata["type"] = "regression"
    found = take(run, trajectories)
    assert not any("bias" in name for name in found) and run.state(CoachState).bias.sums == {}
