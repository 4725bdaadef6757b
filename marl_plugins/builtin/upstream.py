"""Update and weight sync as upstream does them: the built-in end of the way of the data."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from marl_plugins import hookimpl

if TYPE_CHECKING:
    from marl_plugins.core.processes import PolicyProcesses, Prepared


@hookimpl
def marl_update(policy: PolicyProcesses, prepared: Prepared, steps: int, step: int) -> Awaitable[dict[str, float]]:
    return policy.update(prepared, steps, step)


@hookimpl
def marl_sync(policy: PolicyProcesses, version: int) -> Awaitable[bool]:
    return policy.sync(version)
