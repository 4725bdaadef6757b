"""A `Checker` runs a program that an agent wrote against checks, so that the program cannot report
its own success.

    checker = Checker(seconds=5)
    found = await checker.passed(program, "assert f(3) == 7")
    found.passed, found.reason

The program and the checks run one after the other in sandboxes of their own (checker_programs.py).
The checks are run first: they ask for the program's names and calls. The program is loaded alone,
as a module, and answers them. The checks are run again with its answers, until they have come to
their end. So

    leaving    (`raise SystemExit`, `os._exit`, at exit, in a thread) gives no answers, and what has
    left no report has not passed pretending to be equal, by a class with an `__eq__` of its own, is
    in vain: answers are plain values that crossed as JSON
    reaching   for the checks, what they expect or their report is in vain: the program shares no
               process with them
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marl_plugins.sandbox.opening import OnDemandSandbox
from marl_plugins.sandbox.program import Limits, Program, ProgramResult
from marl_plugins.sandbox.section import SandboxConfig

SOURCE = Path(__file__).with_name("checker_programs.py").read_text()
MAX_DEPENDENT_ROUNDS = 50
"""Maximum number of times that checks ask for answers which depend on answers before."""
REMEMBERED_CHECKS, REMEMBERED_CHARS = 1000, 20_000
"""Maximum number of checks whose first questions are kept, and of characters of each with its
questions. A task's checks are run on all of its samples."""
FILE_MB = 8
"""Size of one file that a program may have; its answers are one, and the trainer reads them."""


@dataclass(frozen=True)
class CheckResult:
    """The result of a program's checks.

    Args:
        passed: Whether the checks came to their end and nothing failed.
        reason: Why not: the check that failed, by line, or what kept the program from answering;
            empty where it passed.
        broken: Whether the checks do not come to their end, whatever the program: they do not
            parse, leave early, take too long, ask nothing of it.
    """

    passed: bool
    reason: str = ""
    broken: bool = False


class Checker:
    """Runs programs and their checks.

    Args:
        seconds: Wall time of the program in all, and of each run of the checks.
        memory_mb: Memory of each of the two.
        sandbox: Where they run; default: a sandbox of its own, at the strongest level of the
            machine.
    """

    def __init__(
        self,
        *,
        seconds: float = 5.0,
        memory_mb: int = 512,
        sandbox: OnDemandSandbox | None = None,
    ):
        self._limits = Limits(
            seconds=seconds, memory_mb=memory_mb, file_mb=FILE_MB, disk_mb=2 * FILE_MB
        )
        self._sandbox = sandbox or OnDemandSandbox(
            SandboxConfig(imports=["ast", "inspect", "json"])
        )
        self._first_asked: dict[tuple[str, ...], list[str]] = {}
        """By checks, what they ask of a program of which they know nothing."""

    async def passed(self, program: str, checks: str) -> CheckResult:
        """Runs checks on a program.

        Args:
            program: Python that defines what the checks use, loaded as a module (`__name__` is not
                `__main__`).
            checks: Python with `assert`, functions `test_*` without parameters, and test classes. A
                name that they do not define is the program's; `alike` is ours
                (checker_programs.py). What they give the program and get from it are plain values:
                None, numbers, texts, bytes, lists, tuples, sets, dicts, ranges, deques and
                iterators. What the program raises comes as the nearest of Python's own exceptions.

        Raises:
            InfrastructureFailure: They could not be run; no program is to blame for that.
        """
        ended = await self._ended(program, [checks])
        if isinstance(ended, CheckResult):
            return ended
        status, _, reason = ended[0].partition(" ")
        return CheckResult(status == "passed", reason, broken=status not in ("passed", "failed"))

    async def pass_rate(self, program: str, checks: Sequence[str]) -> float:
        """Returns the share of several checks that a program passes, in [0, 1]; each is run on its
        own, as `passed` runs one.

        The program is loaded once for all of them, so this costs no more runs than one check. They
        share one process, so they have
        to be the recipe's own: an agent's could report for the others.

        Raises:
            InfrastructureFailure: They could not be run; no program is to blame for that.
        """
        ended = await self._ended(program, list(checks))
        return 0.0 if isinstance(ended, CheckResult) else ended.count("passed") / len(checks)

    async def _ended(self, program: str, checks: list[str]) -> list[str] | CheckResult:
        """Returns how checks ended, in the words of checker_programs.py; or why they did not."""
        known: list[tuple[str, str]] = []
        left = self._limits.seconds
        these = tuple(checks)
        for _ in range(MAX_DEPENDENT_ROUNDS):
            if known or not (unknown := self._first_asked.get(these, [])):
                completed, report = await self._run(
                    "verdicts", self._limits, checks=checks, known=known
                )
                # with a program's answers, the program may be to blame: they can be as long as it
                # likes
                if not report:
                    return CheckResult(False, _end("the checks", completed), broken=not known)
                if report[0] != "asks":
                    return report
                unknown = report[1:]
            if not known and sum(map(len, (*these, *unknown))) <= REMEMBERED_CHARS:
                if len(self._first_asked) == REMEMBERED_CHECKS:
                    self._first_asked.clear()
                self._first_asked[these] = unknown
            calls = [*(call for call, _ in known), *unknown]
            limits = replace(self._limits, seconds=max(left, 0.1))
            completed, answers = await self._run(
                "answers", limits, 1 + len(calls), program=program, calls=calls
            )
            left -= completed.seconds
            if len(answers) <= len(calls):  # the first line says that it was loaded
                return CheckResult(False, _unanswered(answers, calls, completed))
            known += zip(unknown, answers[1 + len(known) :], strict=False)
        return CheckResult(
            False,
            f"the checks need more than {MAX_DEPENDENT_ROUNDS} answers in turn, each for the next "
            "call",
            broken=True,
        )

    async def close(self) -> None:
        """Ends the sandbox of the running event loop; what nobody closes ends with this process."""
        await self._sandbox.close()

    async def _run(
        self, what: str, limits: Limits, most: int = -1, **request: Any
    ) -> tuple[ProgramResult, list[str]]:
        """Run one side; its report by lines, at most so many, which is empty where it has left
        none."""
        report = secrets.token_hex(16)
        stdin = (await asyncio.to_thread(json.dumps, {**request, "report": report})).encode()
        program = Program(
            f"{SOURCE}\nallow_long_numbers()\n{what}(json.load(sys.stdin))\n",
            stdin=stdin,
            wanted=(report,),
            limits=limits,
            merged=True,
        )
        completed = await self._sandbox.sandbox.run(program)
        text = completed.files.get(report, b"").decode(errors="replace")
        return completed, text.split("\n", most)[:-1]


def _end(what: str, completed: ProgramResult) -> str:
    """Returns why a side has left no report, or not all of it."""
    return f"{what} ended early: {completed.reason or f'exit code {completed.code}'}"


def _unanswered(answers: list[str], calls: list[str], completed: ProgramResult) -> str:
    """Returns why a program has not answered all calls."""
    if len(answers) == 1 and (failed := re.match(r'\{"raised": "(\w+)"', answers[0])):
        return f"the program raises {failed[1]} when it is loaded"
    at = f"before it answered {calls[len(answers) - 1][:200]}" if answers else "while it was loaded"
    return f"{_end('the program', completed)}, {at}"
