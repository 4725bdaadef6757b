"""Problems of a plan, collected while it is built, each with the lines of the recipe on which the flags stand that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self, TypeVar

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, problem_of

if TYPE_CHECKING:
    from marl_plugins.core.recipe_yaml import Origins

T = TypeVar("T")
Lines = Callable[[Iterable[str], Iterable[str]], Iterable[str]]
"""`lines(flags, policies)`."""


class Problems(list[Problem]):
    """The problems of a plan, and what is worth knowing; plain sentences of users become problems."""

    def __iadd__(self, found: Iterable[Problem | str]) -> Self:  # type: ignore[override, misc]
        self.extend(map(problem_of, found))
        return self

    def attempt(self, build: Callable[[], T]) -> T | None:
        """Returns the result of `build`, or None with its problems kept."""
        try:
            return build()
        except ConfigurationError as error:
            self += error.problems
            return None

    @property
    def errors(self) -> list[Problem]:
        """The problems that prevent a run, each once."""
        return list(dict.fromkeys(problem for problem in self if problem.severity == "error"))

    @property
    def warnings(self) -> list[Problem]:
        """The problems that prevent nothing, each once."""
        return list(dict.fromkeys(problem for problem in self if problem.severity == "warning"))

    def raise_if_any(self) -> None:
        """Raises the errors together, if there are any.

        Raises:
            ConfigurationError: There are.
        """
        if errors := self.errors:
            raise ConfigurationError(errors)

    def placed(self, origins: Origins, lines: Lines) -> Problems:
        """Returns the problems with the recipe's lines that they are about, where they name none yet.

        Args:
            lines: The recipe's lines on which flags stand, by their names and those of policies (of all, where none is named).
        """
        return Problems(_placed(problem, origins, lines) for problem in self)


def _placed(problem: Problem, origins: Origins, lines: Lines) -> Problem:
    if problem.names("line"):
        return problem
    first = problem.where[0] if problem.where else None
    if first and first.kind == "key" and (key := tuple(first.name.split("."))) in origins.lines:
        return problem.within(line=origins.where(*key))
    found = lines((*problem.flags, *problem.names("flag")), problem.names("policy"))
    return problem.within(line=dict.fromkeys(found))
