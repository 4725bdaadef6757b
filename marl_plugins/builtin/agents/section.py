"""The recipe's key `agent`: a program in place of a workflow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

import pydantic

from marl_plugins.core.run import Run
from marl_plugins.core.section import Section
from marl_plugins.core.workflow import Workflow

SILENT = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
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
    """Python file of the program, run in a fresh process per trajectory; what it imports is
    imported once."""
    function: str = "main"
    """Its function, plain or async, from the prompt to the answer. Optional parameters: `item` (the
    task with its metadata), `endpoint` (`base_url` and `api_key`)."""
    command: list[str] = []
    """In place of `file`: a program from standard input to standard output, run in the recipe's
    folder."""
    python: str | None = None
    """Python in which `file` runs, relative to the recipe's folder. Default: the run's."""
    sandbox: bool = False
    """`file` runs in namespaces (bubblewrap): it reads the system, Python and the recipe's folder,
    writes to an empty folder, has none of the run's environment, and reaches the endpoint alone."""
    concurrency: int = pydantic.Field(64, ge=1)
    """Most programs at the same time."""
    derive: Literal["all"] | bool = True
    """A call depends on earlier answers whose text it shows; `all`: on all of them
    ([agents.md](agents.md))."""
    crash: Literal["failed", "lost"] = "failed"
    """A program ends without an answer after a role has answered it: `failed` scores 0, `lost`
    leaves the trajectory out."""
    rewards: tuple[float, float] | None = pydantic.Field(None, examples=["[-1, 1]"])
    """The program gives single answers rewards between these, which become their scores in [0, 1];
    answers without one are not trained on ([agents.md](agents.md#rewards-for-single-answers))."""
    environment: dict[str, str] = pydantic.Field(
        {}, examples=['{OPENAI_AGENTS_DISABLE_TRACING: "0"}']
    )
    """More environment variables."""

    def files(self) -> Mapping[str, str]:
        if self.file:
            return {"agent": self.file}
        return {f"agent {word}": word for word in self.command if FILE_NAME.fullmatch(word)}

    def modules(self) -> list[str]:
        return [self.file] if self.file and not self.python else []


class ProgramOfRun:
    """The run's program, once it is known, and as a workflow."""

    config: AgentConfig | None = None
    workflow: Workflow | None = None


def program_of(run: Run) -> AgentConfig | None:
    """Returns the recipe's program: its `agent:`, or that for which another of its sections stands;
    None where a workflow is in its place.

    Raises:
        ConfigurationError: That section is wrong.
    """
    if run.recipe.workflow:
        return None
    known = run.state(ProgramOfRun)
    if known.config is None:
        programs = (section.program(run) for section in run.sections.values())
        values = next((program for program in programs if program is not None), None)
        known.config = run.section(AgentConfig) if values is None else AgentConfig(**values)
    return known.config
