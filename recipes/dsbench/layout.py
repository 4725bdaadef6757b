"""Tasks in DSBench's layout, from a folder:

    task/NAME.txt                          what is asked
    data_resplit/NAME/train.csv, test.csv  the data, and one other file: a sample submission
    answers/NAME/test_answer.csv           the answer, which no agent sees

`benchmark.csv` says how each is scored: name, metric, id column, target columns (`a|b`, or `*` for
all but the id), the split that
it belongs to, `baseline` and `best`: the scores that count as 0 (default: that of the sample
submission) and as 1 (default: a perfect one). The one beside this file has the 74 tasks of the
benchmark, with its published baselines; a folder may bring its own, where `card` describes a task
in a few words.
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from marl_plugins import ConfigurationError, Task, first_of, nearest

from . import scorer

HERE = Path(__file__).resolve().parent
TABLE = "benchmark.csv"


@dataclass(frozen=True)
class Card:
    """How one task is scored, and where its files are.

    Args:
        baseline: The score that counts as 0; None: that of the sample submission.
        best: The score that counts as 1.
        words: A few words that describe it, for models that read no more.
    """

    root: Path
    name: str
    metric: str
    id: str
    targets: tuple
    split: str = "train"
    baseline: float | None = None
    best: float = 0.0
    words: str = ""

    @property
    def text(self):
        return self.root / "task" / f"{self.name}.txt"

    @property
    def data(self):
        return self.root / "data_resplit" / self.name

    @property
    def answer(self):
        return self.root / "answers" / self.name / "test_answer.csv"

    @property
    def samples(self):
        """The files that may be the sample submission; there has to be one."""
        known = {"train.csv", "test.csv"}
        return sorted(
            p
            for p in self.data.glob("*")
            if p.name not in known and not p.name.startswith(".") and p.is_file()
        )

    @property
    def inputs(self):
        """The files that a workspace begins with, by their names there."""
        return {
            "train.csv": self.data / "train.csv",
            "test.csv": self.data / "test.csv",
            "sample_submission.csv": self.samples[0],
        }

    def targets_of(self, columns):
        """The target columns, of a table with these columns."""
        return (
            [c for c in columns if c != self.id] if self.targets == ("*",) else list(self.targets)
        )

    def problems(self):
        """What is missing, each with the file and what to do."""
        cure = (
            f"restore it from the benchmark's data, or leave {self.name!r} out (--dsbench.train "
            "and --dsbench.eval name tasks)"
        )
        wanted = [self.text, self.data / "train.csv", self.data / "test.csv", self.answer]
        found = [f"{path}: no such file; {cure}" for path in wanted if not path.is_file()]
        if self.data.is_dir() and len(self.samples) != 1:
            names = ", ".join(path.name for path in self.samples) or "none"
            found.append(
                f"{self.data}: apart from train.csv and test.csv one file is the sample "
                f"submission, got {names}; {cure}"
            )
        if not found:
            found += self._wrong_columns(self.answer) + self._wrong_columns(self.samples[0])
        return found

    def _wrong_columns(self, path):
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                columns = next(csv.reader(file), [])
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            return [f"{path}: cannot be read as CSV: {error}; restore it from the benchmark's data"]
        missing = [c for c in (self.id, *self.targets_of(columns)) if c not in columns]
        if not missing:
            return []
        shown = ", ".join(columns[:8]) + (", ..." if len(columns) > 8 else "")
        return [
            f"{path}: has no column {missing[0]!r} (it has {shown}); if the data are right, "
            f"correct {self.name!r} in "
            f"{table_of(self.root)}"
        ]

    @property
    def type(self):
        """classification or regression."""
        return scorer.METRICS[self.metric].type


def table_of(root):
    """The table that says how the tasks of a folder are scored."""
    own = root / TABLE
    return own if own.is_file() else HERE / TABLE


def cards(root):
    """The tasks that the table of a folder has, by name.

    Raises:
        ConfigurationError: With every mistake in the table.
    """
    path, found, problems = table_of(root), {}, []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            where, metric = f"{path}:{number}", row.get("metric")
            if missing := [
                key for key in ("name", "metric", "id", "targets", "split") if not row.get(key)
            ]:
                problems.append(f"{where}: {missing[0]!r} is missing")
            elif metric not in scorer.METRICS:
                problems.append(
                    f"{where}: there is no metric {metric!r}{nearest(metric, scorer.METRICS)}"
                )
            else:
                try:
                    found[row["name"]] = _card(root, row)
                except ValueError as error:
                    problems.append(f"{where}: baseline and best are numbers or empty: {error}")
    if problems:
        raise ConfigurationError(first_of(problems, str(path)))
    return found


def _card(root, row):
    """The card of a row of the table."""
    about, baseline = scorer.METRICS[row["metric"]], row.get("baseline")
    return Card(
        root,
        row["name"],
        row["metric"],
        row["id"],
        tuple(row["targets"].split("|")),
        split=row["split"],
        baseline=float(baseline) if baseline else None,
        best=float(row.get("best") or (about.high if about.higher else about.low)),
        words=row.get("card") or row["name"],
    )


def names_in(path):
    """The names of tasks in a file of a split: JSON or a JSON object per line, each with
    `metadata.task_id`, `task_id` or `name`.

    Raises:
        ConfigurationError: It cannot be read, or names none.
    """
    try:
        text = path.read_text(encoding="utf-8")
        try:
            items = json.loads(text)
        except json.JSONDecodeError:
            items = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read as JSON: {error}; give a list of tasks, or one per line"
        ) from None
    items = items if isinstance(items, list) else [items]
    names, problems = [], []
    for number, item in enumerate(items, 1):
        inner = item.get("metadata") if isinstance(item, dict) else None
        places = [place for place in (inner, item) if isinstance(place, dict)]
        name = next(
            (p[key] for p in places for key in ("task_id", "name") if isinstance(p.get(key), str)),
            None,
        )
        names.append(name)
        if name is None:
            problems.append(
                f"{path}: item {number} names no task; expected metadata.task_id, task_id or name"
            )
    if problems or not names:
        raise ConfigurationError(first_of(problems, str(path)) or f"{path}: has no tasks")
    return list(dict.fromkeys(names))


def load(root, split, file=None):
    """The tasks of `train` or `eval`: those that a file of a split names, or that the table of the
    folder puts there.

    Raises:
        ConfigurationError: Everything that is missing, with file and cure.
    """
    if not root.is_dir():
        raise ConfigurationError(
            f"{root}: no such folder; --dsbench.data is the one that has task/, data_resplit/ and "
            "answers/"
        )
    known = cards(root)
    names = (
        names_in(file) if file else [name for name, card in known.items() if card.split == split]
    )
    table = table_of(root)
    problems = [
        f"{file}: there is no task {name!r} in {table}{nearest(name, known)}; add a row to a copy "
        f"of it in {root}, or remove it"
        for name in names
        if name not in known
    ]
    chosen = [known[name] for name in names if name in known]
    problems += [problem for card in chosen for problem in card.problems()]
    if problems:
        raise ConfigurationError(first_of(problems, str(root)))
    return [task_of(card) for card in chosen]


def task_of(card):
    """A task for the run: its label is where the answer lies, which no agent is shown."""
    columns = scorer.read_table(card.samples[0], None) if card.targets == ("*",) else {}
    metadata = {
        "type": card.type,
        "metric": card.metric,
        "id": card.id,
        "targets": card.targets_of(columns),
        "words": card.words,
    }
    files = {name: str(path) for name, path in card.inputs.items()}
    return Task(card.name, card.text.read_text(encoding="utf-8"), str(card.answer), metadata, files)


def card_of(label):
    """The card of a task, from its label."""
    answer = Path(label)
    return cards(answer.parents[2])[answer.parent.name]
