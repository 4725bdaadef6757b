"""`openrlhf sandbox serve`: the sandbox of this machine for runs on others, in SandboxFusion's
protocol."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence

from marl_plugins.core.command import Parser
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.findings import missing_extra
from marl_plugins.core.machine_limits import usable_cores
from marl_plugins.core.options import Number, at_least
from marl_plugins.core.problems import Problem, at
from marl_plugins.sandbox.levels import LEVELS
from marl_plugins.sandbox.section import SandboxConfig

ABOUT = """\
Runs programs of agents for runs on other machines.

  openrlhf sandbox serve            on http://127.0.0.1:8080, at the strongest level that this
                                    machine has
  openrlhf sandbox serve --port 0   on any free port, which is printed
  openrlhf sandbox serve --host 0.0.0.0 --isolation namespaces --concurrency 64 \\
    --imports pandas sklearn.linear_model

and in a run's recipe:

  tools:
    sandbox: {isolation: service, url: "http://sandbox.example:8080"}
    python: {concurrency: 64}

The protocol is SandboxFusion's (https://github.com/bytedance/SandboxFusion): `POST /run_code` for
python, bash and pytest, `GET /v1/ping`. Its clients work with this service, and recipes with its
server. `openrlhf docs sandbox` lists the differences.

The protocol has no password: whoever reaches the port can run programs, isolated from this
machine by the level that is printed.
"""


def main(words: Sequence[str]) -> int:
    """Runs the command.

    Raises:
        ConfigurationError: The arguments are wrong, or it cannot serve here.
    """
    parser = _build_parser()
    options = parser.parse_args(list(words))
    if options.command is None:
        parser.print_help()
        return 0
    if missing := missing_extra("fusion", "sandbox_fusion", at(command="openrlhf sandbox serve")):
        raise ConfigurationError(missing)
    from marl_plugins.sandbox.service import RequestLimits, serve

    most = RequestLimits(options.most_seconds, options.most_memory_mb)
    config = SandboxConfig(
        isolation=options.isolation, imports=options.imports, warm_up=options.warm_up
    )
    try:
        asyncio.run(
            serve(
                config, options.host, options.port, options.concurrency, most, options.names, _say
            )
        )
    except InfrastructureFailure as failure:
        raise ConfigurationError(
            Problem("sandbox.start", at(command="openrlhf sandbox serve"), str(failure))
        ) from failure
    return 0


def _say(address: str, level: str) -> None:
    print(
        f"serving {address}, isolated at level {level}, to whoever reaches it: there is no "
        "password; Ctrl-C ends it",
        flush=True,
    )


def _file(word: str) -> str:
    if not os.path.isfile(word):
        raise argparse.ArgumentTypeError(f"{word}: no such file")
    return word


def _build_parser() -> Parser:
    parser = Parser(
        prog="openrlhf sandbox",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", parser_class=Parser)
    about = "serve this machine's sandbox"
    add = commands.add_parser("serve", help=about, description=about).add_argument
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on (127.0.0.1: this machine alone; 0.0.0.0: all interfaces)",
    )
    add(
        "--port", type=Number(int, least=0, most=65535), default=8080, help="0: any free one (8080)"
    )
    about = (
        "names by which clients reach it, apart from its addresses, localhost and the "
        "machine's own; others are refused (403)"
    )
    add("--names", nargs="+", default=[], metavar="NAME", help=about)
    add(
        "--isolation",
        choices=["auto", *LEVELS],
        default="auto",
        help="as tools.sandbox.isolation of a recipe (auto)",
    )
    add(
        "--imports",
        nargs="+",
        default=[],
        metavar="MODULE",
        help="modules that are imported once, before any program",
    )
    add(
        "--warm_up",
        type=_file,
        metavar="FILE",
        help="a Python file that is run once, after the imports",
    )
    add(
        "--concurrency",
        type=at_least(1),
        default=usable_cores(),
        metavar="N",
        help="maximum number of programs at the same time; others wait (the cores that it may use)",
    )
    add(
        "--most_seconds",
        type=at_least(0.1, float),
        default=600.0,
        metavar="S",
        help="longest run_timeout that may be asked for (600)",
    )
    add(
        "--most_memory_mb",
        type=at_least(64),
        default=4096,
        metavar="MB",
        help="largest memory_limit_MB that may be asked for, and what a request without one gets "
        "(4096)",
    )
    return parser
