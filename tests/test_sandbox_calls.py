"""The filter of system calls, run by a small machine of the tests' own for both architectures, and
the table of their numbers."""

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from marl_plugins.sandbox import seccomp, system_calls
from marl_plugins.sandbox.system_calls import ALLOW, ASK, NUMBERS

ARCHITECTURES = list(system_calls.COLUMN)
LINE = 256
HEADERS = {
    0: "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    1: "/usr/include/asm-generic/unistd.h",
}
OTHER_NAMES = {"newfstatat": "fstatat"}


def answer(code, architecture, number, arguments):
    """What a filter says of a call: the machine of bpf(4), as far as it is used."""
    words = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack(
        "=IIQ6Q",
        number,
        seccomp.AUDIT_ARCH[architecture],
        0,
        *[word & (1 << 64) - 1 for word in words],
    )
    at = held = 0
    while True:
        what, yes, no, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        match what:
            case seccomp.LOAD:
                (held,) = struct.unpack_from("=I", data, value)
            case seccomp.AND:
                held &= value
            case seccomp.RETURN:
                known = {seccomp.ALLOWED: ALLOW, seccomp.ASKED: ASK, seccomp.KILLED: "killed"}
                return known.get(value, value & 0xFFFF)
            case _:
                tests = {seccomp.EQUAL: held == value, seccomp.BITS: held & value}
                tests |= {seccomp.AT_LEAST: held >= value}
                at += yes if tests[what] else no


@pytest.fixture(params=ARCHITECTURES)
def architecture(request, monkeypatch):
    monkeypatch.setattr(seccomp, "machine", lambda: request.param)
    return request.param


CASES = [
    ("read", (0, 0, 0), 7, False, ALLOW),
    ("fcntl", (3, 8, 99), 7, False, errno.EINVAL),
    ("fcntl", (3, 15, 0), 1, True, errno.EINVAL),
    ("fcntl", (3, 10, 9), 7, True, errno.EINVAL),
    ("fcntl", (3, 1031, 1 << 20), 7, True, errno.EINVAL),
    ("fcntl", (3, 4, os.O_NONBLOCK), 7, False, ALLOW),
    ("fcntl", (3, 4, 0x2000), 7, False, errno.EPERM),
    ("ioctl", (3, 0x8901, 0), 7, True, errno.ENOTTY),
    ("ioctl", (0, 0x5412, 0), 7, True, errno.ENOTTY),
    ("clone", (0x1200011,), 7, False, ASK),
    ("clone", (0x3D0F00,), 7, False, ASK),
    ("clone", (0x4111,), 7, True, ASK),
    ("clone", (0x8011,), 7, True, errno.EPERM),
    ("clone", (0x10000011,), 7, True, errno.EPERM),
    ("clone", (0x11 | 1 << 40,), 7, True, ASK),
    ("clone", (0x10D00,), 7, True, errno.EPERM),  # a thread with descriptors of its own
    ("clone", (0x111,), 7, True, errno.EPERM),  # a process in the same memory
    ("prctl", (4, 0), 7, True, errno.EINVAL),
    ("prctl", (36, 0), 7, False, errno.EINVAL),
    ("prctl", (15, 1), 7, False, ALLOW),
    ("prlimit64", (0, 7), 7, False, ALLOW),
    ("prlimit64", (77, 7), 7, False, ASK),
    ("prlimit64", (77, 7), 7, True, ALLOW),
    ("socket", (2, 1, 0), 7, True, ASK),
    ("socket", (16, 3, 0), 7, True, errno.EPERM),
    ("socketpair", (1, 1 | 0x80000, 0), 7, False, ASK),
    ("socketpair", (1, 2, 0), 7, False, errno.EPERM),
    ("socketpair", (16, 1, 0), 7, False, errno.EPERM),
    ("sendto", (3, 1, 1, 0x4000, 0, 0), 7, False, ALLOW),
    ("sendto", (3, 1, 1, 0x4000, 1 << 32, 0), 7, False, errno.EPERM),
    ("sendto", (3, 1, 1, 1, 0, 0), 7, False, errno.EPERM),
    ("sendmsg", (LINE, 0, 0), 7, False, ALLOW),
    ("sendmsg", (3, 0, 0), 7, False, ASK),
    ("setsockopt", (3, 1, 7), 7, False, ASK),
    ("mmap", (0, 4096, 3, 0x22), 7, False, ALLOW),
    ("mmap", (0, 4096, 3, 0x21), 7, False, ASK),
    ("mmap", (0, 4096, 3, 0x23), 7, False, ASK),
    ("mmap", (0, 4096, 3, 0x28), 7, False, errno.EINVAL),
    ("mmap", (0, 4096, 3, 0x40022), 7, False, errno.ENOMEM),
    ("mmap", (0, 4096, 1, 1, 5), 7, False, ALLOW),
    ("madvise", (0, 4096, 4), 7, False, ALLOW),
    ("madvise", (0, 4096, 21), 7, False, errno.EINVAL),
    ("openat", (-100, 1, os.O_CREAT | os.O_WRONLY, 0o644), 7, False, ALLOW),
    ("openat", (-100, 1, os.O_CREAT | os.O_WRONLY, 0o4755), 7, False, errno.EPERM),
    ("openat", (-100, 1, os.O_RDONLY, 0o7777), 7, False, ALLOW),
    ("openat", (-100, 1, os.O_TRUNC | 3, 0), 2, False, errno.EINVAL),
    ("openat", (-100, 1, os.O_TRUNC, 0), 2, False, errno.EPERM),
    ("openat", (-100, 1, os.O_TRUNC, 0), 3, False, ALLOW),
    ("openat", (-100, 1, 0x400000 | os.O_RDWR, 0), 7, True, errno.EOPNOTSUPP),
    ("kill", (0, 9), 5, False, ALLOW),
    ("kill", (77, 9), 5, False, ASK),
    ("kill", (77, 9), 6, False, ALLOW),
    ("pidfd_send_signal", (5, 9), 5, False, errno.ENOSYS),
    ("fallocate", (3, 0, 0, 1), 7, True, errno.EOPNOTSUPP),
    ("ptrace", (16, 77), 7, True, ASK),
]


@pytest.mark.parametrize(("call", "arguments", "abi", "own", "expected"), CASES)
def test_what_comes_of_a_call(call, arguments, abi, own, expected, architecture):
    code = seccomp.filter_of(system_calls.rules(abi, own, LINE))
    assert (
        answer(code, architecture, NUMBERS[call][system_calls.COLUMN[architecture]], arguments)
        == expected
    )


def test_what_is_not_listed_is_not_there(architecture):
    code = seccomp.filter_of(system_calls.rules(7, False, LINE))
    listed = {numbers[system_calls.COLUMN[architecture]] for numbers in NUMBERS.values()}
    found = {
        number: answer(code, architecture, number, ())
        for number in range(600)
        if number not in listed
    }
    assert set(found.values()) == {errno.ENOSYS}
    assert len(code) // 8 < 4096 and answer(code, architecture, 0x40000000 | 1, ()) == errno.ENOSYS
    other = next(name for name in ARCHITECTURES if name != architecture)
    assert answer(code, other, 0, ()) == "killed"


def test_every_call_of_the_table_has_a_rule():
    assert system_calls.rules(7, False, LINE).keys() == NUMBERS.keys()


@pytest.mark.parametrize(
    ("column", "header"), [found for found in HEADERS.items() if Path(found[1]).exists()]
)
def test_numbers_are_the_kernels(column, header):
    text = Path(header).read_text()
    kernels = {
        name: int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)
    }
    ours = {
        OTHER_NAMES.get(name, name) if column else name: found[column]
        for name, found in NUMBERS.items()
    }
    assert {
        name: number
        for name, number in ours.items()
        if kernels.get(name, -1) != number and name in kernels
    } == {}
    assert {name for name, number in ours.items() if number >= 0 and name not in kernels} <= {
        "fchmodat2"
    }
