"""What the gate allows (marl_plugins/sandbox/gate.py): calls that were allowed count until they are
made for sure."""

import json
import os
import select
import socket
import subprocess
import sys
import time

import pytest

from marl_plugins.sandbox import gate
from marl_plugins.sandbox.supervisor import Supervisor


@pytest.fixture
def started():
    running = []

    def start(program):
        running.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", program]))
        return running[-1].pid

    yield start
    for process in running:
        process.kill()
        process.wait()


def until(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_a_call_of_a_caller_that_has_slept_or_ended_is_made(started, monkeypatch):
    monkeypatch.setattr(gate, "IN_FLIGHT_SECONDS", 0.0)
    pid = started("import time; time.sleep(99)")
    assert until(lambda: gate.AllowedCall().is_made(pid))
    assert gate.AllowedCall().is_made(2**22 + 1)


def test_a_call_of_a_caller_that_works_is_made_when_it_has_worked_for_a_while(started, monkeypatch):
    monkeypatch.setattr(gate, "IN_FLIGHT_SECONDS", 0.0)
    pid, allowed = started("while True: pass"), gate.AllowedCall()
    monkeypatch.setattr(gate, "IN_FLIGHT_TICKS", 10**9)
    assert until(lambda: not allowed.is_made(pid)) and not allowed.is_made(pid)
    monkeypatch.setattr(gate, "IN_FLIGHT_TICKS", 3)
    assert until(lambda: allowed.is_made(pid))


def test_no_more_are_allowed_than_there_may_be_however_late_they_are_made(monkeypatch):
    monkeypatch.setattr(
        gate.AllowedCall, "is_made", lambda self, caller: False
    )  # nobody has got to it yet
    count = gate.Count(3, lambda: 1)
    assert [count.take(caller) for caller in (11, 12, 13, 14)] == [True, True, False, False]


def test_who_asks_again_has_made_the_call_before(monkeypatch):
    monkeypatch.setattr(gate.AllowedCall, "is_made", lambda self, caller: False)
    there = [1]
    count = gate.Count(3, lambda: there[0])
    for now, expected in ((1, True), (2, True), (3, False), (2, True)):
        there[0] = now
        assert count.take(11) is expected


def test_a_filter_that_nobody_is_left_to_ask_by_is_not_waited_for():
    """It is hung up as soon as a program exits, and would be ready in every poll until the kernel
    has taken the program apart."""
    (control, owner), (server, theirs) = socket.socketpair(), socket.socketpair()
    (connection, other), (top, process), (listener, asking) = (
        socket.socketpair(),
        os.pipe(),
        os.pipe(),
    )
    supervisor = Supervisor(control.fileno(), server, owner.fileno())
    request = json.dumps({"memory": 1 << 20, "disk": 1 << 20}).encode()
    socket.send_fds(theirs, [request], [top, connection.fileno(), listener])
    supervisor._hear_server()
    (watched,) = set(supervisor.watched.values())
    os.close(asking)
    ((found, events),) = supervisor.poll.poll(0)
    assert (found, events) == (watched.listener, select.POLLHUP)
    supervisor._hear_program(watched, found, events)
    assert supervisor.poll.poll(0) == []
    os.close(process)
    ((found, events),) = supervisor.poll.poll(0)
    supervisor._hear_program(watched, found, events)
    assert not supervisor.watched
    for opened in (control, owner, server, theirs, connection, other):
        opened.close()
