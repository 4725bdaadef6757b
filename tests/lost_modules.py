"""Which modules of the package cannot be imported where others are hidden: `python tests/lost_modules.py` reads a JSON object of
names of capabilities to their modules, and prints one of their names to the modules that are lost.

What is installed is imported once; the package itself anew for each capability.
"""

import importlib
import json
import os
import sys

os.environ["MARL_PLUGINS_DEVICE"] = "cpu"

from hiding import Hiding
from test_structure import MODULES


def lost(hidden):
    """The modules that cannot be imported without these, and are none of them."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "marl_plugins"]:
        del sys.modules[name]
    Hiding.hidden = tuple(hidden)
    missing = []
    for module in MODULES:
        if module.endswith("__main__") or any(f"{module}.".startswith(f"{name}.") for name in hidden):
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
    assert lost([]) == []
    print(json.dumps({name: lost(hidden) for name, hidden in capabilities.items()}))
