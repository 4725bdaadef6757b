"""A pytest plugin, and a helper of subprocesses: modules that `MARL_HIDDEN` names cannot be found,
as if their files were deleted.

MARL_HIDDEN=marl_plugins.builtin.tools.mcp python -m pytest -p hiding tests/test_plan.py
"""

import os
import sys
from importlib.machinery import PathFinder


class Hiding(PathFinder):
    hidden: tuple[str, ...] = tuple(os.environ.get("MARL_HIDDEN", "").split())

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if any(fullname == name or fullname.startswith(f"{name}.") for name in cls.hidden):
            return None
        return super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding

if Hiding.hidden:  # plugins are found by their files, too
    from marl_plugins.core import plugin_names

    def shown(names):
        return tuple(name for name in names if name not in Hiding.hidden)

    plugin_names.SHIPPED = shown(plugin_names.SHIPPED)
    plugin_names.BUILTINS = shown(plugin_names.BUILTINS)
