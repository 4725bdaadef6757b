"""The plugin that a contract test is about, and the run that it is tried with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest import SkipTest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load
from marl_plugins.engine.manager import wraps
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.plan import Plan


class Subject:
    """The subject of a contract's tests, which a plugin's author states in the class of the
    tests."""

    plugin: ClassVar[str]
    flags: ClassVar[Sequence[str]] = ()
    recipe: ClassVar[str] = "mathchat/tiny.yaml"
    """The recipe that it is tried with; a shipped one, or your own."""

    def planned(self) -> Plan:
        """Returns a run with the plugin, checked and not started; a new one every time.

        Raises:
            ConfigurationError: The plugin is not found, or the run is refused with it.
        """
        return build_plan(["--recipe", self.recipe, "--plugin", self.plugin, *self.flags])

    @property
    def plan(self) -> Plan:
        """The same for a test, which is skipped where there is none."""
        with skipped_if_refused():
            return self.planned()

    @property
    def module(self) -> ModuleType:
        """The plugin's module, for a test, which is skipped where there is none."""
        with skipped_if_refused():
            return load(self.plugin)

    @property
    def plugin_name(self) -> str:
        """Returns the name by which the run knows the plugin."""
        return (
            str(Path(self.plugin).resolve())
            if self.plugin.endswith(".py")
            else self.module.__name__
        )

    def _own(self, plan: Plan, hook: str, **arguments: Any) -> Any:
        """Returns what the plugin alone answers, which may be awaited; None where it does not
        implement the hook."""
        for impl in plan.plugins.implementations(hook):
            if impl.plugin_name == self.plugin_name and not wraps(impl.opts):
                return impl.function(*(arguments[name] for name in impl.argnames))
        return None


@contextmanager
def skipped_if_refused() -> Iterator[None]:
    """Skips the test where the configuration is refused (`with`)."""
    try:
        yield
    except ConfigurationError as error:
        raise SkipTest(f"the run is refused: {error}") from None
