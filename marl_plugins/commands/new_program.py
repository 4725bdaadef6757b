"""`openrlhf recipes new FOLDER --agent FILE`: an existing program in place of a workflow, copied
with the modules beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at

FOLDER = "agent"
"""Where the program is put, so that its modules may be called as the recipe's own files are."""


@dataclass(frozen=True)
class ExistingProgram:
    """A program of somebody's own.

    Args:
        file: A Python file.
        function: Of the file: is given the prompt, and returns the answer.
        python: Where its packages are; None: in the run's Python.
        calls: vLLM's name of the format in which the roles' models call tools that the program
            sends; None: it sends none.
    """

    file: Path
    function: str = "main"
    python: str | None = None
    calls: str | None = None

    @property
    def section(self) -> dict[str, Any]:
        """The recipe's key `agent`."""
        section: dict[str, Any] = {"file": f"{FOLDER}/{self.file.name}"}
        if self.function != "main":
            section["function"] = self.function
        return section | ({"python": self.python} if self.python else {})

    @property
    def role(self) -> dict[str, Any]:
        """The recipe's settings of each role."""
        return {"calls": self.calls} if self.calls else {}

    def files(self) -> dict[str, str]:
        """Returns the texts of the files that the recipe needs, by name: the program, and what it
        imports of the files beside it.

        Raises:
            ConfigurationError: It is no Python file.
        """
        sources: dict[Path, str] = {}
        self._read(self.file, sources)
        return {
            f"{FOLDER}/{path.relative_to(self.file.parent)}": text for path, text in sources.items()
        }

    def _read(self, path: Path, sources: dict[Path, str]) -> None:
        """Adds a file to those that are found, and those that it imports."""
        try:
            sources[path] = path.read_bytes().decode()
            tree = ast.parse(sources[path])
        except OSError as error:
            raise ConfigurationError(
                Problem("new.program", at(file=path), f"cannot be read: {error.strerror}")
            ) from None
        except (SyntaxError, ValueError) as error:
            got = f"is not Python: {getattr(error, 'msg', error)}"
            fix = (
                "a program in another language is named in the recipe itself: `agent: {command: "
                "[node, agent.js]}`"
            )
            raise ConfigurationError(Problem("new.program", at(file=path), got, fix=fix)) from None
        for name in dict.fromkeys(_imported(tree)):
            for beside in self._beside(name):
                if beside not in sources:
                    self._read(beside, sources)

    def _beside(self, module: str) -> list[Path]:
        """The files of a module that lies beside the program; all of a package."""
        place = self.file.parent / module.split(".")[0]
        if place.with_suffix(".py").is_file():
            return [place.with_suffix(".py")]
        return sorted(place.rglob("*.py")) if (place / "__init__.py").is_file() else []


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
