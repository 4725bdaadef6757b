"""Seats for the training processes of more policies than there are devices: who has which, and who
is next.

A seat is a device that one training process computes on. A group is all processes of one policy,
and gets all its seats or none, on one node. It keeps them when its work is done, until a group that
waits needs them: whoever was last to compute in one pass over the policies is first in the next
pass, for nothing (last in, first out).

    request = seats.ask(group, count)     the group has work
    seats.grant()                         who is next: its seats, and the groups that have to leave
                                          them before; None for nobody now
    seats.give_back(group)                the work is done; the seats stay the group's
    seats.leave(group)                    its processes are gone

The order is that of asking, with two exceptions: a group that has seats needs no others, and a
group that fits now may go before one that does not. A pass over the policies ends when all have
had their turn, so nobody waits for ever. FlexMARL (arXiv 2602.09578) activates groups all or none
and returns them to their previous node; the order is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Seat(NamedTuple):
    """One seat: the number of its node, and its own number there."""

    node: int
    number: int


@dataclass(frozen=True)
class Seating:
    """The seats of a run.

    Args:
        seats: Of each node.
        nodes: Number of nodes.
        state_gb: What Ray's object store keeps free for the states of policies without seats; None:
            what their sizes say.
    """

    seats: int
    nodes: int = 1
    state_gb: float | None = None

    @property
    def total(self) -> int:
        return self.seats * self.nodes


@dataclass(eq=False, slots=True)
class SeatRequest:
    """A group that waits for its seats.

    Args:
        count: How many it needs.
    """

    group: str
    count: int


class Grant(NamedTuple):
    """A request that has been granted.

    Args:
        seats: The group's, in the order of its processes.
        leaving: Groups that had some of them; none where the group has not left its seats since its
            last work.
    """

    request: SeatRequest
    seats: tuple[Seat, ...]
    leaving: tuple[str, ...]


class Seats:
    """See the module's text.

    Args:
        seating: The seats that there are.
    """

    def __init__(self, seating: Seating):
        self.seating = seating
        self.held: dict[str, tuple[Seat, ...]] = {}
        """The seats of every group that has some; those that are not at work in the order in which
        they ended it."""
        self.waiting: list[SeatRequest] = []
        """In the order of asking."""
        self._at_work: Counter[str] = Counter()
        """Pieces of work in progress."""
        self._previous: dict[str, tuple[Seat, ...]] = {}

    def ask(self, group: str, count: int) -> SeatRequest:
        """Returns a request of a group, which asks for the same number of seats each time, and for
        no more than a node has (`check_seating`)."""
        request = SeatRequest(group, count)
        self.waiting.append(request)
        return request

    def withdraw(self, request: SeatRequest) -> None:
        """Gives the request up, unless it has been granted."""
        if request in self.waiting:
            self.waiting.remove(request)

    def grant(self) -> Grant | None:
        """Returns the next request that can be granted now, which is granted; None where no one's
        can."""
        for request in sorted(self.waiting, key=lambda request: request.group not in self.held):
            if (place := self._find(request)) is not None:
                self._give(request, *place)
                return Grant(request, *place)
        return None

    def _find(self, request: SeatRequest) -> tuple[tuple[Seat, ...], tuple[str, ...]] | None:
        """Seats for a request, and who leaves them: few groups, and on the group's previous node
        where that is all the same."""
        if seats := self.held.get(request.group):
            return seats, ()
        previous = self._previous.get(request.group, ())
        choices = [
            on
            for node in range(self.seating.nodes)
            if (on := self._find_on(node, request.count, previous))
        ]
        return min(
            choices,
            key=lambda on: (len(on[1]), on[0][0].node not in {s.node for s in previous}),
            default=None,
        )

    def _find_on(
        self, node: int, count: int, previous: Sequence[Seat]
    ) -> tuple[tuple[Seat, ...], tuple[str, ...]] | None:
        taken = {seat for seats in self.held.values() for seat in seats}
        free = {seat for n in range(self.seating.seats) if (seat := Seat(node, n)) not in taken}
        resting = [name for name in self.resting if self.held[name][0].node == node]
        resting.sort(
            key=lambda name: not {*self.held[name]} & {*previous}
        )  # stable: then who has rested for the longest
        leaving: list[str] = []
        for name in resting:
            if len(free) < count:
                leaving.append(name)
                free.update(self.held[name])
        if len(free) < count:
            return None
        for name in leaving[:-1]:  # the last ones may have been enough
            if len(free) - len(self.held[name]) >= count:
                leaving.remove(name)
                free.difference_update(self.held[name])
        order = {seat: place for place, seat in enumerate(previous)}
        chosen = sorted(free, key=lambda seat: (order.get(seat, len(order)), seat))[:count]
        return tuple(chosen), tuple(leaving)

    def _give(self, request: SeatRequest, seats: tuple[Seat, ...], leaving: Sequence[str]) -> None:
        self.waiting.remove(request)
        for name in leaving:
            self.leave(name)
        self.held[request.group] = self._previous[request.group] = seats
        self._at_work[request.group] += 1

    @property
    def resting(self) -> list[str]:
        """The groups with seats that are not at work, those first that have rested for longest."""
        return [name for name in self.held if not self._at_work[name]]

    def give_back(self, group: str) -> None:
        """Notes that a piece of the group's work is done."""
        self._at_work[group] -= 1
        if group in self.held and not self._at_work[group]:
            self.held[group] = self.held.pop(group)  # to the end

    def leave(self, group: str) -> None:
        """Notes that the group has no seats any more."""
        self.held.pop(group, None)
