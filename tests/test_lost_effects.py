"""The plan says that nothing is left of a plugin's effect exactly where the advantages are the same
with it and without it."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from simulated import make_trajectory

from marl_plugins.cooperation import marl_credit_step as cooperate
from marl_plugins.core.problems import at
from marl_plugins.core.rows import rows_of
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.resolve_plugins import estimator_of

ROLES = ("solver", "coder", "verifier")
BASE = ["--recipe", "mathchat/tiny.yaml", "--rollout.n_samples_per_prompt", "4"]
GROUPED = ["--groups.by", "task+role+turn", "--algo.advantage.estimator"]
WORDS = {
    "global": [],
    "role": ["--reinforce_pp.normalise", "role"],
    "policy": ["--reinforce_pp.normalise", "policy"],
    "centred": ["--reinforce_pp.normalise", "policy", "--algo.advantage.no_std_norm"],
    "later": ["--reinforce_pp.scope", "trajectory", "--reinforce_pp.normalise", "policy"],
    "flash": ["--algo.advantage.estimator", "flash_reinforce"],
    **{name: [*GROUPED, name] for name in ("rloo", "dr_grpo", "group_norm", "reinforce_baseline")},
}


def advantages(estimator, mapping, change):
    """Of eight tasks with four samples of three roles, whose rewards are changed by policy."""
    draw, trajectories = random.Random(0), []
    policies = {role: role if mapping == "separate" else "shared" for role in ROLES}
    for number in range(32):
        edges = {"solver": [], "coder": ["solver"], "verifier": ["coder"]}
        if number % 3 == 0:
            edges.pop("verifier")
        rewards = {path: change(draw.random(), policies[path]) for path in edges}
        trajectories.append(
            make_trajectory(edges, policies, rewards, f"t{number // 4}", number % 4)
        )
    estimator.write_returns(trajectories)
    rows = rows_of(trajectories, set(policies.values()))
    shaped = estimator.shape(rows, torch.tensor([row.reward for row in rows]).double())
    mask = torch.ones(len(rows), 2, dtype=torch.bool)
    tokens = torch.stack([torch.zeros_like(shaped), shaped], 1)
    values, _ = estimator.estimate(tokens, mask, None)
    return estimator.apply(rows, values, estimator.statistics([(rows, values, mask)]))


OFFSETS = {"solver": 0.3, "coder": 0.8, "verifier": 0.1, "shared": 0.5}


@pytest.mark.parametrize("mapping", ["separate", "shared"])
@pytest.mark.parametrize("name", WORDS)
def test_a_baseline_or_a_factor_is_lost_where_the_plan_says_so(name, mapping):
    plan = build_plan([*BASE, "--mapping", mapping, *WORDS[name]])
    estimator = estimator_of(plan)
    run = replace(plan.run, advantages=estimator)
    plain = advantages(estimator, mapping, lambda reward, policy: reward)
    changes = {
        "baseline": lambda reward, policy: reward - OFFSETS[policy],
        "factor": lambda reward, policy: reward * (1 + OFFSETS[policy]),
    }
    for effect, change in changes.items():
        same = torch.allclose(advantages(estimator, mapping, change), plain, atol=1e-6)
        warned = bool(run.lost_effect(at(flag="x"), effect))
        assert warned == same or (name == "later" and not warned), (effect, name, mapping)


@pytest.mark.parametrize("samples", [1, 2, 8])
def test_the_temperature_of_shares_is_lost_with_one_sample(samples):
    """Tau from 0 to infinity gives the same shares exactly where the plan warns."""
    words = ["--recipe", "mathchat/tiny.yaml", "--plugin", "marl_plugins.cooperation"]
    plan = build_plan([*words, "--rollout.n_samples_per_prompt", str(samples)])
    warned = "plan.lost_effect" in {problem.code for problem in plan.run.warnings}
    found = []
    for tau in (0.0, 0.01, 1.0, float("inf")):
        draw = random.Random(samples)
        trajectories = [
            make_trajectory(
                {"a": [], "b": ["a"]}, rewards={"a": draw.random(), "b": draw.random()}, sample=n
            )
            for n in range(samples)
        ]
        given = {**vars(plan.run.args.cooperation), "factor": 1.0, "tau": tau}
        args = SimpleNamespace(cooperation=SimpleNamespace(**given))
        cooperate(trajectories, SimpleNamespace(args=args, state=lambda kind: kind()))
        found.append([action.reward for t in trajectories for action in t.actions])
    assert warned == all(rewards == pytest.approx(found[0]) for rewards in found)
