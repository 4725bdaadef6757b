"""The recipe's `cases:`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pydantic

from marl_plugins.core.cases import CaseGenerator, CaseSection
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file


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
        """Returns the cases of the file.

        Raises:
            ConfigurationError: It cannot be imported.
        """
        try:
            module = load_file(folder / self.file)
        except ConfigurationError as error:
            problems = [problem.within(key="cases") for problem in error.problems]
            raise ConfigurationError(problems) from error
        return {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, CaseGenerator) and not isinstance(value, type)
        }

    def limit(self) -> float:
        return self.seconds
