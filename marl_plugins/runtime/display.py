"""What a person sees of a run: a line of progress per phase, and one row of a table per finished step.

With `--json` every step is one JSON object on standard output and nothing else is; people's output goes to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

Column = tuple[str, str, str]
FIRST: tuple[Column, ...] = (("step", "step", "{:.0f}"), ("outcome", "outcome/mean", "{:.3f}"))
REWARD: Column = ("reward", "reward/mean", "{:.3f}")
REST: tuple[Column, ...] = (
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


MOST_ROLES = 6
"""Maximum number of roles whose rewards have a column each; with more roles there is one column for the mean."""


class Display:
    """The run's output."""

    def __init__(self, as_json: bool, roles: Sequence[str] = ()):
        self.as_json = as_json
        rewards = [(role, f"role/{role}/reward", "{:.3f}") for role in roles] if len(roles) <= MOST_ROLES else [REWARD]
        self.columns = [*FIRST, *(rewards or [REWARD]), *REST]
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
        columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24)]
        if total is not None:
            columns += [MofNCompleteColumn(), Rate()]
        columns.append(TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(name, total=total)
            yield lambda: progress.advance(task)

    def step(self, metrics: Mapping[str, float]) -> None:
        """A finished step."""
        if self.as_json:
            print(json.dumps(dict(metrics)), flush=True)
            return
        cells = [form.format(metrics[key]) if key in metrics else "-" for _, key, form in self.columns]
        widths = [max(len(title), 7) for title, _, _ in self.columns]
        if not self._header:
            self.say("  ".join(title.rjust(w) for (title, _, _), w in zip(self.columns, widths, strict=True)))
            self._header = True
        self.say("  ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True)))

    def evaluation(self, step: int | None, metrics: Mapping[str, float]) -> None:
        """How the system does on held-out tasks."""
        if self.as_json:
            return  # the numbers are among the step's
        when = "" if step is None else f" after step {step}"
        interval = f"[{metrics['eval/low']:.3f}, {metrics['eval/high']:.3f}]"
        lost = f", {metrics['eval/lost']:.0f} lost" if metrics["eval/lost"] else ""
        self.say(
            f"held-out success{when}: {metrics['eval/outcome']:.3f} {interval} on {metrics['eval/tasks']:.0f} tasks{lost} "
            f"({metrics['eval/seconds']:.1f} s)"
        )

    def report(self, summary: Mapping[str, Any], header: Sequence[str], rows: Sequence[Sequence[str]], legend: str) -> None:
        """What the run amounts to."""
        if self.as_json:
            print(json.dumps({"report": summary}), flush=True)
            return
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        for row in [header, *rows]:
            self.say("  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]))
        self.say(legend)

    def first_prompts(self, prompts: Mapping[str, str]) -> None:
        """The first prompt of every role, as the model saw it."""
        for role, text in prompts.items():
            self.say(f"--- first prompt of {role} " + "-" * max(0, 60 - len(role)))
            self.say("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text.rstrip("\n")))
        self.say("-" * 77)


class Rate(ProgressColumn):
    """Items per second so far."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.completed / task.elapsed:.0f}/s" if task.elapsed else "")
