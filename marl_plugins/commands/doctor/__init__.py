"""`openrlhf doctor`: whether training can work on this machine, and how to fix every error.

`--static` only inspects files, installed packages and drivers. Without it, everything is also
tried, concurrently: the engines and the training processes are imported in separate processes, Ray
starts, and plugins try what they need (`marl_doctor`): the `python` tool runs a program, the coach
answers. What only some runs require is a note, unless `--recipe` (with any flags of
`openrlhf train`) names such a run.
"""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING

from marl_plugins import __version__
from marl_plugins.commands.doctor import engines, gpus, machine, needs, upstream, versions
from marl_plugins.commands.plugin_commands import named_plugins
from marl_plugins.core.findings import Finding
from marl_plugins.core.loading import load, present, users_code
from marl_plugins.core.plugin_names import BUILTINS, SHIPPED
from marl_plugins.core.problems import at
from marl_plugins.core.recipe.schema import find_recipe
from marl_plugins.engine.hosts import cpu, upstream_cli

if TYPE_CHECKING:
    from marl_plugins.core.run import Run

EXAMPLES = """\
  openrlhf doctor                             everything, in under a minute
  openrlhf doctor --static                    inspect only: start nothing, send no request
  openrlhf doctor --recipe mathchat           what this recipe requires, too: GPUs and extras
  openrlhf doctor --recipe mathchat --vllm.num_engines 2    with any flags of `openrlhf train`
  openrlhf doctor --coach.base_url http://localhost:11434/v1 --coach.model qwen3
                                              whether this coach works
  RAY_ADDRESS=head:6379 openrlhf doctor --cluster --recipe mathchat
                                              whether the nodes of a cluster can run together

Exit code 0: training can work here; 1: a line is marked FIX; 2: the command itself is wrong.
`openrlhf docs doctor` explains every line.
"""

OWN = ("--json", "--static", "--cluster")
"""Its flags that `openrlhf train` does not have."""


def main(words: Sequence[str]) -> int:
    """Prints the findings, and returns the exit code 0 only when training can work."""
    plugins = checking_plugins(words)
    parser = build_parser(plugins)
    options, others = parser.parse_known_args(words)
    if others and not (options.recipe or options.plugin):
        fix = "flags of `openrlhf train` go with --recipe or --plugin"
        parser.error(f"unrecognized argument: {others[0].partition('=')[0]}; {fix}")
    if options.recipe:
        find_recipe(options.recipe)  # a missing recipe is a wrong command: exit code 2
    findings = examine(options, [w for w in words if w not in OWN], plugins)
    from marl_plugins.commands.tables import report

    good = report(
        f"openrlhf-marl {__version__}",
        __version__,
        findings,
        options.json,
        "training can work here",
        "training cannot work here yet: see the lines marked FIX",
    )
    return 0 if good else 1


def checking_plugins(words: Sequence[str]) -> list[ModuleType]:
    """Returns the plugins that have lines of their own: of those that are found, and those that are
    named.

    Raises:
        ConfigurationError: One that is named cannot be loaded.
    """
    modules = map(load, [*present((*SHIPPED, *BUILTINS)), *named_plugins(words)])
    return list(
        dict.fromkeys(m for m in modules if hasattr(getattr(m, "marl_doctor", None), "marl_impl"))
    )


def build_parser(plugins: Sequence[ModuleType]) -> upstream_cli.UpstreamParser:
    """Returns the command's own flags, and those of plugins with lines of their own."""
    parser = upstream_cli.UpstreamParser(
        prog="openrlhf doctor",
        usage="openrlhf doctor [--json] [--static | --cluster] [--recipe RECIPE] "
        "[flags of openrlhf train]",
        description="Whether training can work on this machine, and how to fix what prevents it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--json",
        action="store_true",
        help="print JSON: good, and findings with what, good, found, fix",
    )
    add(
        "--static",
        action="store_true",
        help="inspect only: start no process of the stack, send no request",
    )
    add(
        "--cluster",
        action="store_true",
        help="only the nodes of the Ray cluster in RAY_ADDRESS: versions, folders, memory, clocks",
    )
    add("--recipe", metavar="PATH", help="also check what this recipe requires")
    add(
        "--plugin",
        metavar="NAME",
        action="append",
        default=[],
        help="also check what this plugin requires",
    )
    for plugin in plugins:
        if hasattr(plugin, "marl_options"):
            plugin.marl_options(parser)
    return parser


def lines_of(
    plugin: ModuleType, run: Run | None, options: argparse.Namespace, static: bool
) -> list[Finding]:
    """Returns a plugin's own lines."""
    available = {"run": run, "args": upstream_cli.nested(vars(options)), "static": static}
    parameters = inspect.signature(plugin.marl_doctor).parameters
    with users_code(at(hook="marl_doctor"), place=at(plugin=plugin.__name__)):
        return list(
            plugin.marl_doctor(
                **{name: available[name] for name in parameters if name in available}
            )
            or ()
        )


def examine(
    options: argparse.Namespace, words: Sequence[str], plugins: Sequence[ModuleType]
) -> list[Finding]:
    """Returns all findings, in display order."""
    device = cpu.device()
    plan, planned = needs.try_plan(words) if options.recipe or options.plugin else (None, [])
    if options.cluster:
        from marl_plugins.commands.doctor.cluster import check_cluster

        return [*planned, *check_cluster(plan)]
    installed, cards = versions.find_installed(), gpus.query_gpus()
    inspected = [
        *machine.check_machine(device),
        *gpus.check_gpus(cards, device),
        *machine.check_caches(device, needs.uses_hub_models(plan)),
        *machine.check_proxy(),
        *upstream.check_upstream(),
        *versions.check_versions(installed, device, cards),
        upstream.check_operators(device),
        *planned,
        *([*needs.check_trackers(plan), *needs.check_devices(plan, cards)] if plan else []),
    ]
    if options.static:
        return inspected + [
            line for plugin in plugins for line in lines_of(plugin, plan, options, static=True)
        ]
    from marl_plugins.engine.records.display import Display

    trials: list[Callable[[], list[Finding]]] = [
        *(
            functools.partial(engines.try_import, *imported, device)
            for imported in engines.IMPORTED
        ),
        engines.try_ray,
        *(functools.partial(lines_of, plugin, plan, options, False) for plugin in plugins),
    ]
    with (
        Display(as_json=True).phase("trying the engines, Ray, what plugins need"),
        ThreadPoolExecutor() as pool,
    ):
        return inspected + [
            finding for findings in pool.map(lambda check: check(), trials) for finding in findings
        ]
