"""Sequences as trees: every token once, with the log-prob and the gradient that its row has by
itself."""

import copy
import itertools
import random
from functools import partial

import pytest
import torch
import transformers.integrations.flex_attention as integration
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import conversations
from torch.nn.attention import flex_attention
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    MambaConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from marl_plugins.core.rows import Row
from marl_plugins.core.sequences import grouped, sequences_of, tree_of
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.processes import trees as seeing
from marl_plugins.engine.processes.trees import compact, see_trees
from marl_plugins.engine.runtime.experience import (
    SampledTokens,
    forwarded,
    sequences_apart,
    tree_batch,
)
from marl_plugins.engine.runtime.layout import Limit, plan_layout
from marl_plugins.engine.runtime.tiny_model import resolve

from openrlhf.models import Actor, get_llm_for_sequence_regression  # isort: skip  # after the host support, installed above

FORESTS = {
    "seed": st.integers(0, 10**6),
    "turns": st.integers(1, 6),
    "trajectories": st.integers(1, 4),
    "letters": st.sampled_from([2, 3, 50]),
    "merge": st.booleans(),
}
"""Few letters: rows within rows, sampled text that is another's context, equal rows."""


def forest(seed, turns, trajectories, letters, merge):
    """Random sequences in the order of their ids; some rows are left out, some are there twice."""
    draw, rows = random.Random(seed), []
    for number in range(trajectories):
        trajectory = conversations(seed * 10 + number, turns)
        for action in trajectory.actions:
            action.shown_ids = tuple(i % letters for i in action.shown_ids)
            old = action.generation
            ids = tuple(i % letters for i in old.ids)
            action.generation = Generation(ids, old.logprobs, old.finish, old.policy, 0)
        rows += [Row(trajectory, a, 1.0) for a in trajectory.actions if draw.random() < 0.9]
    rows += draw.choices(rows, k=seed % 3) if rows else []
    return rows, sorted(sequences_of(rows, merge), key=lambda s: s.ids)


def path(tree, place):
    """The ids from the root to a token."""
    ids = []
    while place >= 0:
        ids.append(tree.ids[place])
        place -= abs(tree.mask[place])
    return ids[::-1]


@settings(max_examples=100, deadline=None)
@given(**FORESTS)
def test_every_token_follows_what_it_follows_in_its_sequence(**drawn):
    _, sequences = forest(**drawn)
    tree = tree_of(sequences)
    assert tree.sequences == sequences
    trained = []
    for sequence, places in zip(sequences, tree.places, strict=True):
        assert [path(tree, place) for place in places] == [
            sequence.ids[: n + 1] for n in range(len(places))
        ]
        assert all(path(tree, places[n] - 1) == sequence.ids[:n] for n in sequence.trained)
        trained += [places[n] for n in sequence.trained]
    assert len(trained) == len(set(trained))  # none is two rows'


@settings(max_examples=100, deadline=None)
@given(**FORESTS)
def test_what_a_token_sees_is_its_path(**drawn):
    _, sequences = forest(**drawn)
    tree = tree_of(sequences)
    given = torch.tensor([[*tree.ids, 1, 1]]), torch.tensor([[*tree.mask, 0, 0]])
    (copies,), (ids,), (ends,), (positions,) = (each.tolist() for each in compact(*given))
    for place in range(len(tree.ids)):
        mine = copies[place]
        seen = [n for n in range(mine + 1) if mine < ends[n]]
        assert [ids[n] for n in seen] == path(tree, place)
        assert positions[mine] == len(seen) - 1
    prefixes = {tuple(s.ids[: n + 1]) for s in sequences for n in range(len(s.ids))}
    assert len(ids) == tree.size == len(prefixes)


@pytest.mark.parametrize("letters", [2, 50])
def test_a_prefix_stands_once(letters):
    draw = random.Random(0)
    rows, tokens = [], 0
    for number in range(8):
        trajectory = conversations(number, 1)
        (action,) = trajectory.actions
        action.shown_ids = (*[7] * 50, *[number // 4] * 20)
        ids = (number, *(draw.randrange(letters) for _ in range(9)))
        action.generation = Generation(ids, (-1.0,) * 10, "stop", "p", 0)
        rows.append(Row(trajectory, action, 1.0))
        tokens += len(ids)
    ((group, size),) = grouped(sequences_of(rows), range(8), 10**6)
    assert sorted(group) == list(range(8))
    assert size == 50 + 2 * 20 + tokens


@settings(max_examples=60, deadline=None)
@given(most=st.integers(1, 60), **FORESTS)
def test_groups_hold_each_sequence_once_and_no_more_than_they_may(most, **drawn):
    _, sequences = forest(**drawn)
    groups = grouped(sequences, range(len(sequences)), most)
    assert sorted(n for group, _ in groups for n in group) == list(range(len(sequences)))
    for group, size in groups:
        tree = tree_of([sequences[n] for n in group])
        assert size == tree.size and (len(group) == 1 or len(tree.ids) <= most)
        single = sum(len(s.ids) for s in tree.sequences)
        assert len(group) == 1 or size <= 0.95 * single


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(1, 3),
    steps=st.integers(1, 3),
    epochs=st.integers(1, 2),
    size=st.integers(1, 4),
    **FORESTS,
)
def test_an_optimiser_step_has_the_same_sequences_as_without_trees(
    ranks, steps, epochs, size, **drawn
):
    _, sequences = forest(**drawn)
    if not sequences:
        return

    def order(epoch, count):
        return random.Random(epoch).sample(range(count), count)

    def steps_of(limit, grouping):
        lengths = [len(s.ids) for s in sequences]
        layout = plan_layout(lengths, ranks, steps, limit, order, epochs, grouping)
        held = []
        for epoch in layout.epochs:
            for step in range(layout.steps):
                window = slice(step * layout.accumulation, (step + 1) * layout.accumulation)
                held.append(
                    sorted(
                        n
                        for share, batches in zip(layout.ranks, epoch, strict=True)
                        for batch in batches[window]
                        for i in batch
                        for n in layout.trees[share[i]]
                    )
                )
        return held

    plain = steps_of(Limit(size), None)
    assert steps_of(Limit(size, tree=40), partial(grouped, sequences)) == plain
    assert steps_of(Limit(size), partial(grouped, sequences)) == plain
    assert steps_of(Limit(tokens=200, tree=200), partial(grouped, sequences)) == plain


@pytest.fixture(autouse=True, scope="module")
def short_stretches():
    """A few of them in trees as small as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeing, "STRETCH", 16)
        yield


def model(attention):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = Qwen2Config(
        vocab_size=50,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.2,
        attn_implementation=attention,
        **sizes,
    )
    one = Qwen2ForCausalLM(config)
    see_trees(one)
    return one


def by_upstream(one, e):
    """Log-probs by upstream's own actor."""
    actor = Actor(one, temperature=0.7)
    actor.packing_samples = False
    return actor(e.sequences, e.action_mask, e.attention_mask)


SDPA = model("sdpa")


def log_probs(one, sequences):
    """Of each sequence by itself, by what transformers says of a padded batch of them."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(s.ids) for s in sequences], True)
    mask = torch.arange(ids.shape[1]) < torch.tensor([[len(s.ids)] for s in sequences])
    logits = one(ids, attention_mask=mask.long()).logits[:, :-1] / 0.7
    return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]


@settings(max_examples=150, deadline=None)
@given(trees=st.integers(1, 3), **FORESTS)
def test_log_probs_are_those_of_the_sequences_by_themselves(trees, **drawn):
    rows, sequences = forest(**drawn)
    cuts = [sequences[n::trees] for n in range(trees)]
    trees = [tree_of(cut) for cut in cuts if cut]
    if not trees:
        return
    e = tree_batch(trees)
    with torch.no_grad():
        e.action_log_probs = by_upstream(SDPA, e)
        e.kl, e.info["logprobs_diff"] = e.action_log_probs, torch.zeros(len(trees))
        f = forwarded("p", rows, sequences_apart(trees, e))
        alone = log_probs(SDPA, f.sequences)
    numbers = {id(row): n for n, row in enumerate(rows)}
    for sequence, mine in zip(f.sequences, alone, strict=True):
        for row, start in zip(sequence.rows, sequence.starts, strict=True):
            count = len(row.action.generation.ids)
            got = f.tokens.log_probs[numbers[id(row)], :count]
            want = mine[start - 1 : start - 1 + count]
            assert (got - want).abs().max() < 3e-5
            assert f.tokens.mask[numbers[id(row)]].sum() == count


def gradient(one, loss):
    one.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in one.parameters()])


def gradients(one, sequences):
    """Of random weights of the trained tokens: of a model that sees a tree, and of `SDPA` that sees
    the sequences."""
    tree = tree_of(sequences)
    e = tree_batch([tree])
    weights = torch.linspace(0.5, 1.5, e.action_mask.numel())[None]
    got = gradient(one, by_upstream(one, e).mul(weights * e.action_mask).sum())
    alone, total = log_probs(SDPA, sequences), 0.0
    for sequence, places, mine in zip(sequences, tree.places, alone, strict=True):
        for n in sequence.trained:
            total = total + mine[n - 1] * weights[0, places[n] - 1]
    return got, gradient(SDPA, total)


@settings(max_examples=40, deadline=None)
@given(checkpointing=st.booleans(), **FORESTS)
def test_gradients_are_those_of_the_sequences_by_themselves(checkpointing, **drawn):
    _, sequences = forest(**drawn)
    if not sequences:
        return
    one = copy.deepcopy(SDPA).train()
    if checkpointing:
        one.gradient_checkpointing_enable({"use_reentrant": drawn["merge"]})
        one.enable_input_require_grads()
    got, want = gradients(one, sequences)
    assert (got - want).norm() <= 1e-5 * want.norm() + 3e-5  # what log-probs are rounded to


def test_flex_attention_sees_what_sdpa_does(monkeypatch):
    """As written, where it is compiled on GPUs; torch refuses its backward pass on a CPU when it is
    asked for, and has it."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(
        integration,
        "compile_friendly_flex_attention",
        lambda *tensors, training, **more: flex_attention.flex_attention(*tensors, **more),
    )
    for seed in (1, 2):
        got, want = gradients(model("flex_attention"), forest(seed, 5, 3, 50, True)[1])
        assert (got - want).norm() <= 1e-5 * want.norm() + 3e-5


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
GEMMA = {**SIZES, "intermediate_size": 24, "num_key_value_heads": 1, "head_dim": 8}
OTHERS = {
    "learned positions": GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=200),
    "windows that are longer": Gemma2Config(**GEMMA, sliding_window=4096),
    "ALiBi": FalconConfig(**SIZES, alibi=True),
    "a state": MambaConfig(hidden_size=16, num_hidden_layers=2, state_size=4),
}


@torch.no_grad()
def difference(of_batch):
    """How far some sequences of a tree are from what they are by themselves, at most."""
    _, sequences = forest(5, 5, 4, 50, True)
    tree = tree_of(sequences)
    together, off = of_batch(tree_batch([tree]))[0], 0.0
    for sequence, places in zip(sequences, tree.places, strict=True):
        alone = of_batch(tree_batch([tree_of([sequence])]))[0]
        trained = sorted(sequence.trained)
        there = [places[n] - 1 for n in trained]
        off = max(off, float((together[there] - alone[[n - 1 for n in trained]]).abs().max()))
    return off


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_sees_trees_or_gives_other_numbers(name):
    config = OTHERS[name]
    config.vocab_size, config.initializer_range = 50, 0.2
    torch.manual_seed(0)
    one = AutoModelForCausalLM.from_config(config).eval()
    see_trees(one)
    off = difference(partial(by_upstream, one))
    assert (off > 1e-2) if name in ("ALiBi", "a state") else (off < 3e-5)


def test_how_far_a_tree_is_off_is_taken_of_the_later_sequences_own_tokens():
    """The first sequence stands in a tree as by itself, and short ones are filled."""
    mask = (torch.arange(200) < torch.tensor([[200], [10], [3]])).float()
    zero = torch.zeros_like(mask)
    wrong = 1.5 * mask * torch.tensor([[0.0], [1.0], [1.0]])
    apart, together = (SampledTokens(mask, found, zero, zero) for found in (zero, wrong))
    assert apart.differences(together, first=1).tolist() == [1.5] * 13


def test_a_critic_sees_trees():
    loaded = get_llm_for_sequence_regression(
        resolve("tiny"), "critic", attn_implementation="sdpa", init_value_head=True
    )
    critic = loaded.float().eval()
    see_trees(critic)
    seen = difference(lambda e: critic(e.sequences, e.action_mask, e.attention_mask))
    assert seen < 1e-5
    plain = difference(lambda e: critic(e.sequences, e.action_mask, e.attention_mask.abs().sign()))
    assert plain > 1e-3  # it has values to compare


def test_a_batch_of_plain_sequences_is_left_alone():
    _, sequences = forest(1, 5, 1, 50, True)
    e = tree_batch([tree_of([s]) for s in sequences])
    assert set(e.attention_mask.unique().tolist()) <= {0, 1}
    for mine, sequence in itertools.zip_longest(e.sequences, sequences):
        assert mine[: len(sequence.ids)].tolist() == sequence.ids
