"""`openrlhf export RUN`: what became of the actions that a run has recorded, by policy; and tables
of them (engine/records/tables.py). A run in progress is read as far as it has got.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marl_plugins.commands.tables import print_table
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.options import score_range, step_range
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.redaction import inert
from marl_plugins.core.trajectory import Action, Trajectory
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.records.read import EVERYTHING, Filter, RunReader
from marl_plugins.engine.records.tables import TABLES, reason_left_out, write_table


def make_parser() -> UpstreamParser:
    """Returns the parser of the command line."""
    parser = UpstreamParser(
        prog="openrlhf export",
        description="What became of the actions that a run has recorded, by policy; with --to one "
        "of its tables, for pandas "
        "(read_parquet, read_feather, read_json) and everything else that reads Arrow, Parquet or "
        "JSON Lines. See openrlhf docs "
        "metrics.",
        epilog="Examples: openrlhf export runs/demo --steps 10:20 --to actions.parquet; openrlhf "
        "export runs/demo --table trace "
        "--to trace.jsonl",
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
        choices=list(TABLES),
        default="actions",
        help="actions with ids and scores, or their times",
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
        "--steps",
        type=step_range,
        default=EVERYTHING.steps,
        metavar="A:B",
        help="steps A to B only, both included",
    )
    add(
        "--split",
        choices=["train", "eval"],
        default="train",
        help="of training, or of the evaluations, as far as kept",
    )
    add("--task", metavar="ID", help="of one task")
    add("--role", help="of one role")
    add("--policy", help="of one policy")
    add(
        "--outcome",
        type=score_range,
        metavar="A:B",
        help="of trajectories whose outcome is from A to B, both included",
    )
    add("--failure", metavar="KIND", help="of trajectories that failed or were lost in this way")
    add("--left_out", metavar="REASON", help="left out of training for this reason of the ledger")
    return parser


def main(words: Sequence[str]) -> int:
    """Prints what became of a run's actions, or writes a table of them.

    Raises:
        ConfigurationError: There are no such records, they cannot be read, or the table cannot be
            written.
    """
    options = make_parser().parse_args(list(words))
    run = RunReader(options.source)
    chosen = Filter(
        **{
            name: value
            for name, value in vars(options).items()
            if name in Filter.__dataclass_fields__
        }
    )
    if options.to:
        count = write_table(TABLES[options.table], run, chosen, options.to)
    elif options.table != "actions":
        where, fix = (
            at(flag="table", name=options.table),
            "name a file to write with --to, or - to print JSON Lines",
        )
        raise ConfigurationError(Problem("export.no_file", where, "a table is written", fix=fix))
    else:
        accounts = accounts_of(run.actions(chosen))
        print_accounts(accounts, options.json)
        count = len(accounts)
    if not count:
        raise ConfigurationError(_nothing(run, chosen, options.source))
    return 0


def _nothing(run: RunReader, chosen: Filter, source: Path) -> Problem:
    """The problem of filters that leave nothing, with the reasons that the run has recorded."""
    where, no_actions = at(file=source), "no actions"
    if chosen == EVERYTHING:
        expected = "the trajectories or evaluations of a run"
        return Problem("export.no_actions", where, no_actions, expected)
    asked = [
        f"--{name} {value}" if isinstance(value, str) else f"--{name}"
        for name, value in vars(chosen).items()
        if value != getattr(EVERYTHING, name)
    ]
    fix = ""
    if chosen.left_out:
        actions = run.actions(replace(chosen, left_out=None))
        reasons = {action.left_out for _, action in actions if action.left_out}
        fix = f"reasons there: {', '.join(sorted(reasons)) or 'none'}"
    got = inert(f"no actions with {' '.join(asked)}")
    return Problem("export.no_actions", where, got, fix=fix)


def accounts_of(actions: Iterable[tuple[Trajectory, Action]]) -> dict[str, Account]:
    """Returns the account of every policy."""
    accounts: dict[str, Account] = {}
    for _, action in actions:
        accounts.setdefault(action.policy, Account()).add(action)
    return accounts


@dataclass
class Account:
    """An account of what became of the actions of one policy."""

    HEADER = ("policy", "versions", "actions", "trained", "left out", "tokens shown", "sampled")

    versions: set[int] = field(default_factory=set)
    trained: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, action: Action) -> None:
        self.versions |= {action.generation.version, action.generation.newest}
        reason = reason_left_out(action)
        self.trained += reason is None
        self.left_out.update([reason] if reason else [])
        self.tokens.update(shown=len(action.context_ids), sampled=len(action.generation.ids))

    def shown(self) -> dict[str, Any]:
        actions = self.trained + self.left_out.total()
        versions = [min(self.versions), max(self.versions)]
        return {
            **{"versions": versions, "actions": actions, "trained": self.trained},
            **{"left_out": dict(self.left_out.most_common())},
            **{"tokens_shown": self.tokens["shown"], "tokens_sampled": self.tokens["sampled"]},
        }

    def cells(self) -> list[str]:
        shown = self.shown()
        first, last = shown["versions"]
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in shown["left_out"].items())
        numbers = (f"{shown[name]:,}" for name in ("actions", "trained"))
        tokens = (f"{shown[name]:,}" for name in ("tokens_shown", "tokens_sampled"))
        return [f"{first}" if first == last else f"{first} to {last}", *numbers, reasons, *tokens]


def print_accounts(accounts: Mapping[str, Account], as_json: bool) -> None:
    """Prints the accounts by policy, as a table or as one JSON object; nothing where there are
    none."""
    if as_json and accounts:
        print(
            json.dumps(
                {policy: account.shown() for policy, account in sorted(accounts.items())}, indent=2
            )
        )
    elif accounts:
        print_table(
            "",
            Account.HEADER,
            [[policy, *account.cells()] for policy, account in sorted(accounts.items())],
        )
