"""Checks of numbers of a run that may not fit each other: lengths, micro-batches, devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.tiny import is_tiny
from marl_plugins.core.run import Run
from marl_plugins.engine.plan.checks.placement import check_placement
from marl_plugins.engine.plan.models import positions_of, sliding_window_of


def check_numbers(run: Run, trees: bool) -> Iterator[Problem]:
    """Returns problems with numbers that do not fit each other; the range of each alone is checked
    with its flag (ranges.py).

    Args:
        trees: Whether sequences become trees (`--sequences trees`).
    """
    args = run.args
    if args.ckpt.save_steps == 0:
        where, got = at(flag="ckpt.save_steps"), "a step is saved every N steps, got 0"
        yield Problem("plan.save_steps", where, got, fix="give 1 or more, or -1 to save none")
    if run.trajectories % max(1, args.train.batch_size):
        yield Problem(
            "plan.batch",
            got=(
                f"a step has {run.trajectories} trajectories (--rollout.batch_size "
                f"{args.rollout.batch_size} x --rollout.n_samples_per_prompt "
                f"{args.rollout.n_samples_per_prompt}), which --train.batch_size "
                f"{args.train.batch_size} (trajectories per optimiser step) does not divide"
            ),
            flags=("rollout.batch_size", "rollout.n_samples_per_prompt", "train.batch_size"),
        )
    yield from with_policies_named(
        {
            p.name: [
                *_lengths(run, p.name, a),
                *_batching(run.device, a),
                *check_placement(run.device, a, p.trainable),
                *(_trees(a) if trees and p.trainable else ()),
            ]
            for p in run.policies
            for a in [run.policy_args[p.name]]
        }
    )


def _lengths(run: Run, policy: str, a: Any) -> Iterator[Problem]:
    """Token limits of one policy that contradict each other or its model."""
    buffer, longest = a.reward.overlong_buffer_len, a.rollout.max_new_tokens
    if buffer is not None and longest is not None and buffer > longest:
        yield Problem(
            "lengths.overlong",
            got=f"--reward.overlong_buffer_len {buffer} is over --rollout.max_new_tokens {longest}",
            flags=("reward.overlong_buffer_len", "rollout.max_new_tokens"),
        )
    clip = a.reward.clip_range
    if clip and not clip[0] < clip[1]:
        yield Problem(
            "lengths.clip_range",
            at(flag="reward.clip_range"),
            f"{clip[0]:g} {clip[1]:g}",
            "two numbers, the lower one first",
        )
    for role in run.recipe.roles_of(policy):
        limit = run.role(role).max_new_tokens
        if buffer is not None and limit and buffer > limit:
            yield Problem(
                "lengths.overlong",
                got=f"--reward.overlong_buffer_len {buffer} is over the max_new_tokens {limit} "
                f"of role {role!r}",
                flags=("reward.overlong_buffer_len",),
            )
        if limit and limit >= a.data.max_len:
            yield Problem(
                "lengths.no_room",
                at(role=role),
                f"max_new_tokens {limit} leaves no room in --data.max_len {a.data.max_len}",
                flags=("data.max_len",),
            )
    model = a.actor.model_name_or_path
    positions = positions_of(model)
    if positions is not None and a.data.max_len > positions:
        larger = f", or name the model tiny:positions={a.data.max_len}" if is_tiny(model) else ""
        got = f"--data.max_len {a.data.max_len} is over the {positions} positions of its model"
        yield Problem(
            "lengths.positions", got=got, fix=f"lower it{larger}", flags=("data.max_len",)
        )
    if longest is not None and longest >= a.data.max_len:
        yield Problem(
            "lengths.no_room",
            got=(
                f"--rollout.max_new_tokens {longest} leaves no room for a prompt in "
                f"--data.max_len {a.data.max_len}"
            ),
            flags=("rollout.max_new_tokens", "data.max_len"),
        )


def _batching(device: str, a: Any) -> Iterator[Problem]:
    """Packing and micro-batches by tokens where they cannot work."""
    if a.train.dynamic_batch_enable:
        limits = {"train.max_tokens_per_gpu": a.train.max_tokens_per_gpu}
        # upstream's default is the same
        if a.rollout.max_tokens_per_gpu != a.train.max_tokens_per_gpu:
            limits["rollout.max_tokens_per_gpu"] = a.rollout.max_tokens_per_gpu
        yield from [
            Problem(
                "lengths.micro_batch",
                at(flag=flag),
                f"{tokens} is under --data.max_len {a.data.max_len}: a conversation of that length "
                "would fit into no micro-batch",
                fix="raise it, or lower --data.max_len",
                flags=(flag, "data.max_len"),
            )
            for flag, tokens in limits.items()
            if tokens is not None and tokens < a.data.max_len
        ]
    if (
        device == "cpu"
        and a.ds.packing_samples
        and a.ds.attn_implementation not in ("eager", "sdpa")
    ):
        yield Problem(
            "devices.packing",
            at(flag="ds.packing_samples"),
            f"attention {a.ds.attn_implementation!r} is not known to keep packed rows apart on "
            "a CPU",
            fix="use --ds.attn_implementation eager or sdpa",
            flags=("ds.attn_implementation",),
        )


def _trees(a: Any) -> Iterator[Problem]:
    """Returns what keeps a policy from being given trees."""
    without = "or leave out --sequences trees"
    if a.ds.packing_samples:
        got = "packing knows sequences, and no trees"
        yield Problem(
            "trees.packing", at(flag="ds.packing_samples"), got, fix=f"remove it, {without}"
        )
    if a.ds.attn_implementation not in ("sdpa", "flex_attention"):
        got = f"{a.ds.attn_implementation} is not told which token of a tree sees which"
        where, fix = at(flag="ds.attn_implementation"), f"use flex_attention or sdpa, {without}"
        yield Problem("trees.attention", where, got, fix=fix)
    window = sliding_window_of(a.actor.model_name_or_path)
    if window is not None and window < a.data.max_len:
        got = (
            f"the model sees the last {window} tokens, and in a tree others stand between; "
            f"--data.max_len is {a.data.max_len}"
        )
        fix = f"lower --data.max_len, {without}"
        yield Problem("trees.window", got=got, fix=fix, flags=("data.max_len",))


def with_policies_named(by_policy: Mapping[str, Sequence[Problem]]) -> list[Problem]:
    """Returns problems with the policies that have them; without a name where all have the same, as
    with flags for all of them."""
    owners: dict[Problem, list[str]] = {}
    for name, problems in by_policy.items():
        for problem in problems:
            owners.setdefault(problem, []).append(name)
    return [
        problem
        if len(names) == len(by_policy) and problem.code != "models.none"
        else problem.within(policy=names)
        for problem, names in owners.items()
    ]
