"""Conversations as sequences, sequences as trees, packing and micro-batches by tokens, on
upstream's own model and loss.

    python -m benchmarks.sequences [--trees 1000] [--only exact|tokens|time|trees|recipes]
        [--models tiny]

exact    random conversation trees of two policies: the gradient of one optimiser step, float32,
         with merged and single rows, as trees, packed and padded, micro-batches by tokens and of a
         fixed number of rows, asserted to be the same
tokens   tokens that go through the model over distinct tokens, and padding of ragged rows
time     forward passes and update of conversations of 16 turns x 256 tokens, against one row per
         action; the gradients are asserted to be the same
trees    time and memory of forward passes and update of rows that share prefixes, as trees and as
         sequences, side by side, of the tiny model and of SmolLM2-135M's architecture (random
         weights)
recipes  the first step of the shipped tiny recipes, with answers of their demonstrators: tokens
         through the model over distinct tokens, and the gradient, asserted to be that without trees
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from marl_plugins.engine.hosts import cpu

os.environ |= {cpu.DEVICE: "cpu", **cpu.environment()}  # before anything of upstream is imported
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


import torch
from recipe_runs import planned, played
from simulated import conversations
from transformers import LlamaConfig, LlamaForCausalLM

import marl_plugins.engine.processes.policy_actor  # isort: skip  # noqa: F401
from openrlhf.models import Actor, PolicyLoss
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch

from marl_plugins.builtin.reinforce_pp import ReinforcePlusPlus
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.rows import Row
from marl_plugins.core.sequences import TokenSequence, grouped, sequences_of, tree_of
from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory
from marl_plugins.engine.processes.trees import see_trees
from marl_plugins.engine.runtime.batching import BatchBuilder
from marl_plugins.engine.runtime.experience import (
    ForwardedExperience,
    estimate,
    forwarded,
    sequences_apart,
    tree_batch,
    tree_experience,
)
from marl_plugins.engine.runtime.layout import Limit, plan_layout
from marl_plugins.engine.runtime.tiny_model import resolve

TOKENS = 4096


def model(seed: int) -> Any:
    """A tiny policy in float32, as upstream's training processes hold it."""
    actor = Actor(
        resolve(f"tiny:seed={seed},positions=8192"),
        attn_implementation="sdpa",
        param_dtype="bf16",
    )
    see_trees(actor)
    return actor.float()


def smollm2() -> Any:
    """SmolLM2-135M's architecture in float32, with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=0.04,
        attn_implementation="sdpa",
    )
    actor = Actor(LlamaForCausalLM(config))
    actor.packing_samples = False
    see_trees(actor)
    return actor


def batches(sequences: Sequence[TokenSequence], limit: Limit) -> list[list[Sequence[int]]]:
    """Micro-batches of trees, or of sequences by themselves."""
    lengths = [len(s.ids) for s in sequences]
    layout = plan_layout(lengths, 1, 1, limit, grouping=partial(grouped, sequences))
    assert layout is not None
    (((given,),), (share,)) = layout.epochs, layout.ranks
    return [[layout.trees[share[i]] for i in batch] for batch in given]


@torch.no_grad()
def forward(
    actor: Any, policy: str, rows: Sequence[Row], merge: bool, limit: Limit
) -> ForwardedExperience:
    """The forward passes of a step."""
    sequences = sequences_of(rows, merge)
    done: list[tuple[list[TokenSequence], Experience]] = []
    for batch in batches(sequences, limit):
        mine = [tree_of([sequences[i] for i in tree]) for tree in batch]
        e = tree_batch(mine)
        e.action_log_probs = actor(e.sequences, e.action_mask, e.attention_mask)
        e.kl = torch.zeros_like(e.action_log_probs)
        e.info["logprobs_diff"] = torch.zeros(len(mine))
        done += sequences_apart(mine, e)
    return forwarded(policy, rows, done)


def update(
    actor: Any, items: Sequence[Experience], sequences: Sequence[TokenSequence], limit: Limit
) -> dict[str, torch.Tensor]:
    """The gradient of one optimiser step by upstream's loss."""
    actor.zero_grad()
    loss, total = PolicyLoss(), sum(float(item.action_mask.sum()) for item in items)
    for batch in batches(sequences, limit):
        trees = [
            tree_experience(tree_of([sequences[i] for i in tree]), [items[i] for i in tree])
            for tree in batch
        ]
        e = make_experience_batch(trees)
        log_probs = actor(e.sequences, e.action_mask, e.attention_mask)
        found = loss(
            log_probs,
            e.action_log_probs,
            e.advantages,
            action_mask=e.action_mask,
            batch_num_tokens=total,
        )[0]
        found.backward()
    return {name: p.grad.clone() for name, p in actor.named_parameters() if p.grad is not None}


def step(
    actors: dict[str, Any], rows: dict[str, list[Row]], merge: bool, packed: bool, limit: Limit
) -> dict[str, dict[str, torch.Tensor]]:
    """Forward passes, advantages over all policies, and the gradient of each."""
    for actor in actors.values():
        actor.packing_samples = packed
    given = [forward(actor, name, rows[name], merge, limit) for name, actor in actors.items()]
    prepared = estimate(given, ReinforcePlusPlus())
    return {p.policy: update(actors[p.policy], p.items, p.sequences, limit) for p in prepared}


def difference(
    one: dict[str, dict[str, torch.Tensor]], other: dict[str, dict[str, torch.Tensor]]
) -> float:
    """The largest difference of two gradients."""
    return max(
        float((one[policy][name] - other[policy][name]).abs().max())
        for policy in one
        for name in one[policy]
    )


def trees(count: int, policies: Sequence[str]) -> dict[str, list[Row]]:
    """Rows of random conversation trees; a twentieth of the turns are left out, as a plugin
    would."""
    rows: dict[str, list[Row]] = {policy: [] for policy in policies}
    for number in range(count):
        draw = random.Random(number)
        trajectory = conversations(number, turns=draw.randint(1, 8))
        trajectory.task = Task(str(number), "p")
        policy = policies[number % len(policies)]
        for action in trajectory.actions:
            action.policy, action.shown_ids = policy, tuple(3 + i % 256 for i in action.shown_ids)
            ids = tuple(3 + i % 256 for i in action.generation.ids)
            action.generation = Generation(ids, (-5.5,) * len(ids), "stop", policy, 0)
            action.returns = returns = draw.random()
            if draw.random() > 0.05:
                rows[policy].append(Row(trajectory, action, returns))
    return rows


def exact(count: int) -> None:
    """One optimiser step over all trees, in every way."""
    actors = {"one": model(0), "two": model(1)}
    rows = trees(count, list(actors))
    limits = {"rows": Limit(8), "tokens": Limit(tokens=512)}
    reference = step(actors, rows, False, False, limits["rows"])
    size = max(float(g.abs().max()) for grads in reference.values() for g in grads.values())
    total = sum(map(len, rows.values()))
    print(
        f"{count} trees, {total} rows of two policies; the largest entry of the gradient is "
        f"{size:.3g}"
    )
    for merge, packed, by in itertools.product([False, True], [False, True], limits):
        limit = Limit(tokens=512, packed=packed) if by == "tokens" else limits["rows"]
        for tree in [None] if packed else [None, 512]:
            off = difference(
                reference, step(actors, rows, merge, packed, replace(limit, tree=tree))
            )
            ways = (
                f"{'merged' if merge else 'single'}{', as trees' if tree else ''}, "
                f"{'packed' if packed else 'padded'}, micro-batches by {by}"
            )
            print(f"  {ways}: differs by {off:.2g} at most", flush=True)
            assert off < 1e-6, ways


def long_conversations(count: int, turns: int, tokens: int) -> list[Row]:
    draw = random.Random(0)
    rows: list[Row] = []
    for number in range(count):
        trajectory = Trajectory(Task(str(number), "p"), 0, step=1)
        before: Action | None = None
        for turn in range(turns):
            ids = tuple(draw.randrange(3, 259) for _ in range(tokens))
            shown = tuple(draw.randrange(3, 259) for _ in range(16))
            generation = Generation(ids, (-5.5,) * tokens, "stop", "p", 0)
            before = Action(f"a.{turn}", "a", "p", turn, shown, generation, "", before=before)
            before.returns = returns = draw.random()
            trajectory.actions = [*trajectory.actions, before]
            rows.append(Row(trajectory, before, returns))
    return rows


def tokens() -> None:
    rows = long_conversations(8, 16, 256)
    merged, single = sequences_of(rows), sequences_of(rows, merge=False)
    distinct = sum(len(r.action.shown_ids) + len(r.action.generation.ids) for r in rows)
    through = [sum(len(s.ids) for s in sequences) / distinct for sequences in (merged, single)]
    print(
        f"16 turns x 256 tokens: {through[0]:.2f} tokens through the model per distinct token "
        f"merged, {through[1]:.2f} single"
    )
    draw = random.Random(0)
    lengths = [max(1, round(draw.lognormvariate(5, 1))) for _ in range(512)]
    shown = {
        "in the order given, 8 rows": [lengths[n : n + 8] for n in range(0, 512, 8)],
        "grouped by length, 8 rows": _grouped(lengths, Limit(8)),
        f"by tokens ({TOKENS}), padded": _grouped(lengths, Limit(tokens=TOKENS)),
    }
    for name, groups in shown.items():
        padded = sum(max(g) * len(g) for g in groups) / sum(lengths)
        print(
            f"512 rows, log-normal with sigma 1, {name}: {padded:.3f} tokens per real token, "
            f"{len(groups)} micro-batches"
        )
    packed = _grouped(lengths, Limit(tokens=TOKENS, packed=True))
    print(
        f"512 rows, log-normal with sigma 1, by tokens ({TOKENS}), packed: 1.000 tokens per real "
        f"token, {len(packed)} micro-batches"
    )


def _grouped(lengths: list[int], limit: Limit) -> list[list[int]]:
    layout = plan_layout(lengths, 1, 1, limit)
    assert layout is not None
    return [[lengths[layout.ranks[0][i]] for i in batch] for batch in layout.epochs[0][0]]


def timing(length: int, rounds: int) -> None:
    """Forward passes and update, merged against one row per action, in turn."""
    actors, rows = {"p": model(0)}, {"p": long_conversations(2, 16, length)}
    taken: dict[bool, list[float]] = {True: [], False: []}
    gradients = {}
    for _ in range(rounds):
        for merge in (True, False):
            started = time.perf_counter()
            gradients[merge] = step(actors, rows, merge, False, Limit(1))
            taken[merge].append(time.perf_counter() - started)
    off = difference(gradients[True], gradients[False])
    assert off < 1e-6, off
    ratios = [a / b for a, b in zip(taken[False], taken[True], strict=True)]
    shown = {
        merge: f"{statistics.median(t):.1f} s ({min(t):.1f}-{max(t):.1f})"
        for merge, t in taken.items()
    }
    ratio = f"{statistics.median(ratios):.1f}x ({min(ratios):.1f}-{max(ratios):.1f})"
    print(
        f"2 x 16 turns x {length} tokens, forward and update: {shown[True]} merged, {shown[False]} "
        f"single: {ratio}"
    )


def prefixed(shared: int, tasks: int, task: int, samples: int, answer: int, most: int) -> list[Row]:
    """Rows of a role's prompt, its tasks and their samples."""
    draw = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(5, most) for _ in range(count))

    rows, of_role = [], ids(shared)
    for number in range(tasks):
        shown = of_role + ids(task)
        for sample in range(samples):
            generation = Generation(ids(answer), (-5.5,) * answer, "stop", "p", 0)
            action = Action("a", "a", "p", 0, shown, generation, "")
            action.returns = draw.random()
            trajectory = Trajectory(Task(str(number), "p"), sample, step=1)
            trajectory.actions = [action]
            rows.append(Row(trajectory, action, action.returns))
    return rows


MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "tiny": (partial(model, 0), 259),
    "135M": (smollm2, 49000),
}
"""What makes a model, and a bound of the token ids that it is given."""


def of_process(name: str) -> float:
    """MB of this process by Linux: what it has (`VmRSS`), or had at most (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def reset_peak() -> float:
    """Begins a new peak of memory, and returns the MB that are held already."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return of_process("VmRSS")


def trees_and_rows(rounds: int, length: int, models: Sequence[str]) -> None:
    """Each case as trees and without, in turn."""
    for name in models:
        make, most = MODELS[name]
        actor = make()
        cases = {
            "160 tokens of prompt, 8 answers of 10": prefixed(160, 1, 0, 8, 10, most),
            "110 of a role, 4 tasks of 50, 8 answers of 10": prefixed(110, 4, 50, 8, 10, most),
            "nothing shared, 16 rows of 170": prefixed(0, 16, 160, 1, 10, most),
            f"2 conversations, 8 turns of {length}": long_conversations(2, 8, length),
        }
        for case, rows in cases.items():
            taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
            memory = {}
            gradients = {}
            limits = {True: Limit(8, tree=8 * 1024), False: Limit(8)}
            for _, tree in itertools.product(range(rounds), (True, False)):
                before = reset_peak()
                started = time.perf_counter()
                f = forward(actor, "p", rows, True, limits[tree])
                between = time.perf_counter()
                (p,) = estimate([f], ReinforcePlusPlus())
                gradients[tree] = {"p": update(actor, p.items, p.sequences, limits[tree])}
                taken[tree].append((between - started, time.perf_counter() - between))
                memory[tree] = of_process("VmHWM") - before
            sequences = sequences_of(rows)
            through = sum(size for _, size in grouped(sequences, range(len(sequences)), 8 * 1024))
            size = max(float(g.abs().max()) for g in gradients[False]["p"].values())
            pairs = [*zip(taken[False], taken[True], strict=True)]
            shown = []
            for n, what in enumerate(("forward", "update")):
                without, with_trees = (min(pair[n] for pair in taken[way]) for way in (False, True))
                ratio = statistics.median(apart[n] / together[n] for apart, together in pairs)
                shown.append(f"{what} {without:.3g} -> {with_trees:.3g} s ({ratio:.2f}x)")
            print(
                f"{name}, {case}: {sum(len(s.ids) for s in sequences)} tokens -> {through}; "
                f"{', '.join(shown)}, at most {memory[False]:.0f} -> {memory[True]:.0f} MB; "
                "gradients differ by "
                f"{difference(gradients[True], gradients[False]) / size:.1g} of the largest",
                flush=True,
            )


def first_step(file: str) -> tuple[Any, dict[str, list[Row]]]:
    """The plan of a shipped recipe, and the rows of its first step by policy; its demonstrators
    answer, a third of the time what belongs to another task."""
    plan = planned(file)
    run, draw = plan.run, random.Random(0)
    rows: dict[str, list[Row]] = {}
    tasks = plan.tasks("train")[: run.args.rollout.batch_size]
    module = run.demonstrations_module
    demonstrated = [list(module.demonstrate(task, draw)) for task in tasks]
    for number in range(len(tasks)):

        def says(role: str, prompt: str, number: int = number) -> str:
            of = draw.choice([number, number, draw.randrange(len(tasks))])
            texts: list[str] = [
                text for shown in demonstrated[of] if shown.role == role for text in shown.said
            ]
            return draw.choice(texts or ["no"])

        trajectory = played(plan, tasks[number], says)
        for action in trajectory.actions:
            action.returns = draw.random()
            policy = draw.choice(run.recipe.policies_of(action.role))
            rows.setdefault(policy, []).append(Row(trajectory, action, action.returns))
    return plan, rows


def recipes(names: Sequence[str]) -> None:
    actor = model(0)
    for path in sorted(recipes_root().glob("*/tiny*.yaml")):
        file = str(path.relative_to(recipes_root()))
        if names and file not in names:
            continue
        try:
            plan, rows = first_step(file)
        except (AttributeError, KeyError, IndexError, TypeError, ConfigurationError) as error:
            print(f"{file}: not played ({error!r})")
            continue
        for policy, mine in rows.items():
            batching = BatchBuilder(plan.run.policy_args[policy], True, trees=True)
            limit, sequences = batching.limit("train"), sequences_of(mine)
            whole = tree_of(sorted(sequences, key=lambda s: s.ids))
            groups = grouped(sequences, range(len(sequences)), limit.tree or 0)
            through = sum(size for _, size in groups)
            gradients, seconds = [], []
            for way in (replace(limit, tree=None), limit):
                started = time.perf_counter()
                (p,) = estimate([forward(actor, policy, mine, True, way)], ReinforcePlusPlus())
                gradients.append({policy: update(actor, p.items, p.sequences, way)})
                seconds.append(time.perf_counter() - started)
            size = max(float(g.abs().max()) for g in gradients[0][policy].values())
            off = difference(*gradients) / size
            print(
                f"{file}, {policy}: {len(mine)} rows, {sum(len(s.ids) for s in sequences)} tokens "
                f"-> {through}, {through / whole.size:.3f} of the distinct ones; "
                f"{seconds[0]:.2f} -> {seconds[1]:.2f} s; gradients differ by {off:.1g}",
                flush=True,
            )
            assert off < 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trees", type=int, default=1000)
    parser.add_argument("--only", choices=["exact", "tokens", "time", "trees", "recipes"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], help="of trees")
    parser.add_argument("--recipes", nargs="+", default=[], help="only these, as in vote/tiny.yaml")
    parser.add_argument(
        "--length", type=int, default=256, help="tokens of a turn, of which the time is measured"
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of the time")
    args = parser.parse_args()
    if args.only in (None, "tokens"):
        tokens()
    if args.only in (None, "exact"):
        exact(args.trees)
    if args.only in (None, "time"):
        timing(args.length, args.rounds)
    if args.only in (None, "trees"):
        trees_and_rows(args.rounds, args.length, args.models)
    if args.only in (None, "recipes"):
        recipes(args.recipes)


if __name__ == "__main__":
    main()
