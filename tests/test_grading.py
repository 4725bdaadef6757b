"""Graders' parts: programs that are checked apart, deadlines that wait, places of answers. The kits
of recipes: tests/graders."""

import asyncio

import pytest
from leaving_programs import HOSTILE

from marl_plugins.core.deadlines import against, clock_of, not_counted
from marl_plugins.core.scoring import score_outcome
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.grading import right
from marl_plugins.sandbox import Checker

RIGHT = "def f(x):\n    return x * 2 + 1"
CHECKS = "\n".join(f"assert f({x}) == {2 * x + 1}" for x in (0, 1, 4, 7, 13))

PASSING = {
    "right": (RIGHT, CHECKS),
    "prints": (f"{RIGHT}\nprint('passed', flush=True)", CHECKS),
    "expected exception": (
        "def f(x):\n    raise KeyError(x)",
        "try:\n    f(1)\nexcept KeyError:\n    pass\nelse:\n    assert False",
    ),
    "one answer for the next call": (
        "def f(x): return x + 1",
        "x = 0\nfor _ in range(10):\n    x = f(x)\nassert x == 10",
    ),
    "in place": ("def f(x): x.sort()", "a = [3, 1]\nf(a)\nassert a == [1, 3]"),
    "in place, in a block": (
        "def f(x): x.pop()\ndef g(x): return bool(x.pop())",
        "def test_one():\n    a = [1, 2, 3]\n    for _ in range(2):\n        f(a)\n    if g(a):\n  "
        "      f(a)\n    assert a == []",
    ),
    "functions": (
        "def f(x): return x + 1",
        "def test_one():\n    assert f(1) == 2\ndef test_two():\n    assert f(2) == 3",
    ),
    "all kinds": (
        "def f(x): return x",
        "for x in (None, True, 7, 2.5, 'a\\n', b'\\0', 1j, (1, (2,)), [1, []], {1, 2}, {'a': [1], "
        "2: None}, float('inf'), ()):\n"
        "    y = f(x)\n    assert y == x\n    assert type(y) is type(x)",
    ),
    "remembers": (
        "n = 0\ndef f():\n    global n\n    n += 1\n    return n",
        "assert f() == 1\nassert f() == 2\nassert f() == 3",
    ),
    "future dataclass": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass "
        "P:\n    x: int\n"
        "def f(x): return P(x).x",
        "assert f(3) == 3",
    ),
    "redefines what checks use": (
        "def len(x): return 0\ndef f(x): return [x]",
        "assert len(f(1)) == 1",
    ),
}
FORGED = """
import sys, os
frame = sys._getframe()
while not isinstance(frame.f_locals.get('request'), dict):
    frame = frame.f_back
with open(frame.f_locals['request']['report'], 'w') as report:
    for n in range({}):
        report.write('{{"callable": true}}\\n' if n < 2 else {} + '\\n')
os._exit(0)
"""
"""Leaves a report of its own, of so many lines."""
FAILING = {
    "wrong": ("def f(x): return x", CHECKS),
    "nothing": ("", CHECKS),
    "no Python": ("def f(x: return", CHECKS),
    "no value": ("def f(x): return object()", CHECKS),
    "raises": ("def f(x): return 1 / 0", CHECKS),
    "empties what is expected": (
        "def f(x):\n    x.clear()\n    return x",
        "a = [3, 1]\nassert f(a) == sorted(a)",
    ),
    "and says the number in a line before": (
        "def f(x):\n    x.clear()\n    return 0",
        "a = [3, 1]\nr = f(a)\nassert r == sum(a)",
    ),
    "in a function of the checks": (
        "def f(x):\n    x.clear()\n    return 0",
        "def total(x):\n    print(x)\n    return sum(x)\ndef check(x):\n    r = f(x)\n    assert r "
        "== total(x)\ncheck([3, 1])",
    ),
    "by name": (
        "def f(x=()):\n    x.clear()\n    return x",
        "a = [3, 1]\nassert f(x=a) == sorted(a)",
    ),
    **{
        f"ends {what} by {error}": (f"def f(x):\n    raise {error}", checks)
        for error in ("StopIteration", "GeneratorExit", "SystemExit")
        for what, checks in {
            "all": "assert all(map(lambda x: f(x) == x, [1, 2]))",
            "zip": "for got, want in zip(map(f, [1, 2]), [1, 2]):\n    assert got == want",
            "filter": "assert list(filter(lambda x: f(x) != x, [1, 2])) == []",
            "next": "assert next(filter(lambda x: f(x) != x, [1, 2]), None) is None",
        }.items()
    },
    "leaves more than can be read": (
        FORGED.format(7, """'{"value": {"list": [' + '{"list": []}, ' * 700000 + '0]}}'"""),
        CHECKS,
    ),
    "leaves an answer that is too long": (
        FORGED.format(7, """'{"value": {"list": [' + '{"list": []}, ' * 100000 + '0]}}'"""),
        CHECKS,
    ),
    "leaves more lines than are read": (FORGED.format(10**6, "''"), CHECKS),
}


@pytest.fixture(scope="module")
def passed():
    """`passed(program, checks)` of one checker, in one event loop."""
    with asyncio.Runner() as runner:
        checker = Checker(seconds=30)
        yield lambda program, checks: runner.run(checker.passed(program, checks))
        runner.run(checker.close())


@pytest.mark.parametrize("kind", PASSING)
def test_a_program_that_is_right_passes(passed, kind):
    assert passed(*PASSING[kind]).reason == ""


@pytest.mark.parametrize("kind", FAILING)
def test_a_program_that_is_wrong_does_not(passed, kind):
    found = passed(*FAILING[kind])
    assert not found.passed and not found.broken
    assert found.reason


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_program_passes_without_solving_anything(passed, kind):
    found = passed(HOSTILE[kind], CHECKS)
    assert not found.passed and not found.broken
    assert found.reason


@pytest.mark.parametrize(
    "checks",
    [
        *("assert f(1", "raise SystemExit", "import os\nos._exit(0)"),
        "for n in range(10_000):\n    f(n)",
    ],
)
def test_checks_that_cannot_be_run_are_broken(passed, checks):
    found = passed(RIGHT, checks)
    assert found.broken and not found.passed


def test_what_never_ends_is_stopped():
    """A program has failed then, and checks that do not end whatever the program are broken."""
    endless = "while True:\n    pass"

    async def work():
        checker = Checker(seconds=5)
        try:
            return await asyncio.gather(
                checker.passed("def f(x):\n    while True:\n        pass", CHECKS),
                checker.passed(endless, CHECKS),
                checker.passed(RIGHT, endless),
            )
        finally:
            await checker.close()

    found = asyncio.run(work())
    assert [(one.passed, one.broken) for one in found] == [
        (False, False),
        (False, False),
        (False, True),
    ]
    assert all("stopped after" in one.reason for one in found)


def test_checks_that_need_too_many_answers_in_turn_are_broken():
    async def work():
        checker = Checker(seconds=60)  # for fifty answers of the program in all
        try:
            return await checker.passed(RIGHT, "x = 0\nfor _ in range(100):\n    x = f(x)")
        finally:
            await checker.close()

    found = asyncio.run(work())
    assert found.broken and "more than 50 answers in turn" in found.reason


def test_programs_that_meet_the_same_checks_one_after_the_other_do_not_share_answers():
    """A checker keeps what checks ask first."""

    async def all_of():
        checker = Checker(seconds=30)
        programs = [RIGHT, RIGHT.replace("+ 1", "+ 2"), RIGHT, "raise SystemExit", RIGHT]
        found = [(await checker.passed(program, CHECKS)).passed for program in programs]
        await checker.close()
        return found

    assert asyncio.run(all_of()) == [True, False, True, False, True]


# --- deadlines
# --------------------------------------------------------------------------------------------------


def scored(seconds, grade):
    trajectory = Trajectory(Task("t", "p", "1"), 0, 0, answer="1")

    async def outcome(given):
        return await grade()

    asyncio.run(score_outcome(trajectory, outcome, seconds, ["a"]))
    return trajectory


async def waits():
    async with not_counted():
        await asyncio.sleep(0.5)
    return 1.0


async def waits_twice_at_once():
    await asyncio.gather(waits(), waits())
    return 1.0


async def works():
    async with not_counted():
        pass
    await asyncio.sleep(0.5)
    return 1.0


async def works_after_it_has_waited():
    await waits()
    return await works()


@pytest.mark.parametrize(
    ("grade", "lost"),
    [
        (waits, None),
        (waits_twice_at_once, None),
        (works, "deadline"),
        (works_after_it_has_waited, "deadline"),
    ],
)
def test_a_wait_does_not_count_against_the_deadline_and_work_does(grade, lost):
    trajectory = scored(0.25, grade)
    assert trajectory.infrastructure_failure == lost
    assert trajectory.outcome == (None if lost else 1.0)


def test_a_wait_that_outlives_its_deadline_harms_nobody():
    async def main():
        async with asyncio.timeout(0.05) as deadline:
            with clock_of(deadline) as clock, against(clock):
                late = asyncio.create_task(waits())
                await asyncio.sleep(0)
        return await late

    assert asyncio.run(main()) == 1.0


def test_a_wait_that_begins_while_its_deadline_passes_harms_nobody():
    """The deadline has cancelled its task, which has not yet been told."""

    found = []

    async def waits_once_it_has_passed(deadline):
        for _ in iter(deadline.expired, True):
            await asyncio.sleep(0)
        return await waits()

    async def bounded():
        async with asyncio.timeout(0.01) as deadline:
            with clock_of(deadline) as clock, against(clock):
                found.append(asyncio.create_task(waits_once_it_has_passed(deadline)))
                await asyncio.sleep(60)

    async def main():
        with pytest.raises(TimeoutError):
            await bounded()
        return await found[0]

    assert asyncio.run(main()) == 1.0


def test_an_innocent_answer_is_not_lost_behind_those_that_take_long():
    """Each power tower takes a second of CPU; the innocent has less time than they take."""
    towers = [f"\\boxed{{9^{{9^{{9}}}}+{n}}}" for n in range(3)]
    innocent = Trajectory(Task("t", "p", "\\sqrt{8}"), 0, 0, answer="\\boxed{2\\sqrt{2}}")

    async def outcome(trajectory):
        return float(await right(trajectory.answer, trajectory.task.label))

    async def main():
        others = [asyncio.create_task(right(tower, "\\sqrt{8}")) for tower in towers]
        await asyncio.sleep(0.3)
        await score_outcome(innocent, outcome, 1.5, ["a"])
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    assert asyncio.run(right("\\boxed{2\\sqrt{2}}", "\\sqrt{8}"))  # the process has started
    asyncio.run(main())
    assert (innocent.infrastructure_failure, innocent.outcome) == (None, 1.0)


PAIRS = [f"assert f({n}) == {2 * n}" for n in range(4)]


@pytest.mark.parametrize(
    ("program", "share"),
    [
        ("def f(x):\n    if x == 3: raise SystemExit\n    return x * 2", 0.75),
        ("import os\ndef f(x):\n    os._exit(0)", 0.0),
    ],
)
def test_the_share_of_checks_that_pass(program, share):
    async def rate():
        checker = Checker(seconds=30)
        try:
            return await checker.pass_rate(program, PAIRS)
        finally:
            await checker.close()

    assert asyncio.run(rate()) == share


def test_checks_of_a_share_are_apart():
    checks = [
        "x = 3\nassert f(f(1)) == 4",
        "assert f(",
        "def test_a():\n    assert f(2) == 4",
        "assert x == 3",
    ]

    async def rate():
        checker = Checker(seconds=30)
        try:
            return await checker.pass_rate("def f(x): return x * 2", checks)
        finally:
            await checker.close()

    assert asyncio.run(rate()) == 0.5


TESTS_OF_ALL_KINDS = (
    "async def test_f():\n    assert f(1) == 7",
    "def test_f():\n    assert f(1) == 7\n    yield",
    "class TestF:\n    def setup_method(self):\n        self.x = 1\n    def test_f(self):\n        "
    "assert f(self.x) == 7",
    "import unittest\n\n\nclass F(unittest.TestCase):\n    def test_f(self):\n        "
    "self.assertEqual(f(1), 7)",
    "from unittest import TestCase\nclass F(TestCase):\n    def setUp(self): self.x = 1\n    def "
    "test_f(self): assert f(1) == 7",
)


@pytest.mark.parametrize("checks", TESTS_OF_ALL_KINDS)
def test_tests_of_all_kinds_are_run(passed, checks):
    assert passed("def f(x): return x + 6", checks).passed
    found = passed("def f(x): return 0", checks)
    assert not found.passed and not found.broken


@pytest.mark.parametrize(
    "checks",
    ["", "def check():\n    assert f(1) == 7", "class F:\n    def test_f(self): assert f(1) == 7"],
)
def test_checks_that_ask_nothing_are_broken(passed, checks):
    assert passed("def f(x): return 7", checks).broken


@pytest.mark.parametrize(
    ("body", "check"),
    [
        *(
            ("yield from range(x)", "list(f(3)) == [0, 1, 2]"),
            ("return range(x)", "f(3) == range(3)"),
        ),
        *(
            ("return map(str, range(x))", "[*f(2)] == ['0', '1']"),
            ("return {1: 2}.keys()", "f(0) == {1}"),
        ),
    ],
)
def test_what_a_program_gives_piece_by_piece_crosses(passed, body, check):
    assert passed(f"def f(x):\n    {body}", f"assert {check}").passed
    assert not passed(f"def f(x):\n    {body}", f"assert not ({check})").passed


def test_an_endless_iterator_fails(passed):
    found = passed("def f(x):\n    while True: yield x", "assert next(f(1)) == 1")
    assert not found.passed and not found.broken
