"""The curriculum: laws of its weights, every task has a chance, and what is drawn depends on seed,
step and state alone."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_once import PlannedOnce
from plugin_pairs import words
from simulated import without_seconds
from simulated_session import killed_after, recorded, run_planned

from marl_plugins.core.failures import RunPaused
from marl_plugins.core.trajectory import Task
from marl_plugins.curriculum import Successes, marl_batch, marl_restore, marl_state, weight
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.runtime.trainer import Trainer

OUTCOMES = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=4)
TASKS = [Task(f"t{n}", "p") for n in range(12)]


class TestContract(PlannedOnce):
    plugin = "marl_plugins.curriculum"


def run_of(seed=1, floor=0.1, decay=0.5, successes=None):
    found = Successes(successes or {})
    args = SimpleNamespace(
        train=SimpleNamespace(seed=seed), curriculum=SimpleNamespace(floor=floor, decay=decay)
    )
    return SimpleNamespace(args=args, state=lambda kind: found)


def drawn(run, step=1, count=3):
    return marl_batch(TASKS[:count], run, step, TASKS)


@given(st.lists(OUTCOMES, min_size=1, max_size=30), st.floats(0, 1))
def test_the_rate_is_that_of_the_weighted_past(history, decay):
    successes = Successes()
    for outcomes in history:
        successes.note({"t": outcomes}, decay)
    age = np.array([decay ** float(len(history) - 1 - n) for n in range(len(history))])
    s = (age * np.array([sum(o) for o in history])).sum()
    n = (age * np.array([len(o) for o in history])).sum()
    assert successes.rate("t") == pytest.approx((s + 1) / (n + 2), rel=1e-12)
    assert 0 < successes.rate("t") < 1


@given(st.floats(0, 1), st.floats(0.001, 1))
def test_a_weight_lies_between_the_floor_and_1_and_is_largest_in_the_middle(p, floor):
    assert floor <= weight(p, floor) <= weight(0.5, floor) == 1.0
    assert weight(p, floor) == pytest.approx(weight(1 - p, floor))


@given(
    st.integers(0, 1000),
    st.integers(1, 100),
    st.integers(1, 12),
    st.dictionaries(st.sampled_from([t.id for t in TASKS]), OUTCOMES),
)
def test_what_is_drawn_is_distinct_and_depends_on_seed_step_and_state_alone(
    seed, step, count, outcomes
):
    run = run_of(seed)
    run.state(Successes).note(outcomes, 0.5)
    found = drawn(run, step, count)
    assert len({t.id for t in found}) == count and all(t in TASKS for t in found)
    again = run_of(seed)
    marl_restore(again, json.loads(json.dumps(marl_state(run))))
    assert drawn(again, step, count) == found


def test_the_first_task_is_drawn_by_the_weights_and_none_is_forgotten():
    successes = {"t0": (50.0, 50.0), "t1": (0.0, 50.0), "t2": (2.0, 8.0)}
    run = run_of(successes=successes)
    weights = np.array([weight(Successes(successes).rate(t.id), 0.1) for t in TASKS])
    counts, steps = np.zeros(12), 4000
    for step in range(steps):
        counts[int(drawn(run, step, 1)[0].id[1:])] += 1
    expected = weights / weights.sum()
    assert np.abs(counts / steps - expected).max() < 4 * np.sqrt(expected.max() / steps)
    assert min(counts[:2]) > 0.5 * steps * 0.1 / 12


def test_a_run_notes_what_it_has_trained_on(tmp_path):
    plan = build_plan(words(tmp_path, ["curriculum"]))
    trainer = run_planned(plan)
    trajectories = recorded(plan, "trajectories.jsonl")
    expected = Successes()
    for step in (1, 2):
        outcomes = {}
        for t in trajectories:
            if t["step"] == step:
                outcomes.setdefault(t["task"], []).append(t["outcome"])
        expected.note(outcomes, 0.5)
    assert trainer.run.state(Successes) == expected
    assert [line["curriculum/seen"] for line in recorded(plan, "metrics.jsonl")][-1] == len(
        expected
    )


def test_a_step_whose_evaluation_pauses_the_run_counts(tmp_path, monkeypatch):
    """It is trained and saved, so what plugins keep of it is saved with it."""

    async def evaluate(self, step):
        if step:
            raise RunPaused("no evaluation")
        return {}, []

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    plan = build_plan(words(tmp_path, ["curriculum", "mean_group"], **{"eval.steps": "1"}))
    with pytest.raises(RunPaused, match="no evaluation"):
        run_planned(plan)
    state = json.loads((tmp_path / "saved" / "manifest.json").read_text())["state"]
    assert len(state["marl_plugins.curriculum"]) == 4 and len(state["marl_plugins.mean_group"]) > 1


def test_a_limit_of_answers_holds_after_a_resume(tmp_path):
    flags = {"mean_group.scales": "max_tokens", "mean_group.control": "0.5", "mean_group.rate": "1"}
    plan = build_plan(words(tmp_path, ["mean_group"], **flags))
    run_planned(plan)
    once = recorded(plan, "trajectories.jsonl")
    killed_after(plan, 1)
    run_planned(plan, resume=True)
    assert without_seconds(recorded(plan, "trajectories.jsonl")) == without_seconds(once)
    lengths = {t["step"]: [] for t in once}
    for t in once:
        lengths[t["step"]] += [
            len(a["ids"]) for a in t["actions"] if a["policy"] in ("left", "right")
        ]
    assert min(lengths[2]) < min(lengths[1])
