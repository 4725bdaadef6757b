"""Training processes, update and weight sync as upstream has them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from marl_plugins import hookimpl

if TYPE_CHECKING:
    from marl_plugins.core.process_backend import ProcessBackend
    from marl_plugins.core.processes import PolicyProcesses, PreparedRows


@hookimpl
def marl_processes() -> ProcessBackend:
    from marl_plugins.engine.processes.backend import OwnProcesses

    return OwnProcesses()


@hookimpl
def marl_update(
    policy: PolicyProcesses, prepared: PreparedRows, steps: int, step: int
) -> Awaitable[dict[str, float]]:
    return policy.update(prepared, steps, step)


@hookimpl
def marl_sync(policy: PolicyProcesses, version: int) -> Awaitable[bool]:
    return policy.sync(version)
