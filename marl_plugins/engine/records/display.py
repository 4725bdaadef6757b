"""The display that a person sees of a run: a line of progress per phase, and one row of a table per
finished step.

With `--json` every step is one JSON object on standard output and nothing else is; people's output
goes to standard error.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
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

from marl_plugins.core.ledger import (
    Ledger,
    Loss,
    lost_calls,
    lost_trajectories,
    unscored_actions,
    why_untrained,
)
from marl_plugins.core.problems import with_relative_paths
from marl_plugins.core.redaction import inert
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.engine.records.behaviour import PREFIX, alarms
from marl_plugins.engine.records.step_table import StepTable

SAID_EVERY_SECONDS = 30.0
"""How often a log file is told that a phase lasts, and how far it is."""


class Display:
    """The run's output."""

    def __init__(self, as_json: bool, roles: Sequence[str] = ()):
        self.as_json = as_json
        self.roles = roles
        self.console = Console(stderr=as_json, highlight=False)
        self._table: StepTable | None = None
        self._raised: set[str] = set()
        """Alarms of the last step that could tell."""
        self._progress: Progress | None = None
        """What is drawn of the phases that last."""

    def say(self, text: str) -> None:
        """Prints a line for people."""
        self.console.print(inert(with_relative_paths(text)), markup=False, soft_wrap=True)

    @contextmanager
    def phase(self, name: str, total: int | None = None, announce: bool = False) -> Iterator[Any]:
        """Shows a line of progress while a phase lasts; call what is yielded once per finished
        item.

        Args:
            announce: Say that it begins, and when, where there is no terminal to draw progress on:
                for what may take long. That it lasts, and how far it is, of a total, is said
                every `SAID_EVERY_SECONDS`.
        """
        if not self.console.is_terminal:
            with self._repeated(name, total) if announce else nullcontext(lambda: None) as count:
                yield count
            return
        if self._progress is None:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                Done(),
                Rate(),
            )
            self._progress = Progress(
                *columns, TimeElapsedColumn(), console=self.console, transient=True
            )
            self._progress.start()
        progress = self._progress  # of all phases that last at the same time, a line each
        task = progress.add_task(name, total=total)
        try:
            yield lambda: progress.advance(task)
        finally:
            progress.remove_task(task)
            if not progress.tasks:
                progress.stop()
                self._progress = None

    @contextmanager
    def _repeated(self, name: str, total: int | None) -> Iterator[Callable[[], None]]:
        """Says that a phase begins, and every so often for how long it has lasted; yields what
        counts its items."""
        done, ended, began = 0, threading.Event(), time.monotonic()

        def count() -> None:
            nonlocal done
            done += 1

        def repeat() -> None:
            while not ended.wait(SAID_EVERY_SECONDS):
                items = f"{done} of {total}, " if total else ""
                seconds = f"{time.monotonic() - began:.0f} s"
                self.say(f"{time.strftime('%H:%M:%S')} {name}: {items}{seconds}")

        self.say(f"{time.strftime('%H:%M:%S')} {name} ...")
        threading.Thread(target=repeat, name=name, daemon=True).start()
        try:
            yield count
        finally:
            ended.set()

    def step(self, metrics: Mapping[str, float], steps: int, left: float | None) -> None:
        """Shows a finished step.

        Args:
            steps: Number of steps of the whole run.
            left: Seconds until its end, as far as they can be estimated.
        """
        if self.as_json:
            print(json.dumps(dict(metrics)), flush=True)
            return
        self._table = self._table or StepTable(self.roles, steps)
        for line in self._table.lines(metrics, left):
            self.say(line)
        raised = alarms(metrics)
        for name, why in raised.items():
            if name not in self._raised:
                self.say(f"step {metrics['step']:.0f}: alarm {name}: {why} (openrlhf docs metrics)")
        self._raised = {
            name for name in self._raised if f"{PREFIX}{name}" not in metrics
        } | raised.keys()

    def rollout(
        self,
        step: int,
        metrics: Mapping[str, float],
        trajectories: Sequence[Trajectory],
        ledger: Ledger,
    ) -> None:
        """Shows what a step lost to infrastructure, one line per cause, and whether it has nothing
        to learn from or to train."""
        actions = sum(len(t.actions) for t in trajectories)
        self._losses(
            f"step {step}", "trajectories lost", lost_trajectories(trajectories), len(trajectories)
        )
        self._losses(
            f"step {step}", "actions without a score", unscored_actions(trajectories), actions
        )
        for tool, loss in lost_calls(trajectories).items():
            if loss:
                self.say(
                    f"step {step}: tool {tool!r} lost all of its {loss.count} calls: {loss.detail}"
                )
        if not ledger.trained.total():
            self.say(f"step {step}: no row is trained: {why_untrained(ledger, trajectories)}")
        if metrics.get("signal/none"):
            self.say(
                f"step {step}: no signal: every advantage is 0, because no two rewards that are "
                "compared differ"
            )

    def _losses(self, when: str, what: str, losses: Sequence[Loss], total: int) -> None:
        for loss in losses:
            self.say(f"{when}: {loss.count} of {total} {what}: {loss.kind}: {loss.detail}")

    def evaluation(
        self,
        step: int | None,
        metrics: Mapping[str, float],
        trajectories: Sequence[Trajectory],
        weights: str = "",
    ) -> None:
        """Shows how the system does on held-out tasks, and what was lost.

        Args:
            weights: The name of those that were evaluated, where they are not the newest ones.
        """
        after = f"{weights and f' of {weights}'}{'' if step is None else f' after step {step}'}"
        self._losses(
            f"evaluation{after}",
            "trajectories lost",
            lost_trajectories(trajectories),
            len(trajectories),
        )
        if self.as_json:
            return  # the numbers are among the step's
        beside = [
            f"{metrics[f'eval/{name}']:.0f} {name}"
            for name in ("lost", "unscored")
            if metrics[f"eval/{name}"]
        ]
        beside += [
            f"{name.removeprefix('eval/')} {value:.3f}"
            for name, value in metrics.items()
            if "@" in name and name.count("/") == 1
        ]
        answered, tasks = metrics["eval/answered"], metrics["eval/tasks"]
        by_role = {
            name.removeprefix("eval/outcome/"): v
            for name, v in metrics.items()
            if name.startswith("eval/outcome/")
        }
        if "eval/outcome" in metrics:
            name = "success" if metrics["eval/binary"] else "mean score"
            value = (
                f"{metrics['eval/outcome']:.3f} [{metrics['eval/low']:.3f}, "
                f"{metrics['eval/high']:.3f}]"
            )
        elif by_role:
            name, value = (
                "outcomes",
                ", ".join(f"{role} {outcome:.3f}" for role, outcome in by_role.items()),
            )
        else:
            name, value = "success", "none known"
        on = f"{tasks:.0f} tasks" if answered == tasks else f"{answered:.0f} of {tasks:.0f} tasks"
        self.say(
            ", ".join([f"held-out {name}{after}: {value} on {on}", *beside])
            + f" ({metrics['eval/seconds']:.1f} s)"
        )
        for name in [k.split("/")[1] for k in metrics if re.fullmatch("eval/[^/]+/answered", k)]:
            start = f"eval/{name}/"
            mine = {k: value for k, value in metrics.items() if k.startswith(start)}
            own = {f"eval/{k.removeprefix(start)}": value for k, value in mine.items()}
            own["eval/seconds"] = metrics["eval/seconds"]
            self.evaluation(step, own, [], " ".join(filter(None, [weights, name])))

    def report(
        self,
        summary: Mapping[str, Any],
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        legend: str,
    ) -> None:
        """Shows what the run amounts to."""
        if self.as_json:
            print(json.dumps({"report": summary}), flush=True)
            return
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        for row in [header, *rows]:
            self.say(
                "  ".join(
                    [
                        row[0].ljust(widths[0]),
                        *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
                    ]
                )
            )
        self.say(legend)

    def first_prompts(self, prompts: Mapping[str, str]) -> None:
        """Shows the first prompt of every role, as the model saw it."""
        for role, text in prompts.items():
            self.say(f"--- first prompt of {role} " + "-" * max(0, 60 - len(role)))
            self.say(text.rstrip("\n"))
        self.say("-" * 77)


class Done(MofNCompleteColumn):
    """Items so far, of how many; empty where they are not counted."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


class Rate(ProgressColumn):
    """Items per second so far; empty where they are not counted."""

    def render(self, task: Task) -> Text:
        return Text(
            f"{task.completed / task.elapsed:.0f}/s"
            if task.elapsed and task.total is not None
            else ""
        )
