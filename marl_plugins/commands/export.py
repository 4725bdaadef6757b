"""`openrlhf export RUN`: what became of the actions that a run has recorded, by policy; and tables
of them (engine/records/tables.py). A run in progress is read as far as it has got.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_plugins.commands.plugin_commands import named_plugins, source_of
from marl_plugins.commands.query import TERMS, add_terms, query_of_flags
from marl_plugins.commands.tables import print_table
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load
from marl_plugins.core.plugin_names import found
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.table import Account, Table
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.records.read import EVERYTHING, Filter, RunReader
from marl_plugins.engine.records.tables import TABLES, write_table

HOOK = "marl_tables"


def make_parser(tables: Mapping[str, Table]) -> UpstreamParser:
    """Returns the parser of the command line."""
    parser = UpstreamParser(
        prog="openrlhf export",
        allow_abbrev=False,
        description="What became of the actions that a run has recorded, by policy; with --to one "
        "of its tables, for pandas "
        "(read_parquet, read_feather, read_json) and everything else that reads Arrow, Parquet or "
        "JSON Lines. See openrlhf docs "
        "metrics.",
        epilog="Examples: openrlhf export runs/demo --step 10:20 --to actions.parquet; openrlhf "
        "export runs/demo --table trace "
        "--to trace.jsonl. Tables of a coach (openrlhf docs coach) take the flags of "
        "openrlhf train as well: openrlhf export runs/demo --table verdicts --recipe "
        "mathchat/tiny.yaml --to verdicts.jsonl",
    )
    add = parser.add_argument
    add(
        "source",
        type=Path,
        metavar="RUN",
        help="a run's output folder, or a file such as its trajectories.jsonl",
    )
    add(
        "--table",
        choices=list(tables),
        default="actions",
        help="; ".join(
            f"{name}: {table.about}{' (needs --recipe)' if table.plans else ''}"
            for name, table in tables.items()
        ),
    )
    add(
        "--to",
        metavar="FILE",
        help="write the table: FILE.parquet, FILE.arrow or FILE.jsonl; - prints JSON Lines",
    )
    add("--json", action="store_true", help="print the account as one JSON object")
    group = parser.add_argument_group("which actions")
    add = group.add_argument
    add(
        "--split",
        choices=["train", "eval"],
        default="train",
        help="of training, or of the evaluations, as far as kept",
    )
    add_terms(group, [name for name in TERMS if name != "find"])
    return parser


def all_tables(words: Sequence[str]) -> dict[str, Table]:
    """Returns the tables by name: the package's own, and those of plugins that are found or
    named.

    Raises:
        ConfigurationError: A plugin with tables cannot be loaded.
    """
    tables = dict(TABLES)
    for plugin in dict.fromkeys([*named_plugins(words), *found()]):
        if HOOK in (source_of(plugin) or ""):
            tables |= load(plugin).marl_tables()
    return tables


def main(words: Sequence[str]) -> int:
    """Prints the account of a run's table, by default what became of its actions, or writes it.

    Raises:
        ConfigurationError: There are no such records, they cannot be read, or the table cannot be
            written.
    """
    tables = all_tables(words)
    parser = make_parser(tables)
    options, others = parser.parse_known_args(words)
    table = tables[options.table]
    if others and not table.plans:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    run = RunReader(options.source)
    chosen = query_of_flags(options, Filter(split=options.split)).wanted
    where = at(flag="table", name=options.table)
    if table.plans and "--recipe" not in " ".join(others):
        fix = "name the recipe whose coach is meant with --recipe"
        raise ConfigurationError(Problem("export.no_recipe", where, "no recipe", fix=fix))
    if options.to:
        count = write_table(table.rows(run, chosen, others), table.columns, options.to)
    elif table.account is None:
        fix = "name a file with --to, or print JSON Lines with --to -"
        raise ConfigurationError(Problem("export.no_file", where, "it has rows alone", fix=fix))
    else:
        account = table.account(run, chosen, others)
        print_account(account, options.json)
        count = len(account)
    if not count:
        asked = "" if chosen == EVERYTHING else " of what the flags ask for"
        got = f"no rows of table {options.table}{asked}"
        raise ConfigurationError(Problem("export.no_actions", at(file=options.source), got))
    if options.to not in (None, "-"):
        print(f"{count:,} rows in {options.to}", file=sys.stderr)
    return 0


def print_account(account: Account, as_json: bool) -> None:
    """Prints an account as a table or as one JSON object; nothing where it is empty."""
    if as_json and account:
        print(json.dumps(account, indent=2))
    elif account:
        names = next(iter(account.values()))
        rows = [[by, *map(cell, values.values())] for by, values in account.items()]
        if len(rows) > 1:
            columns = zip(*(values.values() for values in account.values()), strict=True)
            rows.append(["total", *(cell(total(column)) for column in columns)])
        print_table("", ["", *(name.replace("_", " ") for name in names)], rows)


def total(column: Sequence[Any]) -> Any:
    """Returns the sum of counts, or of counts by reason; None of anything else, such as means."""
    if all(isinstance(value, int) for value in column):
        return sum(column)
    if all(isinstance(value, dict) for value in column):
        return dict(sum(map(Counter, column), Counter()).most_common())
    return None


def cell(value: Any) -> str:
    """Returns a number, a first and a last one, or counts by reason as text."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.3f}"
        case [first, last]:
            return f"{first}" if first == last else f"{first} to {last}"
        case dict():
            return ", ".join(f"{count:,} {reason}" for reason, count in value.items()) or "0"
        case _:
            return f"{value:,}"
