"""Seats: never more than there are, all of a group's or none, in order; and how often a pass over
the policies changes them."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from marl_plugins.process_groups.seats import Seat, Seating, Seats

GROUPS = "pqrstu"


class AtRandom(RuleBasedStateMachine):
    """Groups ask, work, give up and die in any order; beside it a model that keeps every seat's
    owner."""

    @initialize(
        nodes=st.integers(1, 3),
        size=st.integers(1, 4),
        counts=st.lists(st.integers(1, 4), min_size=6),
    )
    def begin(self, nodes, size, counts):
        self.seating = Seating(size, nodes)
        self.seats = Seats(self.seating)
        self.counts = {
            group: min(count, size) for group, count in zip(GROUPS, counts, strict=False)
        }
        self.owner = {}
        self.working = dict.fromkeys(GROUPS, 0)
        self.waiting = []

    @rule(group=st.sampled_from(GROUPS))
    def ask(self, group):
        self.waiting.append(self.seats.ask(group, self.counts[group]))
        self.grant_all()

    @precondition(lambda self: any(self.working.values()))
    @rule(data=st.data())
    def end_work(self, data):
        group = data.draw(st.sampled_from([g for g, n in self.working.items() if n]))
        self.working[group] -= 1
        self.seats.give_back(group)
        self.grant_all()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data):
        request = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(request)
        self.seats.withdraw(request)
        self.grant_all()

    @rule(group=st.sampled_from(GROUPS))
    def die(self, group):
        if not self.working[group]:
            self.seats.leave(group)
            self.owner = {seat: who for seat, who in self.owner.items() if who != group}
            self.grant_all()

    def seats_of(self, group):
        return {seat for seat, who in self.owner.items() if who == group}

    def grant_all(self):
        while grant := self.seats.grant():
            group, seats = grant.request.group, set(grant.seats)
            assert len(seats) == len(grant.seats) == self.counts[group]
            assert len({seat.node for seat in seats}) == 1
            assert all(
                seat.node < self.seating.nodes and seat.number < self.seating.seats
                for seat in seats
            )
            if before := self.seats_of(group):
                assert seats == before and not grant.leaving
            for name in grant.leaving:
                assert not self.working[name] and self.seats_of(name) & seats, (
                    "it had to leave for nothing"
                )
                self.owner = {seat: who for seat, who in self.owner.items() if who != name}
            assert not seats & self.owner.keys() or before, "a seat that another group has"
            self.waiting.remove(grant.request)
            self.owner |= dict.fromkeys(seats, group)
            self.working[group] += 1

    @invariant()
    def nobody_waits_who_could_be_served(self):
        """No node has enough seats that are free or of groups that do nothing."""
        assert {g: set(s) for g, s in self.seats.held.items()} == {
            g: s for g in GROUPS if (s := self.seats_of(g))
        }
        for request in self.waiting:
            assert not self.working[request.group] and not self.seats_of(request.group)
            for node in range(self.seating.nodes):
                busy = [
                    seat
                    for seat, who in self.owner.items()
                    if seat.node == node and self.working[who]
                ]
                assert self.seating.seats - len(busy) < request.count

    def teardown(self):
        """When all work ends, whoever waits is served: nothing is stuck."""
        while self.waiting:
            group = next(g for g, n in self.working.items() if n)
            self.working[group] -= 1
            self.seats.give_back(group)
            self.grant_all()


TestAtRandom = AtRandom.TestCase
TestAtRandom.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def serve(seats, draw, order):
    """One pass in which all groups ask at once and work for random times; the order of the grants,
    and how many had no seats."""
    for group in order:
        seats.ask(group, 1)
    served, came, working = [], 0, []
    while len(served) < len(order) or working:
        there = set(seats.held)
        while grant := seats.grant():
            came += grant.request.group not in there
            there = set(seats.held)
            served.append(grant.request.group)
            working.append(grant.request.group)
        seats.give_back(working.pop(draw.randrange(len(working))))
    return served, came


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))
def test_the_second_pass_begins_with_whoever_ended_the_first(groups, places, seed):
    """As many groups change as there are more groups than seats, in every pass, however long
    anybody works."""
    draw, seats, names = (
        random.Random(seed),
        Seats(Seating(places)),
        list(GROUPS[:groups]),
    )
    for number in range(4):
        there = list(seats.held)
        served, came = serve(seats, draw, draw.sample(names, groups))
        assert sorted(served) == names
        if number:
            assert set(served[: len(there)]) == set(there)
            assert came == max(0, groups - places)


def test_a_group_comes_back_to_its_seats_or_at_least_to_its_node():
    seats = Seats(Seating(2, nodes=2))

    def work(group, count):
        seats.ask(group, count)
        grant = seats.grant()
        return set(grant.seats), set(grant.leaving)

    assert work("p", 1) == ({Seat(0, 0)}, set())
    assert work("q", 2) == ({Seat(1, 0), Seat(1, 1)}, set())
    assert work("r", 1) == ({Seat(0, 1)}, set())
    for group in "rpq":
        seats.give_back(group)
    assert work("s", 1) == ({Seat(0, 1)}, {"r"}), "who has rested for the longest leaves"
    seats.give_back("s")
    assert work("r", 1) == ({Seat(0, 1)}, {"s"}), (
        "to its own seat, although p has rested for longer"
    )
    seats.leave("q")
    seats.leave("p")
    assert work("p", 1) == ({Seat(0, 0)}, set()), "three seats are free"
