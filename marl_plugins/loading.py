"""Importing what a user names: a plugin by dotted name, entry point or `.py` file, and the Python files of a recipe.

A `.py` file is loaded under a stable module name, once; only this package's own types cross processes.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from importlib import metadata
from pathlib import Path
from types import ModuleType

from marl_plugins import __version__
from marl_plugins.core.failures import ConfigurationError, nearest

GROUP = "marl_plugins"
"""Entry points of this group are names of plugins."""
SHIPPED = (
    "marl_plugins.coach",
    "marl_plugins.reward_backprop",
    "marl_plugins.routing",
    "marl_plugins.reinforce_pp",
    "marl_plugins.groups",
    "marl_plugins.gae",
    "marl_plugins.filter_agents_data",
)
"""The capabilities in this package that a user names."""
OF_FILES = ("marl_plugin_", "marl_recipe_")
"""Beginnings of the module names of `.py` files."""


def load(name: str) -> ModuleType:
    """Import a plugin by dotted name, entry-point name or `.py` path.

    Raises:
        ConfigurationError: It cannot be found; or its own import failed, with the reason.
    """
    if name.endswith(".py"):
        path = Path(name).resolve()
        return load_file(path, f"marl_plugin_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}")
    if not all(part.isidentifier() for part in name.replace("-", "_").split(".")):
        raise ConfigurationError(f"plugin {name!r}: expected a dotted module name, an entry-point name or a .py file")
    for entry in metadata.entry_points(group=GROUP):
        if entry.name == name:
            name = entry.value
            break
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            known = [*SHIPPED, *(e.name for e in metadata.entry_points(group=GROUP))]
            raise ConfigurationError(
                f"plugin {name!r} is not a module, an entry point of group {GROUP!r} or a .py file{nearest(name, known)}"
            ) from None
        raise ConfigurationError(f"plugin {name}: it imports {missing!r}, which is not installed") from None
    except Exception as error:  # the plugin's own code, of any kind
        raise ConfigurationError(f"plugin {name}: cannot be imported: {_place(error)}") from error


def _place(error: Exception) -> str:
    """What user code raised while it was imported, and where."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}: {type(error).__name__}: {error}"


def load_file(path: Path, module_name: str) -> ModuleType:
    """Import a `.py` file under a stable module name; the same file is imported once.

    Raises:
        ConfigurationError: The file is missing or cannot be imported.
    """
    if not path.is_file():
        raise ConfigurationError(f"{path}: no such file")
    path = path.resolve()
    known = sys.modules.get(module_name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code, of any kind
        del sys.modules[module_name]
        raise ConfigurationError(f"{path}: cannot be imported: {_place(error)}") from error
    return module


def version_of(name: str) -> str:
    """A plugin's version: of its distribution, of this package, or the digest of its file."""
    if name.endswith(".py"):
        return "file:" + hashlib.blake2b(Path(name).read_bytes(), digest_size=8).hexdigest()
    top = name.partition(".")[0]
    if top == "marl_plugins":
        return __version__
    owners = metadata.packages_distributions().get(top)
    return metadata.version(owners[0]) if owners else "unknown"
