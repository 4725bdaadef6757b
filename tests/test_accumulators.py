"""Gradients taken before the step's statistics are known, against the full batch in float64,
through upstream's own losses."""

import copy
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_plugins.core.advantages import Moments
from marl_plugins.streaming.accumulators import Accumulators, linear, resolved

policy_actor = pytest.importorskip("marl_plugins.engine.processes.policy_actor")
from openrlhf.models import PolicyLoss  # noqa: E402
from openrlhf.models.loss import aggregate_loss  # noqa: E402
from openrlhf.models.utils import compute_approx_kl  # noqa: E402

LOSSES = {
    "token mean": {},
    "dual clip": {"dual_clip": 3.0},
    "sequence mean": {"token_level_loss": False},
    "gspo": {"policy_loss_type": "gspo"},
    "importance sampling, tokens masked": {"is_correction_level": "token"},
    "importance sampling, tokens clipped": {
        "is_correction_level": "token",
        "is_correction_mode": "clip",
    },
    "importance sampling, sequences masked": {"is_correction_level": "seq"},
}
VOCABULARY = 11


class Model(torch.nn.Module):
    """Log-probs and entropy of each token from all before it; one parameter is never used."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 6)
        self.recurrent = torch.nn.GRU(6, 7, batch_first=True)
        self.head = torch.nn.Linear(7, VOCABULARY)
        self.unused = torch.nn.Parameter(torch.ones(3))

    def forward(self, ids):
        logits = self.head(self.recurrent(self.embedding(ids[:, :-1]))[0])
        scores = torch.log_softmax(logits, -1)
        return scores.gather(-1, ids[:, 1:, None])[..., 0], -(scores.exp() * scores).sum(-1)


class Batch:
    """Ragged sequences, each with tokens of one or two rows and holes between them, and what is
    known of them."""

    def __init__(self, model, draw, count, keys):
        self.ids = [
            torch.tensor([draw.randrange(VOCABULARY) for _ in range(draw.randint(3, 14))])
            for _ in range(count)
        ]
        self.keys, self.advantages = [], []
        mean = draw.choice([0.0, 0.5, 3.0])
        for ids in self.ids:
            each = [draw.choice([None, *range(keys)]) for _ in ids[1:]]
            each[draw.randrange(len(each))] = draw.randrange(keys)
            self.keys.append(each)
            self.advantages.append(
                torch.tensor([draw.gauss(mean, 0.5) for _ in each], dtype=torch.float64)
            )
        self.noise = [torch.tensor([draw.uniform(-0.1, 0.1) for _ in each]) for each in self.keys]
        self.others = [torch.tensor([draw.uniform(-1.0, 1.0) for _ in each]) for each in self.keys]
        with torch.no_grad():
            self.old = [model(ids[None])[0][0] for ids in self.ids]

    def padded(self, places, dtype):
        """ids, key of each token (-1 for none), advantages, old, reference's and engine's log-probs
        of some sequences."""
        longest = max(len(self.ids[n]) for n in places)

        def fill(rows, value, kind):
            whole = torch.full((len(places), max(map(len, rows))), value, dtype=kind)
            for row, values in zip(whole, rows, strict=True):
                row[: len(values)] = torch.as_tensor(values, dtype=kind)
            return whole

        ids = fill([self.ids[n] for n in places], 0, torch.long)
        assert ids.shape[1] == longest
        keys = fill(
            [[-1 if k is None else k for k in self.keys[n]] for n in places], -1, torch.long
        )
        old = [self.old[n] + self.noise[n] for n in places]
        values = [
            [self.advantages[n] for n in places],
            old,
            [self.old[n] + self.others[n] for n in places],
        ]
        engine = [self.old[n] + 2 * self.noise[n] for n in places]
        return ids, keys, *(fill(v, 0.0, dtype) for v in (*values, engine))


def losses(model, batch, places, dtype, loss, coefficients):
    """A forward pass: the policy's loss as a function of advantages, undivided; the rest of the
    loss; and what belongs to it."""
    ids, keys, advantages, old, base, engine = batch.padded(places, dtype)
    log_probs, entropy = model(ids)
    mask = (keys >= 0).to(dtype)
    undivided = {"batch_num_tokens": 1.0, "global_batch_size": 1.0}

    def policy(given):
        return loss(
            log_probs * mask,
            old * mask,
            given,
            action_mask=mask,
            rollout_log_probs=engine * mask,
            **undivided,
        )[0]

    kl_coef, estimator, entropy_coef = coefficients
    rest = None
    if kl_coef:
        kl = compute_approx_kl(log_probs, base, log_probs_old=old, kl_estimator=estimator)
        rest = kl_coef * aggregate_loss(kl, mask, **undivided)
    if entropy_coef:
        rest = (0.0 if rest is None else rest) - entropy_coef * aggregate_loss(
            entropy, mask, **undivided
        )
    return policy, rest, advantages, keys, log_probs, old, mask


def statistics_of(batch, keys, divide=True):
    """By key, mean and deviation over all tokens of the step."""
    found = {}
    for key in range(keys):
        chosen = [
            a
            for ks, values in zip(batch.keys, batch.advantages, strict=True)
            for k, a in zip(ks, values, strict=True)
            if k == key
        ]
        if chosen:
            moments = Moments.of(torch.stack(chosen), torch.ones(len(chosen)))
            found[key] = (moments.mean, max(moments.variance, 1e-8) ** 0.5 if divide else 1.0)
    return found


def full_batch(model, batch, loss, coefficients, statistics):
    """The gradient of the whole step at once, in float64, with final advantages."""
    exact = copy.deepcopy(model).double()
    whole = losses(exact, batch, list(range(len(batch.ids))), torch.float64, loss, coefficients)
    policy, rest, advantages, of_key = whole[:4]
    final = torch.zeros_like(advantages)
    for key, (mean, deviation) in statistics.items():
        final = torch.where(of_key == key, (advantages - mean) / deviation, final)
    count, tokens = counts(batch, loss)
    total = policy(final) / count + (0.0 if rest is None else rest) / tokens
    found = torch.autograd.grad(total, list(exact.parameters()), allow_unused=True)
    return [
        torch.zeros_like(p) if g is None else g
        for p, g in zip(exact.parameters(), found, strict=True)
    ]


def counts(batch, loss):
    """N and T."""
    tokens = float(sum(k is not None for each in batch.keys for k in each))
    return tokens if loss.token_level_loss else float(len(batch.ids)), tokens


def flat(gradients):
    return torch.cat([g.double().flatten() for g in gradients])


def in_parts(model, batch, cuts, loss, coefficients, centres, late=True):
    made = Accumulators(list(model.parameters()), centres, late)
    for places in cuts:
        policy, rest, advantages, of_key, *_ = losses(
            model, batch, places, torch.float32, loss, coefficients
        )
        present = sorted({k for k in of_key.flatten().tolist() if k >= 0})
        made.add(policy, advantages, {key: of_key == key for key in present}, rest)
    return made


def any_cuts(draw, count):
    """The sequences in any order, in micro-batches of any sizes."""
    order, cuts = draw.sample(range(count), count), []
    while order:
        size = draw.randint(1, 5)
        cuts.append(order[:size])
        del order[:size]
    return cuts


def made(seed, keys):
    torch.manual_seed(seed)
    draw, model = random.Random(seed), Model()
    return draw, model, Batch(model, draw, draw.randint(1, 12), keys)


def near(one, exact, digits=1.0):
    """Equal but for the rounding of float32, times what statistics make of it."""
    assert (flat(one) - flat(exact)).norm() <= 2e-6 * (flat(exact).norm() + digits)


@given(st.integers(0, 10**6), st.sampled_from(sorted(LOSSES)), st.integers(1, 3), st.booleans())
@settings(max_examples=40)
def test_in_any_parts_and_order_it_is_the_gradient_of_the_full_batch(seed, name, keys, rest):
    draw, model, batch = made(seed, keys)
    loss = PolicyLoss(0.2, 0.2, **LOSSES[name])
    coefficients = (0.3, draw.choice(["k1", "k2", "k3"]), 0.1) if rest else (0.0, "k1", 0.0)
    statistics = statistics_of(batch, keys, divide=draw.random() < 0.8)
    centres = {
        key: mean + draw.uniform(-0.2, 0.2)
        for key, (mean, _) in statistics.items()
        if draw.random() < 0.7
    }
    exact = full_batch(model, batch, loss, coefficients, statistics)
    found = in_parts(model, batch, any_cuts(draw, len(batch.ids)), loss, coefficients, centres)
    digits = max(
        max((a - centres.get(key, 0.0)).abs().max().item() for a in batch.advantages) / deviation
        for key, (_, deviation) in statistics.items()
    )
    near(found.gradient(statistics, *counts(batch, loss)), exact, digits)


@given(st.integers(0, 10**6), st.integers(1, 3))
@settings(max_examples=20)
def test_final_advantages_need_one_accumulator(seed, keys):
    draw, model, batch = made(seed, keys)
    final = dict.fromkeys(range(keys), (0.0, 1.0))
    exact = full_batch(model, batch, PolicyLoss(), (0.3, "k3", 0.0), final)
    found = in_parts(
        model,
        batch,
        any_cuts(draw, len(batch.ids)),
        PolicyLoss(),
        (0.3, "k3", 0.0),
        {0: 9.0},
        late=False,
    )
    assert not found.with_ones
    near(found.gradient({}, *counts(batch, PolicyLoss())), exact)


def test_a_centre_keeps_what_little_rewards_differ_by():
    """Advantages of 1000 +- 0.1: without a centre their differences are lost in float32."""
    _, model, batch = made(3, 1)
    batch.advantages = [
        1000 + 0.1 * torch.sin(torch.arange(len(a)) + n) for n, a in enumerate(batch.advantages)
    ]
    statistics = statistics_of(batch, 1)
    exact = flat(full_batch(model, batch, PolicyLoss(), (0.0, "k1", 0.0), statistics))
    cuts = [[n] for n in range(len(batch.ids))]
    off = {}
    for centre in (0.0, 1000.0):
        found = in_parts(model, batch, cuts, PolicyLoss(), (0.0, "k1", 0.0), {0: centre})
        off[centre] = (
            (flat(found.gradient(statistics, *counts(batch, PolicyLoss()))) - exact).norm().item()
        )
    assert off[1000.0] < off[0.0] / 10


def test_equal_advantages_are_said_to_be_more_than_the_sums_resolve():
    """All of them at 0.7, a deviation of 1e-4 (upstream's least): the full batch's gradient is 0,
    and rounding would be a step."""
    _, model, batch = made(8, 1)
    batch.advantages = [torch.full((len(a),), 0.7, dtype=torch.float64) for a in batch.advantages]
    statistics = {0: (0.7, 1e-4)}
    assert flat(full_batch(model, batch, PolicyLoss(), (0.0, "k1", 0.0), statistics)).norm() == 0
    cuts = [[n] for n in range(len(batch.ids))]
    off, centred = [
        in_parts(model, batch, cuts, PolicyLoss(), (0.0, "k1", 0.0), {0: centre})
        for centre in (0.0, 0.7)
    ]
    assert flat(off.gradient(statistics, 1.0, 1.0)).norm() > 1e-4
    assert flat(centred.gradient(statistics, 1.0, 1.0)).norm() == 0
    added = {0: Moments(100.0, 0.7, 0.0)}
    assert [resolved(added, {0: centre}, {0: 0.7}, torch.float32) for centre in (0.0, 0.7)] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("dtype", "centre", "good"),
    [
        (torch.float32, 0.1, True),
        (torch.float32, 0.0, False),
        (torch.bfloat16, 0.8, True),
        (torch.bfloat16, 0.7, False),
    ],
)
def test_the_further_the_centre_is_off_the_less_is_resolved(dtype, centre, good):
    """Of advantages of 0.9 with a deviation of 0.1: eight of them in float32, one in bfloat16."""
    assert resolved({0: Moments(100.0, 0.9, 1.001)}, {0: centre}, {0: 0.9}, dtype) is good


def test_the_same_order_gives_the_same_bits():
    draw, model, batch = made(5, 2)
    cuts, statistics = any_cuts(draw, len(batch.ids)), statistics_of(batch, 2)
    one, two = [
        flat(
            in_parts(model, batch, cuts, PolicyLoss(), (0.3, "k3", 0.1), {}).gradient(
                statistics, 3.0, 3.0
            )
        )
        for _ in range(2)
    ]
    assert torch.equal(one, two)


@given(st.integers(0, 10**6), st.sampled_from([None, 1.1, 3.0]))
@settings(max_examples=40)
def test_where_a_ratio_leaves_the_interval_it_is_said_and_elsewhere_the_loss_is_linear(seed, dual):
    """Upstream's loss with any advantages is that of `linear` ones, and of some others it is
    not."""
    draw = torch.Generator().manual_seed(seed)
    log_probs, noise = (
        -torch.rand(9, 5, generator=draw, dtype=torch.float64) * 3,
        torch.randn(9, 5, generator=draw, dtype=torch.float64),
    )
    old, mask = log_probs - 0.12 * noise, (torch.rand(9, 5, generator=draw) < 0.7).double()
    advantages = torch.randn(9, 5, generator=draw, dtype=torch.float64)
    good = linear(log_probs, old, mask, 0.2, 0.15, dual)
    loss = PolicyLoss(0.2, 0.15, dual_clip=dual)
    ratio = (log_probs - old).exp()
    for n in range(9):
        one = slice(n, n + 1)
        taken = loss(
            log_probs[one], old[one], advantages[one], action_mask=mask[one], batch_num_tokens=1.0
        )[0]
        plain = -(ratio * advantages * mask)[one].sum()
        if good[n]:
            torch.testing.assert_close(taken, plain)
            continue
        outside = (mask[n] > 0) & ((ratio[n] < 0.8) | (ratio[n] > min(1.15, dual or 9.0)))
        assert outside.any()
        signs = [
            torch.where(outside, sign * (1 + advantages[n].abs()), 0.0)[None]
            for sign in (-1.0, 1.0)
        ]
        differs = [
            not torch.allclose(
                loss(log_probs[one], old[one], a, action_mask=mask[one], batch_num_tokens=1.0)[0],
                -(ratio[one] * a * mask[one]).sum(),
            )
            for a in signs
        ]
        assert any(differs)
