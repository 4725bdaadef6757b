"""What the policies of a run need: seats, for engines too, and the bytes of Ray's object store that
the states of policies without processes take."""

from __future__ import annotations

from collections import Counter

from marl_plugins import Run

# inside: works in the training processes
from marl_plugins.core.recipe import tiny
from marl_plugins.engine.hosts.devices import critic_gpus, engine_gpus, training_gpus
from marl_plugins.engine.plan.estimate import parameters
from marl_plugins.process_groups.seats import Seat, Seating


def seats_needed(run: Run) -> dict[str, int]:
    """Returns the seats of each trained policy with its critic; the reference is in the policy's
    processes."""
    return {
        p.name: training_gpus(args) + critic_gpus(args)
        for p in run.policies
        if p.trainable and (args := run.policy_args[p.name])
    }


def engine_seats(run: Run, seating: Seating) -> dict[str, tuple[Seat, ...]]:
    """Returns the seats that policies' engines have as well, with `--train.colocate_all`: some of
    one node, where the fewest engines are; those that need more are refused (devices.colocated)."""
    crowd, places = Counter[Seat](), dict[str, tuple[Seat, ...]]()
    for policy in run.policies:
        args = run.policy_args[policy.name]
        count = engine_gpus(args)
        if policy.trainable and args.train.colocate_all and count <= seating.seats:
            choices = [
                tuple(Seat(node, first + n) for n in range(count))
                for node in range(seating.nodes)
                for first in range(0, seating.seats - count + 1, count)
            ]
            places[policy.name] = min(choices, key=lambda seats: sum(crowd[s] for s in seats))
            crowd.update(places[policy.name])
    return places


def state_bytes(run: Run) -> dict[str, float | None]:
    """Returns bytes of the state of each trained policy and its critic; None where a model's size
    is not known.

    With P parameters each process has the weights, 2P bytes, and, all or its share (from ZeRO 1
    on), those in float32 and Adam's two moments, 12P; with `--train.enable_ema` all together have
    an average in float32, 4P. To these come the policy's weights as engines get them, 2P, beside
    those that engines have, which the plan counts for every policy.
    """
    by_policy: dict[str, float | None] = {}
    for policy in run.policies:
        if policy.trainable:
            args = run.policy_args[policy.name]
            shared = 1 if args.ds.zero_stage else None
            sizes = [_size(args.actor.model_name_or_path)] * 2
            own = 6.0 if args.train.enable_ema else 2.0
            parts = [
                own,
                *(
                    2.0 * n + 12.0 * (shared or n)
                    for n in (training_gpus(args), critic_gpus(args))
                    if n
                ),
            ]
            sizes += [_size(args.critic.model_name_or_path)] if critic_gpus(args) else []
            known = [
                size * part for size, part in zip(sizes, parts, strict=True) if size is not None
            ]
            by_policy[policy.name] = sum(known) if len(known) == len(parts) else None
    return by_policy


def _size(model: str) -> float | None:
    return tiny.parameters(model) if tiny.is_tiny(model) else parameters(model)


def states_together(run: Run, seating: Seating) -> int:
    """Returns bytes of the object store that are kept for states."""
    if seating.state_gb is not None:
        return int(seating.state_gb * 1e9)
    return int(sum(size or 0.0 for size in state_bytes(run).values()))
