"""Everything that can go wrong, in three kinds that are never mixed up.

* `ConfigurationError`: known before anything starts, or the user's to fix. Several are collected
  and reported together.
* `AgentFailure`: the agents' own doing (no answer, endless tool calls, overlong context). Scored,
  trained on, wrong in an evaluation.
* `InfrastructureFailure`: a dead engine, an unreachable service. Retried, then left out with its
  reason in the ledger.

Anything else that is raised in a run is a bug, of this package or of a recipe, and ends the run
with its traceback.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from marl_plugins.core.problems import Problem, meant, problem_of


class ConfigurationError(Exception):
    """One or more things that the user has to fix; exit code 2, no traceback.

    Args:
        problems: What is wrong (problems.py); a plain sentence of a user's plugin or recipe becomes
            a problem of code `other`.
    """

    def __init__(self, problems: Problem | str | Iterable[Problem | str]):
        listed = [problems] if isinstance(problems, Problem | str) else problems
        self.problems = [problem_of(problem) for problem in listed]
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[ConfigurationError], tuple[list[Problem]]]:
        return type(self), (self.problems,)  # from another process with its codes and places

    @property
    def count(self) -> int:
        """The number of problems, those included that are only counted."""
        return sum(problem.count for problem in self.problems)


class RunEnded(Exception):
    """A run that had to end in a known way (a lost process, a non-finite loss); exit code 1, with
    how to resume."""


class RunPaused(RunEnded):
    """A run that cannot continue as things are (a refused key, a spent budget), and whose state is
    whole: it is saved first.

    Raised before the update of a step, or once it is saved; the run can be resumed with the step
    that was saved last.
    """


class AgentFailure(Exception):
    """The agents failed at the task. `kind` is one of `KINDS`; the trajectory is scored as a
    failure and trained on."""

    KINDS = ("context", "crashed", "endless_tool_calls", "no_answer")

    def __init__(self, kind: str, detail: str):
        if kind not in self.KINDS:
            raise ValueError(
                f"agent failure of kind {kind!r}; known kinds: {', '.join(self.KINDS)}"
            )
        self.kind = kind
        super().__init__(detail)


class InfrastructureFailure(Exception):
    """Something below the agents failed; the trajectory is left out. `kind` is a short word for the
    ledger."""

    def __init__(self, kind: str, detail: str):
        self.kind = kind
        super().__init__(detail)


class RecipeError(Exception):
    """A recipe's file, of another kind than Python, does not work at a place that no traceback
    names.

    Args:
        place: `FILE:LINE`.
        kind: Name of the kind of exception, as Python has it.
    """

    def __init__(self, place: str, kind: str, detail: str):
        self.place = place
        self.kind = kind
        self.detail = detail
        super().__init__(f"{place}: {detail} ({kind})")


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception itself, or those in the group that parallel branches make of theirs."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves_of(inner)
    else:
        yield error


def is_from_outside(error: BaseException) -> bool:
    """Returns whether an exception ends what is running from outside: a cancelled task, a closed
    coroutine, a person's Ctrl-C.

    It is asked where the exception passes, in the frame that awaits what may have raised it
    instead.
    """
    import asyncio

    if isinstance(error, GeneratorExit):  # one that was raised further in has that frame, too
        return error.__traceback__ is None or error.__traceback__.tb_next is None
    if not isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return False
    try:
        tasks = (
            {asyncio.current_task()}
            if isinstance(error, asyncio.CancelledError)
            else asyncio.all_tasks()
        )
    except RuntimeError:  # no event loop is running
        return True
    # asyncio makes a cancellation of the first Ctrl-C
    return any(task and task.cancelling() for task in tasks)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the valid name closest to `name`, or the list of valid
    names where none is close."""
    fix = meant(name, valid)
    return fix and f"; {fix}"


def first_line(error: BaseException) -> str:
    """Returns what an error says first."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def raised_by(error: Exception) -> Exception:
    """Returns what a remote method raised, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error


def written(function: Any) -> Any:
    """Returns the function that somebody has written, without decorators and `functools.partial`
    around it."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


def place_of(function: Any) -> str:
    """Returns `file:line` of a Python function; empty for anything else."""
    code = getattr(written(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


@contextmanager
def while_doing(what: Callable[[], str]) -> Iterator[None]:
    """Adds to whatever is raised inside what the run was doing, as a note at the end of its
    traceback.

    Args:
        what: The end of a sentence that begins with "raised", such as "by tool 'lookup'".
    """
    try:
        yield
    except BaseException as error:
        error.add_note(f"raised {what()}")
        raise
