"""Which modules of the package cannot be imported where others are hidden:
`python tests/lost_modules.py` reads a JSON object of names of capabilities to their modules, and
prints one of their names to the modules that are lost.

Everything is imported once, and who imported whom is noted; then, for each capability, what was
imported by way of it anew.
"""

import builtins
import importlib
import json
import os
import sys

os.environ["MARL_PLUGINS_DEVICE"] = "cpu"

from hiding import Hiding
from test_structure import MODULES, OFFERED


def noted(importer, imports=builtins.__import__):
    """`__import__` that notes for each module of the package what it asks for while it is
    imported."""

    def work(name, globals=None, locals=None, fromlist=(), level=0):
        asking = (globals or {}).get("__name__", "")
        if asking.startswith("marl_plugins"):
            importer.setdefault(asking, set()).update(
                [
                    name,
                    *(OFFERED.get(f"{name}.{part}", f"{name}.{part}") for part in fromlist or ()),
                ]
            )
        return imports(name, globals, locals, fromlist, level)

    return work


def forget(names):
    """Have these imported anew by whoever asks for them next, also as an attribute of their
    package."""
    for name in names:
        package, _, own = name.rpartition(".")
        sys.modules.pop(name, None)
        if package in sys.modules:
            vars(sys.modules[package]).pop(own, None)


def reach(hidden, importer):
    """These and all whose import led to them; a module's import begins with that of the package
    that it is in."""

    def leads(asked, found):
        return any(f"{name}.".startswith(f"{one}.") for name in asked for one in found)

    found = set(hidden)
    while more := {
        m for m in MODULES if m not in found and leads({m, *importer.get(m, ())}, found)
    }:
        found |= more
    return found


def lost(hidden, importer):
    """The modules that cannot be imported without these, and are none of them."""
    forget(reach(hidden, importer))
    Hiding.hidden = tuple(hidden)
    missing = []
    for module in MODULES:
        if module.endswith("__main__") or any(
            f"{module}.".startswith(f"{name}.") for name in hidden
        ):
            continue
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(tuple(hidden)):
                raise
            missing.append(module)
    return missing


if __name__ == "__main__":
    capabilities = json.load(sys.stdin)
    forget([name for name in sys.modules if name.startswith("marl_plugins.")])
    asked = {}
    builtins.__import__ = noted(asked)
    assert lost([], asked) == []
    print(json.dumps({name: lost(hidden, asked) for name, hidden in capabilities.items()}))
