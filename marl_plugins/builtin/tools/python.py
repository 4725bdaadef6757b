"""The tool `python`: runs programs of roles, and of plugins, in the sandbox, and makes an answer of
whatever they do.

    tools:
      python: {seconds: 10}
      sandbox: {isolation: landlock}

Each call gets a fresh empty folder, or works in the trajectory's own (`workspace: true`). How well
a program is isolated is the sandbox's matter (marl_plugins/sandbox), which this module alone
imports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import pydantic

from marl_plugins import hookimpl
from marl_plugins.core.command import Command
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.findings import Finding, check_extra
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.run import Run, note_user, tool_users
from marl_plugins.core.section import Section
from marl_plugins.core.tools import Tool, ToolCall, function_of_text
from marl_plugins.core.trajectory import Task, ToolResult
from marl_plugins.core.workspace import Workspace
from marl_plugins.sandbox import Limits, OnDemandSandbox, Program, Sandbox
from marl_plugins.sandbox.section import SandboxConfig

FENCE = re.compile(r"```(?:python|py)[^\S\n]*\n(.*?)```", re.DOTALL)
"""A program is a fenced block marked as Python."""
FUNCTION = function_of_text(
    "python",
    "Runs a Python program and returns what it prints.",
    "code",
    "The program; only what it prints is returned.",
)
"""For roles with `calls:`."""


class PythonToolConfig(Section):
    """Limits of one run of the `python` tool."""

    EXAMPLE: ClassVar[str] = "{seconds: 5}"

    seconds: float = pydantic.Field(5.0, gt=0)
    memory_mb: int = pydantic.Field(512, ge=64)
    """Of the program and its processes together."""
    disk_mb: int = pydantic.Field(1024, ge=1)
    """Of its files together; one file has at most `memory_mb`."""
    output_chars: int = pydantic.Field(2000, ge=100)
    """Longer output keeps its head and its tail."""
    concurrency: int | None = pydantic.Field(None, ge=1)
    """Most programs at the same time. Default: the cores that the run may use."""
    packages: bool = True
    """Programs may import installed packages. Without them a program starts in less than half the
    time."""
    workspace: bool = False
    """All programs of a trajectory work in [one folder](#tools-sandbox). Otherwise each has an
    empty one."""
    calls_per_answer: int = pydantic.Field(16, ge=1)
    """Most programs run per answer. The last output counts the others."""
    seconds_per_trajectory: float = pydantic.Field(60.0, gt=0)
    """Time of all programs of a trajectory, without waiting for a slot. After it no program
    starts."""

    def compared(self) -> dict[str, Any]:
        """Returns all but the number of programs at the same time, which changes nothing of what
        they print."""
        return self.model_dump(mode="json", exclude={"concurrency"})

    @property
    def limits(self) -> Limits:
        """Returns what one program may take."""
        return Limits(
            seconds=self.seconds,
            memory_mb=self.memory_mb,
            file_mb=self.memory_mb,
            disk_mb=self.disk_mb,
            output_chars=self.output_chars,
        )


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"tools.python": PythonToolConfig, "tools.sandbox": SandboxConfig}


@hookimpl
def marl_commands() -> list[Command]:
    return [
        Command(
            "sandbox",
            "serve [--host H] [--port N]",
            "this machine's sandbox for runs on others, as SandboxFusion",
            _serve,
        )
    ]


def _serve(words: Sequence[str]) -> int:
    from marl_plugins.sandbox.command import main

    return main(words)


@hookimpl
def marl_tools(run: Run) -> list[Tool]:
    return [python_tool_of(run)]


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    """Returns what is wrong with `tools: sandbox:`."""
    from marl_plugins.sandbox.checks import check_sandbox

    python, sandbox = settings_of(run)
    return check_sandbox(sandbox, run.folder, python.packages)


@hookimpl
def marl_describe(run: Run) -> dict[str, str] | None:
    """Describes whose programs run, and where."""
    if not _is_used(run):
        return None
    from marl_plugins.sandbox.checks import describe_sandbox

    users = tool_users(run, "python") or ["agents"]
    return {
        "sandbox": f"programs of {' and of '.join(users)} run in the sandbox: "
        f"{describe_sandbox(settings_of(run)[1])}"
    }


@hookimpl
async def marl_start(run: Run) -> None:
    """Imports what programs need before any of them runs, where programs are run."""
    if not _is_used(run):
        return
    try:
        await programs_of(run).sandbox.start()
    except InfrastructureFailure as failure:
        raise ConfigurationError(
            Problem("sandbox.start", at(key="tools.sandbox"), str(failure))
        ) from failure


@hookimpl
async def marl_stop(run: Run) -> None:
    from marl_plugins.sandbox.workspace import Workspaces

    await programs_of(run).close()
    run.state(Workspaces).close()


@hookimpl
def marl_doctor(run: Run | None, args: SimpleNamespace, static: bool) -> list[Finding]:
    """Runs three programs: a correct one, an endless one, one that needs too much memory."""
    from marl_plugins.sandbox.trial import try_sandbox

    python, sandbox = settings_of(run) if run is not None else (PythonToolConfig(), SandboxConfig())
    used = run is not None and _is_used(run)
    what = "a sandbox at a service, and `openrlhf sandbox serve`"
    client = check_extra(
        "fusion", ["sandbox_fusion"], what, used and sandbox.isolation == "service"
    )
    if static:
        return [client]
    return [client, *try_sandbox(sandbox, python.limits, python.packages, used)]


def _is_used(run: Run) -> bool:
    """Returns whether programs are run; a service that is named is used, also where the workflow
    alone calls it."""
    return bool(tool_users(run, "python")) or settings_of(run)[1].isolation == "service"


def settings_of(run: Run) -> tuple[PythonToolConfig, SandboxConfig]:
    """Returns a run's settings of the tool and of the sandbox."""
    return run.section(PythonToolConfig) or PythonToolConfig(), run.section(
        SandboxConfig
    ) or SandboxConfig()


class _Programs:
    """The sandboxes in which a run's programs run."""

    sandbox: OnDemandSandbox | None = None


def programs_of(run: Run) -> OnDemandSandbox:
    """Returns where the programs of a run run."""
    from marl_plugins.sandbox.workspace import Workspaces

    kept = run.state(_Programs)
    if kept.sandbox is None:
        python, config = settings_of(run)
        workspaces = (lambda: run.state(Workspaces).root) if python.workspace else None
        if config.warm_up:
            config = config.model_copy(update={"warm_up": str(run.folder / config.warm_up)})
        kept.sandbox = sandbox_of(python, config, workspaces)
    return kept.sandbox


def python_tool_of(run: Run, user: str = "") -> Tool:
    """Returns a run's tool `python`, also for the tools of plugins that run programs as it does.

    Args:
        user: Whose programs these are, in messages, as in `use_tool`; empty: those of the roles
            that name the tool.
    """
    from marl_plugins.sandbox.workspace import Workspaces

    if user:
        note_user(run, "python", user)

    def workspace(task: Task) -> AbstractAsyncContextManager[Workspace]:
        return run.state(Workspaces).of(task)

    return python_tool(settings_of(run)[0], programs_of(run), workspace)


def find_programs(text: str) -> list[str]:
    """Returns all fenced Python programs in an answer."""
    return FENCE.findall(text)


def python_tool(
    config: PythonToolConfig,
    sandbox: OnDemandSandbox | None = None,
    workspaces: Callable[[Task], AbstractAsyncContextManager[Workspace]] | None = None,
) -> Tool:
    """Returns the tool, with its limits; calls of all trajectories share one limit on how many run
    at once.

    Args:
        sandbox: Where programs run; default: a sandbox of its own.
        workspaces: See `Tool.workspaces`.
    """
    opened = sandbox or sandbox_of(config, SandboxConfig())

    async def run(call: ToolCall) -> ToolResult:
        return await run_program(call.text, config, opened.sandbox, call.workspace, call.files)

    return Tool(
        "python",
        run,
        find_programs,
        calls_per_answer=config.calls_per_answer,
        seconds_per_trajectory=config.seconds_per_trajectory,
        in_workspace=config.workspace,
        workspaces=workspaces,
        settings=config.model_dump(mode="json"),
        functions=(FUNCTION,),
    )


def sandbox_of(
    config: PythonToolConfig, sandbox: SandboxConfig, workspaces: Callable[[], Path] | None = None
) -> OnDemandSandbox:
    """Returns the sandbox of the tool's programs.

    Args:
        workspaces: Gives the folder in which all workspaces lie.
    """
    return OnDemandSandbox(
        sandbox, packages=config.packages, concurrency=config.concurrency, workspaces=workspaces
    )


async def run_program(
    program: str,
    config: PythonToolConfig,
    sandbox: Sandbox,
    workspace: Path | None = None,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> ToolResult:
    """Runs one program, in a fresh folder unless there is a workspace, and returns what it printed,
    and what stopped it.

    Args:
        files: Written into the folder first, by their path in it.

    Raises:
        InfrastructureFailure: It could not be run; no program is to blame for that.
    """
    completed = await sandbox.run(
        Program(program, files=files, limits=config.limits, merged=True), workspace
    )
    output = "\n".join(filter(None, [completed.stdout.rstrip("\n"), completed.reason]))
    return ToolResult(
        "python",
        program,
        output,
        completed.status == "finished",
        completed.seconds,
        completed.names,
    )
