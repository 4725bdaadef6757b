"""More policies than devices: training processes exist only while their policy computes.

The policies share seats, a device each. A policy with rows to compute gets all the seats that it needs or none, and its processes,
the critic's and the reference among them, go on where they had stopped. Where no seat is free, the policy that has rested for the
longest leaves its own: its state goes to the controller, its processes end. A step is one pass over the policies for log-probs and
one for updates; with P policies of one rank on N seats, P - N change in each. What is computed is the same as with devices for
each, bit for bit. core/seats.py has the order, runtime/process_groups.py the processes.

FlexMARL (arXiv 2602.09578) calls it suspend-to-destroy.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.core.failures import Remark
from marl_plugins.core.options import above, at_least
from marl_plugins.core.seats import Seating
from marl_plugins.plan.estimate import gb
from marl_plugins.plan.states import STORE, seats_needed, state_bytes, states_together

if TYPE_CHECKING:
    from marl_plugins.run import Run

WHO = "marl_plugins.process_groups"
may_differ = ("process_groups.*",)


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(f"more policies than devices (--plugin {WHO})")
    group.add_argument(
        "--process_groups.seats",
        metavar="N",
        type=at_least(1),
        help="devices of a node that training processes share; default: as many as the largest policy needs",
    )
    group.add_argument(
        "--process_groups.nodes",
        metavar="N",
        type=at_least(1),
        default=1,
        help="nodes with so many seats; a policy is on one of them",
    )
    group.add_argument(
        "--process_groups.state_gb",
        metavar="GB",
        type=above(0),
        help="what Ray's object store has for the states of policies without seats; default: what the models' sizes say",
    )


@hookimpl
def marl_seats(run: Run) -> Seating:
    flags = run.args.process_groups
    most = max((seats_needed(run.policy_args[p.name]) for p in run.policies if p.trainable), default=1)
    return Seating(flags.seats or most, flags.nodes, flags.state_gb)


@hookimpl
def marl_configure(run: Run) -> list[str]:
    seating = run.seating
    if seating is None:
        return []
    needed = {p.name: seats_needed(run.policy_args[p.name]) for p in run.policies if p.trainable}
    if run.device != "cpu":
        return [
            f"{WHO}: not on GPUs yet: upstream's weight sync has one broadcast group per policy, made with its training processes; "
            "leave out the plugin"
        ]
    if not needed:
        return [f"{WHO}: no policy is trained, so there is nothing to share; leave out the plugin"]
    problems = [
        f"{WHO}: policy {name!r} needs {count} seats of one node (--actor.num_nodes x --actor.num_gpus_per_node, with a critic "
        f"its as well), and a node has {seating.seats}; raise --process_groups.seats, or lower "
        f"--policy.{name}.actor.num_gpus_per_node"
        for name, count in needed.items()
        if count > seating.seats
    ]
    problems = problems or _without_room(run)
    if not problems and sum(needed.values()) <= seating.total:
        return [
            Remark(
                f"{WHO}: {seating.total} seats are enough for all {len(needed)} trained policies, so none will ever leave its "
                "own; lower --process_groups.seats, or leave out the plugin"
            )
        ]
    return problems


def _without_room(run: Run) -> list[str]:
    """The problem with states that Ray's object store, or this machine's memory, cannot hold."""
    assert run.seating is not None
    sizes, given = state_bytes(run), run.seating.state_gb
    known = {name: size for name, size in sizes.items() if size is not None}
    total, shown = sum(known.values()), ", ".join(f"{name!r} {gb(size)}" for name, size in known.items())
    if given is None and len(known) < len(sizes):
        unknown = ", ".join(repr(name) for name in sizes if name not in known)
        return [
            f"{WHO}: the size of the model of policy {unknown} is not known, and with it how large Ray's object store has to be; "
            "give --process_groups.state_gb: of all policies together, 18 bytes a parameter"
        ]
    if given is not None and total > given * 1e9:
        return [
            f"{WHO}: the states of the policies need {gb(total)} ({shown}), and --process_groups.state_gb is {given:g}; raise it "
            "or leave it out"
        ]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if not os.environ.get("RAY_ADDRESS") and STORE + states_together(run) > memory:
        return [
            f"{WHO}: the states of the policies need {gb(states_together(run))} of Ray's object store ({shown}), and this "
            f"machine has {gb(memory)} of memory; use smaller models, fewer ranks or fewer policies (--mapping)"
        ]
    return []
