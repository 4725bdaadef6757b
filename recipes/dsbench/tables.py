"""Generated tasks in DSBench's layout: the same bytes for the same seed, 64 to train and 6 held
out.

    generate(FOLDER, SEED)

Ten kinds, seven tasks each: generators, and the data sets in scikit-learn's wheel with noise and
rows drawn anew. Into each is
planted what a data engineer meets: gaps, or values that are absent because they are 0; outliers; a
category that matters; skew; columns of very different scales; useless columns; ids and rows in no
order. Ten right words (pipeline.py) solve every one of them, and the score that they reach is the
task's `best`.
"""

import contextlib
import csv
import io
import os
import tempfile
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

from . import layout, pipeline, scorer

ZERO = 1.5
"""How far below the mean, in the units of a column, a value is 0 where a third of its values
are."""
EACH = 7
"""Tasks of a kind."""
CITIES = ("Agra", "Bonn", "Cork", "Dakar", "Essen", "Fes", "Graz", "Hilo")


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    Args:
        metric, targets: How it is scored.
        shape: `linear`, or `bent` where no line separates the classes.
        absent: Whether every second task has values that are absent because they are 0, in place of
            gaps.
        held_out: Whether its last task is for evaluation.
    """

    metric: str
    targets: tuple
    shape: str = "linear"
    absent: bool = False
    held_out: bool = False


KINDS = {
    "visitors": Kind("accuracy", ("returns",), absent=True, held_out=True),
    "rings": Kind("roc_auc", ("inside",), shape="bent", held_out=True),
    "profits": Kind("rmse", ("profit",), absent=True, held_out=True),
    "rentals": Kind("rmsle", ("count",), absent=True, held_out=True),
    "iris": Kind("accuracy", ("species",), held_out=True),
    "wine": Kind("accuracy", ("grower",)),
    "cancer": Kind("roc_auc", ("benign",), held_out=True),
    "digits": Kind("f1_macro", ("digit",)),
    "diabetes": Kind("r2", ("progress",)),
    "linnerud": Kind("mcrmse", ("weight", "waist", "pulse")),
}


# --- what is to be found: columns of about unit size, a category, and the targets
# ------------------------------------------------


def visitors(rng, rows, absent):
    x, city, effect = _latent(rng, rows, 3, absent=absent)
    z = x @ [1.6, 1.2, 1.0] + 1.6 * effect + rng.logistic(size=rows) * 0.3
    return x, city, {"returns": _named(z > 0, "no", "yes")}


def rings(rng, rows, absent):
    """Inside or outside of a ring; in every second city it is the other way round."""
    import numpy as np

    x, city, _ = _latent(rng, rows, 2, cities=4)
    inside = np.hypot(x[:, 0], x[:, 1]) + 0.15 * rng.normal(size=rows) < 1.18
    return x, city, {"inside": (inside ^ (city % 2 == 1)).astype(int)}


def profits(rng, rows, absent):
    x, city, effect = _latent(rng, rows, 3, absent=absent)
    return (
        x,
        city,
        {"profit": 10 * (x @ [1.6, 1.2, 1.0] + 1.5 * effect) + 3 * rng.normal(size=rows)},
    )


def rentals(rng, rows, absent):
    import numpy as np

    x, city, effect = _latent(rng, rows, 3, absent=absent)
    z = x @ [0.8, 0.6, 0.5] + 1.1 * effect
    return x, city, {"count": np.round(np.exp(1.8 + z + 0.15 * rng.normal(size=rows))).astype(int)}


def iris(rng, rows, absent):
    return _classes(rng, rows, "iris", "species", (0, 1, 2, 3), 1.1, 0.6)


def wine(rng, rows, absent):
    return _classes(rng, rows, "wine", "grower", (0, 6, 9, 12), 0.9, 0.55)


def digits(rng, rows, absent):
    return _classes(
        rng, rows, "digits", "digit", (20, 21, 26, 28, 36, 42, 43, 53), 0.9, 0.5, classes=4
    )


def cancer(rng, rows, absent):
    x, city, targets = _classes(rng, rows, "breast_cancer", "benign", (0, 1, 4), 1.2, 0.55)
    return x, city, {"benign": (targets["benign"] == "benign").astype(int)}


def diabetes(rng, rows, absent):
    x, y = _resampled(rng, rows, "diabetes", (2, 3, 8), 0.1)
    _, city, effect = _latent(rng, rows, 1)
    return x, city, {"progress": 30 * (_unit(y[:, 0]) + 0.9 * effect)}


def linnerud(rng, rows, absent):
    import numpy as np

    x, y = _resampled(rng, rows, "linnerud", (0, 1, 2), 0.2)
    _, city, effect = _latent(rng, rows, 1)
    fitted = x @ np.linalg.lstsq(x, y - y.mean(axis=0), rcond=None)[0]
    sizes = {"weight": 20.0, "waist": -3.0, "pulse": 7.0}
    return (
        x,
        city,
        {
            name: abs(size) * (_unit(f) + np.sign(size) * effect + 0.3 * rng.normal(size=rows))
            for f, (name, size) in zip(fitted.T, sizes.items(), strict=True)
        },
    )


def _latent(rng, rows, columns, *, cities=8, absent=False):
    """Normal columns, cities by number, and what living in them does: evenly spread, in no order.

    Args:
        absent: A third of the first column is -ZERO, the others are above 0.
    """
    import numpy as np

    x, city = rng.normal(size=(rows, columns)), rng.integers(0, cities, rows)
    if absent:
        x[:, 0] = np.where(rng.random(rows) < 0.35, -ZERO, 1.6 * rng.random(rows))
    return x, city, rng.permutation(np.linspace(-1.5, 1.5, cities))[city]


def _resampled(rng, rows, name, columns, noise, classes=None):
    """Rows of a data set in scikit-learn's wheel, drawn with replacement, with noise; features of
    unit size."""
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")()
    target = data.target.reshape(len(data.data), -1)
    features = data.data[:, list(columns)]
    if classes:
        features, target = features[target[:, 0] < classes], target[target[:, 0] < classes]
    drawn = rng.integers(0, len(features), rows)
    x = _unit(features)[drawn]
    return x + noise * rng.normal(size=x.shape), target[drawn]


def _classes(rng, rows, name, target, columns, noise, at_home, classes=None):
    """A data set of classes by name; a share of each class lives in its own cities, which are in no
    order."""
    import numpy as np
    from sklearn import datasets

    x, y = _resampled(rng, rows, name, columns, noise, classes)
    label = y[:, 0].astype(int)
    number = label.max() + 1
    own = [np.flatnonzero(np.arange(len(CITIES)) % number == k) for k in range(number)]
    place = np.array([rng.choice(own[k]) for k in label])
    city = np.where(rng.random(rows) < at_home, place, rng.integers(0, len(CITIES), rows))
    names = [str(n) for n in getattr(datasets, f"load_{name}")().target_names]
    words = np.array([f"d{n}" if n.isdigit() else n for n in names])
    return x, rng.permutation(len(CITIES))[city], {target: words[label]}


def _unit(x):
    import numpy as np

    return (x - x.mean(axis=0)) / np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)


def _named(yes, no_name, yes_name):
    import numpy as np

    return np.where(yes, yes_name, no_name)


# --- a task of them
# --------------------------------------------------------------------------------------------------


def table(name, number, seed):
    """The whole table of one task: its id, its features with all that is planted, its targets."""
    import numpy as np
    import pandas as pd

    kind = KINDS[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
    rows, absent = 900 if kind.shape == "bent" else 600, is_absent(name, number)
    x, city, targets = globals()[name](rng, rows, absent)
    frame = pd.DataFrame({"id": rng.permutation(rows) + 1000})
    for n, column in enumerate(x.T):
        unit = 10.0 ** (
            -3 + n % 3
        )  # nothing of it is left to a penalised model unless it is scaled
        is_count = absent and n == 0
        values = unit * (column + (ZERO if is_count else 6.0))
        gaps = column == -ZERO if is_count else rng.random(rows) < (0.0 if absent else 0.15)
        frame[f"f{n}"] = np.where(gaps, np.nan, values)
    for n in range(1 if kind.shape == "bent" else 8):
        outliers = np.where(rng.random(rows) < 0.02, 8.0, 1.0)
        frame[f"g{n}"] = 1000 * rng.normal(size=rows) * outliers
    if kind.shape == "linear":
        frame["serial"], frame["unit"] = rng.permutation(rows), 7
    frame["city"] = np.array(CITIES)[city]
    return frame.assign(**targets).sample(frac=1, random_state=int(rng.integers(2**31)))


def is_absent(name, number):
    return KINDS[name].absent and number % 2 == 1


def words(name, number):
    """The card of a task: all that its right words depend on, and its number."""
    kind, position = KINDS[name], EACH * list(KINDS).index(name) + number
    return (
        f"{kind.metric} {kind.shape} {'absent' if is_absent(name, number) else 'gaps'} {position}"
    )


def text(name, number):
    """What is asked, in a sentence or two each."""
    kind = KINDS[name]
    about = (
        "In f0 an empty cell means 0."
        if is_absent(name, number)
        else "Some cells are empty; nothing is known of them."
    )
    return (
        f"Predict {', '.join(kind.targets)} for every id of test.csv ({name}-{number}).\n\n"
        f"Evaluation: {kind.metric}. Submission: a CSV file with the columns id and "
        f"{', '.join(kind.targets)}, as in "
        "sample_submission.csv.\n\nColumns: id; numbers of very different size; city, a category. "
        f"{about} Not every column is of "
        "use.\n"
    )


def write(folder, name, number, seed):
    """Write one task in the layout; the row of the table that says how it is scored."""
    import pandas as pd

    kind, task = KINDS[name], f"{name}-{number}"
    whole, targets = table(name, number, seed), list(KINDS[name].targets)
    train, test = whole[: len(whole) * 2 // 3], whole[len(whole) * 2 // 3 :]
    sample = test[["id"]].copy()
    for target in targets:
        column = train[target]
        common = (
            0.5
            if kind.metric == "roc_auc"
            else column.mean()
            if pd.api.types.is_numeric_dtype(column)
            else None
        )
        sample[target] = column.mode()[0] if common is None else common
    data, answers = folder / "data_resplit" / task, folder / "answers" / task
    for path in (data, answers, folder / "task"):
        path.mkdir(parents=True, exist_ok=True)
    for path, frame in (
        (data / "train.csv", train),
        (data / "test.csv", test.drop(columns=targets)),
        (data / "sample_submission.csv", sample),
        (answers / "test_answer.csv", test[["id", *targets]]),
    ):
        frame.to_csv(path, index=False, float_format="%.6g")
    (folder / "task" / f"{task}.txt").write_text(text(name, number))
    split = "eval" if kind.held_out and number == EACH - 1 else "train"
    row = {
        "name": task,
        "metric": kind.metric,
        "id": "id",
        "targets": "|".join(targets),
        "split": split,
    }
    row["card"] = words(name, number)
    card = layout.Card(folder, task, kind.metric, "id", kind.targets, words=row["card"])
    row["best"] = repr(reference(card))
    return row


def reference(card):
    """The score of the right words' programs, which are run here, in a folder of their own."""
    before = Path.cwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        for file, source in card.inputs.items():
            os.symlink(source, Path(folder, file))
        try:
            os.chdir(folder)
            for stage in pipeline.STAGES:
                program = pipeline.expand(
                    stage, pipeline.right(stage.name, card.words), card.id, card.targets
                )
                exec(compile(program, stage.name, "exec"), {"__name__": "__main__"})
        finally:
            os.chdir(before)
        return scorer.score(card, card.answer, Path(folder, "submission.csv")).value


def generate(folder, seed, names=tuple(KINDS)):
    """Write all tasks of some kinds, and the table of how they are scored."""
    rows = [write(folder, name, number, seed) for name in names for number in range(EACH)]
    with (folder / layout.TABLE).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
