"""Update and weight sync as the host does them: the built-in end of the way of the data."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.core.rows import Row

if TYPE_CHECKING:
    from marl_plugins.runtime.policy import PolicyHost


@hookimpl
def marl_update(host: PolicyHost, rows: Sequence[Row], steps: int) -> Awaitable[dict[str, float]]:
    return host.update(rows, steps)


@hookimpl
def marl_sync(host: PolicyHost, version: int) -> Awaitable[bool]:
    return host.sync(version)
