"""Routing: every request goes to the least loaded engine of the policy that plays the role. Built in.

Load is the number of requests in flight from this controller, which is the only client of a run's engines: no remote call
is needed to know it. Ties go to the engine with the lower index. Because every request carries its own seed, the result
does not depend on where it ran.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from marl_plugins import hookimpl

if TYPE_CHECKING:
    from marl_plugins.core.processes import Engine, Engines
    from marl_plugins.core.trajectory import Generation
    from marl_plugins.core.workflow import Call


@hookimpl
def marl_generate(call: Call, engines: Engines) -> Awaitable[Generation]:
    return engines.generate(call, least_loaded)


def least_loaded(engines: Sequence[Engine]) -> Engine:
    """The engine with the fewest requests in flight; the first of several."""
    return min(engines, key=lambda engine: engine.load)
