"""Checks whether the trained policies of a run can share its seats."""

from __future__ import annotations

import os

from marl_plugins import Problem, Run, at

# inside: works in the training processes
from marl_plugins.core.process_backend import OBJECT_STORE_BYTES
from marl_plugins.engine.plan.estimate import gb
from marl_plugins.process_groups.seats import Seating
from marl_plugins.process_groups.states import seats_needed, state_bytes, states_together

WHO = "marl_plugins.process_groups"


def check_seating(run: Run, seating: Seating) -> list[Problem]:
    """Returns everything that is wrong with a run's seats."""
    who = WHO
    needed = {p.name: seats_needed(run.policy_args[p.name]) for p in run.policies if p.trainable}
    if run.device != "cpu":
        return [
            Problem(
                "seats.gpus",
                at(plugin=who),
                (
                    "not on GPUs yet: upstream's weight sync has one broadcast group per policy, "
                    "made with its "
                    "training processes"
                ),
                fix="leave out the plugin",
            )
        ]
    if not needed:
        return [
            Problem(
                "seats.unused",
                at(plugin=who),
                "no policy is trained, so there is nothing to share",
                fix="leave out the plugin",
            )
        ]
    if seating.nodes < 1:
        return [
            Problem(
                "seats.nodes",
                at(plugin=who),
                f"--process_groups.nodes is {seating.nodes}, and there is no seat without a node",
                fix="raise it",
                flags=("process_groups.nodes",),
            )
        ]
    problems = [
        Problem(
            "seats.too_few",
            at(plugin=who, policy=name),
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
            "seats.zero_stage",
            at(plugin=who, policy=p.name, flag="ds.zero_stage"),
            "3: a rank's checkpoint has no whole weights, which the next process in its place "
            "would load",
            fix=f"set --policy.{p.name}.ds.zero_stage 2",
            flags=("ds.zero_stage",),
        )
        for p in run.policies
        if p.name in needed and run.policy_args[p.name].ds.zero_stage == 3
    ]
    return problems or _without_room(run, seating, who)


def _without_room(run: Run, seating: Seating, who: str) -> list[Problem]:
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
                at(plugin=who),
                (
                    f"the size of the model of policy {unknown} is not known, and with it how "
                    "large Ray's object "
                    "store has to be"
                ),
                fix="give --process_groups.state_gb: of all policies together, 18 bytes a "
                "parameter",
                flags=("process_groups.state_gb",),
            )
        ]
    if state_gb is not None and total > state_gb * 1e9:
        return [
            Problem(
                "seats.state_gb",
                at(plugin=who),
                f"the states of the policies need {gb(total)} ({shown}), and "
                f"--process_groups.state_gb is {state_gb:g}",
                fix="raise it or leave it out",
                flags=("process_groups.state_gb",),
            )
        ]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if (
        not os.environ.get("RAY_ADDRESS")
        and OBJECT_STORE_BYTES + states_together(run, seating) > memory
    ):
        return [
            Problem(
                "seats.memory",
                at(plugin=who),
                (
                    f"the states of the policies need {gb(states_together(run, seating))} of Ray's "
                    f"object store ({shown}), "
                    f"and this machine has {gb(memory)} of memory"
                ),
                fix="use smaller models, fewer ranks or fewer policies (--mapping)",
            )
        ]
    return []
