"""Scores of submissions: strict, aligned by id, on CSV alone. No code of an agent's is run here,
nothing is unpickled.

    scored = score(card, "answers/x/test_answer.csv", "workspace/submission.csv")
    scored.value     the metric, or None where this is no valid submission
    scored.reason    why it is none

A submission has the id and the targets as its columns, in any order, and every id of the answer
once, in any order; its cells are what the metric takes. A metric of one column is the mean over the
targets where there are several. `METRICS` has them all.
"""

import csv
import io
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MARGIN = 16 * 2**20
"""A submission has at most this many bytes more than eight times those of the answer."""
SPARE = 1000
"""A submission has at most this many rows more than twice those of the answer, empty ones too."""
RATINGS = 1000
"""Ratings lie at most this far from 0."""
LARGEST = 1e100
"""Numbers are smaller than this, so that their squares and sums are finite."""
WHOLE = 2**53
"""Ids are compared as numbers below this, where float64 has every whole number; else as text."""


class Invalid(ValueError):
    """No valid submission, and why."""


@dataclass(frozen=True)
class Scored:
    """What a submission is worth.

    Args:
        value: In the metric's own unit; None: no valid submission.
        reason: Why there is none.
        quality: The same submission by the measures that tasks of one type share, see `quality`.
    """

    value: float | None
    reason: str = ""
    quality: dict | None = None


@dataclass(frozen=True)
class Metric:
    """How good predictions are.

    Args:
        of: `(answer, prediction)` to a number; arrays of one column, or matrices of all targets
            where `together`.
        higher: Whether more is better.
        kind: What cells hold, see `CELLS`.
        low, high: Bounds of its values.
        together: Whether it takes all targets at once.
    """

    of: Callable
    higher: bool
    kind: str
    low: float = 0.0
    high: float = 1.0
    together: bool = False

    @property
    def type(self):
        """What MAPPA calls the type of a task."""
        return (
            "classification"
            if self.kind in ("labels", "ratings", "ranked", "shares", "chances")
            else "regression"
        )


# --- metrics
# --------------------------------------------------------------------------------------------------


def from_sklearn(name, **options):
    def of(answer, prediction):
        from sklearn import metrics

        return float(getattr(metrics, name)(answer, prediction, **options))

    return of


def of_labels(name, **options):
    """A metric of scikit-learn's that only asks which labels are the same; it takes no labels such
    as 0.5."""

    def of(answer, prediction):
        import numpy as np

        _, codes = np.unique(np.concatenate([answer, prediction]), return_inverse=True)
        return from_sklearn(name, **options)(codes[: len(answer)], codes[len(answer) :])

    return of


def f1_binary(answer, prediction):
    """F1 of the label 1."""
    return from_sklearn("f1_score", zero_division=0.0)(answer == 1, prediction == 1)


def log_loss(answer, prediction):
    """Of one column: the probability of label 1. Of several: those of the classes, normalised by
    row."""
    from sklearn import metrics

    if prediction.shape[1] == 1:
        return float(metrics.log_loss(answer[:, 0], prediction[:, 0], labels=[0.0, 1.0]))
    sums = prediction.sum(axis=1, keepdims=True)
    if not (sums > 0).all():
        raise Invalid("a row's probabilities are all 0")
    shares = prediction / sums
    return float(
        metrics.log_loss(answer.argmax(axis=1), shares, labels=list(range(answer.shape[1])))
    )


def kappa(answer, prediction):
    """Quadratic weighted kappa over whole ratings; every rating between the least and the greatest
    has a place."""
    from sklearn.metrics import cohen_kappa_score

    ratings = list(
        range(
            int(min(answer.min(), prediction.min())), int(max(answer.max(), prediction.max())) + 1
        )
    )
    if len(ratings) == 1:
        return 1.0
    return float(
        cohen_kappa_score(
            answer.astype(int), prediction.astype(int), labels=ratings, weights="quadratic"
        )
    )


def average_precision_at_3(answer, prediction):
    """One label is right: 1 / its rank among the first three that a row names, 0 where it is not
    there (MAP@3)."""
    ranks = [
        (row[:3].index(right) + 1) if right in row[:3] else 0
        for right, row in zip(answer, prediction, strict=True)
    ]
    return sum(1 / rank for rank in ranks if rank) / len(ranks)


def hit_at_3(answer, prediction):
    """The share of rows whose first three labels hold the right one (what the benchmark's script
    calls MPA@3)."""
    return sum(right in row[:3] for right, row in zip(answer, prediction, strict=True)) / len(
        answer
    )


def symmetric_percentage_error(answer, prediction):
    """100 / n * sum 2 |p - a| / (|a| + |p|), where 0 / 0 is 0 (SMAPE in percent, 0 to 200)."""
    import numpy as np

    size = np.abs(answer) + np.abs(prediction)
    share = np.divide(np.abs(prediction - answer), size, out=np.zeros_like(size), where=size > 0)
    return float(200 * share.mean())


def gini(answer, prediction):
    """Normalised Gini coefficient of labels 0 and 1: 2 AUC - 1. Rows that are predicted alike count
    half, whatever their order."""
    return 2 * METRICS["roc_auc"].of(answer, prediction) - 1


def correlation(name):
    """A correlation of scipy's; 0 where one of the two is constant, which has none."""

    def of(answer, prediction):
        import numpy as np
        from scipy import stats

        if np.ptp(answer) == 0 or np.ptp(prediction) == 0:
            return 0.0
        return float(np.clip(getattr(stats, name)(answer, prediction).statistic, -1.0, 1.0))

    return of


def word_jaccard(answer, prediction):
    """Words in both / words in either, of lower-case texts; the mean over the rows. Two texts
    without words are alike."""
    shares = []
    for right, said in zip(answer, prediction, strict=True):
        a, b = set(right.lower().split()), set(said.lower().split())
        shares.append(len(a & b) / len(a | b) if a | b else 1.0)
    return sum(shares) / len(shares)


INF = float("inf")
METRICS = {
    "roc_auc": Metric(from_sklearn("roc_auc_score"), True, "chances"),
    "accuracy": Metric(of_labels("accuracy_score"), True, "labels"),
    "f1": Metric(f1_binary, True, "labels"),
    "f1_macro": Metric(of_labels("f1_score", average="macro", zero_division=0.0), True, "labels"),
    "f1_micro": Metric(of_labels("f1_score", average="micro", zero_division=0.0), True, "labels"),
    "log_loss": Metric(log_loss, False, "shares", 0.0, INF, together=True),
    "qwk": Metric(kappa, True, "ratings", -1.0),
    "map_at_3": Metric(average_precision_at_3, True, "ranked"),
    "hit_at_3": Metric(hit_at_3, True, "ranked"),
    "rmse": Metric(from_sklearn("root_mean_squared_error"), False, "numbers", 0.0, INF),
    "mcrmse": Metric(from_sklearn("root_mean_squared_error"), False, "numbers", 0.0, INF),
    "rmsle": Metric(from_sklearn("root_mean_squared_log_error"), False, "above -1", 0.0, INF),
    "mae": Metric(from_sklearn("mean_absolute_error"), False, "numbers", 0.0, INF),
    "median_ae": Metric(from_sklearn("median_absolute_error"), False, "numbers", 0.0, INF),
    "mse": Metric(from_sklearn("mean_squared_error"), False, "numbers", 0.0, INF),
    "smape": Metric(symmetric_percentage_error, False, "numbers", 0.0, 200.0),
    "r2": Metric(from_sklearn("r2_score"), True, "numbers", -INF),
    "gini": Metric(gini, True, "chances", -1.0),
    "spearman": Metric(correlation("spearmanr"), True, "numbers", -1.0),
    "pearson": Metric(correlation("pearsonr"), True, "numbers", -1.0),
    "jaccard": Metric(word_jaccard, True, "texts"),
}
"""By name. `mcrmse` is `rmse`, whose mean over several columns has that name."""


# --- submissions
# --------------------------------------------------------------------------------------------------


def score(card, answer, submission):
    """What a submission is worth: `card` has `metric`, `id` and `targets`; the other two are paths.

    Raises:
        ValueError: The answer itself cannot be scored against; that is a fault of the data.
    """
    metric = METRICS[card.metric]
    right = read_table(Path(answer), None)
    targets = card.targets_of(right)
    try:
        limit = 8 * Path(answer).stat().st_size + MARGIN
        rows = 2 * len(right[card.id]) + SPARE
        said = aligned(right, read_table(Path(submission), limit, rows), card.id, targets)
        values = [cells(metric.kind, target, right[target], said[target]) for target in targets]
        value = combined(metric, values)
    except Invalid as error:
        return Scored(None, str(error))
    return Scored(value, quality=quality(metric, values))


def combined(metric, values):
    """The metric over all targets: of pairs (answer, prediction), one per target."""
    if metric.together:
        import numpy as np

        return metric.of(*(np.column_stack(side) for side in zip(*values, strict=True)))
    return sum(metric.of(*pair) for pair in values) / len(values)


def read_table(path, limit, most=None):
    """The columns of a CSV file with a header, each as a list of texts.

    Raises:
        Invalid: It is missing, no plain file, of more bytes than `limit` or more rows than `most`,
            or no CSV with as many cells in every row.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Invalid(f"there is no {path.name} that can be read ({error.strerror})") from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise Invalid(f"{path.name} is no plain file")
        if limit is not None and about.st_size > limit:
            raise Invalid(f"{path.name} has {about.st_size} bytes; at most {limit} are read")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(about.st_size)
    finally:
        os.close(handle)
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        rows = list(islice(reader, most))
        if next(reader, None) is not None:
            raise Invalid(f"{path.name} has more than {most} rows")
    except (UnicodeDecodeError, csv.Error) as error:
        raise Invalid(f"{path.name} is no CSV file: {error}") from None
    rows = [row for row in rows if row]
    if not rows:
        raise Invalid(f"{path.name} is empty")
    header, *body = rows
    if len(set(header)) < len(header):
        raise Invalid(f"{path.name} has two columns of one name: {', '.join(header)}"[:200])
    for number, row in enumerate(body, 2):
        if len(row) != len(header):
            raise Invalid(
                f"{path.name}: row {number} has {len(row)} cells, the header {len(header)}"
            )
    return dict(
        zip(
            header,
            map(list, zip(*body, strict=True)) if body else ([] for _ in header),
            strict=True,
        )
    )


def aligned(right, said, id_column, targets):
    """The submission's columns in the order of the answer's ids.

    Raises:
        Invalid: Wrong columns; ids that are missing, doubled or not the task's.
    """
    wanted = [id_column, *targets]
    if set(said) != set(wanted):
        missing, foreign = (
            [c for c in wanted if c not in said],
            [c for c in said if c not in wanted],
        )
        parts = [
            f"{what} {_some(names)}"
            for what, names in (("without", missing), ("with", foreign))
            if names
        ]
        raise Invalid(f"wrong columns: {' and '.join(parts)}")
    own, theirs = keys(right[id_column], said[id_column])
    place = {key: number for number, key in enumerate(theirs)}
    if len(place) < len(theirs):
        twice = next(said[id_column][n] for n, key in enumerate(theirs) if place[key] != n)
        raise Invalid(f"ids are doubled, the first is {twice!r:.40}")
    missing = [text for text, key in zip(right[id_column], own, strict=True) if key not in place]
    if missing:
        raise Invalid(
            f"{len(missing)} ids of {len(own)} are missing, the first is {missing[0]!r:.40}"
        )
    if len(theirs) > len(own):
        known = set(own)
        foreign = next(
            text for text, key in zip(said[id_column], theirs, strict=True) if key not in known
        )
        raise Invalid(
            f"{len(theirs) - len(own)} ids are not the task's, the first is {foreign!r:.40}"
        )
    order = [place[key] for key in own]
    return {column: [said[column][n] for n in order] for column in targets}


def keys(own, theirs):
    """Ids in the form in which they are compared: as numbers where the answer's are, so that 7 and
    7.0 are one; else as texts."""
    numbers = floats(own)
    if (abs(numbers) < WHOLE).all():  # False for what is no number
        return numbers.tolist(), [
            n if n == n else text for n, text in zip(floats(theirs).tolist(), theirs, strict=True)
        ]
    return own, theirs


def floats(texts):
    """float64, NaN for what is no number."""
    import numpy as np
    import pandas as pd

    return pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").to_numpy(np.float64)


def cells(kind, target, right, said):
    """One target's answer and prediction as the metric takes them.

    Raises:
        Invalid: A cell of the submission is missing or not of that kind.
        ValueError: One of the answer is.
    """
    import numpy as np

    if kind == "texts":
        return right, _filled(target, said)
    if kind == "ranked":
        return right, [list(dict.fromkeys(row.split())) for row in _filled(target, said)]
    if kind == "labels":
        numeric = not np.isnan(floats(right)).any()
        return (
            (floats(right), _numbers(target, said))
            if numeric
            else _codes(right, _filled(target, said))
        )
    answer, prediction = floats(right), _numbers(target, said)
    if not np.isfinite(answer).all():
        raise ValueError(f"the answer's column {target!r} holds something else than numbers")
    if kind == "chances" and set(answer) != {0.0, 1.0}:
        raise ValueError(
            f"the answer's column {target!r} has the labels {_some(sorted(set(answer)))}; expected "
            "0 and 1, and both"
        )
    _check(kind, target, said, prediction)
    return answer, prediction


def _check(kind, target, said, prediction):
    """Raise `Invalid` where a number is outside of what its kind allows."""
    allowed, what = {
        "shares": (lambda p: (p >= 0) & (p <= 1), "probabilities from 0 to 1"),
        "above -1": (lambda p: p > -1, "numbers above -1, or there is no logarithm"),
        "ratings": (lambda p: (p == p.round()) & (abs(p) <= RATINGS), "whole ratings"),
    }.get(kind, (None, ""))
    if allowed is not None and not (fine := allowed(prediction)).all():
        raise Invalid(
            f"column {target!r} holds {said[int((~fine).argmax())]!r:.40}; expected {what}"
        )


def _filled(target, texts):
    empty = sum(not text.strip() for text in texts)
    if empty:
        raise Invalid(f"column {target!r} has {empty} missing values")
    return [text.strip() for text in texts]


def _numbers(target, texts):
    _filled(target, texts)
    found = floats(texts)
    if not (fine := abs(found) < LARGEST).all():  # False for what is no number
        raise Invalid(
            f"column {target!r} holds {texts[int((~fine).argmax())]!r:.40}; expected finite numbers"
        )
    return found


def _codes(right, said):
    """Labels as whole numbers, the same for the same text."""
    import numpy as np

    right = [text.strip() for text in right]
    number = {label: n for n, label in enumerate(sorted({*right, *said}))}
    return np.array([number[label] for label in right]), np.array([number[label] for label in said])


def _some(names, most=3):
    shown = ", ".join(f"{name!r:.40}" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


# --- what a set of submissions is worth
# --------------------------------------------------------------------------------------


def quality(metric, values):
    """By the measures that tasks of one type share (MAPPA, table 2): accuracy and macro F1 of
    classification, MAE and RMSE of regression in percent of the answer's range. Empty for texts,
    and for several columns of probabilities.
    """
    import numpy as np

    if metric.kind in ("texts", "ranked") or (metric.kind == "shares" and len(values) > 1):
        return {}
    found = []
    for answer, prediction in values:
        if metric.type == "classification":
            said = (
                prediction
                if metric.kind in ("labels", "ratings")
                else (prediction > 0.5).astype(float)
            )
            f1 = METRICS["f1_macro"].of(answer, said)
            found.append({"accuracy": METRICS["accuracy"].of(answer, said), "f1": f1})
        elif span := float(np.ptp(answer)):
            found.append(
                {
                    name: 100 * METRICS[name].of(answer, prediction) / span
                    for name in ("mae", "rmse")
                }
            )
    return (
        {name: sum(one[name] for one in found) / len(found) for name in found[0]} if found else {}
    )


def relative_gap(value, baseline, best):
    """max(0, (p - b) / (g - b)): which part of the way from the baseline to `best` a score has
    come; DSBench's RPG is its mean.

    Whether more is better is in the sign of g - b. It may exceed 1 where `best` is not the best
    possible.

    Raises:
        ValueError: Baseline and best are equal: there is no way to go.
    """
    if best == baseline:
        raise ValueError(
            f"the baseline and the best score are both {best}; their gap measures nothing"
        )
    return max(0.0, (value - baseline) / (best - baseline))


PENALTIES = {"accuracy": 0.5, "f1": 0.0, "mae": 50.0, "rmse": 50.0}
"""What a task without a valid submission counts in a fair measure (MAPPA, table 2)."""


def fair(raw, valid, total, penalty):
    """s * raw + (1 - s) * penalty with s = valid / total: the mean over all tasks, where failures
    count as the penalty."""
    share = valid / total
    return share * (raw if valid else 0.0) + (1 - share) * penalty


@dataclass(frozen=True)
class Result:
    """What came out on one sample of a task.

    Args:
        type: classification or regression.
        metric: Its name.
        gap: `relative_gap` of a valid submission.
        made: By role, whether the files that it has to make were there at the end.
    """

    type: str
    metric: str
    scored: Scored
    gap: float = 0.0
    made: dict | None = None


def summary(results):
    """Completion, RPG and success rates, by type and role, and the shared measures raw and fair, by
    name.

    DSBench counts what has no result with a gap of 0. `success/TYPE` is the share of valid
    submissions, which MAPPA calls so.
    """
    valid = [r for r in results if r.scored.value is not None]
    found = {
        "success": len(valid) / len(results),
        "rpg": sum(r.gap for r in valid) / len(results),
    }
    for role in dict.fromkeys(role for r in results for role in r.made or ()):
        of = [r.made[role] for r in results if r.made and role in r.made]
        found[f"made/{role}"] = sum(of) / len(of)
    for kind in dict.fromkeys(r.type for r in results):
        all_of = [r for r in results if r.type == kind]
        ok = [r for r in all_of if r.scored.value is not None]
        found[f"success/{kind}"] = len(ok) / len(all_of)
        for name in ("accuracy", "f1") if kind == "classification" else ("mae", "rmse"):
            measured = [r.scored.quality[name] for r in ok if name in (r.scored.quality or {})]
            raw = sum(measured) / len(measured) if measured else 0.0
            if measured:
                found[f"{name}/raw"] = raw
            counted = (
                len(measured) + len(all_of) - len(ok)
            )  # valid submissions without the measure say nothing of it
            if counted:
                found[f"{name}/fair"] = fair(raw, len(measured), counted, PENALTIES[name])
    return found
