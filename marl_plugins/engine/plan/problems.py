"""Problems of a plan, collected while it is built, each with the lines of the recipe on which the
flags stand that it is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, problem_of

if TYPE_CHECKING:
    from marl_plugins.core.recipe.recipe_yaml import Origins

T = TypeVar("T")


class Problems(list[Problem]):
    """The problems of a plan, and what is worth knowing; plain sentences of users become
    problems."""

    def __iadd__(self, problems: Iterable[Problem | str]) -> Self:  # type: ignore[override, misc]
        self.extend(map(problem_of, problems))
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
        """The problems that prevent a run, one for each cause."""
        return each_cause_once(problem for problem in self if problem.severity == "error")

    @property
    def warnings(self) -> list[Problem]:
        """The problems that prevent nothing, one for each cause."""
        return each_cause_once(problem for problem in self if problem.severity == "warning")

    def placed(
        self, origins: Origins, typed: Collection[str] = (), policies: Sequence[str] = ()
    ) -> Problems:
        """Returns the problems with the recipe's lines that they are about, where they name none
        yet.

        Args:
            typed: Names of flags whose lines do not count: those on the command line, and those
                that the recipe takes back.
            policies: Those of the run.
        """
        return Problems(_placed(problem, origins, typed, policies) for problem in self)


def each_cause_once(problems: Iterable[Problem]) -> list[Problem]:
    """Returns one problem for each cause: with the places of all that say the same of a file."""
    of_cause: dict[Hashable, list[Problem]] = {}
    for problem in problems:
        of_cause.setdefault(_cause(problem), []).append(problem)
    return list(map(_united, of_cause.values()))


def _cause(problem: Problem) -> Hashable:
    """Returns what problems with one cause share: what is said of the same file or line; else the
    problem."""
    innermost = problem.where[-1] if problem.where else None
    of_a_file = innermost is not None and innermost.kind in ("file", "line")
    return (problem.code, problem.got, problem.expected, innermost) if of_a_file else problem


def _united(problems: Sequence[Problem]) -> Problem:
    """Returns the first problem, with the places of those that say the same."""
    first, *others = problems
    if not others:
        return first
    outer = [place for p in problems for place in p.where[:-1]]
    kinds = dict.fromkeys(place.kind for place in outer)
    around = (place for kind in kinds for place in dict.fromkeys(outer) if place.kind == kind)
    return replace(first, where=(*around, *first.where[-1:]))


def _placed(
    problem: Problem, origins: Origins, typed: Collection[str], policies: Sequence[str]
) -> Problem:
    if problem.names("line"):
        return problem
    first = problem.where[0] if problem.where else None
    if first and first.kind == "key" and (key := tuple(first.name.split("."))) in origins.lines:
        return problem.within(line=origins.where(*key))
    chosen, keys = problem.names("policy") or policies, list[tuple[str, ...]]()
    for flag in {*problem.flags, *problem.names("flag")}.difference(typed):
        own = [("policies", name, "flags", flag) for name in chosen]
        of_policies = {key for key in own if f"policy.{key[1]}.{flag}" in typed}
        keys += (set(own) & origins.lines.keys()) - of_policies
        if not own or not {*own} <= of_policies | origins.lines.keys():
            keys.append(("flags", flag))
    lines = sorted(origins.lines[key] for key in keys if key in origins.lines)
    return problem.within(line=dict.fromkeys(f"{path}:{line}" for path, line in lines))
