"""The recipe's `tools: sandbox:`."""

from __future__ import annotations

from typing import ClassVar, Literal

from marl_plugins.core.section import Section

Level = Literal["process", "landlock", "namespaces"]
"""What isolates a program from its machine, the strongest last (marl_plugins/sandbox/levels.py)."""


class SandboxConfig(Section):
    """The place where programs of agents run, and with what."""

    EXAMPLE: ClassVar[str] = "{isolation: auto}"

    isolation: Literal["auto", "process", "landlock", "namespaces", "service"] = "auto"
    """[What isolates programs](sandbox.md); `auto` is the strongest level that this machine has.
    `service`: programs run at `url`."""
    url: str = ""
    """Of a SandboxFusion, or of `openrlhf sandbox serve`. `$NAME` stands for a variable of the
    run's environment, for a password."""
    imports: list[str] = []
    """Modules that are imported once, before any program."""
    warm_up: str | None = None
    """Python file that is run once, after the imports, for late imports and caching."""

    def files(self) -> dict[str, str]:
        return {"warm-up of the sandbox": self.warm_up} if self.warm_up else {}

    def compared(self) -> dict[str, str]:
        """Returns nothing: where programs run changes nothing of what they print."""
        return {}
