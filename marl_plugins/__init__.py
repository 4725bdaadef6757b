"""Multi-agent reinforcement learning as plugins for an unmodified OpenRLHF.

The package's top-level modules are the plugins a user names on the command line; its sub-packages
are what they are made of. `hookspecs` is the reference a plugin author reads; `hookimpl` marks the
functions of a plugin.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from marl_plugins.core.moved import MovedModules

if TYPE_CHECKING:
    import pluggy

    hookimpl = pluggy.HookimplMarker("marl")
    """Marks a function of a plugin as the implementation of the hook of the same name."""

__version__ = "0.1.0"

sys.meta_path.insert(0, MovedModules())


def __getattr__(name: str) -> Any:
    """`hookimpl`, with the first plugin: a help text needs no pluggy."""
    if name != "hookimpl":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pluggy

    globals()[name] = pluggy.HookimplMarker("marl")
    return globals()[name]


F = TypeVar("F", bound=Callable[..., Any])


def applies_if(condition: Callable[[Any], bool]) -> Callable[[F], F]:
    """Marks an implementation that some runs do without: it is called where `condition(run)` holds,
    and counts there only.

    Of `run`, `args` and `recipe` are known when it is asked. Example:

        @hookimpl
        @applies_if(lambda run: run.args.brevity.compare)
        def marl_credit_step(trajectories): ...
    """

    def mark(function: F) -> F:
        function.__dict__["applies_if"] = condition
        return function

    return mark
