"""The back-end that gives policies processes on seats that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from marl_plugins import ConfigurationError, Problem

# inside: works in the training processes
from marl_plugins.core.process_backend import ProcessBackend, TrainingSpec
from marl_plugins.engine.hosts.devices import critic_gpus
from marl_plugins.process_groups.checks import check_seating
from marl_plugins.process_groups.seats import Seating
from marl_plugins.process_groups.states import engine_seats, state_bytes, states_together

if TYPE_CHECKING:
    from marl_plugins import Run
    from marl_plugins.process_groups.room import SeatedProcesses, SeatRoom


class SharedSeats(ProcessBackend):
    """Training processes exist only while their policy computes.

    Args:
        seating: The seats that there are.
    """

    lasting = False

    def __init__(self, seating: Seating):
        self.seating = seating
        self.room: SeatRoom | None = None
        """Once it is open, and only where a policy is trained."""

    def problems(self, run: Run) -> list[Problem]:
        return check_seating(run, self.seating)

    def devices(self, run: Run) -> Mapping[str, int]:
        trained = any(policy.trainable for policy in run.policies)
        return {"seats of training processes": self.seating.total} if trained else {}

    def object_store_bytes(self, run: Run) -> int:
        return states_together(run, self.seating)

    def check_cluster(self, run: Run) -> None:
        from marl_plugins.engine.processes.nodes import living_nodes

        of_nodes = living_nodes().values()
        seats, nodes = self.seating.seats, self.seating.nodes
        if (
            self.devices(run) and sum(gpus // seats for gpus in of_nodes) < nodes
        ):  # they would be waited for, for ever
            got = (
                f"the plan needs {nodes} nodes with {seats} seats each, and Ray's nodes have "
                f"{', '.join(map(str, of_nodes))} GPUs"
            )
            fix = (
                "use fewer seats of more nodes (--process_groups.seats, --process_groups.nodes), "
                "or larger nodes"
            )
            raise ConfigurationError(Problem("seats.cluster", got=got, fix=fix))

    def open(self, run: Run) -> None:
        if not self.devices(run):
            return
        from marl_plugins.process_groups.room import SeatRoom

        largest = max(size or 0.0 for size in state_bytes(run).values())
        critics = any(critic_gpus(args) for args in run.policy_args.values())
        silence, engines = run.recipe.limits.silence_seconds, engine_seats(run, self.seating)
        self.room = SeatRoom(self.seating, critics, silence, largest, engines)
        self.room.open()

    def processes_of(self, spec: TrainingSpec) -> SeatedProcesses:
        from marl_plugins.process_groups.room import SeatedProcesses

        assert self.room is not None, "open comes first"
        return SeatedProcesses(self.room, spec)

    def metrics(self) -> dict[str, float]:
        return self.room.metrics() if self.room else {}

    def close(self) -> None:
        if self.room is not None:
            self.room.close()
            self.room = None
