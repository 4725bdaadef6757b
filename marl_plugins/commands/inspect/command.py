"""`openrlhf inspect RUN`: the list of a run's trajectories, and one of them in full; a page; JSON
Lines; two runs side by side."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.commands.query import Query, add_terms, nothing_found, query_of_flags
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import missing_extra
from marl_plugins.core.options import at_least
from marl_plugins.core.problems import at
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.records.read import Filter, RunReader


def make_parser() -> UpstreamParser:
    """Builds the command line."""
    parser = UpstreamParser(
        prog="openrlhf inspect",
        description="Look at what a run's agents were shown, said and were rewarded for: a list of "
        "trajectories to filter and open "
        "in a terminal, one page for a browser (--html), or JSON Lines (--json). With two runs, "
        "what became better or worse on the "
        "tasks that both were evaluated on. In the list, `low A` is the lowest advantage of an "
        "action, and `out` the number of actions left out of training. See openrlhf docs inspect.",
        epilog="Examples: openrlhf inspect runs/demo --role coder --outcome 0; openrlhf inspect "
        "runs/demo --html demo.html; "
        "openrlhf inspect runs/demo --task t17 --step 3 --full; openrlhf inspect runs/a runs/b",
    )
    add = parser.add_argument
    add(
        "source",
        type=Path,
        metavar="RUN",
        help="a run's output folder, or a file of its trajectories",
    )
    add("other", type=Path, nargs="?", metavar="RUN", help="another run, to compare")
    add(
        "--html",
        type=Path,
        metavar="FILE",
        help="write one page that needs no server and no network",
    )
    add(
        "--most",
        type=at_least(1),
        default=5000,
        metavar="N",
        help="trajectories in the page; more are sampled by step (5000)",
    )
    add("--json", action="store_true", help="print one JSON object per trajectory and line")
    add("--full", action="store_true", help="print each trajectory in full, in place of a line")
    add(
        "--evaluations",
        action="store_true",
        help="of the evaluations, as far as they are kept, in place of training",
    )
    add("--follow", action="store_true", help="go on with what a run in progress adds")
    group = parser.add_argument_group("which trajectories")
    add_terms(group)
    return parser


def main(words: Sequence[str]) -> int:
    """Shows a run, and returns the exit code.

    Raises:
        ConfigurationError: There are no such records, they cannot be read, or the page cannot be
            written.
    """
    options = make_parser().parse_args(words)
    base = Filter(split="eval" if options.evaluations else "train", received=True)
    query = query_of_flags(options, base)
    if missing := missing_extra("inspect", "msgspec", at(command="openrlhf inspect")):
        raise ConfigurationError(missing)
    if options.other:
        from marl_plugins.commands.inspect.compare import compare

        return compare(options, query)
    return show(options, RunReader(options.source), query)


def show(options: argparse.Namespace, run: RunReader, query: Query) -> int:
    """Shows one run in the way that the flags ask for."""
    if options.html:
        from marl_plugins.commands.inspect.page_writer import write_page

        print(write_page(run, query, options.html, options.most))
    elif options.json or options.full or not sys.stdout.isatty():
        print_list(options, run, query)
    else:
        from marl_plugins.commands.inspect.terminal import browse

        browse(run, query, options.follow)
    return 0


def print_list(options: argparse.Namespace, run: RunReader, query: Query) -> None:
    """Prints a line, everything, or what the page shows as JSON, of each trajectory."""
    from rich.console import Console

    from marl_plugins.commands.inspect.index import RunIndex
    from marl_plugins.commands.inspect.shown import trajectory_values
    from marl_plugins.commands.inspect.text import HEADER, entry_line, whole

    index = RunIndex(run, query)
    if not index.entries:
        raise nothing_found(run, query)
    if options.json:
        for entry in index.entries:
            print(json.dumps(trajectory_values(index.open(entry))))
        return
    if options.full:
        console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        for entry in index.entries:
            for part in whole(trajectory_values(index.open(entry))):
                console.print(part)
        return
    print(HEADER)
    for entry in index.entries:
        print(entry_line(entry))
    print(f"{len(index.entries):,} trajectories")
