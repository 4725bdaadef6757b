"""The recipe's key `agent`: a program in place of a workflow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

import pydantic

from marl_plugins.core.section import Section

SILENT = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
}
"""Keeps frameworks from sending prompts elsewhere."""
FILE_NAME = re.compile(r"[\w/-]*[./][\w./-]{1,200}")
"""Words of a command that may name a file of the recipe's folder."""


class AgentConfig(Section):
    """A program that talks to the run's own OpenAI-compatible endpoint, where the model is the role
    ([agents.md](agents.md))."""

    EXAMPLE: ClassVar[str] = "{file: my_agent.py, function: main}"
    GIVES_WORKFLOW: ClassVar[bool] = True

    file: str | None = None
    """Python file of the program. What it imports is imported once; the file itself in a process of
    its own for each trajectory."""
    function: str = "main"
    """Its function, plain or async: it takes the prompt and returns the answer. It may also have
    parameters `item` (the task with its metadata) and `endpoint` (`base_url` and `api_key`)."""
    command: list[str] = []
    """In place of `file`: a program that reads the prompt from its standard input and prints the
    answer. It runs in the recipe's folder, whose files its words may name."""
    python: str | None = None
    """Python in which `file` runs, with packages of its own. A relative path begins in the recipe's
    folder. Default: the run's."""
    shared: bool = False
    """Whether all trajectories run in one process, which costs less than a fork for each; for an
    async function that takes `endpoint` and uses no environment. They then share what a program
    keeps in memory, and one that ends the process ends all."""
    sandbox: bool = False
    """Whether `file` runs in its own namespaces (bubblewrap). It reads the system, Python and the
    recipe's folder, writes to an empty folder, has none of the run's environment, and reaches the
    endpoint alone. Default: as the run's user."""
    concurrency: int = pydantic.Field(64, ge=1)
    """Maximum number of programs at the same time; the others wait, which counts against
    `limits.task_seconds`."""
    derive: Literal["all"] | bool = True
    """Whether a call depends on an earlier answer whose text it shows; `all`: on every earlier
    answer. Credit and the coach use what is derived; paths and seeds do not depend on it. A call
    with the header `x-marl-after` states its dependencies itself."""
    crash: Literal["failed", "lost"] = "failed"
    """A trajectory whose program ends without an answer although a role has answered it: `failed`
    scores 0, because an answer may be the cause; `lost` leaves it out. One that no role answered is
    always left out."""
    environment: dict[str, str] = pydantic.Field(
        {}, examples=['{OPENAI_AGENTS_DISABLE_TRACING: "0"}']
    )
    """More environment variables. By default, variables tell known frameworks not to report
    elsewhere."""

    @property
    def is_given(self) -> bool:
        """Returns whether the recipe has it."""
        return bool(self.file or self.command)

    def files(self) -> Mapping[str, str]:
        if self.file:
            return {"agent": self.file}
        return {f"agent {word}": word for word in self.command if FILE_NAME.fullmatch(word)}

    def modules(self) -> list[str]:
        return [self.file] if self.file and not self.python else []
