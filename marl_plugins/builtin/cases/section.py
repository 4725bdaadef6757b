"""The recipe's `cases:`, and what is wrong with it."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pydantic

from marl_plugins.core.cases import CaseGenerator, CaseSection, is_score
from marl_plugins.core.failures import ConfigurationError, place_of
from marl_plugins.core.loading import load_file
from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.plan.resolve_plugins import arity_problem
from marl_plugins.engine.plan.user_code_thread import UserCodeTimeout, run_in_thread

ARGUMENTS = {"case": ("rng", "given"), "prompt": ("case",), "verify": ("value", "case")}
"""The functions of a case, with their arguments."""
TRIED: tuple[Any, ...] = (None, "1", 1, [], {})
"""What a generator is given before a run, until it takes it."""
ANSWERS = ("", "a word", "1", 1, 0.5)
"""What a verifier is given before a run; how a node reads answers is not known here."""


class CasesConfig(CaseSection):
    """The cases that nodes of a graph name. `cases: FILE` is short for `cases: {file: FILE}`."""

    EXAMPLE: ClassVar[str] = "cases.py"

    file: str
    """Every object in it with the functions `case`, `prompt` and `verify` is a case, by its name
    there."""
    seconds: float = pydantic.Field(5.0, gt=0, allow_inf_nan=False)
    """Longest call of a case's functions; past it the trajectory is lost to infrastructure
    (`case`)."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _file_alone(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value

    def files(self) -> Mapping[str, str]:
        return {"cases": self.file}

    def generators(self, folder: Path) -> Mapping[str, CaseGenerator]:
        return {
            name: generator
            for name, generator in candidates(folder / self.file).items()
            if not lacks(generator)
        }

    def limit(self) -> float:
        return self.seconds


def candidates(path: Path) -> dict[str, Any]:
    """Returns the objects of a file that have functions of a case, by name.

    Raises:
        ConfigurationError: It cannot be imported.
    """
    try:
        module = load_file(path)
    except ConfigurationError as error:
        raise ConfigurationError(
            [problem.within(key="cases") for problem in error.problems]
        ) from error
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {
        name: value
        for name, value in public.items()
        if not isinstance(value, type | ModuleType) and len(lacks(value)) < len(ARGUMENTS)
    }


def lacks(generator: Any) -> list[str]:
    """Returns the functions of a case that an object does not have."""
    return [name for name in ARGUMENTS if not callable(getattr(generator, name, None))]


def check_cases(config: CasesConfig, folder: Path) -> list[Problem]:
    """Returns what is wrong with the file: what it lacks, and what shows when each case is tried
    once."""
    path = folder / config.file
    try:
        generators = candidates(path)
    except ConfigurationError as error:
        return list(error.problems)
    if not generators:
        got, fix = (
            "has no case",
            "an object with case(rng, given), prompt(case), verify(value, case)",
        )
        return [Problem("cases.none", at(key="cases", file=path), got, fix=fix)]
    problems = []
    for name, generator in generators.items():
        if missing := lacks(generator):
            got, fix = f"{name} has no {' and no '.join(missing)}", "write it"
            problems.append(Problem("cases.incomplete", at(key="cases", file=path), got, fix=fix))
            continue
        wrong = [
            problem for function in ARGUMENTS if (problem := wrong_signature(generator, function))
        ]
        problems += wrong or try_case(name, generator, path)
    return problems


def wrong_signature(generator: Any, name: str) -> Problem | None:
    """Returns why a function of a case cannot be called; None where it can."""
    function, fix = getattr(generator, name), f"def {name}({', '.join(ARGUMENTS[name])})"
    if inspect.iscoroutinefunction(function):
        return Problem(
            "cases.async",
            at(line=place_of(function)),
            f"{name} is `async def`, and is not awaited",
            fix=fix,
        )
    wrong = arity_problem(function, len(ARGUMENTS[name]))
    return replace(wrong, fix=fix) if wrong else None


def try_case(name: str, generator: CaseGenerator, path: Path) -> list[Problem]:
    """Returns what shows when a case is generated and some answers are verified.

    What a function raises is no problem yet: what nodes give it, and how they read answers, is
    known in the rehearsal.
    """

    def work(_: Any) -> list[Problem]:
        case = first_case(generator)
        return [] if case is None else wrong_scores(name, generator, case)

    try:
        return run_in_thread(work)
    except UserCodeTimeout as stuck:
        return [stuck.problem(f"case {name!r}", str(path))]


def first_case(generator: CaseGenerator) -> Any:
    """Returns a case of the first thing that its generator takes; None where it takes none."""
    for value in TRIED:
        with suppress(Exception):  # it may need what its node gives it
            return generator.case(random.Random(0), value)
    return None


def wrong_scores(name: str, generator: CaseGenerator, case: Any) -> list[Problem]:
    """Returns the problem with the first score that is none."""
    for value in ANSWERS:
        score: Any = 0.0
        with suppress(Exception):  # it may rely on how its node reads answers
            score = generator.verify(value, case)
        if not is_score(score):
            where, got = (
                at(line=place_of(generator.verify)),
                f"case {name!r} scores the value {value!r} with {score!r:.80}",
            )
            return [Problem("cases.score", where, got, "a number in [0, 1]")]
    return []
