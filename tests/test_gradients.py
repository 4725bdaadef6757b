"""Gradients beside a rollout: the step's gradient is that of the full batch, and its bits do not
depend on what arrives first.

Without processes: upstream's model, losses and `training_step`, two ranks one after the other,
DeepSpeed's part a division.
"""

import asyncio
import copy
import json
import random
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from simulated import conversations

from marl_plugins.builtin.gae import Gae
from marl_plugins.builtin.groups import GroupMean, GroupNorm, LeaveOneOut, ReinforceBaseline
from marl_plugins.builtin.reinforce_pp import FlashReinforce, ReinforcePlusPlus
from marl_plugins.core.credit import ActionScores
from marl_plugins.core.estimators import Estimator, WhitenedAdvantages
from marl_plugins.core.failures import ConfigurationError, RunEnded
from marl_plugins.core.sampled import SampledActions
from marl_plugins.core.sequences import sequences_of
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.processes.extension import called
from marl_plugins.engine.processes.replay import MicroBatchBuffer
from marl_plugins.engine.processes.weighing_trainer import WeighingTrainer
from marl_plugins.engine.runtime.batching import rank_batches
from marl_plugins.engine.runtime.crediting import CreditAssignment
from marl_plugins.engine.runtime.experience import (
    completed,
    estimate,
    forwarded,
    sequence_experience,
)
from marl_plugins.engine.runtime.layout import Limit
from marl_plugins.engine.runtime.tiny_model import resolve
from marl_plugins.streaming.gradients import DTYPES
from marl_plugins.streaming.part import StreamingPart
from marl_plugins.streaming.worker import AccumulatedGradients

from openrlhf.models import Actor, PolicyLoss  # isort: skip  # after the host support
from openrlhf.models.loss import aggregate_loss  # isort: skip
from openrlhf.models.utils import compute_approx_kl  # isort: skip
from transformers import Qwen2Config, Qwen2ForCausalLM  # isort: skip
from refusals import brief, refused

RANKS, KL = 2, 0.3
TURN = {"group_by": "task+role+turn"}
ESTIMATORS = {
    "reinforce": ReinforcePlusPlus(gamma=0.9),
    "reinforce, by role": ReinforcePlusPlus(normalise="role"),
    "reinforce, not divided": ReinforcePlusPlus(divide=False),
    "reinforce_baseline": ReinforceBaseline(**TURN),
    "gae": Gae(gamma=0.9, lambd=0.8),
    "flash_reinforce": FlashReinforce(),
    "rloo": LeaveOneOut(**TURN),
    "dr_grpo": GroupMean(**TURN),
    "group_norm": GroupNorm(**TURN),
    "plain": Estimator(),
}
LOSSES = {
    "token mean": {},
    "dual clip": {"dual_clip": 1.1},
    "sequence mean": {"token_level_loss": False},
    "gspo": {"policy_loss_type": "gspo"},
    "importance sampling": {"is_correction_level": "token"},
}


def small_model():
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = Qwen2Config(
        vocab_size=1000, num_key_value_heads=1, attn_implementation="eager", **sizes
    )
    return Qwen2ForCausalLM(config).float()


def viewed(model):
    actor = Actor(model, temperature=0.7)
    actor.packing_samples = False
    return actor


class Strategy:
    """DeepSpeed's part of a step: it divides by the accumulation."""

    ring_attn_group, accumulated_gradient = None, 1

    def backward(self, loss, model, optimiser):
        (loss / self.accumulated_gradient).backward()

    def optimizer_step(self, *args, **more):
        pass

    def get_grad_norm(self, model):
        return 0.0


class Engine:
    """The model of a rank as DeepSpeed holds it, under upstream's actor."""

    temperature, packing_samples = 0.7, False

    def __init__(self, model):
        self.model, self.view = (
            SimpleNamespace(module=model, global_steps=0, skipped_steps=0),
            viewed(model),
        )

    def __call__(self, *args, **more):
        return self.view(*args, **more)

    def train(self):
        pass


class Process(WeighingTrainer):
    """Upstream's trainer of one rank."""

    def __init__(self, model, loss, kl, entropy):
        self.actor = Engine(model)
        self.strategy, self.ema_model, self.aux_loss, self.actor_optim = (
            Strategy(),
            None,
            False,
            None,
        )
        self.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
        clip = loss.get("dual_clip")
        self.args = SimpleNamespace(
            actor=SimpleNamespace(
                entropy_coef=entropy, eps_clip_low_high=[0.2, 0.2], dual_clip=clip
            ),
            algo=SimpleNamespace(
                kl=SimpleNamespace(
                    use_loss=bool(kl), init_coef=KL, estimator="k3", unbiased_gradient=False
                ),
                advantage=SimpleNamespace(
                    is_correction_level=loss.get("is_correction_level", "off")
                ),
            ),
            train=SimpleNamespace(dynamic_batch_enable=False),
        )
        self.actor_loss_fn = PolicyLoss(0.2, 0.2, **loss)
        self.extensions = [AccumulatedGradients(self)]


class Local:
    """A policy of two ranks in this process."""

    name, spec, version = "p", SimpleNamespace(trainable=True), 3
    batching = SimpleNamespace(limit=lambda stage: Limit(3))
    trainer = SimpleNamespace(kl_ctl=SimpleNamespace(value=KL))

    def __init__(self, loss="token mean", kl=False, entropy=0.0, noise=0.0, dtype="fp32"):
        self.args = SimpleNamespace(
            ds=SimpleNamespace(param_dtype=dtype),
            critic=SimpleNamespace(freezing_steps=0),
            algo=SimpleNamespace(kl=SimpleNamespace(use_loss=kl)),
        )
        self.loss, self.kl, self.entropy, self.noise = LOSSES[loss], kl, entropy, noise
        models = [small_model().to(DTYPES[dtype]) for _ in range(RANKS)]
        self.ranks = [Process(model, self.loss, kl, entropy or None) for model in models]
        self.group = SimpleNamespace(_actor_handlers=self.ranks, duplicate_actors=1)

    async def extension(self, name, method, *same, each=None):
        first = [()] * RANKS if each is None else [(one,) for one in each]
        return [
            called(r.extensions, name, method, (*mine, *same))
            for r, mine in zip(self.ranks, first, strict=True)
        ]

    async def forward(self, rows, known=()):
        return await completed(rows, sequences_of(rows), known, self._forward)

    async def _forward(self, sequences):
        batches = []
        for s in sequences:
            e = sequence_experience(s)
            seen = torch.tensor(s.ids, dtype=torch.float32).cumsum(0)[1:][None] * e.action_mask
            with torch.no_grad():
                now = self.ranks[0].actor(e.sequences, e.action_mask, e.attention_mask)
            e.action_log_probs = now + self.noise * torch.sin(seen) * e.action_mask
            e.base_action_log_probs = now + 0.3 * torch.cos(seen) * e.action_mask
            e.rollout_log_probs = now + 0.1 * torch.sin(seen + 1) * e.action_mask
            e.values, e.kl = torch.sin(seen + 2), 0.01 * torch.cos(seen) * e.action_mask
            e.info["logprobs_diff"] = torch.zeros(1)
            batches.append(([s], e))
        return forwarded("p", [row for s in sequences for row in s.rows], batches, 0.25)

    def gradient(self, prepared):
        """What DeepSpeed steps with: upstream's step of every micro-batch on each rank, and the
        mean over the ranks."""
        given = rank_batches(prepared.for_policy, RANKS, 1, Limit(3), 7, 1)
        own, gas = [], given.layout.accumulation
        for part, epochs in zip(given.parts, given.epochs, strict=True):
            buffer = MicroBatchBuffer(1, cpu_offload=False)
            buffer.append(part)
            buffer.lay_out(epochs)
            own.append([buffer.collate_fn([buffer[n]]) for n in range(len(buffer))])
        masks = [e.action_mask for batches in own for e in batches]
        info = {
            "dp_size": RANKS,
            "batch_num_tokens": torch.tensor(float(sum(m.sum() for m in masks))) / gas,
            "global_batch_size": torch.tensor(float(sum((m.sum(-1) > 0).sum() for m in masks)))
            / gas,
        }
        for rank, batches in zip(self.ranks, own, strict=True):
            rank.strategy.accumulated_gradient = gas
            for call in prepared.calls:
                called(rank.extensions, call.extension, call.method, call.arguments)
            for number, batch in enumerate(batches):
                rank.training_step(batch, KL, number, info)
        models = [rank.actor.model.module for rank in self.ranks]
        return torch.stack([flat([p.grad for p in model.parameters()]) for model in models]).mean(0)

    def full_batch(self, prepared):
        """The same in float64, all rows at once with their final advantages."""
        model = copy.deepcopy(self.ranks[0].actor.model.module).double()
        loss, items = PolicyLoss(0.2, 0.2, **self.loss), prepared.items
        tokens = float(sum(item.action_mask.sum() for item in items))
        counts = {"batch_num_tokens": tokens, "global_batch_size": float(len(items))}
        total = 0.0
        for item in items:
            one = SimpleNamespace(
                **{
                    n: v[None]
                    for n, v in vars(item).items()
                    if isinstance(v, torch.Tensor) and v.dim()
                }
            )
            mask, old = one.action_mask, one.action_log_probs.double()
            arguments = (one.sequences, mask, one.attention_mask)
            log_probs, out = viewed(model)(
                *arguments, return_output=True, return_entropy=bool(self.entropy)
            )
            total = (
                total
                + loss(
                    log_probs,
                    old,
                    one.advantages.double(),
                    mask,
                    one.rollout_log_probs.double(),
                    **counts,
                )[0]
            )
            if self.kl:
                kl = compute_approx_kl(
                    log_probs, one.base_action_log_probs, log_probs_old=old, kl_estimator="k3"
                )
                total = total + KL * aggregate_loss(kl, mask, **counts)
            if self.entropy:
                total = total - self.entropy * aggregate_loss(out.entropy, mask, **counts)
        return flat(torch.autograd.grad(total, list(model.parameters())))


def flat(gradients):
    return torch.cat([g.double().flatten() for g in gradients])


class Plugins:
    def __init__(self, **chains):
        self.chains = chains

    async def chain(self, name, value, check=None, **more):
        return self.chains.get(name, lambda v: v)(value)

    def owners(self, hook, run=None):
        return []


def step_of(seed, tasks=5, samples=2):
    """The trajectories of a step: ragged conversations of two roles, of which each begins with a
    context of its own."""
    draw, made = random.Random(seed), []
    for place in range(tasks):
        for sample in range(samples):
            t = conversations(draw.randrange(10**6), draw.randint(1, 4))
            t.task, t.place, t.sample, t.outcome = (
                Task(f"t{place}", "p"),
                place,
                sample,
                draw.random(),
            )
            for action in t.actions:
                action.generation = copy.copy(action.generation)
                object.__setattr__(action.generation, "version", 3)
                action.role = action.before.role if action.before else draw.choice("ab")
            made.append(t)
    return made


def streamed(policy, estimator, trajectories, order, tasks=1, centres=None, plugins=None):
    """A step with gradients during its rollout, up to its update."""
    means, scores = centres or {"a": 0.7, "b": 0.7}, ActionScores()
    run = SimpleNamespace(
        scorers=[],
        state=lambda kind: {ActionScores: scores}.get(kind) or kind(),
        recipe=SimpleNamespace(roles={}),
        policies=[],
        args=SimpleNamespace(
            train=SimpleNamespace(async_enable=False),
            streaming=SimpleNamespace(tasks=tasks, gradients=True),
            rollout=SimpleNamespace(n_samples_per_prompt=1 + max(t.sample for t in trajectories)),
        ),
    )

    async def work():
        sampled = SampledActions()
        for trajectory in trajectories:
            sampled.arrived(trajectory)
        crediting = CreditAssignment(
            run, plugins or Plugins(), {"p": policy}, estimator, 1, sampled
        )
        step = SimpleNamespace(
            number=1,
            tasks=[Task(f"t{n}", "p") for n in range(1 + max(t.place for t in trajectories))],
            policies={"p": policy},
            estimator=estimator,
            ended=asyncio.Event(),
            forwarded=[],
            credited=crediting.early,
        )
        part = StreamingPart(run, step, means)
        during = asyncio.create_task(part.during_rollout())
        for number in order:
            for _ in range(order[0]):
                await asyncio.sleep(0)
            part.arrived(trajectories[number])
        step.ended.set()
        await during
        rows = await crediting.rows(trajectories)
        (prepared,) = await part.prepared(
            estimate([await policy.forward(rows, step.forwarded)], estimator)
        )
        return prepared, part.gradients

    return asyncio.run(work())


def differs(one, other):
    return ((one - other).norm() / other.norm()).item()


@pytest.mark.parametrize(
    ("name", "loss"), [*((name, "token mean") for name in ESTIMATORS), ("reinforce", "gspo")]
)
def test_every_estimator_has_the_full_batchs_gradient(name, loss):
    policy, trajectories = Local(loss, kl=True), step_of(3)
    order = random.Random(4).sample(range(10), 10)
    prepared, _ = streamed(policy, ESTIMATORS[name], trajectories, order, tasks=2)
    assert len(prepared.excluded) == len(prepared.items) > 10
    assert differs(policy.gradient(prepared), policy.full_batch(prepared)) < 2e-6


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_that_leave_the_clip_interval_take_the_late_path(loss):
    policy, trajectories = Local(loss, noise=0.12 if loss == "dual clip" else 0.25), step_of(5)
    prepared, _ = streamed(
        policy, ESTIMATORS["reinforce"], trajectories, list(range(10)), centres={"": 0.4}
    )
    assert 0 < len(prepared.excluded) < len(prepared.items)
    assert differs(policy.gradient(prepared), policy.full_batch(prepared)) < 2e-6


def test_with_an_entropy_bonus_whose_compiled_graph_cannot_be_kept():
    policy = Local(kl=True, entropy=0.1, noise=0.15)
    prepared, _ = streamed(policy, ESTIMATORS["reinforce, by role"], step_of(5), list(range(10)))
    assert prepared.excluded
    assert differs(policy.gradient(prepared), policy.full_batch(prepared)) < 2e-6


def test_the_bits_are_the_same_whatever_arrives_first():
    found = []
    for seed in range(3):
        policy = Local(noise=0.15)
        order = random.Random(seed).sample(range(10), 10)
        prepared, _ = streamed(policy, ESTIMATORS["reinforce, by role"], step_of(6), order, tasks=2)
        found.append(policy.gradient(prepared))
    assert prepared.excluded and all(torch.equal(found[0], other) for other in found[1:])


def test_what_float32_does_not_resolve_is_trained_the_usual_way():
    """All returns are nearly the same and the centre is far off."""
    trajectories = step_of(6)
    for number, trajectory in enumerate(trajectories):
        trajectory.outcome = 0.7 + 1e-6 * number
    prepared, early = streamed(Local(), FlatReturns(), trajectories, list(range(10)))
    assert early.added["p"] and not prepared.excluded
    assert early.means[""] == pytest.approx(0.7, abs=1e-4)


@pytest.mark.parametrize(("centre", "carried"), [(0.0, False), (0.45, True)])
def test_in_bfloat16_it_is_hardly_rounded_by_more_than_the_usual_one(centre, carried):
    """Advantages around 0.57, of a deviation of 0.17: without a centre four times as much is
    lost."""
    policy, estimator, trajectories = Local(dtype="bf16"), ReinforcePlusPlus(), step_of(6)
    prepared, early = streamed(
        policy, estimator, trajectories, list(range(10)), centres={"": centre}
    )
    assert early.added["p"] and bool(prepared.excluded) is carried
    exact, usual = (
        policy.full_batch(prepared),
        Local(dtype="bf16").gradient(replace(prepared, excluded=frozenset(), calls=())),
    )
    assert differs(policy.gradient(prepared), exact) <= 2 * differs(usual, exact)


class FlatReturns(WhitenedAdvantages):
    """Without the penalty of the KL."""

    def estimate(self, rewards, mask, values):
        advantages, _ = super().estimate(rewards.round(decimals=1), mask, values)
        return advantages, advantages


def test_a_row_whose_gradient_has_been_taken_is_not_reweighed_any_more():
    policy = Local(noise=0.25)
    prepared, _ = streamed(
        policy, ESTIMATORS["reinforce"], step_of(5), list(range(10)), centres={"": 0.4}
    )
    for number, sequence in enumerate(prepared.sequences):
        weights = dict.fromkeys(sequence.rows, 0.5)
        before = [row.action.advantage for row in sequence.rows]
        if number in prepared.excluded:
            with pytest.raises(ValueError, match="AccumulatedGradients"):
                prepared.reweighed(weights)
            assert [row.action.advantage for row in sequence.rows] == before
        else:
            prepared = prepared.reweighed(weights)
    assert 0 < len(prepared.excluded) < len(prepared.items)
    assert differs(policy.gradient(prepared), policy.full_batch(prepared)) < 2e-6


def rewarded(amount):
    """A selection that says to need a trajectory alone, and gives each row a reward by the number
    of all."""
    return {"marl_select": lambda rows: [replace(row, reward=amount * len(rows)) for row in rows]}


@pytest.mark.parametrize(
    ("estimator", "chains"),
    [
        (ESTIMATORS["reinforce"], {"marl_select": lambda rows: rows[: len(rows) - 7]}),
        (ESTIMATORS["plain"], rewarded(1.0)),
        (
            ESTIMATORS["plain"],
            rewarded(1e-6),
        ),  # however small rewards are, an optimiser may make them large
        (WhitenedAdvantages(), {}),
    ],
)
def test_a_plugin_or_estimator_that_needs_more_than_it_says_ends_the_run(
    estimator, chains, monkeypatch
):
    if not chains:
        monkeypatch.setattr(
            WhitenedAdvantages, "shape", lambda self, rows, rewards: rewards * len(rows)
        )
    with pytest.raises(
        RunEnded, match=r"needs more of a step than it says .*nothing of this step was trained on"
    ):
        streamed(Local(), estimator, step_of(6), list(range(10)), plugins=Plugins(**chains))


def test_credit_is_given_once():
    """A plugin's terms are in the rewards once, of trajectories that came early and of the others;
    it is not asked about none."""
    seen = []

    def counted(trajectories):
        assert trajectories
        seen.extend(id(t) for t in trajectories)
        return trajectories

    trajectories = step_of(6)
    plugins = Plugins(marl_credit=counted)
    streamed(Local(), ESTIMATORS["rloo"], trajectories, list(range(10)), plugins=plugins)
    assert sorted(seen) == sorted(map(id, trajectories))


# --- the plan
# --------------------------------------------------------------------------------------------------

SUMS = [
    "--recipe",
    "tests/recipes/sums/tiny.yaml",
    "--plugin",
    "marl_plugins.streaming",
    "--streaming.gradients",
]


def test_the_plan_says_what_the_accumulators_take():
    def said(*words):
        found = [
            w for w in build_plan([*SUMS, *words]).run.warnings if w.code == "streaming.memory"
        ]
        return {w.names("policy")[0]: int(w.got.split()[1]) for w in found}

    default = said()
    assert default["solver"] == 8 and len(default) == 3
    assert (
        said("--algo.kl.init_coef", "0.1", "--algo.kl.use_loss", "--algo.kl.estimator", "k2")[
            "solver"
        ]
        == 12
    )
    assert list(said("--mapping", "shared", "--reinforce_pp.normalise", "role").values()) == [24]


def of(code, *places):
    return "streaming." + code, "streaming.gradients", *places


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--train.batch_size", "8"], of("optimiser_steps")),
        (["--train.max_epochs", "2"], of("epochs", "coder", "train.max_epochs")),
    ],
)
def test_where_it_is_refused_the_policy_and_the_flag_are_named(words, expected):
    with pytest.raises(ConfigurationError) as refused:
        build_plan([*SUMS, *words])
    assert expected in [
        brief(replace(p, where=p.where[-len(expected) + 1 :])) for p in refused.value.problems
    ]


def test_a_model_that_drops_is_refused(tmp_path):
    folder = shutil.copytree(resolve("tiny"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    words = [*SUMS, "--policy.coder.actor.model_name_or_path", str(folder)]
    assert build_plan(words)
    (folder / "config.json").write_text(
        json.dumps(config | {"attention_dropout": 0.1, "hidden_dropout_prob": 0.0})
    )
    with refused(("streaming.dropout", "streaming.gradients", "coder")):
        build_plan(words)


def test_zero_3_is_refused_on_gpus(monkeypatch):
    """On CPU it is refused altogether."""
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    with pytest.raises(ConfigurationError) as refused:
        build_plan([*SUMS, "--ds.zero_stage", "3"])
    (found,) = [
        p
        for p in refused.value.problems
        if "coder" in p.names("policy") and p.code == "streaming.zero_stage"
    ]
    assert found.names("flag") == ("streaming.gradients", "ds.zero_stage")
