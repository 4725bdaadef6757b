"""`openrlhf doctor`: whether training can work on this machine, and what to do about every red line.

`--static` only looks: at files, at what is installed, at the drivers. Without it everything is also tried, all at once: the
engines and the training processes import in processes of their own, Ray starts, a program runs in the sandbox, the coach
answers. With `--recipe` (and any flags of `openrlhf train`) that run's needs are red lines; else what some runs need is a remark.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from marl_plugins import __version__, coach
from marl_plugins.commands.doctor import engines, gpus, host, machine, services, versions, wanted
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, all_good
from marl_plugins.core.recipe import find_recipe
from marl_plugins.hosts import cpu, upstream_cli

EXAMPLES = """\
  openrlhf doctor                                    everything, in under a minute
  openrlhf doctor --static                           look only: start nothing, ask nobody, a second
  openrlhf doctor --recipe mathchat                  what this recipe needs, GPUs and extras included
  openrlhf doctor --recipe mathchat --vllm.num_engines 2    any flags of `openrlhf train` beside it
  openrlhf doctor --coach.base_url http://localhost:11434/v1 --coach.model qwen3    whether a coach would do

Exit code 0: training can work here; 1: a line marked MEND stands in its way; 2: the command itself is wrong.
docs/doctor.md says what each line means.
"""

Check = Callable[[], list[Finding]]


def main(words: Sequence[str]) -> int:
    """Print the findings; exit code 0 only when training can work."""
    parser = own_parser()
    if "--help" in words or "-h" in words:
        print(parser.format_help(), end="")
        return 0
    options, others = parser.parse_known_args(words)
    if others and not (options.recipe or options.plugin):
        raise ConfigurationError(
            f"openrlhf doctor: unknown argument {others[0].partition('=')[0]!r} (openrlhf doctor --help); "
            "flags of `openrlhf train` go with --recipe or --plugin"
        )
    if options.recipe:
        find_recipe(options.recipe)  # one that is not there is a wrong command
    findings = examine(options, [w for w in words if w not in ("--json", "--static")])
    good = all_good(findings)
    if options.json:
        print(json.dumps({"version": __version__, "good": good, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        from marl_plugins.runtime.display import print_findings

        print_findings(f"openrlhf-marl {__version__}", findings)
        print("training can work here" if good else "training cannot work here yet: see the lines marked MEND")
    return 0 if good else 1


def own_parser() -> upstream_cli.Parser:
    """The command's own flags; those of the coach are the plugin's."""
    parser = upstream_cli.Parser(
        prog="openrlhf doctor",
        usage="openrlhf doctor [--json] [--static] [--recipe RECIPE] [flags of openrlhf train]",
        description="Whether training can work on this machine, and what to do where it cannot.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON: good, and findings with what, good, found, cure")
    parser.add_argument("--static", action="store_true", help="look only: start no process of the stack, ask nobody")
    parser.add_argument("--recipe", metavar="PATH", help="also check what this recipe needs")
    parser.add_argument("--plugin", metavar="NAME", action="append", default=[], help="also check what this plugin needs")
    coach.marl_options(parser)
    return parser


def examine(options: argparse.Namespace, words: Sequence[str]) -> list[Finding]:
    """All findings, in the order in which they are shown."""
    device, endpoint = cpu.device(), services.endpoint_of(options)
    there, cards = versions.installed(), gpus.look()
    plan, planned = wanted.plan(words) if options.recipe or options.plugin else (None, [])
    looked = [
        *machine.machine(device),
        *gpus.gpus(cards, device),
        *machine.folders(device, wanted.hub_models(plan)),
        *machine.network(device),
        machine.command(),
        *host.upstream(),
        *versions.versions(there, device, cards),
        *host.operators(device),
        *wanted.extras(plan, bool(endpoint.model)),
        *services.trackers(plan.args.logger if plan else None),
        *planned,
        *(wanted.devices(plan, cards) if plan else []),
    ]
    if options.static:
        return looked + services.coach_left_out(plan, endpoint)
    from marl_plugins.runtime.display import Display

    tries: list[Check] = [
        lambda: engines.engines(device),
        lambda: engines.training(device),
        engines.ray,
        lambda: services.sandbox(wanted.python_tool(plan)),
        lambda: services.coach_endpoint(plan, endpoint),
    ]
    with Display(as_json=True).phase("trying the engines, Ray, the sandbox"), ThreadPoolExecutor() as pool:
        return looked + [finding for found in pool.map(lambda check: check(), tries) for finding in found]
