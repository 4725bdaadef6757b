"""Everything that can go wrong, in three kinds that are never mixed up.

* `ConfigurationError`: known before anything starts, or the user's to fix. Several are collected and reported together.
* `AgentFailure`: the agents' own doing (no answer, endless tool calls, overlong context). Scored, trained on, wrong in an
  evaluation.
* `InfrastructureFailure`: a dead engine, an unreachable service. Retried, then left out with its reason in the ledger.

Anything else that is raised in a run is a bug, of this package or of a recipe, and ends the run with its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence


class ConfigurationError(Exception):
    """One or more things that the user has to fix; exit code 2, no traceback.

    Args:
        problems: One message each: what was got, what was expected, where, and the fix.
    """

    def __init__(self, problems: str | Iterable[str]):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))

    @property
    def count(self) -> int:
        """The number of problems, those included that are only counted."""
        return sum(problem.number if isinstance(problem, More) else 1 for problem in self.problems)


class More(str):
    """Among problems: the last line of a long list, instead of those that are only counted."""

    number: int


SHOWN = 20
"""Maximum number of problems listed per file."""


def first_of(problems: Sequence[str], place: str) -> list[str]:
    """The first problems of a file, and how many more there are."""
    shown = list(problems[:SHOWN])
    if len(problems) > SHOWN:
        more = More(f"{place}: {len(problems) - SHOWN} more problems like these")
        more.number = len(problems) - SHOWN
        shown.append(more)
    return shown


class Remark(str):
    """Among the problems that `marl_configure` returns: worth knowing before the run starts, and no obstacle."""


class RunEnded(Exception):
    """A run that had to end in a known way (a lost process, a non-finite loss); exit code 1, with how to resume."""


class RunPaused(RunEnded):
    """A run that cannot continue as things are (a refused key, a spent budget), and whose state is whole: it is saved first.

    Raised before the update of a step, or once it is saved; the run can be resumed with the step that was saved last.
    """


class AgentFailure(Exception):
    """The agents failed at the task. `kind` is one of `KINDS`; the trajectory is scored as a failure and trained on."""

    KINDS = ("context", "endless_tool_calls", "no_answer")

    def __init__(self, kind: str, detail: str):
        if kind not in self.KINDS:
            raise ValueError(f"agent failure of kind {kind!r}; known kinds: {', '.join(self.KINDS)}")
        self.kind = kind
        super().__init__(detail)


class InfrastructureFailure(Exception):
    """Something below the agents failed; the trajectory is left out. `kind` is a short word for the ledger."""

    def __init__(self, kind: str, detail: str):
        self.kind = kind
        super().__init__(detail)


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """An exception itself, or those in the group that parallel branches make of theirs."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves_of(inner)
    else:
        yield error


def nearest(name: str, valid: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the valid name closest to `name`, or the list of valid names where none is close."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    if not names:
        return ""
    return "; valid: " + ", ".join(names) if len(names) <= 12 else ""


def raised_by(error: Exception) -> Exception:
    """What a remote method raised, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error
