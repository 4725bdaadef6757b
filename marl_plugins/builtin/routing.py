"""Routing: every request goes to the least loaded engine of the policy that plays the role. Built
in.

Load is the number of requests in flight from this controller, which is the only client of a run's
engines: no remote call is needed to know it. Ties go to the engine with the lower index. An engine
has at most `--balance.in_flight` requests; the others wait in the controller, the oldest task's
first. Because every request carries its own seed, the result depends neither on where it ran nor on
when.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.core.options import at_least

if TYPE_CHECKING:
    from marl_plugins.core.processes import Engine, Engines
    from marl_plugins.core.roles import Call
    from marl_plugins.core.trajectory import Generation


MAX_REQUESTS_IN_FLIGHT = 256
"""More than vLLM computes at once as upstream starts it (max_num_seqs, 128), so that no engine ever
waits for the controller. Up to that many requests per engine nothing waits at all."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests to engines (built in)")
    group.add_argument(
        "--balance.in_flight",
        type=at_least(1),
        default=MAX_REQUESTS_IN_FLIGHT,
        metavar="N",
        help="maximum number of requests at one engine; the others wait in the controller, the "
        "oldest task's first",
    )


@hookimpl
def marl_generate(call: Call, engines: Engines) -> Awaitable[Generation]:
    return engines.generate(call, least_loaded)


def least_loaded(engines: Sequence[Engine]) -> Engine:
    """Returns the engine with the fewest requests in flight; the first of several. `engines` are
    those with a free place."""
    return min(engines, key=lambda engine: engine.load)
