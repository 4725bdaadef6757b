"""Lines of `openrlhf doctor` about the coach: what it needs, and whether its endpoint answers."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from marl_plugins import ConfigurationError, Finding, check_extra, nearest
from marl_plugins.asking.askers import Askers
from marl_plugins.coach.flags import DEFAULT_URL, NEEDED, endpoint_of

if TYPE_CHECKING:
    from marl_plugins import Problem, Run
    from marl_plugins.asking.asker import Asker
    from marl_plugins.asking.endpoint import CoachEndpoint

LISTING_SECONDS = 10.0
"""Time limit for listing an endpoint's models."""


def check_coach(run: Run | None, args: SimpleNamespace, static: bool) -> list[Finding]:
    """Returns all findings; see `marl_doctor`.

    Raises:
        ConfigurationError: The flags are wrong.
    """
    endpoint = endpoint_of(args.coach)
    extra = check_extra("coach", NEEDED, "a coach at an endpoint", bool(endpoint.model))
    return [extra, *(report_untried_coach(run, endpoint) if static else try_coach(run, endpoint))]


def try_coach(run: Run | None, endpoint: CoachEndpoint) -> list[Finding]:
    """Asks the run's coach, or the one in the flags, the question that a run asks at start; with
    only a key, lists its models."""
    from marl_plugins.asking.asker import endpoint_asker

    if run is not None:
        return [probe_coach(asker, own) for asker, own in endpoints_of_run(run)]
    if any(find_spec(name) is None for name in NEEDED):
        return []  # said of the extra
    if endpoint.model:
        return [probe_coach(endpoint_asker(endpoint), endpoint)]
    if endpoint.base_url != DEFAULT_URL or os.environ.get(endpoint.api_key_env):
        return [report_models(endpoint)]
    return []


def endpoints_of_run(run: Run) -> list[tuple[Asker, CoachEndpoint]]:
    """Returns the endpoints of the run's coaches, as far as they are models at one."""
    from marl_plugins.asking.transport import EndpointTransport

    askers = [(asker, asker.transport) for asker in run.state(Askers).by_member.values()]
    return [(asker, t.endpoint) for asker, t in askers if isinstance(t, EndpointTransport)]


def report_untried_coach(run: Run | None, endpoint: CoachEndpoint) -> list[Finding]:
    """Reports, with `--static`, that the coach's endpoint was not tried."""
    if run is not None:
        chosen = bool(endpoints_of_run(run))
    else:
        chosen = bool(endpoint.model) or endpoint.base_url != DEFAULT_URL
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
    """Returns what to type after the endpoint's answer; if it does not have this model, the models
    it has."""
    if problem.code == "endpoint.key":
        return (
            f"export {endpoint.api_key_env}=..., or name another variable: --coach.api_key_env NAME"
        )
    if problem.code == "endpoint.unreachable":
        return f"start it (vllm serve {endpoint.model}; ollama serve), or --coach.base_url URL"
    names, _ = fetch_model_names(endpoint)
    if names and endpoint.model not in names:
        return (
            "--coach.model: it has "
            f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
            f"{nearest(endpoint.model, names)}"
        )
    return "openrlhf docs coach, Endpoints"


def report_models(endpoint: CoachEndpoint) -> Finding:
    """Reports the models that an endpoint has: a note in any case, because no flag says that a run
    would use it."""
    names, problem = fetch_model_names(endpoint)
    place = urlsplit(endpoint.shown_url).netloc
    if problem:
        return Finding("coach", None, f"{place}: {problem}", "matters only with --coach.model NAME")
    fix = "openrlhf doctor --coach.model NAME asks one of them"
    return Finding("coach", None, f"{place} has {len(names)} models", fix)


def fetch_model_names(endpoint: CoachEndpoint) -> tuple[list[str], str | None]:
    """Returns the models that an endpoint lists, or why it lists none."""
    from marl_plugins.asking.limits import SpendingBudget
    from marl_plugins.asking.request import RequestTally
    from marl_plugins.asking.transport import EndpointTransport

    transport = EndpointTransport(
        replace(endpoint, timeout=LISTING_SECONDS), SpendingBudget(endpoint.prefix), RequestTally()
    )
    try:
        return asyncio.run(transport.model_names()), None
    except ConfigurationError as wrong:
        return [], str(replace(wrong.problems[0], where=()))
