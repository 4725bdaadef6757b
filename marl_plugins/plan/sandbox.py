"""Where a recipe's programs run: what is wrong with that, and how it is described."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe import Origins, Recipe, SandboxConfig
from marl_plugins.core.redaction import shown_url
from marl_plugins.plan.addresses import wrong_address, wrong_variables
from marl_plugins.sandbox.levels import choose, examine
from marl_plugins.sandbox.opening import missing_extra


def check_sandbox(recipe: Recipe, origins: Origins) -> list[str]:
    """What is wrong with `tools: sandbox:`; whether a service runs programs shows when a run starts."""
    found = _at_service(recipe) if recipe.tools.sandbox.isolation == "service" else _here(recipe)
    return [f"{origins.where('tools', 'sandbox', *key)}: tools.sandbox{problem}" for key, problem in found]


def _here(recipe: Recipe) -> Iterator[tuple[list[str], str]]:
    """The key, and a problem that begins with the rest of it: a level that this machine lacks, modules that are not installed."""
    config = recipe.tools.sandbox
    for n, name in enumerate(config.imports):
        if not find_spec(name.partition(".")[0] or "-"):
            install = f"pip install {name.partition('.')[0]}, or its distribution if that has another name"
            yield ["imports", str(n)], f".imports: {name!r} is not installed; {install}"
    if config.imports and not recipe.tools.python.packages:
        yield ["imports"], ".imports: tools.python.packages is false; without packages nothing is imported"
    if config.url:
        yield ["url"], f".url: is a service's, and isolation is {config.isolation}; write isolation: service, or remove it"
    if config.isolation != "auto":
        try:
            choose(config.isolation, examine())
        except ConfigurationError as problem:
            yield ["isolation"], str(problem).removeprefix("tools.sandbox")


def _at_service(recipe: Recipe) -> Iterator[tuple[list[str], str]]:
    config = recipe.tools.sandbox
    if not config.url:
        yield (
            ["isolation"],
            ".isolation: service: where is it?; add url: http://HOST:8080 (`openrlhf sandbox serve` starts one)",
        )
    else:
        problems = [*wrong_variables(config.url), *wrong_address(config.url, "http://127.0.0.1:8080")]
        yield from ((["url"], f".url: {shown_url(config.url)}: {problem}") for problem in problems)
    if config.imports:
        yield ["imports"], ".imports: are the service's to import; openrlhf sandbox serve --imports, and remove them here"
    if config.warm_up:
        yield ["warm_up"], ".warm_up: is the service's to run; openrlhf sandbox serve --warm_up FILE, and remove it here"
    if not recipe.tools.python.packages:
        yield (
            ["isolation"],
            ".isolation: service: tools.python.packages is false; what can be imported is the service's matter",
        )
    if missing := missing_extra():
        yield ["isolation"], f".isolation: service: {missing}"


def describe_sandbox(config: SandboxConfig) -> str:
    """The service, or the level at which programs run, and why it is none above it."""
    if config.isolation == "service":
        return f"service {shown_url(config.url)}"
    machine = examine()
    level = choose(config.isolation, machine)
    above = [f"{name} is unavailable: {missing}" for name, missing in machine.missing.items()]
    return "; ".join([level, *(above if config.isolation == "auto" else ())])


def where_programs_run(recipe: Recipe) -> list[str]:
    """What a run's log says of the sandbox; nothing where no program is run."""
    if not recipe.uses_programs:
        return []
    whose = "agents and of the coach" if recipe.coach and recipe.coach.tools else "agents"
    return [f"programs of {whose} run in the sandbox: {describe_sandbox(recipe.tools.sandbox)}"]
