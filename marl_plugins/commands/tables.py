"""Tables on standard output, for commands that start nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_plugins.core.findings import Finding, all_good
from marl_plugins.core.redaction import inert

MARKS = {True: "ok", False: "FIX", None: ""}


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(
            *(Text(inert(cell)) for cell in row)
        )  # as plain text: `package[extra]` is not markup
    Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 120).print(
        table
    )


def report(
    title: str, version: str, findings: Sequence[Finding], as_json: bool, good: str, bad: str
) -> bool:
    """Prints findings as a table, each error's fix again, unwrapped, to be copied, and a last line;
    or as one JSON object; and returns whether none is an error.

    Args:
        good, bad: The last line.
    """
    fine = all_good(findings)
    if as_json:
        values = {"version": version, "good": fine, "findings": [asdict(f) for f in findings]}
        print(json.dumps(values, indent=2))
    else:
        rows = [[MARKS[f.good], f.what, f.found, f.fix] for f in findings]
        print_table(title, ["", "what", "found", "what to do"], rows)
        for line in dict.fromkeys(f"{f.what}: {f.fix}" for f in findings if f.good is False):
            print(inert(line))
        print(good if fine else bad)
    return fine
