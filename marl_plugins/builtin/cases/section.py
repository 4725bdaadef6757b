"""The recipe's `cases:`, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pydantic

from marl_plugins.core.cases import CaseGenerator, CaseSection
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.core.problems import Problem, at

FUNCTIONS = ("case", "prompt", "verify")
"""The functions of a case."""


class CasesConfig(CaseSection):
    """The cases that nodes of a graph name. `cases: FILE` is short for `cases: {file: FILE}`."""

    EXAMPLE: ClassVar[str] = "cases.py"

    file: str
    """Every object in it with the functions `case`, `prompt` and `verify` is a case, by its name
    there."""
    seconds: float = pydantic.Field(5.0, gt=0)
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
        if not isinstance(value, type | ModuleType) and len(lacks(value)) < len(FUNCTIONS)
    }


def lacks(generator: Any) -> list[str]:
    """Returns the functions of a case that an object does not have."""
    return [name for name in FUNCTIONS if not callable(getattr(generator, name, None))]


def check_cases(config: CasesConfig, folder: Path) -> list[Problem]:
    """Returns what the file lacks; how its cases work is shown by the rehearsal."""
    path = folder / config.file
    try:
        generators = candidates(path)
    except ConfigurationError as error:
        return list(error.problems)
    return [
        Problem(
            "cases.incomplete",
            at(key="cases", file=path),
            f"{name} has no {' and no '.join(missing)}",
            fix="write it",
        )
        for name, generator in generators.items()
        if (missing := lacks(generator))
    ]
