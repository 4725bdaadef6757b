"""`openrlhf recipes new FOLDER --agent FILE`: an existing program in place of a workflow, copied
with the Python files beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.engine.plan.resume import COMMAND_FILE

FOLDER = "agent"
"""Where the program is put, so that its modules may be called as the recipe's own files are."""
NOT_COPIED = ("pyvenv.cfg", COMMAND_FILE)
"""Files by which a folder is known that is no part of a program."""


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
        """Returns the texts of the files that the recipe needs, by name: the program, and all
        Python files beside it and below.

        Raises:
            ConfigurationError: A file cannot be read, or the program is no Python file.
        """
        folder = self.file.parent
        texts = {self.file: read_text(self.file)}
        try:
            ast.parse(texts[self.file])
        except (SyntaxError, ValueError) as error:
            got = f"is not Python: {getattr(error, 'msg', error)}"
            fix = (
                "a program in another language is named in the recipe itself: `agent: {command: "
                "[node, agent.js]}`"
            )
            problem = Problem("new.program", at(file=self.file), got, fix=fix)
            raise ConfigurationError(problem) from None
        texts |= {path: read_text(path) for path in sorted(_python_files(folder))}
        return {f"{FOLDER}/{path.relative_to(folder)}": text for path, text in texts.items()}


def _python_files(folder: Path) -> Iterator[Path]:
    """Yields the Python files of a folder, without those of hidden folders, of environments of
    Python and of runs' records."""
    for entry in folder.iterdir():
        if entry.name.startswith(".") or any((entry / name).is_file() for name in NOT_COPIED):
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _python_files(entry)
        elif entry.suffix == ".py" and entry.is_file():
            yield entry
