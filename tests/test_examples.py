"""The plugins in examples/: the contracts that any plugin keeps, and their formulas against
numpy."""

import asyncio
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planned_once import PlannedOnce
from simulated import make_trajectory
from simulated_run import simulated_trainer

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load
from marl_plugins.core.process_backend import TrainingSpec
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.rows import Row
from marl_plugins.engine.plan.build import build_plan

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


class TestMaxRL(PlannedOnce):
    plugin = str(EXAMPLES / "maxrl.py")
    flags = ("--rollout.n_samples_per_prompt", "4")


class TestRAE(PlannedOnce):
    plugin = "marl_plugins.rae"


class TestWeightAverage(PlannedOnce):
    plugin = str(EXAMPLES / "weight_average.py")


class TestBusyProcesses(PlannedOnce):
    plugin = str(EXAMPLES / "busy_processes.py")


class TestStragglers(PlannedOnce):
    plugin = str(EXAMPLES / "stragglers.py")


class TestHierarchicalGRPO(PlannedOnce):
    plugin = str(EXAMPLES / "hierarchical_grpo.py")
    flags = ("--hierarchical.attempts", "verifier", "--rollout.n_samples_per_prompt", "2")


class TestWordLimits(PlannedOnce):
    plugin = str(EXAMPLES / "word_limits.py")


class TestTrackTrackio(PlannedOnce):
    plugin = str(EXAMPLES / "track_trackio.py")


class TestTrackMlflow(PlannedOnce):
    plugin = str(EXAMPLES / "track_mlflow.py")


@pytest.fixture
def limited(tmp_path):
    """A recipe with the section that a text makes."""
    shutil.copytree(recipes_root() / "vote", tmp_path / "vote")
    shutil.copy(EXAMPLES / "word_limits.py", tmp_path / "vote")

    def write(text):
        path = tmp_path / "vote" / "limited.yaml"
        path.write_text(f"extends: tiny.yaml\nplugins: [word_limits.py]\nword_limits: {text}\n")
        return build_plan(["--recipe", str(path)])

    return write


def test_a_section_is_read_and_what_is_over_the_limit_costs(limited):
    plan = limited("{weight: 0.2, roles: {voter: {words: 2}, decider: {words: 1, weight: 0.5}}}")
    trajectory = make_trajectory({"voter": [], "judge": [], "decider": ["voter", "judge"]})
    for action, words in zip(trajectory.actions, (3, 9, 2), strict=True):
        action.text, action.reward = "word " * words, 1.0
    asyncio.run(plan.plugins.chain("marl_credit", [trajectory], run=plan.run))
    assert [a.reward for a in trajectory.actions] == pytest.approx([1 - 0.2 / 2, 1.0, 1 - 0.5])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{wieght: 1}", "word_limits.wieght: unknown key; did you mean 'weight'?"),
        (
            "{roles: {votre: {words: 3}}}",
            "word_limits.roles.votre: no such role; did you mean 'voter'?",
        ),
    ],
)
def test_what_is_wrong_with_a_section_is_said_with_file_line_and_key(limited, text, problem):
    with pytest.raises(ConfigurationError) as caught:
        limited(text)
    (found,) = map(str, caught.value.problems)
    assert f"limited.yaml:3: {problem}" in found


def rows_of(groups):
    """One row per reward: `groups` maps a task to its rewards."""
    rows, rewards = [], []
    for task, values in groups.items():
        for sample, value in enumerate(values):
            trajectory = make_trajectory({"a": []}, task=task, sample=sample)
            rows.append(Row(trajectory, trajectory.actions[0], value))
            rewards.append(value)
    return rows, torch.tensor(rewards)


rewards = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6)


@given(st.dictionaries(st.sampled_from("abcd"), rewards, min_size=1))
def test_maxrl_divides_by_the_groups_mean(groups):
    rows, tensor = rows_of(groups)
    got = load(str(EXAMPLES / "maxrl.py")).MaxRL(group_by="task").shape(rows, tensor)
    want = []
    for values in groups.values():
        r = np.asarray(values, dtype=np.float64)
        want += list((r - r.mean()) / r.mean()) if r.mean() > 0 else [0.0] * len(r)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


def credited(plan, by_role):
    """Rewards after `marl_credit` of a step with these rewards of each role."""
    edges = {f"{role}{n}": [] for role, values in by_role.items() for n in range(len(values))}
    given = {f"{role}{n}": v for role, values in by_role.items() for n, v in enumerate(values)}
    trajectory = make_trajectory(edges, rewards=given, roles={path: path[0] for path in edges})
    for hook in ("marl_credit", "marl_credit_step"):
        asyncio.run(plan.plugins.chain(hook, [trajectory], run=plan.run))
    return {a.path: a.reward for a in trajectory.actions}


def test_rae_keeps_a_baseline_by_role_through_a_resume():
    words = ["--recipe", "mathchat/tiny.yaml", "--plugin", "marl_plugins.rae", "--rae.decay", "0.9"]
    undisturbed, killed, resumed = (build_plan(words) for _ in range(3))
    steps = [
        {"a": [1.0, 0.0], "b": [0.5]},
        {"a": [1.0], "b": [0.25, 0.75]},
        {"a": [0.0], "b": [1.0]},
    ]
    want = [credited(undisturbed, step) for step in steps]
    baseline = {role: np.mean(values) for role, values in steps[0].items()}
    for step, got in zip(steps, want, strict=True):  # the formula, in float64
        for role, values in step.items():
            for n, value in enumerate(values):
                assert math.isclose(got[f"{role}{n}"], value - baseline[role])
            baseline[role] = 0.9 * baseline[role] + 0.1 * np.mean(values)
    assert [credited(killed, step) for step in steps[:2]] == want[:2]
    resumed.plugins.restore(resumed.run, killed.plugins.state(killed.run))
    assert credited(resumed, steps[2]) == want[2]
    assert credited(build_plan(words), steps[2]) != want[2]  # without the state it would be another


def test_attempts_are_compared_within_a_proposal_and_proposals_across_samples():
    rows, values = [], []
    given = {"p": [1.0, 0.0], "s": [[1.0, 0.0], [0.0, 0.0]]}
    for sample in (0, 1):
        edges = {"p": [], "s0": ["p"], "s1": ["p"]}
        trajectory = make_trajectory(edges, sample=sample, roles={"p": "p", "s0": "s", "s1": "s"})
        for action, value in zip(
            trajectory.actions, [given["p"][sample], *given["s"][sample]], strict=True
        ):
            rows.append(Row(trajectory, action, value))
            values.append(value)
    estimator = load(str(EXAMPLES / "hierarchical_grpo.py")).HierarchicalGRPO(attempts=("s",))
    assert estimator.shape(rows, torch.tensor(values)).tolist() == [0.5, 0.5, -0.5, -0.5, 0.0, 0.0]


def test_the_average_of_weights_is_an_exponential_one_and_comes_back():
    average = load(str(EXAMPLES / "weight_average.py")).WeightAverage
    module = torch.nn.Linear(3, 2).to(torch.bfloat16)
    trainer = SimpleNamespace(
        args=SimpleNamespace(average=SimpleNamespace(decay=0.9)),
        actor=SimpleNamespace(model=SimpleNamespace(module=module)),
    )
    kept, wanted = average(trainer), None
    for number in range(4):
        with torch.no_grad():
            module.weight.add_(number + 1)
        now = module.weight.detach().double().numpy()
        wanted = now if wanted is None else 0.9 * wanted + 0.1 * now
        kept.fitted({"policy_loss": 0.0})
        kept.fitted({})  # a fit that failed changes nothing
        resumed = average(trainer)
        resumed.restore(kept.state())
        kept = resumed
    assert np.allclose(kept.average["weight"], wanted, rtol=1e-5)


def test_stragglers_are_timed_from_the_share_on(tmp_path):
    stragglers = load(str(EXAMPLES / "stragglers.py")).Stragglers
    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=1, eval_steps=-1, tasks=5, samples=2)
    trainer.run.args.stragglers = SimpleNamespace(share=0.9)
    parts = []
    trainer.plugins.parts.append(
        lambda step: parts.append(stragglers(trainer.run, step)) or parts[-1]
    )
    asyncio.run(trainer.fit(0))
    (part,) = parts
    assert len(part.arrivals) == 10
    assert part.metrics() == {"stragglers/seconds": part.arrivals[9] - part.arrivals[8]}


def test_the_seconds_of_processes_in_use_are_measured_by_policy():
    backend = build_plan(
        [
            "--recipe",
            "tests/recipes/sums/tiny.yaml",
            "--plugin",
            str(EXAMPLES / "busy_processes.py"),
        ]
    )
    backend = backend.run.processes
    specs = [TrainingSpec(name, None, "cpu", None, max_steps=1, silence=1.0) for name in "pq"]
    processes = {spec.policy: backend.processes_of(spec) for spec in specs}

    async def work():
        async with processes["p"].active():
            await asyncio.sleep(0.01)

    asyncio.run(work())
    found = backend.metrics()
    assert found["processes/p/busy"] >= 0.01 and found["processes/q/busy"] == 0
    assert backend.metrics() == {"processes/p/busy": 0.0, "processes/q/busy": 0.0}
