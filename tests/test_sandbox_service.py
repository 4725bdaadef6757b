"""The sandbox at a service: our client and SandboxFusion's own, against our service and, where it is there, SandboxFusion's."""

import contextlib

from fusion_servers import SERVERS

from marl_plugins.contracts.sandbox import SandboxContract
from marl_plugins.core.recipe import SandboxConfig
from marl_plugins.sandbox import open_sandbox


@contextlib.asynccontextmanager
async def at(name, workspaces):
    with SERVERS[name]() as url:
        async with open_sandbox(
            SandboxConfig(isolation="service", url=url), concurrency=8, workspaces=workspaces
        ) as sandbox:
            yield sandbox


class TestOurs(SandboxContract):
    @classmethod
    def open(cls, workspaces):
        return at("ours", workspaces)


if "theirs" in SERVERS:

    class TestTheirs(SandboxContract):
        @classmethod
        def open(cls, workspaces):
            return at("theirs", workspaces)
