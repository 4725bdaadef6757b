"""Multi-agent reinforcement learning as plugins for an unmodified OpenRLHF.

The package's top-level modules are the plugins a user names on the command line; its sub-packages are what they are made
of. `hookspecs` is the reference a plugin author reads; `hookimpl` marks the functions of a plugin.
"""

import pluggy

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("marl")
"""Marks a function of a plugin as the implementation of the hook of the same name."""
