"""Writes what is trained on and how it is graded: `data/*.jsonl`, `tasks.py` and `grader.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marl_plugins.commands.imports.items import (
    find_split,
    json_lines,
    read_items,
    remove_trained,
    with_ids,
)
from marl_plugins.commands.imports.read import ImportSource
from marl_plugins.commands.imports.report import Report
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.recipe.texts import read_text

MATH = ("math", "math_format", "simplerl_math", "aime", "amc")
"""Values of `verify_task` that the shipped grader covers."""

TASKS = '''"""The tasks of data/train.jsonl and data/eval.jsonl."""

from pathlib import Path

from marl_plugins import read_tasks

DATA = Path(__file__).parent / "data"


def load(split):
    path = DATA / f"{split}.jsonl"
    return read_tasks(path, "prompt", "answer") if path.exists() else []
'''
EVALUATION_FLAGS = ("eval.steps", "eval.temperature", "eval.n_samples_per_prompt")


@dataclass(frozen=True)
class Tasks:
    """Items for training and held-out items, in our layout."""

    train: Sequence[dict[str, Any]]
    held_out: Sequence[dict[str, Any]]


def read_grader(
    source: ImportSource, file: Path | None, has_coach: bool, report: Report
) -> str | None:
    """Returns the text of `grader.py`: `file` (`--grader`), or the shipped grader for
    mathematics."""
    task = str(source.settings.get("verify_task", "math"))
    path = file or (recipes_root() / "mathchat" / "grader.py" if task in MATH else None)
    if path is not None:
        report.take("verify_task", f"`grader.py` ({task})")
        try:
            return read_text(path)
        except ConfigurationError as error:
            report.problems += [problem.within(flag="grader") for problem in error.problems]
            return None
    where = at(line=source.where("verify_task"), key="verify_task")
    fix = "give --grader FILE with score_outcome(trajectory)"
    missing = Problem("imports.grader", where, f"{task!r} has no grader here", fix=fix)
    if has_coach:
        fix = (
            "only the coach scores, and evaluations count nothing until you add one (--grader FILE)"
        )
        report.note(str(replace(missing, fix=fix)))
    else:
        report.problem(missing)
    return None


def read_tasks(
    source: ImportSource, train_data: Path | None, eval_data: Path | None, report: Report
) -> Tasks | None:
    """Returns the items of all data files; None if they cannot be read, which is then a problem."""
    settings = source.settings
    keys = [settings.get(name) for name in ("input_key", "label_key", "metadata_key")]
    split = str(settings.get("prompt_split") or "train")
    train = train_data or _find_file(source, "prompt_data", split, "--train-data", report.problem)
    evaluations = [eval_data] if eval_data else _find_evaluations(source, report)
    if train is None:
        return None
    try:
        items = read_items(train, *keys)
        held_out = [item for path in evaluations for item in read_items(path, *keys)]
    except ConfigurationError as error:
        report.problems += error.problems
        return None
    held_out, removed = remove_trained(items, held_out)
    if removed:
        report.note(f"data/eval.jsonl: {removed} items are trained on too and were left out of it")
    if not held_out:
        report.note("no held-out tasks: evaluations have nothing to count (--eval-data FILE)")
    return Tasks(items, held_out)


def _find_evaluations(source: ImportSource, report: Report) -> list[Path]:
    """The files of held-out tasks that the source names."""
    settings = source.settings
    if settings.get("eval_dataset"):
        split = str(settings.get("eval_split") or "test")
        file = _find_file(
            source, "eval_dataset", split, "--eval-data", lambda problem: report.note(str(problem))
        )
        return [file] if file else []
    if not settings.get("extra_eval_tasks") or not settings.get("extra_eval_dir"):
        return []
    folder = source.find(str(settings["extra_eval_dir"]))
    files = []
    for name in settings["extra_eval_tasks"]:
        path = find_split(folder, str(name)) if folder else None
        if path is None:
            report.note(
                f"extra_eval_tasks: {name} was not found; give --eval-data FILE for held-out tasks"
            )
        else:
            files.append(path)
    return files


def _find_file(
    source: ImportSource, key: str, split: str, flag: str, tell: Callable[[Problem], None]
) -> Path | None:
    """The data file that an option names; if it is missing, `tell` says so."""
    name = str(source.settings.get(key) or "").removeprefix("json@")
    place = source.find(name) if name else None
    file = find_split(place, split) if place else None
    if file is None:
        got = "is not set"
        if name:
            got = f"{name} ({split}) was not found beside the source or above it"
        where = at(line=source.where(key), key=key)
        tell(Problem("imports.data", where, got, fix=f"give {flag} FILE.json or .jsonl"))
    return file


def data_files(tasks: Tasks, report: Report) -> dict[str, str]:
    """Returns `data/*.jsonl` and `tasks.py`."""
    files = {}
    for split, items, prefix in (("train", tasks.train, ""), ("eval", tasks.held_out, "eval-")):
        if items:
            files[f"data/{split}.jsonl"] = json_lines(with_ids(items, prefix))
            report.take(f"{split} data", f"`data/{split}.jsonl`, {len(items)} tasks")
    labelled = all("answer" in item for item in (*tasks.train, *tasks.held_out))
    return {**files, "tasks.py": TASKS if labelled else TASKS.replace(', "answer"', "")}


def fit_flags(tasks: Tasks, flags: dict[str, Any]) -> None:
    """Leaves out the flags of evaluations without tasks."""
    if not tasks.held_out:
        for flag in EVALUATION_FLAGS:
            flags.pop(flag, None)
