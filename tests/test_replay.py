"""Prioritised replay: its laws, and a run in which earlier groups are trained on again, resumed or
not."""

import asyncio
import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_once import PlannedOnce
from simulated import make_trajectory, without_seconds
from simulated_run import simulated_trainer

from marl_plugins.core.estimators import Estimator
from marl_plugins.core.ledger import Ledger
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.engine.records.write import cut_back
from marl_plugins.replay import (
    Buffer,
    chances_and_weights,
    exponential_priorities,
    marl_select,
    priority,
)

PLUGIN = "marl_plugins.replay"
PRIORITIES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20)


# --- laws ---------------------------------------------------------------------------------------


@given(PRIORITIES, st.data())
def test_with_beta_1_the_weighted_mean_over_draws_is_the_plain_mean(priorities, data):
    values = data.draw(
        st.lists(st.floats(-10, 10), min_size=len(priorities), max_size=len(priorities))
    )
    chances, weights = chances_and_weights(priorities, 1.0)
    expected = sum(p * w * x for p, w, x in zip(chances, weights, values, strict=True))
    assert expected == pytest.approx(sum(values) / len(values), rel=1e-6, abs=1e-9)


@given(PRIORITIES, st.floats(0, 1))
def test_chances_are_priorities_and_no_weight_is_above_101(priorities, beta):
    chances, weights = chances_and_weights(priorities, beta)
    assert sum(chances) == pytest.approx(1) and max(weights) <= 101 + 1e-9 and min(weights) > 0
    least = sum(priorities) / len(priorities) / 100
    bounded = [max(least, each) for each in priorities]
    assert [c * sum(bounded) for c in chances] == pytest.approx(bounded)
    if beta == 0:
        assert set(weights) == {1.0}


def test_a_group_that_teaches_nothing_does_not_make_the_others_vanish():
    """All samples of the last one have the same outcome."""
    chances, weights = chances_and_weights([0.5, 2 / 3, 0.5, 1e-6], 1.0)
    assert all(0.5 < weight < 1 for weight in weights[:3]) and chances[3] < 0.003


def test_a_priority_is_of_rewards_and_of_the_size_of_advantages():
    t = make_trajectory({"a": [], "b": ["a"]}, rewards={"a": 0.5, "b": None})
    t.actions[0].advantage = -2.0
    assert (
        priority([t], 0.0, 1.0) == 2.0
        and priority([t], 2.0, 1.0) == 3.0
        and priority([t], 0.0, 0.0) == 1e-6
    )
    assert priority([], 1.0, 1.0) == 1e-6


def test_exponential_priorities_are_equation_16_relative_to_the_largest():
    """By hand: tokens of probability 1/2 and 1/4 give 1/4 and 9/16 each."""
    groups = []
    for reward, logprobs in ((0.5, (math.log(0.5),)), (0.25, (math.log(0.25),) * 2)):
        t = make_trajectory({"a": [], "b": ["a"]}, rewards={"a": reward, "b": None})
        said = dataclasses.replace(t.actions[0].generation, logprobs=logprobs)
        object.__setattr__(t.actions[0], "generation", said)
        groups.append([t])
    sums = [0.5 + 2 * 0.25, 0.25 + 2 * 2 * 0.5625]
    found = exponential_priorities(groups, 0.7, 2.0)
    assert found == pytest.approx([math.exp(0.7 * (s - max(sums))) for s in sums])
    assert exponential_priorities(groups, 1e6, 2.0) == [1e-6, 1.0]
    assert exponential_priorities(groups, 0.7, 0.0) == pytest.approx([1, math.exp(-0.175)])


class TestReplay(PlannedOnce):
    plugin = PLUGIN


def test_what_is_not_corrected_is_a_warning():
    words = ["--recipe", "tool_user/tiny.yaml", "--plugin", PLUGIN]
    assert "replay.uncorrected" in {w.code for w in build_plan(words).run.warnings}
    corrected = build_plan([*words, "--algo.advantage.is_correction_level", "token"]).run
    assert "replay.uncorrected" not in {w.code for w in corrected.warnings}


# --- a run
# --------------------------------------------------------------------------------------------------


def trainer_in(folder, plugins=(PLUGIN,), **changes):
    trainer = simulated_trainer(
        folder,
        lambda t: float(t.sample == 0),
        steps=5,
        eval_steps=-1,
        plugins=plugins,
        estimator=Estimator(),
    )
    trainer.run.output = folder
    options = {
        "groups": 2,
        "staleness": 2,
        "reward": 1.0,
        "advantage": 1.0,
        "beta": 0.5,
        "sharpness": 0.0,
        "gradient": 1.0,
    } | changes
    trainer.run.args.replay = SimpleNamespace(**options)
    (spec,) = trainer.session.cast.members["a"]
    spec.chat.policy = "p"
    spec.chat.tokenizer.eos_token_id = ord("^")
    return trainer


def trained(folder, **changes):
    trainer = trainer_in(folder, **changes)
    asyncio.run(trainer.fit(0))
    return trainer


def lines(folder, name):
    return list(map(json.loads, (folder / name).open()))


def test_groups_of_the_last_steps_are_trained_again_with_what_was_sampled(tmp_path):
    trained(tmp_path)
    everything = list(RunReader(tmp_path).trajectories(Filter(received=True)))
    own = {(t.step, t.task.id, t.sample): t for t in everything if not t.origin}
    again = [t for t in everything if t.origin]
    assert {t.step for t in again} == {2, 3, 4, 5}
    for t in again:
        before = own[int(t.origin.removeprefix("step ")), t.task.id, t.sample]
        assert 0 < t.step - before.step <= 2 and t.outcome == before.outcome
        for a, b in zip(t.actions, before.actions, strict=True):
            assert (a.path, a.generation.ids, a.generation.logprobs) == (
                b.path,
                b.generation.ids,
                b.generation.logprobs,
            )
            assert a.left_out is None and a.generation.version == t.step - 1
    for step in range(2, 6):
        groups = {(t.origin, t.task.id): [] for t in again if t.step == step}
        for t in (t for t in again if t.step == step):
            groups[t.origin, t.task.id].append(t.sample)
        assert 1 <= len(groups) <= 2 and all(
            sorted(samples) == [0, 1] for samples in groups.values()
        )
    for record in lines(tmp_path, "ledger.jsonl"):
        ledger = Ledger.from_record(record)
        assert (ledger.received is not None) == (ledger.step > 1)


def test_an_empty_buffer_and_no_groups_change_nothing(tmp_path):
    trained(tmp_path / "none", groups=0)
    trainer = trainer_in(tmp_path / "without", plugins=())
    asyncio.run(trainer.fit(0))
    one, two = (
        without_seconds(lines(tmp_path / name, "trajectories.jsonl"))
        for name in ("none", "without")
    )
    assert one == two
    trained(tmp_path / "some")
    assert (
        without_seconds(lines(tmp_path / "some", "trajectories.jsonl"))[:8] == one[:8]
    )  # the first step


def test_advantages_are_weighted_by_chance_and_by_number_of_draws(tmp_path):
    trainer = trained(tmp_path, groups=50)
    weights = trainer.run.state(Buffer).weights
    assert len({round(w, 6) for w in weights.values()}) > 1
    for t, weight in weights.items():
        assert [a.advantage for a in t.actions] == pytest.approx(
            [weight * a.returns for a in t.actions]
        )
    row = SimpleNamespace(trajectory=next(iter(weights)), weight=2.0)
    marl_select([row], trainer.run)
    assert row.weight == 2.0 * weights[row.trajectory]


def test_a_resumed_run_replays_the_same(tmp_path):
    trained(tmp_path / "whole")
    whole = without_seconds(lines(tmp_path / "whole", "trajectories.jsonl"))
    stopped = trainer_in(tmp_path / "resumed")
    stopped.run.max_steps = 3
    asyncio.run(stopped.fit(0))
    cut_back(tmp_path / "resumed", 2)
    resumed = trainer_in(tmp_path / "resumed")
    for policy in resumed.session.policies.values():
        policy.version = 2
    asyncio.run(resumed.fit(2))
    assert without_seconds(lines(tmp_path / "resumed", "trajectories.jsonl")) == whole
