"""The sandbox that a recipe's `tools.sandbox` describes, opened for as long as it is needed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import missing_extra
from marl_plugins.core.problems import at
from marl_plugins.sandbox.program import StartableSandbox
from marl_plugins.sandbox.section import SandboxConfig


def back_end(
    config: SandboxConfig,
    *,
    packages: bool = True,
    concurrency: int | None = None,
    workspaces: Path | None = None,
) -> StartableSandbox:
    """Returns the back end for a recipe's settings, which is still to be started.

    Raises:
        ConfigurationError: The level is unavailable on this machine, or what a service needs is not
            installed.
    """
    if config.isolation != "service":
        from marl_plugins.sandbox.local import LocalSandbox

        return LocalSandbox(
            config, packages=packages, concurrency=concurrency, workspaces=workspaces
        )
    if missing := missing_extra("fusion", "sandbox_fusion", at(key="tools.sandbox.isolation")):
        raise ConfigurationError(missing)
    from marl_plugins.sandbox.fusion import ServiceSandbox

    return ServiceSandbox(config.url, concurrency=concurrency, workspaces=workspaces)


@contextlib.asynccontextmanager
async def open_sandbox(
    config: SandboxConfig,
    *,
    packages: bool = True,
    concurrency: int | None = None,
    workspaces: Path | None = None,
) -> AsyncIterator[StartableSandbox]:
    """Provides a sandbox for as long as it is needed.

    Args:
        packages: Whether programs may import installed packages.
        concurrency: Maximum number of programs at the same time; default: `usable_cores()`.
        workspaces: An existing folder in which all workspaces lie that are kept; default: there are
            only fresh ones.

    Raises:
        ConfigurationError: The level is unavailable on this machine, a module cannot be imported,
            or the service runs no programs.
        InfrastructureFailure: It cannot be started.
    """
    sandbox = back_end(config, packages=packages, concurrency=concurrency, workspaces=workspaces)
    try:
        await sandbox.start()
        yield sandbox
    finally:
        await sandbox.close()


class OnDemandSandbox:
    """A sandbox that is opened with its first program, and anew in another event loop; what nobody
    closes ends with this object.

    Args:
        workspaces: Gives the folder in which all workspaces lie that are kept.
    """

    def __init__(
        self,
        config: SandboxConfig,
        *,
        packages: bool = True,
        concurrency: int | None = None,
        workspaces: Callable[[], Path] | None = None,
    ):
        self._open = partial(back_end, config, packages=packages, concurrency=concurrency)
        self._workspaces = workspaces
        self._opened: tuple[asyncio.AbstractEventLoop, StartableSandbox] | None = None

    @property
    def sandbox(self) -> StartableSandbox:
        """The sandbox of the running event loop.

        Raises:
            ConfigurationError: The level is unavailable on this machine.
        """
        loop = asyncio.get_running_loop()
        if self._opened is None or self._opened[0] is not loop:
            self._opened = (loop, self._open(workspaces=self._workspaces and self._workspaces()))
        return self._opened[1]

    async def close(self) -> None:
        """Ends the sandbox of the running event loop, if it has one."""
        if self._opened is not None and self._opened[0] is asyncio.get_running_loop():
            await self._opened[1].close()
        self._opened = None
