"""The plan says that nothing is left of a plugin's effect exactly where the advantages are the same
with it and without it."""

import asyncio
import random
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from simulated import make_trajectory

from marl_plugins.cooperation import marl_credit_step as cooperate
from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.problems import at
from marl_plugins.core.recipe.shipped import recipes_root
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


MINE = """
from marl_plugins import hookimpl

@hookimpl
def {hook}(trajectories):
    for action in (a for t in trajectories for a in t.actions):
        action.add_reward("mine", 0.5 if action.role == "solver" else 0.0)
    return trajectories
"""
REWARDS = "plugins: [marl_plugins.rewards]\nrewards: {terms: [{kind: outcome}]}\n"


@pytest.mark.parametrize("hook", ["marl_credit", "marl_credit_step"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("writes", "base", "more"),
    [
        ("marl_plugins.reward_backprop", "tiny_outcome.yaml", ""),
        ("marl_plugins.reward_backprop", "tiny_outcome.yaml", REWARDS),
        ("marl_plugins.reward_backprop", "tiny.yaml", ""),
        ("marl_plugins.counterfactual", "tiny_outcome.yaml", ""),
    ],
)
def test_rewards_are_replaced_where_the_plan_says_so(tmp_path, hook, first, writes, base, more):
    """A plugin's rewards make a difference to those that another one writes, or the plan warns."""
    folder = tmp_path / "recipe"
    shutil.copytree(recipes_root() / "mathchat", folder)
    (folder / "mine.yaml").write_text(f"extends: {base}\n{more}")
    (tmp_path / "mine.py").write_text(MINE.format(hook=hook))
    mine = str(tmp_path / "mine.py")
    found = {}
    for names in ([writes], [mine, writes] if first else [writes, mine]):
        words = [word for name in names for word in ("--plugin", name)]
        plan = build_plan(["--recipe", str(folder / "mine.yaml"), *words])
        trajectories = [
            make_trajectory({"solver": [], "coder": ["solver"]}, sample=n) for n in range(2)
        ]
        for n, t in enumerate(trajectories):
            t.outcome, t.actions_scored = float(n), "coach" in " ".join(plan.run.plugins)
            for action in t.actions:
                action.score = 0.5 if t.actions_scored else None
        rewards_from_scores(trajectories, trajectories[0].actions_scored)

        async def credited(plan=plan, trajectories=trajectories):
            for step in ("marl_credit", "marl_credit_step"):
                await plan.plugins.chain(step, trajectories, run=plan.run)

        asyncio.run(credited())
        found[len(names)] = [action.reward for t in trajectories for action in t.actions]
    warned = [problem for problem in plan.run.warnings if problem.code == "plan.replaced_rewards"]
    assert bool(warned) == (found[1] == found[2])
    assert all(mine in str(problem) for problem in warned)
