"""What a run talks to: the sandbox of the `python` tool, the coach's endpoint, trackers."""

from __future__ import annotations

import argparse
import asyncio
import netrc
import os
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from marl_plugins import coach
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, nearest
from marl_plugins.core.findings import Finding, fine, red, red_if, remark
from marl_plugins.core.recipe import PythonToolConfig

if TYPE_CHECKING:
    from marl_plugins.asking.endpoint import Client, Endpoint
    from marl_plugins.run import Run

LOOK = 10.0
"""Seconds for asking which models an endpoint has."""


def sandbox(config: PythonToolConfig | None) -> list[Finding]:
    """Run three programs in the tool: one that is fine, one that does not end, one that wants too much memory.

    Args:
        config: The limits of the recipe whose roles use the tool; None where no recipe says that any does.
    """
    from marl_plugins.tools.python import run_program

    limits = config or PythonToolConfig()
    short = limits.model_copy(update={"seconds": 1.0})

    async def programs() -> Any:
        return [
            await run_program("print(6 * 7)", limits),
            await run_program("while True: pass", short),
            await run_program(f"print(len(bytearray({limits.memory_mb * 2**20})))", limits),
        ]

    started = time.monotonic()
    try:
        right, endless, hungry = asyncio.run(programs())
    except (InfrastructureFailure, OSError) as failure:
        return [red_if(config is not None, "sandbox", str(failure), "ulimit -u shows how many processes are allowed")]
    problems = []
    if not right.ok or right.output != "42":
        problems.append(f"a program that prints 42 gave {right.output[-200:]!r}")
    if endless.ok or endless.seconds > 10:
        problems.append("a program without an end was not stopped")
    if hungry.ok or "MemoryError" not in hungry.output:
        problems.append(f"a program took more than its {limits.memory_mb} MB: {hungry.output[-200:]!r}")
    if problems:
        cure = "raise the recipe's tools.python.memory_mb or seconds; see ulimit -a"
        return [red_if(config is not None, "sandbox", "; ".join(problems), cure)]
    return [fine("sandbox", f"runs programs, and stops what is over its limits ({time.monotonic() - started:.1f} s)")]


def endpoint_of(options: argparse.Namespace) -> Endpoint:
    """The endpoint of the coach's flags.

    Raises:
        ConfigurationError: They are wrong.
    """
    return coach.endpoint_of(SimpleNamespace(**{k.removeprefix("coach."): v for k, v in vars(options).items()}))


def coach_endpoint(run: Run | None, endpoint: Endpoint) -> list[Finding]:
    """Ask the coach as a run does before it starts: the run's, or that of the flags; with a key alone, which models it has."""
    from marl_plugins.asking.accounts import Answers, Budget
    from marl_plugins.asking.endpoint import Client

    if run is not None:
        client = client_of(run)
        return probe(client) if client else []
    if any(find_spec(name) is None for name in coach.NEEDED):
        return []  # said among the extras
    if endpoint.model:
        return probe(Client(endpoint, Budget(), Answers()))
    asked_for = endpoint.base_url != own_default("base_url")
    if asked_for or os.environ.get(endpoint.api_key_env):
        return models(endpoint)
    return []


def client_of(run: Run) -> Client | None:
    """What asks the run's coach, where that is a model at an endpoint."""
    from marl_plugins.asking.endpoint import Client

    asker = coach.shared_asker() if "marl_plugins.coach" in run.plugins.names else None
    return asker if isinstance(asker, Client) else None


def coach_left_out(run: Run | None, endpoint: Endpoint) -> list[Finding]:
    """What `--static` says of a coach at an endpoint, of which nobody is asked."""
    asked_for = bool(endpoint.model) or endpoint.base_url != own_default("base_url")
    if run is not None:
        asked_for = client_of(run) is not None
    return [remark("coach", "not tried (--static)", "openrlhf doctor, without --static, asks it")] if asked_for else []


def own_default(flag: str) -> Any:
    """The default of one of the coach's flags."""
    parser = argparse.ArgumentParser(add_help=False)
    coach.marl_options(parser)
    return parser.get_default(f"coach.{flag}")


def probe(client: Any) -> list[Finding]:
    """One small question, in the form that the run would use."""
    from marl_plugins.coach.model import ModelCoach

    endpoint: Endpoint = client.endpoint
    if client.replay:
        return [fine("coach", "answers from a recording")]
    started = time.monotonic()
    try:
        ModelCoach(client, ("", ""), {}).probe()
    except ConfigurationError as error:
        return [red("coach", str(error), _cure(endpoint, str(error)))]
    form = {"json": "structured output", "text": "lines of text"}[client.form]
    return [fine("coach", f"{endpoint} judges, in {form}, within {time.monotonic() - started:.1f} s")]


def _cure(endpoint: Endpoint, problem: str) -> str:
    """What to type, by what the endpoint said; the models that it has where it does not know this one."""
    if "refuses the key" in problem:
        return f"export {endpoint.api_key_env}=..., or name the variable that holds the key: --coach.api_key_env NAME"
    if "cannot be reached" in problem:
        return f"start it (vllm serve {endpoint.model}; ollama serve), or --coach.base_url URL"
    names, _ = names_at(endpoint)
    if names and endpoint.model not in names:
        return f"--coach.model: it has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}{nearest(endpoint.model, names)}"
    return "docs/coach.md, Endpoints"


def models(endpoint: Endpoint) -> list[Finding]:
    """Nothing says that this endpoint would be used: a remark, whatever it answers."""
    names, problem = names_at(endpoint)
    place = urlsplit(endpoint.shown_url).netloc
    if problem:
        return [remark("coach", f"{place}: {problem}", "matters with --coach.model NAME only")]
    key = f"takes the key in {endpoint.api_key_env} and has" if os.environ.get(endpoint.api_key_env) else "has"
    return [remark("coach", f"{place} {key} {len(names)} models", "openrlhf doctor --coach.model NAME asks one of them")]


def names_at(endpoint: Endpoint) -> tuple[list[str], str | None]:
    """The models that an endpoint lists, or why it does not."""
    import openai

    from marl_plugins.asking.endpoint import api_key, said

    try:
        with openai.OpenAI(base_url=endpoint.base_url, api_key=api_key(endpoint), timeout=LOOK, max_retries=0) as client:
            return [model.id for model in client.models.list()], None
    except openai.APIStatusError as error:
        return [], said(error, endpoint)
    except (openai.APIError, ValueError, TypeError) as error:  # unreachable, or not in the protocol
        return [], f"does not list its models: {error.__cause__ or error}"


def trackers(logger: Any) -> list[Finding]:
    """TensorBoard and W&B; red only where the run's flags ask for one that is not there.

    Args:
        logger: The run's `--logger` flags, or None.
    """
    findings = []
    uses_tensorboard, uses_wandb = (
        bool(logger and value)
        for value in (getattr(logger, "tensorboard_dir", None), getattr(getattr(logger, "wandb", None), "key", None))
    )
    if find_spec("tensorboard"):
        findings.append(fine("tensorboard", "installed: --logger.tensorboard_dir FOLDER"))
    else:
        cure = "pip install 'openrlhf-marl[tensorboard]'"
        findings.append(red_if(uses_tensorboard, "tensorboard", "not installed, for --logger.tensorboard_dir", cure))
    if find_spec("wandb"):
        findings.append(remark("wandb", f"installed; {wandb_account(Path.home() / '.netrc')}"))
    else:
        findings.append(red_if(uses_wandb, "wandb", "not installed, for --logger.wandb.key", "pip install wandb"))
    return findings


def wandb_account(file: Path) -> str:
    """Whether W&B would know who we are; the key itself is not looked at."""
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
