"""What a person sees of a run: a line of progress per phase, and one row of a table per finished step.

With `--json` every step is one JSON object on standard output and nothing else is; people's output goes to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

COLUMNS = (
    ("step", "step", "{:.0f}"),
    ("outcome", "outcome/mean", "{:.3f}"),
    ("reward", "reward/mean", "{:.3f}"),
    ("rows", "rows/trained", "{:.0f}"),
    ("left out", "rows/left_out", "{:.0f}"),
    ("lost", "trajectories/lost", "{:.0f}"),
    ("|grad|", "grad_norm/max", "{:.3g}"),
    ("KL", "kl/mean", "{:.2g}"),
    ("drift", "drift/max", "{:.2g}"),
    ("generate", "seconds/rollout", "{:.2f}s"),
    ("update", "seconds/update", "{:.2f}s"),
    ("sync", "seconds/sync", "{:.2f}s"),
)


class Display:
    """The run's output."""

    def __init__(self, as_json: bool):
        self.as_json = as_json
        self.console = Console(stderr=as_json, highlight=False)
        self._header = False

    def say(self, text: str) -> None:
        """A line for people."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Any]:
        """A line of progress while a phase lasts; call what is yielded once per finished item."""
        if not self.console.is_terminal:
            yield lambda: None
            return
        columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24)]
        if total is not None:
            columns.append(MofNCompleteColumn())
        columns.append(TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(name, total=total)
            yield lambda: progress.advance(task)

    def step(self, metrics: Mapping[str, float]) -> None:
        """A finished step."""
        if self.as_json:
            print(json.dumps(dict(metrics)), flush=True)
            return
        cells = [form.format(metrics[key]) if key in metrics else "-" for _, key, form in COLUMNS]
        widths = [max(len(title), 7) for title, _, _ in COLUMNS]
        if not self._header:
            self.say("  ".join(title.rjust(w) for (title, _, _), w in zip(COLUMNS, widths, strict=True)))
            self._header = True
        self.say("  ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True)))

    def first_prompts(self, prompts: Mapping[str, str]) -> None:
        """The first prompt of every role, as the model saw it."""
        for role, text in prompts.items():
            self.say(f"--- first prompt of {role} " + "-" * max(0, 60 - len(role)))
            self.say("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text.rstrip("\n")))
        self.say("-" * 77)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output."""
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 120).print(table)
