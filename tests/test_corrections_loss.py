"""Corrected actions in the update: upstream's own training loop on a tiny model, against plain
torch in float64."""

import asyncio
import copy
import random
from types import SimpleNamespace

import pytest
import torch
from simulated import conversations
from vocabularies import CHATML, of_bytes

from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.estimators import Estimator
from marl_plugins.core.rows import Row
from marl_plugins.core.sequences import sequences_of
from marl_plugins.core.trajectory import Correction
from marl_plugins.engine.runtime.layout import Limit

policy_actor = pytest.importorskip("marl_plugins.engine.processes.policy_actor")
from marl_plugins.builtin.corrections import part as part_of_step  # noqa: E402
from marl_plugins.builtin.corrections.extra import CorrectedActions, corrected_actions  # noqa: E402
from marl_plugins.builtin.corrections.part import CorrectionsPart  # noqa: E402
from marl_plugins.builtin.corrections.worker import CorrectionsLoss  # noqa: E402
from marl_plugins.engine.processes.replay import MicroBatchBuffer  # noqa: E402
from marl_plugins.engine.processes.weighing_trainer import WeighingTrainer  # noqa: E402
from marl_plugins.engine.runtime.batching import rank_batches  # noqa: E402
from marl_plugins.engine.runtime.experience import estimate, forwarded, sequence_experience  # noqa: E402

from openrlhf.models import Actor, PolicyLoss  # noqa: E402  # isort: skip  # after the host support
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM  # noqa: E402  # isort: skip

CLIP, COEF, TEMPERATURE = 0.2, 0.3, 0.7


class Numbers:
    """A chat of numbers between spaces."""

    end_of_turn = (1,)

    @property
    def foreign(self):
        return self

    def hide(self, text, role):
        return text

    def encode(self, text):
        return [int(word) for word in text.split()]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = Qwen2Config(
        vocab_size=1000, num_key_value_heads=1, max_position_embeddings=512, **sizes
    )
    return Qwen2ForCausalLM(config)


def log_probs(model, ids, start):
    """Of the tokens from `start` on, at the temperature."""
    logits = model(torch.tensor([ids])).logits[0, start - 1 : -1] / TEMPERATURE
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids[start:])[:, None])[:, 0]


def prepared_rows(model, seed, corrections):
    """Rows of random conversations with log-probs near the model's, some of them corrected."""
    draw, rows = random.Random(seed), []
    for number in range(2):
        trajectory = conversations(seed + number, 5)
        rows += [Row(trajectory, action, draw.random()) for action in trajectory.actions]
    for row in draw.sample(rows, corrections):
        text = " ".join(str(draw.randrange(2, 1000)) for _ in range(draw.randint(1, 6)))
        row.action.correction = Correction(text, COEF)
    found = []
    for sequence in sequences_of(rows):
        experience = sequence_experience(sequence)
        with torch.no_grad():
            mine = log_probs(model, sequence.ids, 1)[None]
        noise = torch.tensor([[draw.gauss(0, 0.3) for _ in sequence.ids[1:]]])
        experience.action_log_probs = (mine + noise) * experience.action_mask
        experience.base_action_log_probs = (mine - noise) * experience.action_mask
        experience.kl = torch.zeros_like(experience.action_log_probs)
        experience.info["logprobs_diff"] = torch.zeros(1)
        found.append(([sequence], experience))
    (prepared,) = estimate([forwarded("p", rows, found)], Estimator())
    return prepared, corrected_actions(rows, Numbers(), 10**6)[0]


class Strategy:
    """One rank of DeepSpeed's, whose optimiser keeps the gradient of each step and changes
    nothing."""

    ring_attn_group = None

    def __init__(self, model, accumulation):
        self.model, self.accumulated_gradient = model, accumulation
        self.batches, self.steps = 0, []

    def is_rank_0(self):
        return False

    def backward(self, loss, model, optimiser):
        (loss / self.accumulated_gradient).backward()

    def optimizer_step(self, optimiser, model, scheduler, name):
        self.batches += 1
        if self.batches % self.accumulated_gradient == 0:
            self.steps.append({name: p.grad.clone() for name, p in self.model.named_parameters()})
            self.model.zero_grad()

    def all_reduce(self, data, op="sum"):
        return data

    def get_grad_norm(self, actor):
        return 7.0


def fit(model, given, rank=0, kl_loss=False):
    """Upstream's fit of a rank's part; its metrics, and the gradient of each optimiser step."""
    actor = Actor(model, temperature=TEMPERATURE)
    actor.packing_samples = False
    actor.model.global_steps = actor.model.skipped_steps = 0
    strategy = Strategy(model, given.layout.accumulation)
    advantage = SimpleNamespace(is_correction_level="off")
    kl = SimpleNamespace(use_loss=kl_loss, init_coef=0.1, estimator="k3", unbiased_gradient=False)
    args = SimpleNamespace(
        actor=SimpleNamespace(entropy_coef=None, aux_loss_coef=0.0),
        algo=SimpleNamespace(kl=kl, advantage=advantage),
        train=SimpleNamespace(dynamic_batch_enable=False),
        ds=SimpleNamespace(tensor_parallel_size=1),
    )
    trainer = WeighingTrainer.__new__(WeighingTrainer)
    trainer.extensions = [term := CorrectionsLoss(trainer)]
    for call in given.calls:
        getattr(term, call.method)(*call.arguments)
    buffer = MicroBatchBuffer(1, 0, False)
    trainer.__dict__.update(
        {
            "strategy": strategy,
            "args": args,
            "actor": actor,
            "ema_model": None,
            "aux_loss": False,
            "actor_optim": None,
        },
        actor_loss_fn=PolicyLoss(CLIP, CLIP),
        actor_scheduler=SimpleNamespace(get_last_lr=lambda: [0.5]),
        replay_buffer=buffer,
        max_epochs=len(given.epochs[rank]),
        dataloader_pin_memory=False,
    )
    buffer.append(copy.deepcopy(given.parts[rank]))
    buffer.lay_out(given.epochs[rank])
    status = trainer.ppo_train(0.1)
    term.fitted(status)
    return status, strategy.steps


def weight_of(given):
    """What all tokens of a fit's corrected actions weigh together."""
    ((weight,),) = [call.arguments for call in given.calls]
    return weight


def batches(*args, corrections=(), **more):
    return rank_batches(*args, extra=CorrectedActions(corrections) if corrections else None, **more)


def in_steps(given, prepared, corrected):
    """By optimiser step, the sequences' items and the corrected actions of all ranks."""
    layout, steps = given.layout, []
    for step in range(layout.steps):
        window = slice(step * layout.accumulation, (step + 1) * layout.accumulation)
        numbers = [
            s[i]
            for s, e in zip(layout.ranks, layout.epochs[0], strict=True)
            for batch in e[window]
            for i in batch
        ]
        items = list(zip(prepared.sequences, prepared.items, strict=True))
        rows = [items[n] for n in numbers if n < len(items)]
        steps.append((rows, [corrected[n - len(items)] for n in numbers if n >= len(items)]))
    return steps


def reference(model, rows, corrected, with_rows=True):
    """The gradient of one optimiser step in float64: PPO's clipped loss per token, and
    cross-entropy per corrected token."""
    exact = copy.deepcopy(model).double()
    loss = torch.zeros((), dtype=torch.float64)
    if with_rows:
        tokens = sum(int(item.action_mask.sum()) for _, item in rows)
        for sequence, item in rows:
            mask = item.action_mask.bool()
            ratio = (log_probs(exact, sequence.ids, 1) - item.action_log_probs.double()).exp()[mask]
            advantages = item.advantages.double()[mask]
            loss = (
                loss
                - torch.minimum(
                    ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages
                ).sum()
                / tokens
            )
    tokens = sum(c.tokens for c in corrected)
    term = torch.zeros((), dtype=torch.float64)
    for c in corrected:
        term = term - log_probs(exact, c.ids, len(c.ids) - c.tokens).sum() / tokens
    (loss + COEF * term).backward()
    return {name: p.grad for name, p in exact.named_parameters()}, term.item()


def close(mine, wanted):
    largest = max(float(g.abs().max()) for g in wanted.values())
    assert largest > 1e-4
    for name, gradient in wanted.items():
        assert torch.allclose(
            mine[name].double(), gradient, rtol=0, atol=2e-5 * max(largest, 1.0)
        ), name


LIMITS = [Limit(1), Limit(3), Limit(tokens=120)]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("limit", LIMITS)
def test_the_gradient_is_that_of_the_policys_loss_and_the_supervised_term(model, steps, limit):
    prepared, corrected = prepared_rows(model, 7 * steps, corrections=4)
    given = batches(prepared, 1, steps, limit, seed=3, epochs=1, corrections=corrected)
    status, found = fit(model, given)
    terms = []
    for mine, (rows, more) in zip(found, in_steps(given, prepared, corrected), strict=True):
        wanted, term = reference(model, rows, more)
        close(mine, wanted)
        terms.append(term)
    assert len(found) == steps and sum(map(bool, terms)) == min(steps, len(corrected))
    assert status["corrections_loss"] * weight_of(given) == pytest.approx(
        COEF * sum(terms), rel=1e-4
    )
    assert weight_of(given) == pytest.approx(COEF * steps)


def test_ranks_share_the_tokens_of_a_step(model, monkeypatch):
    prepared, corrected = prepared_rows(model, 5, corrections=5)
    given = batches(prepared, 2, 2, Limit(2), seed=3, epochs=1, corrections=corrected)
    parts = in_steps(given, prepared, corrected)

    def over_two_ranks(batches, strategy, accumulation, mask_fn):
        """What upstream's iterator yields where two ranks have reduced their counts."""
        for number, batch in enumerate(batches):
            rows, _ = parts[number // accumulation]
            tokens = sum(int(item.action_mask.sum()) for _, item in rows)
            sizes = {
                "batch_num_tokens": torch.tensor(tokens / accumulation),
                "global_batch_size": torch.tensor(1.0),
            }
            yield batch, {"dp_size": 2, **sizes}

    monkeypatch.setattr(policy_actor.upstream_actor, "iter_grad_accum_global_norm", over_two_ranks)
    one, two = (fit(model, given, rank) for rank in (0, 1))
    assert set(one[0]) == set(two[0])
    for first, second, (rows, more) in zip(one[1], two[1], parts, strict=True):
        close(
            {name: (first[name] + second[name]) / 2 for name in first},
            reference(model, rows, more)[0],
        )


def test_what_else_is_in_the_loss_does_not_know_of_them(model):
    """A KL loss over the rows' tokens, and every metric but for upstream's factor in the losses,
    the number of micro-batches."""
    prepared, corrected = prepared_rows(model, 11, corrections=3)
    without = batches(prepared, 1, 1, Limit(2), seed=3, epochs=1)
    given = batches(prepared, 1, 1, Limit(2), seed=3, epochs=1, corrections=corrected)
    told, (before,) = fit(model, without, kl_loss=True)
    status, (after,) = fit(model, given, kl_loss=True)
    close(
        {name: after[name] - before[name] for name in after},
        reference(model, [], corrected, with_rows=False)[0],
    )
    assert status.pop("corrections_loss") > 0 and "corrections_loss" not in told
    assert told["actor_grad_norm"] == 7.0 and told["actor_lr"] == 0.5
    for name in ("policy_loss", "kl"):
        told[name] *= given.layout.accumulation / without.layout.accumulation
    assert status == pytest.approx(told, rel=1e-4)


def test_every_epoch_trains_on_them(model):
    prepared, corrected = prepared_rows(model, 13, corrections=2)
    given = batches(prepared, 1, 2, Limit(2), seed=3, epochs=2, corrections=corrected)
    status, found = fit(model, given)
    assert len(found) == 4 and weight_of(given) == pytest.approx(COEF * 4)
    wanted = [reference(model, rows, more) for rows, more in in_steps(given, prepared, corrected)]
    for mine, (gradient, _) in zip(found[:2], wanted, strict=True):
        close(mine, gradient)
    assert status["corrections_loss"] * weight_of(given) == pytest.approx(
        2 * COEF * sum(term for _, term in wanted), rel=1e-4
    )


def test_without_any_the_processes_are_given_what_they_were(model):
    """Bit for bit: the same batches in the same layout, and the loss of upstream's own step."""
    prepared, none = prepared_rows(model, 17, corrections=0)
    one = batches(prepared, 1, 2, Limit(2), seed=3, epochs=1)
    two = batches(prepared, 1, 2, Limit(2), seed=3, epochs=1, corrections=none)
    assert one.layout == two.layout and one.epochs == two.epochs and not one.calls and not two.calls
    (_, first), (_, second) = fit(model, one), fit(model, two)
    assert all(
        torch.equal(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a
    )
    for mine, (rows, _) in zip(first, in_steps(one, prepared, none), strict=True):
        close(mine, reference(model, rows, [])[0])


def test_a_correction_ends_as_a_turn_does_and_what_looks_like_a_special_token_is_text():
    """Its tokenizer's own end is another one, as in base models."""
    made = of_bytes("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>")
    tokenizer.chat_template = CHATML
    chat = ChatFormat(tokenizer, "p")
    (row, *_) = [Row(t, a, 1.0) for t in [conversations(3, 5)] for a in t.actions]
    row.action.correction = Correction("4<|im_end|>\n<|im_start|>user", COEF)
    ((corrected,), _) = corrected_actions([row], chat, 10**6)
    ids = corrected.ids[-corrected.tokens :]
    assert tokenizer.decode(ids[-1:]) == "<|im_end|>"
    assert not set(ids[:-1]) & set(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"]))
    assert tokenizer.decode(ids[:-1]) == row.action.correction.text


def test_each_action_once_in_its_own_context_and_no_longer_than_it_may_be(model, monkeypatch):
    prepared, corrected = prepared_rows(model, 19, corrections=4)
    rows = [row for row in prepared.rows if row.action.correction is not None]
    twice, _ = corrected_actions([*prepared.rows, rows[0]], Numbers(), 10**6)
    assert [c.ids for c in twice] == [c.ids for c in corrected]
    for c, row in zip(corrected, rows, strict=True):
        said = [*Numbers().encode(row.action.correction.text), 1]
        assert (
            c.ids == [*row.action.context_ids, *said]
            and c.tokens == len(said)
            and c.name == row.name
        )
    longest = max(len(c.ids) for c in corrected)
    for limit, count in ((longest - 1, sum(len(c.ids) < longest for c in corrected)), (1, 0)):
        monkeypatch.setattr(part_of_step, "ChatFormat", lambda *given, **more: Numbers())
        spec = SimpleNamespace(template={})
        policy = SimpleNamespace(tokenizer=None, name="p", spec=spec, longest=limit)
        part = CorrectionsPart(SimpleNamespace(policies={"p": policy}))
        (found,) = asyncio.run(part.prepared([prepared]))
        assert found.metrics == {
            "corrections": float(count),
            "corrections_too_long": float(len(corrected) - count),
        }
        assert found.extra is None if not count else len(found.extra.lengths) == count
