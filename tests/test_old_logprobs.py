"""`marl_plugins.old_logprobs`: a token's log-prob by the weights that sampled it, and then the
newest weights are there again."""

import asyncio
import dataclasses
import random
from types import SimpleNamespace

import pytest
import torch
from plugin_pairs import words
from refusals import refused
from simulated import make_trajectory
from simulated_session import recorded, run_planned
from test_ema import alone, trainer_of  # noqa: F401

from marl_plugins.core.rows import rows_of
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.old_logprobs import OldLogProbs
from marl_plugins.old_logprobs.worker import OldWeights

LAG = 2


class Local:
    """A policy whose trainer gives token i of id t the log-prob `weight[t]`, in one process that is
    made anew at every call."""

    name, spec = "p", SimpleNamespace(trainable=True)

    def __init__(self):
        self.version, self.module = 0, torch.nn.Linear(16, 1).to(torch.bfloat16)
        self.worker = OldWeights(trainer_of(self.module, 0.0))
        self.past = {}

    async def extension(self, name, method, *arguments):
        assert name == type(self.worker).__name__
        again = OldWeights(self.worker.trainer)
        again.restore(self.worker.state())
        self.worker = again
        return [getattr(self.worker, method)(*arguments)]

    def log_probs(self, row):
        return [self.module.weight[0, t].item() for t in row.action.generation.ids]

    async def forward(self, rows):
        longest = max(len(row.action.generation.ids) for row in rows)
        padded = [
            self.log_probs(row) + [0.0] * (longest - len(row.action.generation.ids)) for row in rows
        ]
        return SimpleNamespace(tokens=SimpleNamespace(log_probs=torch.tensor(padded)))

    def learn(self):
        with torch.no_grad():
            self.module.weight.add_(torch.randn(self.module.weight.shape).to(torch.bfloat16))
        self.version += 1


def sampled_rows(draw, policy, oldest):
    """Rows by the weights of one to three versions each, with the trainer's log-probs; and those
    that they ought to have."""
    trajectory = make_trajectory({f"a.{n}": [] for n in range(4)})
    for action in trajectory.actions:
        ids = tuple(draw.randrange(16) for _ in range(draw.randint(3, 7)))
        first, *later = sorted(
            draw.sample(
                range(oldest, policy.version + 1), draw.randint(1, policy.version + 1 - oldest)
            )
        )
        changes = tuple((place, version) for place, version in enumerate(later, 1))
        action.generation = dataclasses.replace(
            action.generation, ids=ids, logprobs=(-1.0,) * len(ids), version=first, changes=changes
        )
        action.returns = 1.0
    rows = rows_of([trajectory], {"p"})
    for row in rows:
        row.action.trainer_logprobs = tuple(policy.log_probs(row))
    return rows


def train(part_of, policy, rows):
    """One step: what its part finds out, and an update."""
    part = part_of(SimpleNamespace(policies={"p": policy}))
    before = policy.module.weight.detach().clone()
    asyncio.run(part.prepared([SimpleNamespace(policy="p", rows=rows)]))
    assert torch.equal(policy.module.weight, before)
    policy.past[policy.version] = before[0].tolist()
    policy.learn()
    return part


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(3))
def test_each_token_has_the_log_prob_of_the_weights_that_sampled_it(seed):
    torch.manual_seed(seed)
    draw, policy = random.Random(seed), Local()
    for _ in range(6):
        rows = sampled_rows(draw, policy, max(0, policy.version - LAG))
        part = train(lambda step: OldLogProbs(step, LAG), policy, rows)
        for row in rows:
            generation = row.action.generation
            wanted = [
                policy.past[v][t]
                for v, t in zip(generation.token_versions, generation.ids, strict=True)
            ]
            assert part.found[row.action] == wanted
            assert torch.equal(torch.tensor(row.action.notes["old_logprobs"]), torch.tensor(wanted))
        assert len(policy.worker.by_version) <= LAG
        metrics = part.metrics()
        assert metrics.keys() == {
            f"{of}/{kind}_{name}" for of in ("policy/p", "role/a.0", "role/a.1", "role/a.2", "role/a.3")
            for kind in ("lag", "engine") for name in ("ratio", "ess")
        }  # fmt: skip
        if policy.version == 1:  # the first step is by the weights that it trains
            assert (metrics["policy/p/lag_ratio"], metrics["policy/p/lag_ess"]) == (1, 1)


@pytest.mark.usefixtures("alone")
def test_of_weights_that_are_not_kept_nothing_is_said():
    """As in the first steps after a run that did not have the plugin."""
    draw, policy = random.Random(0), Local()
    policy.learn()
    rows = sampled_rows(draw, policy, 0)
    part = train(lambda step: OldLogProbs(step, LAG), policy, rows)
    of_now = {row.action for row in rows if set(row.action.generation.token_versions) == {1}}
    assert part.found.keys() == of_now and len(of_now) < len(rows)
    assert all(("old_logprobs" in row.action.notes) == (row.action in of_now) for row in rows)


@pytest.mark.usefixtures("alone")
def test_what_a_process_has_taken_over_is_its_own():
    """The state of the process before it may lie in memory that others share and need back."""
    policy = Local()
    policy.worker.keep(0, 0)
    state = policy.worker.state()
    again = OldWeights(policy.worker.trainer)
    again.restore(state)
    wanted = state[0]["weight"].clone()
    state[0]["weight"].zero_()
    assert torch.equal(again.by_version[0]["weight"], wanted)


def test_what_is_trained_does_not_change(tmp_path):
    learnt = []
    for names in (["old_logprobs"], ["async"]):
        folder = tmp_path / names[0]
        folder.mkdir()
        plan = build_plan([*words(folder, names), "--max_steps", "3"])
        learnt.append(
            {name: policy.learnt for name, policy in run_planned(plan).session.trained.items()}
        )
        steps = [m for m in recorded(plan, "metrics.jsonl") if "drift/max" in m]
        assert len(steps) == 3 and all(
            any(key.endswith("/lag_ess") for key in m) == ("old_logprobs" in names) for m in steps
        )
    assert learnt[0] == learnt[1]


def test_without_a_lag_there_is_nothing_to_tell_apart(tmp_path):
    with refused(("old_logprobs.async", "marl_plugins.old_logprobs")):
        build_plan([*words(tmp_path, []), "--plugin", "marl_plugins.old_logprobs"])
