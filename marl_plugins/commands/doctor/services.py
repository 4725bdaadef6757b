"""What a run connects to: the `python` tool, the coach's endpoint, trackers."""

from __future__ import annotations

import argparse
import asyncio
import netrc
import os
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from marl_plugins import coach
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, nearest
from marl_plugins.core.findings import Finding, error, error_if, note, ok
from marl_plugins.core.recipe import ToolsConfig

if TYPE_CHECKING:
    from marl_plugins.asking.asker import Asker
    from marl_plugins.asking.endpoint import Endpoint
    from marl_plugins.run import Run

LISTING = 10.0
"""Time limit, in seconds, for listing an endpoint's models."""


def try_python_tool(config: ToolsConfig | None) -> list[Finding]:
    """The sandbox's level, or service; three programs in the tool: a correct one, an endless one, one that needs too much memory.

    Args:
        config: The tools' settings in the recipe, if one of its roles uses the python tool.
    """
    from marl_plugins.plan.sandbox import describe_sandbox
    from marl_plugins.sandbox import levels, open_sandbox
    from marl_plugins.tools.python import run_program

    used, tools = config is not None, config or ToolsConfig()
    limits, machine = tools.python, None if tools.sandbox.isolation == "service" else levels.examine()
    short = limits.model_copy(update={"seconds": 1.0})

    async def programs() -> Any:
        async with open_sandbox(tools.sandbox, packages=limits.packages) as sandbox:
            return [
                await run_program("print(6 * 7)", limits, sandbox),
                await run_program("while True: pass", short, sandbox),
                await run_program(f"print(len(bytearray({2 * limits.memory_mb * 2**20})))", limits, sandbox),
            ]

    started = time.monotonic()
    try:
        where = describe_sandbox(tools.sandbox) if machine is None else levels.choose(tools.sandbox.isolation, machine)
        correct, endless, hungry = asyncio.run(programs())
    except ConfigurationError as problem:
        found, _, fix = str(problem).rpartition("; ")
        return [error_if(used, "sandbox", found or fix, fix)]
    except (InfrastructureFailure, OSError) as failure:
        return [error_if(used, "python tool", str(failure), "ulimit -u shows how many processes are allowed")]
    if machine is None:
        findings = [ok("sandbox", f"programs run at the {where}")]
    else:
        findings = [ok("sandbox", f"isolates programs at level {where}")]
        missing = machine.missing.items()
        findings += [note("sandbox", f"no level {name}: {what}", "openrlhf docs sandbox") for name, what in missing]
    problems = []
    if not correct.ok or correct.output != "42":
        problems.append(f"print(6 * 7) gave {correct.output[-200:]!r}")
    if endless.ok or endless.seconds > 10:
        problems.append("an endless program was not stopped")
    if hungry.ok or "MemoryError" not in hungry.output:
        problems.append(f"a program took more than its {limits.memory_mb} MB: {hungry.output[-200:]!r}")
    if problems:
        fix = "raise the recipe's tools.python.memory_mb or seconds; see ulimit -a"
        return [*findings, error_if(used, "python tool", "; ".join(problems), fix)]
    seconds = time.monotonic() - started
    return [*findings, ok("python tool", f"runs programs, stops those that exceed its limits ({seconds:.1f} s)")]


def endpoint_of(options: argparse.Namespace) -> Endpoint:
    """The endpoint in the coach's flags.

    Raises:
        ConfigurationError: The flags are wrong.
    """
    return coach.endpoint_of(SimpleNamespace(**{k.removeprefix("coach."): v for k, v in vars(options).items()}))


def try_coach(run: Run | None, endpoint: Endpoint) -> list[Finding]:
    """Ask the run's coach, or the one in the flags, the question that a run asks at start; with only a key, list its models."""
    from marl_plugins.asking.asker import endpoint_asker

    if run is not None:
        return [found for asker, own in endpoints_of_run(run) for found in probe_coach(asker, own)]
    if any(find_spec(name) is None for name in coach.NEEDED):
        return []  # reported by check_extras
    if endpoint.model:
        return probe_coach(endpoint_asker(endpoint), endpoint)
    chosen = endpoint.base_url != default_of("base_url")
    if chosen or os.environ.get(endpoint.api_key_env):
        return report_models(endpoint)
    return []


def endpoints_of_run(run: Run) -> list[tuple[Asker, Endpoint]]:
    """The endpoints of the run's coaches, as far as they are models at one."""
    from marl_plugins.asking.transport import EndpointTransport

    askers = [(asker, asker.transport) for asker in coach.askers_of(run)]
    return [(asker, t.endpoint) for asker, t in askers if isinstance(t, EndpointTransport)]


def report_untried_coach(run: Run | None, endpoint: Endpoint) -> list[Finding]:
    """With `--static`: report that the coach's endpoint was not tried."""
    chosen = bool(endpoint.model) or endpoint.base_url != default_of("base_url")
    if run is not None:
        chosen = bool(endpoints_of_run(run))
    return [note("coach", "not tried (--static)", "openrlhf doctor, without --static, asks it")] if chosen else []


def default_of(flag: str) -> Any:
    """The default of a flag of the coach's."""
    parser = argparse.ArgumentParser(add_help=False)
    coach.marl_options(parser)
    return parser.get_default(f"coach.{flag}")


def probe_coach(asker: Asker, endpoint: Endpoint) -> list[Finding]:
    """Ask one small question in the form that the run would use."""
    from marl_plugins.coach.model import trial_request

    if asker.replays:
        return [ok("coach", "answers from a recording")]
    started = time.monotonic()
    try:
        asyncio.run(asker.probe(trial_request()))
    except ConfigurationError as problem:
        return [error("coach", str(problem), _fix(endpoint, str(problem)))]
    form = {"json": "structured output", "text": "lines of text"}[asker.form]
    return [ok("coach", f"{endpoint} judges, in {form}, within {time.monotonic() - started:.1f} s")]


def _fix(endpoint: Endpoint, problem: str) -> str:
    """What to type after the endpoint's answer; if it does not have this model, the models it has."""
    if "refuses the key" in problem:
        return f"export {endpoint.api_key_env}=..., or name another variable: --coach.api_key_env NAME"
    if "cannot be reached" in problem:
        return f"start it (vllm serve {endpoint.model}; ollama serve), or --coach.base_url URL"
    names, _ = fetch_model_names(endpoint)
    if names and endpoint.model not in names:
        return f"--coach.model: it has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}{nearest(endpoint.model, names)}"
    return "openrlhf docs coach, Endpoints"


def report_models(endpoint: Endpoint) -> list[Finding]:
    """Which models an endpoint has: a note in any case, because no flag says that a run would use it."""
    names, problem = fetch_model_names(endpoint)
    place = urlsplit(endpoint.shown_url).netloc
    if problem:
        return [note("coach", f"{place}: {problem}", "matters only with --coach.model NAME")]
    key = f"takes the key in {endpoint.api_key_env} and has" if os.environ.get(endpoint.api_key_env) else "has"
    return [note("coach", f"{place} {key} {len(names)} models", "openrlhf doctor --coach.model NAME asks one of them")]


def fetch_model_names(endpoint: Endpoint) -> tuple[list[str], str | None]:
    """The models that an endpoint lists, or why it lists none."""
    from marl_plugins.asking.limits import SpendingBudget
    from marl_plugins.asking.request import Tally
    from marl_plugins.asking.transport import EndpointTransport

    transport = EndpointTransport(replace(endpoint, timeout=LISTING), SpendingBudget(endpoint.prefix), Tally())
    try:
        return asyncio.run(transport.model_names()), None
    except ConfigurationError as problem:
        return [], str(problem)


def check_trackers(logger: Any) -> list[Finding]:
    """TensorBoard and W&B: an error only if the run's flags require one that is missing.

    Args:
        logger: The run's `--logger` flags, or None.
    """
    findings = []
    uses_tensorboard, uses_wandb = (
        bool(logger and value)
        for value in (getattr(logger, "tensorboard_dir", None), getattr(getattr(logger, "wandb", None), "key", None))
    )
    if find_spec("tensorboard"):
        findings.append(ok("tensorboard", "installed: --logger.tensorboard_dir FOLDER"))
    else:
        fix = "pip install 'openrlhf-marl[tensorboard]'"
        findings.append(error_if(uses_tensorboard, "tensorboard", "not installed, for --logger.tensorboard_dir", fix))
    if find_spec("wandb"):
        findings.append(note("wandb", f"installed; {describe_wandb_account(Path.home() / '.netrc')}"))
    else:
        findings.append(error_if(uses_wandb, "wandb", "not installed, for --logger.wandb.key", "pip install wandb"))
    return findings


def describe_wandb_account(file: Path) -> str:
    """Whether W&B knows an account for us; the key itself is not read."""
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("offline", "disabled", "dryrun"):
        return f"{mode} ($WANDB_MODE)"
    if os.environ.get("WANDB_API_KEY"):
        return "the key is in $WANDB_API_KEY"
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        known = netrc.netrc(os.environ.get("NETRC", file)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        known = False
    return f"logged in at {host}" if known else "not logged in (wandb login, or WANDB_MODE=offline)"
