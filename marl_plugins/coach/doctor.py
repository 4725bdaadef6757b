"""Lines of `openrlhf doctor` about the coach: what it needs, and whether its endpoint answers."""

from __future__ import annotations

import asyncio
import time
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING

from marl_plugins import ConfigurationError, Finding, check_extra
from marl_plugins.asking.askers import Askers
from marl_plugins.coach.flags import NEEDED, endpoint_of

if TYPE_CHECKING:
    from marl_plugins import Problem, Run
    from marl_plugins.asking.asker import Asker
    from marl_plugins.asking.endpoint import CoachEndpoint


def check_coach(run: Run | None, args: SimpleNamespace, static: bool) -> list[Finding]:
    """Returns all findings; see `marl_doctor`.

    Raises:
        ConfigurationError: The flags are wrong.
    """
    endpoint = endpoint_of(args.coach)
    extra = check_extra("coach", NEEDED, "a coach at an endpoint", bool(endpoint.model))
    return [extra, *(report_untried_coach(run, endpoint) if static else try_coach(run, endpoint))]


def try_coach(run: Run | None, endpoint: CoachEndpoint) -> list[Finding]:
    """Asks the run's coach, or the one in the flags, the question that a run asks at start."""
    from marl_plugins.asking.asker import endpoint_asker

    if run is not None:
        return [probe_coach(asker, own) for asker, own in endpoints_of_run(run)]
    if any(find_spec(name) is None for name in NEEDED):
        return []  # said of the extra
    return [probe_coach(endpoint_asker(endpoint), endpoint)] if endpoint.model else []


def endpoints_of_run(run: Run) -> list[tuple[Asker, CoachEndpoint]]:
    """Returns the endpoints of the run's coaches, as far as they are models at one."""
    from marl_plugins.asking.transport import EndpointTransport

    askers = [(asker, asker.transport) for asker in run.state(Askers).by_member.values()]
    return [(asker, t.endpoint) for asker, t in askers if isinstance(t, EndpointTransport)]


def report_untried_coach(run: Run | None, endpoint: CoachEndpoint) -> list[Finding]:
    """Reports, with `--static`, that the coach's endpoint was not tried."""
    chosen = endpoint.model if run is None else endpoints_of_run(run)
    fix = "openrlhf doctor, without --static, asks it"
    return [Finding("coach", None, "not tried (--static)", fix)] if chosen else []


def probe_coach(asker: Asker, endpoint: CoachEndpoint) -> Finding:
    """Asks one small question in the form that the run would use."""
    from marl_plugins.coach.model import trial_request

    if asker.replays:
        return Finding("coach", True, "answers from a recording")
    started = time.monotonic()
    try:
        asyncio.run(asker.probe(trial_request()))
    except ConfigurationError as wrong:
        return Finding("coach", False, str(wrong), _fix(endpoint, wrong.problems[0]))
    form = {"json": "structured output", "text": "lines of text"}[asker.form]
    seconds = time.monotonic() - started
    return Finding("coach", True, f"{endpoint} judges, in {form}, within {seconds:.1f} s")


def _fix(endpoint: CoachEndpoint, problem: Problem) -> str:
    """Returns what to type after the endpoint's answer."""
    if problem.code == "endpoint.key":
        return (
            f"export {endpoint.api_key_env}=..., or name another variable: --coach.api_key_env NAME"
        )
    if problem.code == "endpoint.unreachable":
        return f"start it (vllm serve {endpoint.model}; ollama serve), or --coach.base_url URL"
    return "openrlhf docs coach, Endpoints"
