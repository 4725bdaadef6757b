"""The plugin that a contract test is about, and the run that it is tried with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from marl_plugins.core.loading import load
from marl_plugins.core.plugin_names import name_of
from marl_plugins.engine.plan.build import build_plan

if TYPE_CHECKING:
    from marl_plugins.engine.plan.plan import Plan


class Subject:
    """The subject of a contract's tests, which a plugin's author states in the class of the
    tests."""

    plugin: ClassVar[str]
    flags: ClassVar[Sequence[str]] = ()
    recipe: ClassVar[str] = "mathchat/tiny.yaml"
    """The recipe that it is tried with; a shipped one, or your own."""

    @property
    def plan(self) -> Plan:
        """A run with the plugin, checked and not started; a new one every time."""
        return build_plan(["--recipe", self.recipe, "--plugin", self.plugin, *self.flags])

    @property
    def plugin_name(self) -> str:
        """Returns the name by which the run knows the plugin."""
        return (
            str(Path(self.plugin).resolve())
            if self.plugin.endswith(".py")
            else name_of(load(self.plugin).__name__)
        )
