"""Writes what a run leaves for people and machines: metrics, trajectories, the ledger, and the
trackers.

    metrics.jsonl        one object per finished step
    trajectories.jsonl   one object per trajectory, with a schema version (core/trajectory.py)
    ledger.jsonl         one object per step: generated = trained + left out, by role and reason
    evaluations.jsonl    trajectories of the evaluations: all of the first one, those of a few tasks
                         of the others
    evaluation-last.jsonl   all trajectories of the last evaluation
    plan.json            the resolved plan
    report.md, curves.png   the result, once the run is finished (engine/records/report.py)
    run/                 what the run was started from (engine/records/run_folder.py)

A resumed run cuts them back to the step that it continues from, so that no step is recorded twice,
and completes a last line whose end was lost. A fresh run moves what an earlier one left to
`earlier-1/`, `earlier-2/`, ...
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError, RunEnded, raised_by
from marl_plugins.core.files import finite, replace_text, sync
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.texts import json_line
from marl_plugins.core.redaction import shown_args
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.engine.plan.resume import COMMAND_FILE
from marl_plugins.engine.records.logged_trajectories import chosen, log_rows, rows_of
from marl_plugins.engine.records.read import (
    EVALUATIONS,
    LAST_EVALUATION,
    LEDGER,
    METRICS,
    REPORT,
    TRAJECTORIES,
    records,
)
from marl_plugins.engine.records.trajectory_record import to_record

FILES = (METRICS, TRAJECTORIES, LEDGER, EVALUATIONS, LAST_EVALUATION)
"""The files that grow by a step, and are cut back when a run is resumed."""
OF_EVERY_STEP = FILES[:3]
"""Those to which every step adds."""
LEFT = (*FILES, "plan.json", REPORT, "curves.png", "best", "ema")
"""Everything that an earlier run may have left."""
KEPT_TASKS = 8
"""Number of held-out tasks whose trajectories are kept of every evaluation; the same ones each
time, chosen by the seed."""


class Records:
    """The files of one run, and its trackers.

    Args:
        folder: Created if it does not exist; a resumed run's has been cut back (`cut_back`).
        args: The run's flags, for the trackers.
        trainer_logprobs: Whether trajectories are recorded with the trainer's log-probs, too.
        logged_trajectories: Number of trajectories of each step, and of each evaluation, that the
            trackers get.

    Raises:
        ConfigurationError: The folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        args: Any,
        plan: Mapping[str, Any],
        trainer_logprobs: bool = True,
        logged_trajectories: int = 0,
    ):
        self.folder = folder
        self.trainer_logprobs = trainer_logprobs
        self.logged_trajectories = logged_trajectories
        self.seed = int(args.train.seed)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_text(folder / "plan.json", json.dumps(plan, indent=2) + "\n")
        except OSError as error:
            raise unwritable("ckpt.output_dir", folder, error) from None
        self.tensorboard, self.wandb = _trackers(args)

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        trajectories: Sequence[Trajectory],
        ledger: Ledger | None,
        evaluated: Sequence[Trajectory] = (),
    ) -> None:
        """Writes a finished step; step 0 is the evaluation before the first and has no ledger.

        Args:
            evaluated: The trajectories of the evaluation after the step.
        """
        if evaluated:
            self._evaluation(step, evaluated)
        self._append(TRAJECTORIES, [to_record(t, self.trainer_logprobs) for t in trajectories])
        self._append(LEDGER, [ledger.record()] if ledger else [])
        self._append(METRICS, [finite({"step": step, **metrics})])
        train = {k: v for k, v in metrics.items() if not k.startswith("eval/")}
        evaluation = {
            k.removeprefix("eval/"): v for k, v in metrics.items() if k.startswith("eval/")
        }
        for logger in (self.tensorboard, self.wandb):
            if logger is not None:
                if train:
                    logger.log_train(step, train)
                if evaluation:
                    logger.log_eval(step, evaluation)
        for name, part in {
            "train/trajectories": trajectories,
            "eval/trajectories": evaluated,
        }.items():
            if rows := rows_of(step, chosen(part, self.logged_trajectories, self.seed)):
                log_rows(self.tensorboard, self.wandb, name, step, rows)

    def _evaluation(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Keeps an evaluation: which one is the last is not known before the next, so that each has
        a file until then.

        The step of these records is the one that the evaluation followed.
        """
        lines = [to_record(t) | {"step": step} for t in trajectories]
        replace_text(self.folder / LAST_EVALUATION, _lines(lines))
        before = self.folder / EVALUATIONS
        if before.exists() and before.stat().st_size:  # a run that is resumed may have cut it back
            tasks = sorted(
                {t.task.id for t in trajectories},
                key=lambda task: derive_seed(self.seed, "evaluations", task),
            )
            lines = [line for line in lines if line["task"] in tasks[:KEPT_TASKS]]
        self._append(EVALUATIONS, lines)

    def _append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        with (self.folder / name).open(
            "a", encoding="utf-8", errors="backslashreplace"
        ) as file:  # see `replace_text`
            file.write(_lines(records))

    def sync(self) -> None:
        """Waits until all records are on disk: before a step that they lead to is named as
        saved."""
        for path in (self.folder / name for name in FILES):
            if path.exists():
                sync(path)

    def close(self) -> None:
        for logger in (self.tensorboard, self.wandb):
            if logger is not None:
                logger.close()


@contextmanager
def held(flag: str, folder: Path) -> Iterator[None]:
    """Holds a flag's folder for this process; the kernel lets go of it however the process ends.

    Raises:
        ConfigurationError: It cannot be written or locked, or another run holds it.
    """
    path = folder / f"{flag}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise unwritable(flag, folder, error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(f"{os.getpid()} on {platform.node()}".encode())
        except BlockingIOError:
            holder = path.read_text(encoding="utf-8", errors="replace").strip()
            raise ConfigurationError(
                Problem(
                    "run_folder.locked",
                    where=at(flag=flag, folder=folder),
                    got=f"another run (process {holder or 'unknown'}) is writing to it",
                    fix="wait for it, or give this one a folder of its own",
                )
            ) from None
        except OSError as error:  # the file system has no locks
            raise unwritable(flag, path, error) from None
        yield


FULL_DISK = ("inline_container.cc", "I/O error", "No space left")
"""What torch and safetensors say when a file cannot be written to its end."""


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Ends the run where a file cannot be written (a full disk, a removed folder); what was saved
    before stays.

    torch and safetensors have exceptions of their own for a full disk, which say little.
    """
    from ray.exceptions import RayTaskError

    try:
        yield
    except (OSError, RayTaskError) as error:
        cause = raised_by(error) if isinstance(error, RayTaskError) else error
        if not isinstance(cause, OSError) and not any(sign in str(cause) for sign in FULL_DISK):
            raise
        reason = (
            cause.strerror or cause
            if isinstance(cause, OSError)
            else "writing failed, as it does on a full disk"
        )
        free = shutil.disk_usage(folder).free / 2**20 if folder.exists() else 0
        raise RunEnded(
            f"{what} could not be written to {folder} ({free:.0f} MB free): {reason}"
        ) from error


def unwritable(flag: str, path: Path, error: OSError) -> ConfigurationError:
    """Returns the problem of a flag's folder, or of a file in it."""
    got = f"cannot be written: {error.strerror}"
    return ConfigurationError(Problem("run_folder.unwritable", at(flag=flag, folder=path), got))


def _lines(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json_line(record) + "\n" for record in records)


def _trackers(args: Any) -> tuple[Any, Any]:
    """Upstream's own TensorBoard and W&B loggers, where the flags ask for them."""
    if not (args.logger.tensorboard_dir or args.logger.wandb.key):
        return None, None
    from openrlhf.utils.logging_utils import TensorboardLogger, WandbLogger

    tensorboard = TensorboardLogger(args) if args.logger.tensorboard_dir else None
    if not args.logger.wandb.key:
        return tensorboard, None
    # Upstream's logger sends all flags along as the run's configuration, the key among them; W&B
    # finds it here instead.
    os.environ.setdefault("WANDB_API_KEY", args.logger.wandb.key)
    return tensorboard, WandbLogger(shown_args(args))


def move_aside(folder: Path, keep_start: bool = False) -> Path | None:
    """Moves the records of an earlier run into a folder of their own, and returns that folder, or
    None where there are none.

    Args:
        keep_start: Leave what the run was started from where it is: this run is started from it.

    Raises:
        ConfigurationError: The folder cannot be written.
    """
    paths = [folder / name for name in LEFT if (folder / name).exists()]
    if not paths:
        return None
    if (folder / COMMAND_FILE).exists() and not keep_start:
        paths.append((folder / COMMAND_FILE).parent)
    number = 1
    while (folder / f"earlier-{number}").exists():
        number += 1
    aside = folder / f"earlier-{number}"
    try:
        aside.mkdir()
        for path in paths:
            path.rename(aside / path.name)
    except OSError as error:
        raise unwritable("ckpt.output_dir", folder, error) from None
    return aside


def cut_back(folder: Path, last_step: int) -> list[Problem]:
    """Keeps only the records of steps up to `last_step`, no half-written line and no report, and
    returns remarks on steps whose records are missing.

    Raises:
        ConfigurationError: A line is no record, or a file cannot be read or written.
    """
    ends, remarks = {}, []
    problems: list[Problem] = []
    for path in (folder / name for name in FILES if (folder / name).exists()):
        end = step = 0
        try:
            for record in records(path, dict):
                if record.step <= last_step:
                    end, step = record.end, record.step
        except ConfigurationError as error:
            problems += error.problems
        ends[path] = end
        if path.name in OF_EVERY_STEP and step < last_step:
            remarks.append(
                Problem(
                    "records.missing",
                    at(file=path),
                    f"holds no records of steps {step + 1} to {last_step}, though step {last_step} "
                    "is saved",
                    severity="warning",
                )
            )
    if problems:
        raise ConfigurationError(problems)
    for path, end in ends.items():
        try:
            (folder / REPORT).unlink(missing_ok=True)
            _truncate(path, end)
        except OSError as error:
            raise unwritable("ckpt.output_dir", path, error) from None
    return remarks


def _truncate(path: Path, end: int) -> None:
    """Cut a file after the record that ends there, and complete that line; needs no space on a full
    disk."""
    with path.open("rb+") as file:
        file.truncate(end)
        file.seek(max(0, end - 1))
        if end and file.read(1) != b"\n":
            file.write(b"\n")
