"""Data sets that tasks come from, as `--data.prompt_dataset` and `--eval.dataset` name them:

    [NAME=]PATH[#REVISION][@PART][:SPLIT][:SAMPLES], ...

PATH is a file, a folder of files, what `save_to_disk` wrote, or a name of the hub. PART is one of
the set's configurations, else a folder in it. A training split is `--data.prompt_split`, as
upstream has it. A split to evaluate on is never assumed: several public sets have all they have
under `train`, and what was trained on proves nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import from_home
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.tasks import SUFFIXES, FileTasks, plain_row, read_tasks, tasks_of
from marl_plugins.core.trajectory import Task

if TYPE_CHECKING:
    from marl_plugins.core.run import Run

SPLIT = r"[A-Za-z_](?:[\w.+-]|\[[^\]]*\])*"
FORM = re.compile(
    r"(?:(?P<name>[\w.-]+)=)?(?P<path>[^#@:=]+)(?:#(?P<revision>[\w./-]+))?(?:@(?P<part>[\w./-]+))?"
    rf"(?::(?P<split>{SPLIT})?)?(?::(?P<samples>[1-9]\d*))?"
)
EXPECTED = "[NAME=]PATH[#REVISION][@PART][:SPLIT][:SAMPLES], and no SPLIT of a file"
TAKEN = ("outcome", "part", "policy", "role", "type")
"""Names that metrics of evaluations begin with."""


@dataclass(frozen=True)
class Source:
    """One data set.

    Args:
        name: Of its tasks in ids and metrics; empty: by its path, where there are several.
        samples: Of each task in an evaluation; None: `--eval.n_samples_per_prompt`.
    """

    path: str
    name: str = ""
    revision: str = ""
    part: str = ""
    split: str = ""
    samples: int | None = None

    @property
    def is_file(self) -> bool:
        """Returns whether it is a file that is read here."""
        return Path(self.path).suffix in SUFFIXES

    @property
    def is_elsewhere(self) -> bool:
        """Returns whether it is a name of the hub's."""
        return not self.is_file and not Path(self.path).exists()


def sources_of(text: str, flag: str = "") -> list[Source]:
    """Returns the data sets that a flag names; of several each has a name. What exists is a path,
    however it is written.

    Raises:
        ConfigurationError: They are not written as they must be, or two have one name.
    """
    sources = []
    for word in _words(text):
        form = FORM.fullmatch(word)
        if os.path.exists(word):
            sources.append(Source(word))
        elif form and not (form["split"] and Path(form["path"]).suffix in SUFFIXES):
            fields = {key: value or "" for key, value in form.groupdict().items()}
            samples = int(fields.pop("samples") or 0) or None
            sources.append(Source(**fields, samples=samples))
        else:
            raise ConfigurationError(Problem("tasks.source", at(flag=flag), word, EXPECTED))
    if len(sources) > 1:
        sources = [replace(s, name=s.name or Path(s.path).stem) for s in sources]
    names = [source.name for source in sources]
    if wrong := [name for name in names if name in TAKEN or names.count(name) > 1]:
        got, fix = f"the name {wrong[0]!r} is taken", "name each: NAME=PATH,NAME=PATH"
        raise ConfigurationError(Problem("tasks.source_name", at(flag=flag), got, fix=fix))
    return sources


def _words(text: str) -> list[str]:
    """Returns the data sets of a flag, their paths from the home folder as they are in full."""
    if os.path.exists(text):
        return [text]
    home = from_home("~/")
    return [re.sub("(^|=)~/", lambda m: m[1] + home, word.strip()) for word in text.split(",")]


def with_paths(text: str, change: Callable[[str], str]) -> str:
    """Returns the text of a flag with other paths in it."""
    words = []
    for word in _words(text):
        form = None if os.path.exists(word) else FORM.fullmatch(word)
        start, end = form.span("path") if form else (0, len(word))
        words.append(f"{word[:start]}{change(word[start:end])}{word[end:]}")
    return ",".join(words)


def read_sources(run: Run, split: str) -> Sequence[Task]:
    """Returns the tasks of the data sets that the flags of `train` or `eval` name.

    Several training sets are put one after the other, or mixed by `--data.prompt_probs` until each
    has been used up, as upstream does it; what is used again then has an id of its own.

    Raises:
        ConfigurationError: They cannot be read.
    """
    flag = "data.prompt_dataset" if split == "train" else "eval.dataset"
    text = run.args.data.prompt_dataset if split == "train" else run.args.eval.dataset
    limit = run.args.data.max_samples if split == "train" else None
    sources = sources_of(text, flag) if text else []
    if split == "train" and (counted := [s for s in sources if s.samples]):
        got = f"{counted[0].path}:{counted[0].samples} says how many samples an evaluation takes"
        fix = "--rollout.n_samples_per_prompt is training's, of all data sets"
        raise ConfigurationError(Problem("tasks.samples", at(flag=flag), got, fix=fix))
    parts = [_read(run, source, split, flag, limit) for source in sources]
    for source, tasks in zip(sources, parts, strict=True):
        start = f"{source.name}/" if len(parts) > 1 else ""
        tasks[:] = [
            replace(t, id=f"{start}{t.id}", dataset=source.name, samples=source.samples)
            for t in tasks
        ]
    if len(parts) == 1:
        return parts[0]
    if split == "train" and run.args.data.prompt_probs:
        return _mixed(run, parts)[:limit]
    return [task for tasks in parts for task in tasks][:limit]


def sample_sizes(samples: int) -> list[int]:
    """Returns the numbers of samples that are looked at: 1, 2, 4, ... up to all; none of one."""
    return [1 << n for n in range(samples.bit_length())] if samples > 1 else []


def source_of(task: Task) -> str:
    """Returns what upstream's metrics of a task are named by: its set, or the column `datasource`
    or `data_source`."""
    fields = task.metadata
    named = task.dataset or fields.get("datasource") or fields.get("data_source")
    return str(named or "default")


def _mixed(run: Run, parts: Sequence[Sequence[Task]]) -> list[Task]:
    """Returns the tasks as upstream mixes rows, with its library and its seed."""
    from datasets import Dataset, interleave_datasets

    by_id = {task.id: task for tasks in parts for task in tasks}
    try:
        ids = interleave_datasets(
            [Dataset.from_dict({"id": [task.id for task in tasks]}) for tasks in parts],
            probabilities=[float(word) for word in run.args.data.prompt_probs.split(",")],
            seed=run.args.train.seed,
            stopping_strategy="all_exhausted",
        )["id"]
    except (ValueError, IndexError) as error:  # of other numbers of shares than sets
        where, got = at(flag="data.prompt_probs"), f"{run.args.data.prompt_probs}: {error}"
        expected = f"{len(parts)} shares, which add up to 1"
        raise ConfigurationError(Problem("tasks.shares", where, got, expected)) from None
    mixed, used = [], Counter[str]()
    for name in ids:
        again = f" again {used[name]}" if used[name] else ""
        mixed.append(replace(by_id[name], id=f"{name}{again}"))
        used[name] += 1
    return mixed


def split_of(run: Run, source: Source, split: str) -> str:
    """Returns the split of a data set; empty where none is said."""
    if split == "train":
        return source.split or run.args.data.prompt_split
    return source.split or (run.args.eval.split if "eval.split" in run.given else "")


def unsaid(source: Source, flag: str, name: str = "", there: Sequence[str] = ()) -> Problem:
    """Returns that a split has to be said, with those that there are.

    Args:
        name: Of one that there is not.
        there: Empty: its card or its files say so.
    """
    import datasets

    # Without a network the message does not name them.
    with contextlib.suppress(OSError, ValueError, datasets.exceptions.DatasetsError):
        there = there or datasets.get_dataset_split_names(
            source.path, *_configured(source), revision=source.revision or None
        )
    where, got = at(flag=flag, name=source.path), f"no split {name!r}" if name else "names no split"
    split = "eval.split" if flag == "eval.dataset" else "data.prompt_split"
    expected = f"the split to be said, as in {source.path}:test or --{split} test"
    fix = f"its splits: {', '.join(there)}" * bool(there)
    return Problem("tasks.no_split", where, got, expected, fix=fix)


def _configured(source: Source) -> tuple[str, ...]:
    """Returns the configuration that a data set's part is; empty where it is none."""
    import datasets

    if not source.part:
        return ()
    names = datasets.get_dataset_config_names(source.path, revision=source.revision or None)
    return (source.part,) if source.part in names else ()


def _read(run: Run, source: Source, split: str, flag: str, limit: int | None) -> FileTasks:
    """Returns the tasks of one data set."""
    given = run.args.data.input_key if "data.input_key" in run.given else None
    keys = given, run.args.data.label_key  # upstream's default counts as not given
    if source.is_file:
        return read_tasks(Path(source.path), *keys, limit)
    import datasets

    name = split_of(run, source, split)
    where, folder = at(flag=flag, name=source.path), Path(source.path, source.part)
    try:
        if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            data = datasets.load_from_disk(str(folder))
            if isinstance(data, datasets.DatasetDict):
                if name not in data:
                    raise ConfigurationError(unsaid(source, flag, name, list(data)))
                data = data[name]
            elif source.split:
                raise ValueError(f"has no splits, so none is {source.split!r}")
        elif not name:
            raise ConfigurationError(unsaid(source, flag))
        else:
            configured = _configured(source)
            data = datasets.load_dataset(
                source.path,
                *configured,
                data_dir=None if configured else source.part or None,
                revision=source.revision or None,
                split=name,
            )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        got = f"not a {', '.join(SUFFIXES)} file, and as a data set: {error}"
        raise ConfigurationError(Problem("tasks.hub", where, got)) from error
    rows = data.select(range(min(limit, len(data)))) if limit is not None else data
    items = [(f"{source.path}: row {number}", plain_row(row)) for number, row in enumerate(rows)]
    return tasks_of(items, Path(source.path), *keys, [], numbered=True)
