"""The recipe's `tools: mcp:`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from string import Template
from typing import ClassVar

import pydantic

from marl_plugins.core.section import Model, Section


class MCPServerConfig(Model):
    """A server of the Model Context Protocol, whose tools are one tool of the recipe. It has
    `command` or `url`.

    In `env`, `headers` and `url`, `$NAME` stands for a variable of the run's environment, and `$$`
    for a dollar sign.
    """

    EXAMPLE: ClassVar[str] = "{command: [mcp-server-time]}"

    command: list[str] = []
    """A program and its arguments, spoken to over standard input and output, in the recipe's
    folder."""
    env: dict[str, str] = pydantic.Field({}, repr=False, examples=["{API_KEY: $API_KEY}"])
    """Its environment, in addition to HOME, LOGNAME, PATH, SHELL, TERM and USER. `$NAME` stands
    for a variable of the run's."""
    url: str = ""
    """Address of a server that runs already (streamable HTTP)."""
    headers: dict[str, str] = pydantic.Field({}, repr=False, examples=["{API_KEY: $API_KEY}"])
    """Sent with every request to `url`; `$NAME` as in `env`."""
    tools: list[str] = []
    """Its tools that may be called. Default: all."""
    per_trajectory: bool = False
    """Each trajectory has a session (and a process) of its own, for a server with a state."""
    seconds: float = pydantic.Field(30.0, gt=0)
    """A call that takes longer is lost to infrastructure, with its trajectory."""
    concurrency: int = pydantic.Field(16, ge=1)
    """Most calls at the same time; others wait, which counts for no limit."""
    output_chars: int = pydantic.Field(2000, ge=100)
    """Longer output keeps its head and its tail."""
    calls_per_answer: int = pydantic.Field(16, ge=1)
    """Most calls per answer. The last output counts the others."""

    @property
    def variables(self) -> list[str]:
        """Names of the variables of the run's environment that it is given."""
        texts = map(Template, (*self.env.values(), *self.headers.values(), self.url))
        return [name for text in texts for name in text.get_identifiers()]

    def program(self, folder: Path) -> str | None:
        """Returns the file of its command: by a path from the recipe's folder, or by a name that is
        looked for next to the run's own Python and then in PATH; None where there is none."""
        name = self.command[0]
        if os.sep in name:
            return shutil.which(str(folder.absolute() / name))
        return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


class MCPConfig(Section, extra="allow"):
    """Servers of the Model Context Protocol, each a tool of the name that it has here."""

    EXAMPLE: ClassVar[str] = "{time: {command: [mcp-server-time]}}"

    __pydantic_extra__: dict[str, MCPServerConfig]

    @property
    def servers(self) -> dict[str, MCPServerConfig]:
        """The servers by name."""
        return self.__pydantic_extra__
