"""Names that plugins have, wherever their modules lie.

`import marl_plugins.gae` is `import marl_plugins.builtin.gae`, the same module object. So the names
that a user gives to `--plugin`, which recorded runs and error messages have too, stay what they
are, wherever a plugin's module lies.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGE = "marl_plugins."
BUILT_IN = (
    "agents",
    "cases",
    "ema",
    "filtering",
    "gae",
    "graph",
    "groups",
    "reinforce_pp",
    "reward_model",
    "routing",
    "tools",
)
FOLDERS = {**{name: f"builtin.{name}" for name in BUILT_IN}, "viewer": "commands.inspect"}
"""Where modules and folders are now, by where they were."""


def present_name(name: str) -> str:
    """Returns the name that a module of the package has now, by the one that it had."""
    parts = name.removeprefix(PACKAGE).split(".")
    for length in (2, 1):
        folder = FOLDERS.get(".".join(parts[:length]))
        if folder is not None:
            return PACKAGE + ".".join([folder, *parts[length:]])
    return name


class MovedModules(MetaPathFinder, Loader):
    """Imports a module under the name that it had."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns a spec whose module is the moved one; None for all that has not moved."""
        if not fullname.startswith(PACKAGE) or (now := present_name(fullname)) == fullname:
            return None
        return ModuleSpec(fullname, self, origin=now)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns the module itself, whose own spec is kept aside while the import system writes
        another one onto it."""
        module = importlib.import_module(spec.origin or "")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its own spec back: it has been executed."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
