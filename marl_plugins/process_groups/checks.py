"""Checks whether the trained policies of a run can share its seats."""

from __future__ import annotations

import os
from collections.abc import Iterator

from marl_plugins import Problem, Run, at

# inside: works in the training processes
from marl_plugins.core.process_backend import OBJECT_STORE_BYTES
from marl_plugins.engine.plan.estimate import gb, weight_bytes
from marl_plugins.process_groups.seats import Seating
from marl_plugins.process_groups.states import (
    engine_seats,
    seats_needed,
    state_bytes,
    states_together,
)

WHO = "marl_plugins.process_groups"


def check_seating(run: Run, seating: Seating) -> list[Problem]:
    """Returns everything that is wrong with a run's seats."""
    needed = seats_needed(run)
    if not needed:
        return []
    problems = [
        Problem(
            "seats.too_few",
            at(plugin=WHO, policy=name),
            (
                f"needs {count} seats of one node (--actor.num_nodes x --actor.num_gpus_per_node, "
                f"with a critic its as well), and a node has {seating.seats}"
            ),
            fix=f"raise --process_groups.seats, or lower --policy.{name}.actor.num_gpus_per_node",
            flags=("actor.num_nodes", "actor.num_gpus_per_node", "process_groups.seats"),
        )
        for name, count in needed.items()
        if count > seating.seats
    ]
    problems += [
        Problem(
            "seats.awake",
            at(plugin=WHO, policy=p.name),
            "--train.colocate_all: its engine has a device on which training processes take turns",
            fix="add --vllm.enable_sleep",
            flags=("train.colocate_all", "vllm.enable_sleep"),
        )
        for p in run.policies
        if p.name in needed
        and run.policy_args[p.name].train.colocate_all
        and not run.policy_args[p.name].vllm.enable_sleep
    ]
    return problems or [*_crowded(run, seating), *_without_room(run, seating)]


def _crowded(run: Run, seating: Seating) -> Iterator[Problem]:
    """The problem with engines that have more than the device that they share."""
    places = engine_seats(run, seating)
    for seat in dict.fromkeys(seat for seats in places.values() for seat in seats):
        names = [name for name, seats in places.items() if seat in seats]
        asked = sum(run.policy_args[name].vllm.gpu_memory_utilization for name in names)
        if asked > 1:
            yield Problem(
                "seats.engines",
                at(plugin=WHO),
                f"the engines of {', '.join(map(repr, names))} have one device, are awake at the "
                f"same time, and ask for {asked:g} of its memory",
                fix=f"lower --vllm.gpu_memory_utilization, for example to {0.9 / len(names):.2f}",
                flags=("vllm.gpu_memory_utilization",),
            )
            return


def _without_room(run: Run, seating: Seating) -> list[Problem]:
    """The problem with states that Ray's object store, or this machine's memory, cannot hold."""
    sizes, state_gb = state_bytes(run), seating.state_gb
    known = {name: size for name, size in sizes.items() if size is not None}
    total, shown = (
        sum(known.values()),
        ", ".join(f"{name!r} {gb(size)}" for name, size in known.items()),
    )
    if state_gb is None and len(known) < len(sizes):
        unknown = ", ".join(repr(name) for name in sizes if name not in known)
        return [
            Problem(
                "seats.unknown_size",
                at(plugin=WHO),
                (
                    f"the size of the model of policy {unknown} is not known, and with it how "
                    "large Ray's object "
                    "store has to be"
                ),
                fix="give --process_groups.state_gb: of all policies together, 16 bytes a "
                "parameter",
                flags=("process_groups.state_gb",),
            )
        ]
    if state_gb is not None and total > state_gb * 1e9:
        return [
            Problem(
                "seats.state_gb",
                at(plugin=WHO),
                f"the states of the policies need {gb(total)} ({shown}), and "
                f"--process_groups.state_gb is {state_gb:g}",
                fix="raise it or leave it out",
                flags=("process_groups.state_gb",),
            )
        ]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    states, weights = states_together(run, seating), weight_bytes(run)
    asleep = sum(
        weights.get(name, 0.0) * run.policy_args[name].vllm.num_engines
        for name in engine_seats(run, seating)
    )
    needed = OBJECT_STORE_BYTES + states + sum(weights.values()) + asleep
    if not os.environ.get("RAY_ADDRESS") and needed > memory:
        return [
            Problem(
                "seats.memory",
                at(plugin=WHO),
                (
                    f"the states of the policies need {gb(states)} of Ray's object store "
                    f"({shown}), weights on their way to engines {gb(sum(weights.values()))}, "
                    f"engines that sleep {gb(asleep)}, "
                    f"and this machine has {gb(memory)} of memory"
                ),
                fix="use smaller models, fewer ranks or fewer policies (--mapping)",
            )
        ]
    return []
