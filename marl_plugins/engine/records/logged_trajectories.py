"""A few trajectories of every step for the trackers: a table in W&B, a text in TensorBoard
(`--logger.trajectories N`).

Tasks are chosen by the seed, so that a task that comes again, and each evaluation's, are the same
ones every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_plugins.core.redaction import encodable, inert
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.trajectory import Action, Trajectory
from marl_plugins.engine.records.intervals import mean_of_known

COLUMNS = ("step", "task", "sample", "outcome", "score", "failure", "prompt", "answer", "actions")
LONGEST_TEXT = 4000
"""Characters of a cell; more are cut off, because a tracker keeps every step's."""


def chosen(trajectories: Sequence[Trajectory], most: int, seed: int) -> list[Trajectory]:
    """Chooses one trajectory each of at most so many tasks, the same tasks for the same seed: each
    task's first sample."""
    first = {t.task.id: t for t in sorted(trajectories, key=lambda t: -t.sample)}
    tasks = sorted(first, key=lambda task: (derive_seed(seed, "logged", task), task))
    return [first[task] for task in tasks[:most]]


def rows_of(step: int, trajectories: Sequence[Trajectory]) -> list[list[Any]]:
    """Makes a row of `COLUMNS` for each trajectory; texts are harmless to whatever shows them as
    text."""
    return [
        [
            step,
            _text(t.task.id),
            t.sample,
            t.outcome,
            mean_of_known(a.score for a in t.actions),
            t.infrastructure_failure or t.agent_failure or "",
            _text(t.task.prompt),
            _text(t.answer or ""),
            _text("\n\n".join(map(action_text, t.actions))),
        ]
        for t in trajectories
    ]


def action_text(action: Action) -> str:
    """Writes an action: its name and numbers, what it said, what tools answered, and the
    explanation of its score."""
    numbers = {"score": action.score, "reward": action.reward, "advantage": action.advantage}
    known = " ".join(f"{name} {value:+.3f}" for name, value in numbers.items() if value is not None)
    answered = [
        f"[{result.tool}: {result.status}] {result.output}" for result in action.tool_results
    ]
    parts = [
        f"{action.path} {known}{f' left out: {action.left_out}' if action.left_out else ''}",
        action.text,
        *answered,
    ]
    return "\n".join([*parts, *([action.explanation] if action.explanation else [])])


def markdown_of(rows: Sequence[Sequence[Any]]) -> str:
    """Writes rows as Markdown, each text as a block of code, which nothing inside can end."""
    parts = []
    for step, task, sample, outcome, score, failure, *texts in rows:
        numbers = (
            f"step {step}, sample {sample}, outcome {outcome}, score "
            f"{score}{f', {failure}' if failure else ''}"
        )
        cells = "\n\n".join(
            f"{name}:\n\n{_block(text)}" for name, text in zip(COLUMNS[-3:], texts, strict=True)
        )
        parts.append(f"{_block(task)}\n\n{numbers}\n\n{cells}")
    return "\n\n---\n\n".join(parts)


def _block(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _text(text: str) -> str:
    shown = inert(encodable(text))
    more = len(shown) - LONGEST_TEXT
    return shown if more <= 0 else f"{shown[:LONGEST_TEXT]}… and {more:,} more characters"


def log_rows(
    tensorboard: Any, wandb: Any, name: str, step: int, rows: Sequence[Sequence[Any]]
) -> None:
    """Writes a step's rows to the trackers that are on.

    Args:
        tensorboard, wandb: Upstream's loggers (`openrlhf.utils.logging_utils`); None where one is
            off.
        name: Of the table: `train/trajectories` or `eval/trajectories`.
    """
    if tensorboard is not None:
        tensorboard.writer.add_text(name, markdown_of(rows), step)
    if wandb is not None:
        table = wandb.handle.Table(columns=list(COLUMNS), data=[list(row) for row in rows])
        wandb.handle.log({name: table, f"{name.split('/')[0]}/global_step": step})
