"""Trajectories as records: exact, short, and readable as earlier releases wrote them."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from simulated import make_trajectory

from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.records.trajectory_record import from_record, to_record

LOGPROBS = st.floats(max_value=0, allow_nan=False, width=32)


def with_logprobs(logprobs, advantages=()):
    trajectory = make_trajectory({"a": []})
    (action,) = trajectory.actions
    action.generation = Generation(tuple(range(len(logprobs))), tuple(logprobs), "stop", "a", 1)
    action.trainer_logprobs = tuple(-value for value in logprobs)
    action.advantages = tuple(advantages)
    action.advantage = math.fsum(advantages) / len(advantages) if advantages else None
    return trajectory


def again(trajectory):
    line = json.dumps(to_record(trajectory))
    return line, from_record(json.loads(line))


@given(st.lists(LOGPROBS, max_size=20))
def test_log_probs_are_read_back_bit_for_bit(logprobs):
    trajectory = with_logprobs(logprobs)
    line, read = again(trajectory)
    found = read.actions[0].generation.logprobs
    assert read.actions[0].trainer_logprobs == tuple(-v for v in found)
    assert np.array(found).tobytes() == np.array(logprobs, dtype=float).tobytes()
    assert again(read)[0] == line


@given(st.lists(LOGPROBS, max_size=20))
def test_records_of_earlier_releases_spelled_them_as_float64(logprobs):
    record = to_record(with_logprobs(logprobs))
    record["actions"][0]["logprobs"] = logprobs
    assert from_record(json.loads(json.dumps(record))).actions[0].generation.logprobs == tuple(
        logprobs
    )


def test_log_probs_take_little_room():
    values = np.random.default_rng(0).exponential(size=1000).astype(np.float32)
    trajectory = with_logprobs([-float(v) for v in values])
    both, engines = (len(json.dumps(to_record(trajectory, trainer))) for trainer in (True, False))
    spelled_as_float64 = len(json.dumps([-float(v) for v in values]))
    assert both - engines < 0.6 * spelled_as_float64


@given(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=20), st.booleans())
def test_advantages_are_left_out_where_all_are_the_same(values, same):
    """Whatever their mean is rounded to."""
    advantages = values[:1] * len(values) if same else values
    trajectory = with_logprobs([-0.5] * len(values), advantages)
    trajectory.actions[0].advantage = math.nextafter(trajectory.actions[0].advantage, 99)
    line, read = again(trajectory)
    assert ('"advantages"' in line) == (len(set(advantages)) > 1)
    assert read.actions[0].advantages == tuple(advantages)
