"""Checks and describes where a recipe's programs run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import missing_extra
from marl_plugins.core.problems import Problem, Where, at
from marl_plugins.core.recipe.addresses import wrong_address, wrong_variables
from marl_plugins.core.redaction import shown_url
from marl_plugins.sandbox.levels import choose, examine
from marl_plugins.sandbox.section import SandboxConfig


def check_sandbox(config: SandboxConfig, folder: Path, packages: bool) -> list[Problem]:
    """Returns what is wrong with `tools: sandbox:`; whether a service runs programs, modules can be
    imported and the warm-up runs shows when a run starts.

    Args:
        folder: The recipe's.
        packages: Whether programs may import installed packages.
    """
    if config.isolation == "service":
        return list(_at_service(config, packages))
    return list(_here(config, folder))


def _at(key: str) -> Where:
    return at(key=f"tools.sandbox.{key}")


def _here(config: SandboxConfig, folder: Path) -> Iterator[Problem]:
    """Yields a level that this machine lacks, and what programs here cannot have."""
    if config.url:
        got = f"is a service's, and isolation is {config.isolation}"
        yield Problem("sandbox.url", _at("url"), got, fix="write isolation: service, or remove it")
    if config.isolation != "auto":
        try:
            choose(config.isolation, examine())
        except ConfigurationError as error:
            yield from error.problems
    if config.warm_up and not (folder / config.warm_up).is_file():
        yield Problem("sandbox.warm_up", _at("warm_up"), f"no such file: {folder / config.warm_up}")


def _at_service(config: SandboxConfig, packages: bool) -> Iterator[Problem]:
    isolation = _at("isolation")
    if not config.url:
        fix = "add url: http://HOST:8080 (`openrlhf sandbox serve` starts one)"
        yield Problem("sandbox.url", isolation, "service: where is it?", fix=fix)
    else:
        problems = [
            *wrong_variables(config.url),
            *wrong_address(config.url, "http://127.0.0.1:8080"),
        ]
        yield from (
            problem.within(key="tools.sandbox.url", name=shown_url(config.url))
            for problem in problems
        )
    for key, given in (("imports", config.imports), ("warm_up", config.warm_up)):
        if given:
            fix = f"openrlhf sandbox serve --{key}, and remove it here"
            yield Problem("sandbox.service", _at(key), "is the service's matter", fix=fix)
    if not packages:
        got = "service: tools.python.packages is false"
        yield Problem(
            "sandbox.packages",
            isolation,
            got,
            fix="what can be imported is the service's matter; remove one of the two",
        )
    yield from missing_extra("fusion", "sandbox_fusion", isolation)


def describe_sandbox(config: SandboxConfig) -> str:
    """Returns the service, or the level at which programs run, and why it is none above it."""
    if config.isolation == "service":
        return f"service {shown_url(config.url)}"
    machine = examine()
    level = choose(config.isolation, machine)
    above = [f"{name} is unavailable: {missing}" for name, missing in machine.missing.items()]
    return "; ".join([level, *(above if config.isolation == "auto" else ())])
