"""What repeats: log-probs of engines enter training in steps, and `marl_plugins.determinism` tries
what it promises."""

import dataclasses
import json

import pytest
import torch
from plugin_pairs import words
from refusals import refused
from simulated import make_trajectory
from simulated_session import SimulatedEngines, recorded, run_planned

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.rows import rows_of
from marl_plugins.core.sequences import sequences_of
from marl_plugins.determinism.probe import OTHERS, question
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.plan.build import build_plan

cpu.install()
from openrlhf.models.loss import PolicyLoss  # noqa: E402

from marl_plugins.engine.processes import cluster  # noqa: E402
from marl_plugins.engine.runtime.experience import (  # noqa: E402
    LOGPROB_STEP,
    ForwardedExperience,
    SampledTokens,
    items_of,
)

PLUGIN, WHO = ["--plugin", "marl_plugins.determinism"], "marl_plugins.determinism"
TOKENS = 64
CORRECTIONS = {
    "token": {"is_correction_level": "token"},
    "token, clipped": {"is_correction_level": "token", "is_correction_mode": "clip"},
    "sequence": {"is_correction_level": "seq"},
    "binary KL": {
        "is_correction_level": "token",
        "is_correction_gating": "binary_kl",
        "is_correction_threshold": (0.0, 0.1),
    },
    "gspo": {"is_correction_level": "token", "policy_loss_type": "gspo"},
}


def items_with(rollout):
    """What is trained on where an engine gave a row's tokens these log-probs, and the trainer
    others."""
    trajectory = make_trajectory({"a.0": []})
    (action,) = trajectory.actions
    ids = tuple(range(10, 10 + TOKENS))
    action.generation = dataclasses.replace(
        action.generation, ids=ids, logprobs=tuple(rollout.tolist())
    )
    action.returns = 1.0
    rows = rows_of([trajectory], {"p"})
    known = SampledTokens(
        torch.ones(1, TOKENS), trainers()[None], rollout[None], torch.zeros(1, TOKENS)
    )
    f = ForwardedExperience("p", rows, sequences_of(rows), known, [0.0])
    advantages = torch.linspace(-1, 1, TOKENS)[None]
    return items_of(f, advantages, advantages, torch.ones(1))


def trainers():
    """The trainer's log-probs."""
    return -3 * torch.rand(TOKENS, generator=torch.Generator().manual_seed(0))


def noisy(size, seed):
    """The same of an engine whose batch has changed the last bits."""
    draw = torch.Generator().manual_seed(seed)
    return trainers() + size * torch.randn(TOKENS, generator=draw)


def gradient(rollout, loss):
    """Of upstream's loss, by the log-probs of the weights that are trained."""
    (item,) = items_with(rollout)
    now = (item.action_log_probs[None] * 1.001).requires_grad_()
    value = PolicyLoss(0.2, 0.2, **loss)(
        now,
        item.action_log_probs[None],
        item.advantages[None],
        item.action_mask[None],
        item.rollout_log_probs[None],
    )[0]
    (gradient,) = torch.autograd.grad(value, [now])
    assert gradient.count_nonzero() == TOKENS
    return gradient


@pytest.mark.parametrize("loss", CORRECTIONS.values(), ids=CORRECTIONS)
def test_last_bits_of_an_engines_log_probs_do_not_reach_the_weights(loss):
    gradients = [gradient(noisy(1e-6, seed), loss) for seed in range(6)]
    assert all(torch.equal(gradients[0], other) for other in gradients[1:])
    assert not torch.equal(gradients[0], gradient(noisy(0.1, 0), loss))


def test_a_difference_that_is_one_is_kept_to_half_a_step():
    (item,) = items_with(noisy(0.3, 1))
    trained = item.rollout_log_probs[-TOKENS:]
    assert (trained - noisy(0.3, 1)).abs().max() <= LOGPROB_STEP / 2 + 1e-6
    assert not torch.equal(trained, item.action_log_probs[-TOKENS:])


def test_on_gpus_every_process_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv(cpu.DEVICE, "cuda")
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:1")  # also of a cluster that somebody else started
    run = build_plan(["--recipe", "mathchat", *PLUGIN]).run
    assert all(args.train.full_determinism_enable for args in run.policy_args.values())
    assert {args.balance.in_flight for args in run.policy_args.values()} == {256}
    told = cluster._options(run, False, None, str(tmp_path))["runtime_env"]["env_vars"]
    assert told["VLLM_BATCH_INVARIANT"] == "1" and told["NCCL_ALGO"] == "Ring"
    plain = build_plan(["--recipe", "mathchat"]).run
    told = cluster._options(plain, False, None, str(tmp_path))["runtime_env"]["env_vars"]
    assert "VLLM_BATCH_INVARIANT" not in told


@pytest.mark.parametrize(("flags", "most"), [([], 1), (["--balance.in_flight", "7"], 7)])
def test_on_cpu_an_engine_has_one_request(tmp_path, flags, most):
    run = build_plan([*words(tmp_path, []), *PLUGIN, *flags]).run
    assert {args.balance.in_flight for args in run.policy_args.values()} == {most}
    assert not any(args.train.full_determinism_enable for args in run.policy_args.values())


def test_what_depends_on_timing_is_refused(tmp_path):
    with refused(("determinism.cache", WHO)):
        build_plan([*words(tmp_path, []), *PLUGIN, "--vllm.enable_prefix_caching"])


def test_the_questions_beside_the_first_one_are_parts_of_it(tmp_path):
    plan = build_plan([*words(tmp_path, []), *PLUGIN])
    asked = []

    class Noted(SimulatedEngines):
        async def generate(self, call, choose):
            asked.append(call)
            return await super().generate(call, choose)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulated_session.SimulatedEngines", Noted)
        run_planned(plan)
    call = max(asked, key=lambda call: len(call.context_ids))
    questions = [question(call, n) for n in range(OTHERS + 1)]
    assert questions[0].context_ids == call.context_ids
    assert len({q.seed for q in questions}) == len({len(q.context_ids) for q in questions}) == 9
    assert all(call.context_ids[-len(q.context_ids) :] == q.context_ids for q in questions)
    short = dataclasses.replace(call, context_ids=call.context_ids[:1])
    assert {question(short, n).context_ids for n in range(OTHERS + 1)} == {short.context_ids}


def test_every_process_is_on_record(tmp_path):
    plan = build_plan([*words(tmp_path, []), *PLUGIN])
    session = run_planned(plan).session
    lines = recorded(plan, "run/determinism.jsonl")
    engines = [line for line in lines if line["process"] == "engine"]
    assert all(line["equal"] for line in engines)
    pools = {policy.engines for policy in session.policies.values()}
    assert len(engines) == sum(len(pool.engines) for pool in pools)
    trained = [line["policy"] for line in lines if line["process"] == "training"]
    assert sorted(trained) == sorted(session.trained)


class Batched(SimulatedEngines):
    """Engines whose log-probs depend on how many requests they have."""

    running = 0

    async def generate(self, call, choose):
        self.running += 1
        try:
            answer = await super().generate(call, choose)
            off = 1e-6 * (self.running > 1)
            return dataclasses.replace(
                answer, logprobs=tuple(value - off for value in answer.logprobs)
            )
        finally:
            self.running -= 1


def test_an_engine_that_does_not_repeat_its_answer_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("simulated_session.SimulatedEngines", Batched)
    plan = build_plan([*words(tmp_path, []), *PLUGIN])
    with pytest.raises(ConfigurationError) as caught:
        run_planned(plan)
    assert {problem.code for problem in caught.value.problems} == {"determinism.off"}
    (line, *_) = (tmp_path / "run" / "run" / "determinism.jsonl").read_text().splitlines()
    assert not json.loads(line)["equal"]
