"""Tables on standard output, for commands that start nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_plugins.core.findings import Finding
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


def print_findings(title: str, findings: Sequence[Finding]) -> None:
    """Prints a table of findings, and below it each error's fix again, unwrapped, to be copied."""
    print_table(
        title,
        ["", "what", "found", "what to do"],
        [[MARKS[f.good], f.what, f.found, f.fix] for f in findings],
    )
    for line in dict.fromkeys(f"{f.what}: {f.fix}" for f in findings if f.good is False):
        print(inert(line))
