"""The time in which the engines of a run of engines only are there (`openrlhf eval`, `openrlhf
serve`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.plan.describe import first_lines
from marl_plugins.engine.plan.engines_only import NO_TASKS
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.records.display import Display

if TYPE_CHECKING:
    from marl_plugins.engine.runtime.session import Session

T = TypeVar("T")


def with_engines(
    plan: Plan,
    display: Display,
    work: Callable[[Session], Coroutine[Any, Any, T]],
    begun: Path | None,
    needs_tasks: bool = False,
) -> T:
    """Starts the engines of a plan, does some work, and ends them.

    Args:
        begun: The output folder of the run that the models are of.

    Raises:
        ConfigurationError: There are no held-out tasks and they are needed, or a model does not
            load.
    """
    from marl_plugins.engine.processes.cluster import prepare_environment, ray_cluster
    from marl_plugins.engine.processes.fork_server import fork_server
    from marl_plugins.engine.runtime.lifetime import (
        plugins_started,
        run_until_terminated,
        terminated_like_interrupted,
    )
    from marl_plugins.engine.runtime.session import Session

    run, debug = plan.run, plan.options.debug
    for line in first_lines(plan):
        display.say(line)
    prepare_environment(run, debug)
    with (
        fork_server(debug) as python,
        terminated_like_interrupted(),
        asyncio.Runner() as loop,
        plugins_started(loop, plan, "evaluate"),
    ):
        with display.phase("loading tasks and tokenizers", announce=True):
            session = Session(plan, begun)
        if needs_tasks and not session.eval_tasks:
            raise ConfigurationError(NO_TASKS)
        session.warm_start(display)
        with ray_cluster(run, debug, python, models=session.models):
            with display.phase(f"starting engines (policies: {len(run.policies)})", announce=True):
                session.start()
            return run_until_terminated(loop, session, work(session))
