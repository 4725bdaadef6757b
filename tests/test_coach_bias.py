"""The bias monitor against numpy on plain samples, and over seeds: an injected bias is found and
taken out, none is invented."""

import json
import random
import statistics
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import credit, make_trajectory

from benchmarks.coach_bias import Answers, World, first_alarm, rare
from marl_plugins import coach as plugin
from marl_plugins.coach.bias import (
    BIAS_DECAY_PER_STEP,
    MOST_SLOPE,
    BiasMonitor,
    TypeSums,
    by_length,
    errors_of,
    slopes_of,
)
from marl_plugins.coach.metrics import JudgedAction
from marl_plugins.coach.state import CoachState
from marl_plugins.coach.verdict import Verdict
from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.records.intervals import t_quantile

BIAS = 0.12
"""1.2 points of ten."""
SAMPLES = st.lists(
    st.tuples(st.integers(0, 20).map(lambda points: points / 20), st.sampled_from([0.0, 1.0])),
    min_size=1,
    max_size=4,
)
TASKS = st.lists(SAMPLES, min_size=3, max_size=6)


def sums_of(tasks):
    monitor = BiasMonitor()
    monitor.add({("r", "k", str(n)): samples for n, samples in enumerate(tasks)})
    return TypeSums(monitor.sums["r"]["k"].values(), 1)


@given(TASKS)
def test_the_sums_of_a_type_are_those_of_its_samples(tasks):
    """Means, cluster-robust errors (Liang and Zeger 1986), and products of different samples, from
    every pair of samples."""
    found = sums_of(tasks)
    scores, outcomes = (np.array([pair[n] for task in tasks for pair in task]) for n in range(2))
    s, o = scores.mean(), outcomes.mean()
    assert (found.score, found.outcome) == pytest.approx((s, o))
    sizes = np.array([len(task) for task in tasks])
    assert found.count == pytest.approx(sizes.sum() ** 2 / (sizes**2).sum())
    slope = 0.4
    residuals = [sum((a - s) - slope * (b - o) for a, b in task) for task in tasks]
    error = np.sqrt(sum(r * r for r in residuals) * found.count / (found.count - 1)) / len(scores)
    assert errors_of({"k": found}, slope)["k"] == pytest.approx(error, abs=1e-9)
    for place, one in enumerate(
        ((lambda a, b: (a[0] - s) * (b[1] - o)), (lambda a, b: (a[1] - o) * (b[1] - o)))
    ):
        pairs = [
            sum(one(a, b) for n, a in enumerate(t) for m, b in enumerate(t) if n != m)
            for t in tasks
        ]
        assert found.between[place] == pytest.approx(pairs, abs=1e-9)


def known_above(p, v, t):
    """Whether no slope up to `MOST_SLOPE` is within its error, by Fieller."""
    return all(
        abs((p - b * v).sum()) > t * np.sqrt(((p - b * v) ** 2).sum())
        for b in np.linspace(0, MOST_SLOPE, 21)
    )


@settings(max_examples=50)
@given(st.lists(TASKS, min_size=1, max_size=3), st.floats(0.5, 3))
def test_every_slope_that_is_left_is_allowed_and_every_other_one_is_not(types, errors):
    """By the definitions, slope by slope, where the two ways of bounding it agree."""
    sums = [sums_of(tasks) for tasks in types]
    t = t_quantile(max(1.0, sum(one.count for one in sums) - len(sums)), errors)
    p, v = (np.concatenate([one.between[n] for one in sums]) for n in range(2))
    c = np.concatenate([one.products for one in sums])
    outcomes = sum(one.outcomes.sum() for one in sums)
    least = c.sum() - t * np.sqrt(c @ c)
    found = slopes_of(sums, errors)
    assert 0 <= found.low <= found.high
    if found.low > MOST_SLOPE:  # only where the repeats leave none below
        assert known_above(p, v, t)
        return
    slopes = np.linspace(0, MOST_SLOPE, 201)
    known = v.sum() > t * np.sqrt(v @ v) and v.sum() ** 2 - t * t * (v @ v) > 1e-9
    repeats = [
        not known or (p - b * v).sum() ** 2 <= t * t * ((p - b * v) @ (p - b * v)) + 1e-9
        for b in slopes
    ]
    bounds = [least <= 0 or outcomes < 1e-9 or least / outcomes - 1e-9 <= b for b in slopes]
    allowed = slopes[np.logical_and(repeats, bounds)]
    assert found.high <= MOST_SLOPE
    if len(allowed):
        assert found.low <= allowed.min() + 1e-6 and found.high >= allowed.max() - 1e-6
        assert found.high - found.low <= allowed.max() - allowed.min() + 0.011


def test_old_steps_fade_like_weights():
    """As many equally weighted tasks as Kish's formula says, and means that are the weighted
    ones."""
    monitor, draw, values = BiasMonitor(), random.Random(3), []
    for step in range(40):
        values.append([draw.random() for _ in range(4)])
        monitor.add(
            {("r", "k", f"{step}/{n}"): [(value, 0.0)] for n, value in enumerate(values[-1])}
        )
    found = TypeSums(monitor.sums["r"]["k"].values(), 40)
    weights = np.repeat(BIAS_DECAY_PER_STEP ** np.arange(39, -1, -1.0), 4)
    assert found.score == pytest.approx(np.average(np.array(values).ravel(), weights=weights))
    assert found.count == pytest.approx(weights.sum() ** 2 / (weights**2).sum())


def test_a_task_that_returns_is_one_task():
    monitor, draw = BiasMonitor(), random.Random(4)
    for _ in range(30):
        monitor.add(
            {("r", kind, str(n)): [(draw.random(), 1.0)] * 3 for kind in "ab" for n in range(4)}
        )
    assert monitor.sums["r"]["a"].keys() == {"0", "1", "2", "3"} and monitor.metrics() == {}


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
                seen.append(
                    (
                        trajectory,
                        JudgedAction(
                            trajectory.actions[0], Verdict(score=10 * score + draw.random()), False
                        ),
                    )
                )
        monitor.observe(seen)

    for step in range(10):
        take_in(step, early=0.7, late=0.2)
    assert monitor.metrics()["alarm/coach_bias"] == 1.0
    for step in range(10, 110):
        take_in(step, late=0.2, **{f"once {step}": 0.5})
    assert monitor.metrics() == {} == monitor.corrections()
    assert "early" not in monitor.sums["a"] and len(monitor.sums["a"]) < 60


def test_an_easier_type_with_lower_scores_is_told_without_repeats():
    """No slope that is not negative explains it."""
    monitor, draw = BiasMonitor(), random.Random(2)
    for step in range(20):
        scores = {
            kind: [draw.gauss(mean, 0.1) for _ in range(32)]
            for kind, mean in (("easy", 0.4), ("hard", 0.5))
        }
        monitor.add(
            {
                ("r", kind, f"{step}/{n}"): [
                    (score, float(draw.random() < (0.7 if kind == "easy" else 0.3)))
                ]
                for kind, found in scores.items()
                for n, score in enumerate(found)
            }
        )
    assert monitor.metrics()["alarm/coach_bias/r/easy"] < -0.1


def test_an_alarm_needs_more_evidence_the_more_is_tested():
    world = World((0.5, 0.5), "noise", bias=BIAS, tasks=32)
    monitor = BiasMonitor()
    for step in world.run(0):
        monitor.add(step)
    one, many = (
        {r: t for r, t in monitor.sums.items() if r in roles}
        for roles in (("first",), ("first", "second", "third"))
    )
    widths = []
    for sums in (one, many):
        found = BiasMonitor(monitor.step, sums).differences()["first"]["type 0"].interval
        widths.append(found.high - found.low)
    assert widths[0] < widths[1]


# --- over seeds, through the plugin's own hooks
# ---------------------------------------------------------------------------------

ROLES = ("engineer", "analyst")
SUCCESS = {"classification": 0.35, "regression": 0.65}
"""Regression is easier, and its scores are higher for that alone."""


def run_of(debias=False):
    states = {}
    args = SimpleNamespace(coach=SimpleNamespace(debias=debias, max_missing=0.2))
    return SimpleNamespace(args=args, state=lambda kind: states.setdefault(kind, kind()))


def step_of(draw, bias, tasks=16, samples=4):
    """Trajectories of a step with their verdicts; the coach adds `bias` to the engineer's scores of
    regression tasks."""
    found = []
    for kind, mean in SUCCESS.items():
        for _ in range(tasks):
            rate = min(1.0, max(0.0, draw.gauss(mean, 0.2)))
            name = f"{kind}{draw.random()}"
            for sample in range(samples):
                trajectory = make_trajectory({role: [] for role in ROLES}, task=name, sample=sample)
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
        state.verdicts[action] = JudgedAction(action, Verdict(score=10 * action.score), False)
    rewards_from_scores(trajectories)
    credit(plugin, trajectories, run)
    metrics = {}
    plugin.marl_log(run, metrics)
    return metrics


def difference(trajectories, role):
    by_kind = {
        kind: [
            a.score
            for t in trajectories
            if t.task.metadata["type"] == kind
            for a in t.actions
            if a.role == role
        ]
        for kind in SUCCESS
    }
    return statistics.fmean(by_kind["regression"]) - statistics.fmean(by_kind["classification"])


NAME = "engineer/classification"
"""Of two types the monitor has one line; a bias for regression is one against classification."""


@pytest.mark.parametrize("bias", [BIAS, -BIAS])
def test_an_injected_bias_is_found_with_its_sign_in_every_seed(bias):
    for seed in range(3):
        draw, run = random.Random(seed), run_of()
        told = [take(run, step_of(draw, bias)) for _ in range(25)]
        last = told[-1]
        assert last["alarm/coach_bias"] == 1.0, seed
        assert last[f"alarm/coach_bias/{NAME}"] * bias < 0
        assert not any(
            f"alarm/coach_bias/analyst/{kind}" in metrics for metrics in told for kind in SUCCESS
        )
        assert abs(last[f"coach/bias/{NAME}"] + bias) < 0.06
        assert abs(last[f"coach/bias/{NAME}/success"] + 0.3) < 0.15


def test_the_intervals_hold_the_bias_as_often_as_they_say():
    """95 % of 60 seeds, by the binomial at least 53; the noise is not normal and the scores are
    rounded."""
    inside = 0
    for seed in range(60):
        monitor, draw = BiasMonitor(), random.Random(seed)
        for _ in range(3):
            monitor.observe(
                (t, JudgedAction(a, Verdict(score=10 * a.score), False))
                for t in step_of(draw, BIAS, 8)
                for a in t.actions
            )
        found = monitor.differences(1.96)["engineer"]["classification"].interval
        inside += found.low <= -BIAS <= found.high
    assert inside >= 53


def test_there_is_no_alarm_without_a_bias():
    """Although the scores of the two types differ by far more than an alarm needs, because their
    success does."""
    for seed in range(3):
        draw, run = random.Random(seed), run_of()
        told = [take(run, step_of(draw, 0.0)) for _ in range(30)]
        assert not any(metrics.get("alarm/coach_bias") for metrics in told), seed
        assert abs(told[-1][f"coach/bias/{NAME}/score"]) > 0.05
    assert "alarm/coach_bias" in told[-1]


def test_it_is_taken_out_to_within_a_third_of_a_point():
    """Against the same coach without the bias, whose scores are the independent reference."""
    for seed in range(2):
        plain, biased, run = random.Random(seed), random.Random(seed), run_of(debias=True)
        left = []
        for number in range(40):
            reference, trajectories = step_of(plain, 0.0), step_of(biased, BIAS)
            take(run, trajectories)
            if number >= 20:
                left.append(
                    difference(trajectories, "engineer") - difference(reference, "engineer")
                )
            for action in (a for t in trajectories for a in t.actions):
                assert action.reward == action.score and 0.0 <= action.score <= 1.0
        assert abs(statistics.fmean(left)) <= 0.035, seed


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

    whole = follow(run_of(True), random.Random(5), 24)
    assert not any(whole[0][2]) and any(whole[-1][2])
    first, draw = run_of(True), random.Random(5)
    follow(first, draw, 12)
    kept = json.loads(json.dumps(plugin.marl_state(first)))
    second = run_of(True)
    plugin.marl_restore(second, kept)
    assert follow(second, draw, 12) == whole[12:]


def test_answers_are_longer_or_shorter_than_the_roles_mean_of_the_step():
    """Of a trajectory with several actions of a role their mean counts; what is as long as the mean
    is neither."""
    step, lengths = [], {"a": [[3], [9], [1, 5], [8]], "b": [[5], [5], [3, 5], [6]], "c": [[2]] * 4}
    trajectories = [make_trajectory({}, task=str(n)) for n in range(4)]
    for role, each in lengths.items():
        for trajectory, counts in zip(trajectories, each, strict=True):
            for count in counts:
                generation = SimpleNamespace(ids=(1,) * count)
                action = SimpleNamespace(role=role, generation=generation)
                step.append((trajectory, JudgedAction(action, None, False)))
    kind = by_length(step)
    assert [kind(t, "a") for t in trajectories] == ["shorter", "longer", "shorter", "longer"]
    assert [kind(t, "b") for t in trajectories] == [None, None, "shorter", "longer"]
    assert [kind(t, "c") for t in trajectories] == [None] * 4


def test_few_tasks_that_happen_to_be_alike_are_no_bias():
    """Their own spread is 0, and says nothing of the next one."""
    for seed in (12, 13, 19, 22):  # with their own spread these four would alarm
        assert first_alarm(partial(rare, 0.02), seed) == (0, set())


def test_a_coach_that_likes_length_is_found_and_one_whose_longer_answers_are_better_is_not():
    """`python -m benchmarks.coach_bias` has a thousand runs of each."""
    for seed in range(2):
        liking = Answers("noise", 0.0, bias=BIAS, tasks=32, samples=8, steps=6)
        first, raised = first_alarm(liking, seed)
        assert first
        assert raised == {("first", "longer")}
        for world in (Answers("quality", 0.7), Answers("outcome", 0.7)):
            assert first_alarm(replace(world, steps=10), seed) == (0, set())


def test_the_length_monitor_takes_part_in_a_run_and_in_what_it_resumes():
    draw, run = random.Random(1), run_of()
    for _ in range(4):
        trajectories = step_of(draw, 0.0)
        for number, trajectory in enumerate(trajectories):
            for action in trajectory.actions:
                ids = (1,) * (1 + number % 3)
                action.generation = replace(action.generation, ids=ids, logprobs=(0.0,) * len(ids))
        metrics = take(run, trajectories)
    assert metrics["alarm/coach_length_bias"] == 0.0
    name = "coach/length_bias/engineer/longer"
    assert metrics[f"{name}/low"] < metrics[name] < metrics[f"{name}/high"]
    saved = json.loads(json.dumps(plugin.marl_state(run)))
    again = run_of()
    plugin.marl_restore(again, saved)
    assert again.state(CoachState).length_bias.metrics() == {
        key: value for key, value in metrics.items() if "length_bias" in key
    }
