"""More policies than devices: training processes exist only while their policy computes.

The policies share seats, a device each. A policy with rows to compute gets all the seats that it
needs or none, and its processes, the critic's and the reference among them, go on where they had
stopped. Where no seat is free, the policy that has rested for the
longest leaves its own: its state goes to the controller, its processes end. A step is one pass over
the policies for log-probs and one for updates; with P policies of one rank on N seats, P - N change
in each. What is computed is the same as with devices for each, bit for bit. seats.py has the order,
room.py the processes, training_state.py what is handed on.

FlexMARL (arXiv 2602.09578) calls it suspend-to-destroy.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from marl_plugins import Problem, above, at, at_least, hookimpl
from marl_plugins.process_groups.backend import SharedSeats
from marl_plugins.process_groups.checks import WHO
from marl_plugins.process_groups.seats import Seating
from marl_plugins.process_groups.states import seats_needed

if TYPE_CHECKING:
    from marl_plugins import Run

may_differ = ("process_groups.*",)


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(f"more policies than devices (--plugin {WHO})")
    group.add_argument(
        "--process_groups.seats",
        metavar="N",
        type=at_least(1),
        help="devices of a node that training processes share; default: as many as the largest "
        "policy needs",
    )
    group.add_argument(
        "--process_groups.nodes",
        metavar="N",
        type=at_least(1),
        default=1,
        help="number of nodes with that many seats each; a policy is on one of them",
    )
    group.add_argument(
        "--process_groups.state_gb",
        metavar="GB",
        type=above(0),
        help="room in Ray's object store for the states of policies without seats; default: by the "
        "models' sizes",
    )


@hookimpl
def marl_processes(run: Run) -> SharedSeats:
    flags = run.args.process_groups
    most = max(seats_needed(run).values(), default=1)
    return SharedSeats(Seating(flags.seats or most, flags.nodes, flags.state_gb))


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    """Remarks on seats that are never shared; what is wrong with them is said by the back-end."""
    needed = seats_needed(run).values()
    total = marl_processes(run).seating.total
    if run.processes is None or not needed or sum(needed) > total:
        return []
    return [
        Problem(
            "process_groups.enough",
            at(plugin=WHO),
            f"{total} seats are enough for all {len(needed)} trained policies: none will ever "
            "leave its own",
            fix="lower --process_groups.seats, or leave out the plugin",
            severity="warning",
            flags=("process_groups.seats",),
        )
    ]
