"""Behaviour of the roles over time: smoothing, the alarm for reward hacking."""

import json
import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import make_trajectory

from marl_plugins.builtin import behaviour as plugin
from marl_plugins.core.ledger import Ledger
from marl_plugins.engine.records.behaviour import ALARM, MIN_TRAJECTORIES, Behaviour, welch
from marl_plugins.engine.records.intervals import wilson
from marl_plugins.engine.runtime.metrics import summary


def run_of(*roles):
    states = {}
    return SimpleNamespace(
        recipe=SimpleNamespace(roles=dict.fromkeys(roles)),
        state=lambda kind: states.setdefault(kind, kind()),
    )


@given(st.lists(st.one_of(st.none(), st.floats(0, 1000)), min_size=1, max_size=30))
def test_the_smoothed_metric_is_the_weighted_sum_of_all_that_came_before(values):
    """sum_k alpha (1 - alpha)^k x_k, the first with what is left of the weights; steps without a
    value do not count."""
    behaviour, seen = Behaviour(), []
    for value in values:
        metrics = {} if value is None else {"role/a/response_length": value}
        found = behaviour.observe(metrics, ["a"])
        if value is None:
            assert found == {}
            continue
        seen.append(value)
        weights = [(2 / 3) ** (len(seen) - 1 - n) / (3 if n else 1) for n in range(len(seen))]
        expected = sum(w * x for w, x in zip(weights, seen, strict=True))
        assert found == {"role/a/response_length/smoothed": pytest.approx(expected)}


def test_success_score_and_truncation_of_a_role_are_over_what_it_took_part_in():
    both, one = make_trajectory({"a": [], "b": ["a"]}), make_trajectory({"a": []}, sample=1)
    both.outcome, one.outcome = 1.0, 0.0
    both.actions[0].score, one.actions[0].score = 0.8, 0.4
    found = summary([both, one], Ledger(1))
    assert (found["role/a/outcome"], found["role/b/outcome"]) == (0.5, 1.0)
    assert found["role/a/score"] == pytest.approx(0.6) and "role/b/score" not in found
    both.outcomes = {"a": 0.25, "b": 0.75}
    assert summary([both, one], Ledger(1))["role/a/outcome"] == 0.125


# --- the alarm
# --------------------------------------------------------------------------------------------------


def told(seed, score, success, tasks=100, every=4, evaluations=10, noise=0.03):
    """The alarms of a run of one role whose score and held-out success are given as functions of
    the progress in [0, 1]."""
    draw, behaviour, found = random.Random(seed), Behaviour(), []
    for step in range(1, every * evaluations + 1):
        progress = step / (every * evaluations)
        metrics = {"role/a/score": min(1.0, max(0.0, draw.gauss(score(progress), noise)))}
        if step % every == 0:
            rate = sum(draw.random() < success(progress) for _ in range(tasks)) / tasks
            low, high = wilson(rate, tasks)
            metrics |= {"eval/outcome": rate, "eval/low": low, "eval/high": high}
        found.append(behaviour.observe(metrics, ["a"]))
    return [m[ALARM] for m in found if ALARM in m]


SEEDS = range(15)


def flat(level):
    return lambda progress: level


def rising(start, end):
    return lambda progress: start + (end - start) * progress


@pytest.mark.parametrize("success", [flat(0.3), rising(0.4, 0.1)], ids=["flat", "falling"])
def test_scores_that_rise_without_success_raise_the_alarm(success):
    raised = [any(told(seed, rising(0.3, 0.8), success)) for seed in SEEDS]
    assert sum(raised) == len(raised)


@pytest.mark.parametrize(
    ("score", "success"),
    [
        (rising(0.3, 0.8), rising(0.2, 0.7)),
        (flat(0.5), flat(0.3)),
        (flat(0.5), rising(0.6, 0.2)),
        (rising(0.5, 0.2), flat(0.3)),
        (rising(0.6, 0.9), flat(0.97)),
    ],
    ids=["both rise", "neither", "success falls", "score falls", "nothing left to gain"],
)
def test_no_alarm_where_success_rises_too_or_the_score_does_not(score, success):
    raised = [any(told(seed, score, success)) for seed in SEEDS]
    assert sum(raised) <= 1


def test_there_is_no_alarm_before_there_are_evaluations_to_compare():
    assert told(1, flat(0.5), flat(0.5), evaluations=MIN_TRAJECTORIES - 1) == []
    behaviour = Behaviour()
    evaluation = {"eval/outcome": 0.5, "eval/low": 0.4, "eval/high": 0.6}
    assert [behaviour.observe(evaluation, ["a"]) for _ in range(9)] == [
        {}
    ] * 9  # nobody scores actions


@pytest.mark.parametrize(
    ("one", "other", "error", "degrees"),
    [
        ([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], (2 / 3) ** 0.5, 4),  # alike: all of both
        (
            [1.0, 2.0, 3.0],
            [5.0, 5.0, 5.0, 5.0, 5.0],
            (1 / 3) ** 0.5,
            2,
        ),  # one alone varies: its own
        ([0.0, 2.0], [1.0, 2.0, 3.0, 4.0], (1 + 5 / 12) ** 0.5, 867 / 457),
        ([1.0, 1.0], [2.0, 2.0], 0.0, 2),
    ],
)
def test_the_difference_of_two_means_has_welchs_degrees_of_freedom(one, other, error, degrees):
    assert welch(one, other) == pytest.approx((error, degrees))


def test_a_resumed_run_repeats():
    """The state goes through JSON after any step, and everything that follows is the same."""
    draw = random.Random(7)
    steps = [
        {"role/a/score": draw.random(), "role/b/score": draw.random(), "role/b/truncated": 0.5}
        for _ in range(24)
    ]
    for n, metrics in enumerate(steps):
        if n % 3 == 2:
            metrics |= {"eval/outcome": draw.random(), "eval/low": 0.0, "eval/high": 1.0}

    def follow(run, some):
        found = [dict(metrics) for metrics in some]
        for metrics in found:
            plugin.marl_log(run, metrics)
        return found

    whole = follow(run_of("a", "b"), steps)
    assert any(ALARM in metrics for metrics in whole)
    for cut in (1, 8, 17, 20):
        first, second = run_of("a", "b"), run_of("a", "b")
        follow(first, steps[:cut])
        plugin.marl_restore(second, json.loads(json.dumps(plugin.marl_state(first))))
        assert follow(second, steps[cut:]) == whole[cut:]
