"""Checks and describes where a recipe's programs run."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, Where, at
from marl_plugins.core.recipe.addresses import wrong_address, wrong_variables
from marl_plugins.core.redaction import shown_url
from marl_plugins.sandbox.levels import choose, examine
from marl_plugins.sandbox.opening import missing_extra
from marl_plugins.sandbox.section import SandboxConfig


def check_sandbox(config: SandboxConfig, folder: Path, packages: bool) -> list[Problem]:
    """Returns what is wrong with `tools: sandbox:`; whether a service runs programs shows when a
    run starts.

    Args:
        folder: The recipe's.
        packages: Whether programs may import installed packages.
    """
    if config.isolation == "service":
        return list(_at_service(config, packages))
    return [*_here(config, packages), *_warm_up(config, folder)]


def _at(key: str) -> Where:
    return at(key=f"tools.sandbox.{key}")


def _here(config: SandboxConfig, packages: bool) -> Iterator[Problem]:
    """Yields a level that this machine lacks, modules that are not installed."""
    for number, name in enumerate(config.imports):
        if not find_spec(name.partition(".")[0] or "-"):
            fix = (
                f"pip install {name.partition('.')[0]}, or its distribution if that has another "
                "name"
            )
            yield Problem(
                "sandbox.import", _at(f"imports.{number}"), f"{name!r} is not installed", fix=fix
            )
    if config.imports and not packages:
        got = "tools.python.packages is false"
        yield Problem(
            "sandbox.packages",
            _at("imports"),
            got,
            fix="without packages nothing is imported; remove one of the two",
        )
    if config.url:
        got = f"is a service's, and isolation is {config.isolation}"
        yield Problem("sandbox.url", _at("url"), got, fix="write isolation: service, or remove it")
    if config.isolation != "auto":
        try:
            choose(config.isolation, examine())
        except ConfigurationError as error:
            yield from error.problems


def _warm_up(config: SandboxConfig, folder: Path) -> Iterator[Problem]:
    """Yields what is wrong with the file that is run before any program."""
    if config.warm_up is None:
        return
    path = folder / config.warm_up
    try:
        compile(path.read_text(encoding="utf-8"), config.warm_up, "exec")
    except (OSError, UnicodeDecodeError) as problem:
        yield Problem("sandbox.warm_up", _at("warm_up"), f"{path} cannot be read: {problem}")
    except SyntaxError as problem:
        yield Problem("sandbox.warm_up", _at("warm_up"), f"{path}:{problem.lineno}: {problem.msg}")


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
    if config.imports:
        fix = "openrlhf sandbox serve --imports, and remove them here"
        yield Problem("sandbox.service", _at("imports"), "are the service's to import", fix=fix)
    if config.warm_up:
        fix = "openrlhf sandbox serve --warm_up FILE, and remove it here"
        yield Problem("sandbox.service", _at("warm_up"), "is the service's to run", fix=fix)
    if not packages:
        got = "service: tools.python.packages is false"
        yield Problem(
            "sandbox.packages",
            isolation,
            got,
            fix="what can be imported is the service's matter; remove one of the two",
        )
    if missing := missing_extra():
        yield Problem("sandbox.extra", isolation, f"service: {missing}")


def describe_sandbox(config: SandboxConfig) -> str:
    """Returns the service, or the level at which programs run, and why it is none above it."""
    if config.isolation == "service":
        return f"service {shown_url(config.url)}"
    machine = examine()
    level = choose(config.isolation, machine)
    above = [f"{name} is unavailable: {missing}" for name, missing in machine.missing.items()]
    return "; ".join([level, *(above if config.isolation == "auto" else ())])
