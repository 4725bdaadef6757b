"""Whose fault it is that something is missing: what a program lacked is charged to whoever should
have made it.

An agent sees a program fail that another one has broken. These rules look at the files instead: a
decision is at fault where what it has to leave behind is missing or unfit, unless something that it
was to build on is. They know neither label nor score, so a model that is merely worse is nobody's
fault here.
"""

import csv
from pathlib import Path

from . import pipeline, scorer

LARGEST = 64 * 2**20
"""Bytes of a table that is looked at."""


def faults(workspace, written):
    """The decisions at fault, by name, each with the reason: not those that build on something that
    was missing or unfit already.

    Args:
        workspace: The folder.
        written: The files in it that an action wrote, see files.py.
    """
    lacking = {stage.name: lack(stage, workspace, written) for stage in pipeline.STAGES}
    at_fault = [
        s
        for s in pipeline.STAGES
        if lacking[s.name] and not any(lacking[u.name] for u in upstream(s))
    ]
    return {stage.name: lacking[stage.name] for stage in at_fault}


def fault(stage, workspace, written):
    """What a decision is at fault for; empty where nothing is."""
    return faults(workspace, written).get(stage.name, "")


def upstream(stage):
    """All decisions that one builds on, by the files that it needs."""
    makers = [pipeline.MAKERS[file] for file in stage.needs if file in pipeline.MAKERS]
    return list({s.name: s for maker in makers for s in (maker, *upstream(maker))}.values())


def lack(stage, workspace, written):
    """What is missing of what a decision has to leave behind, or unfit; empty where all is
    there."""
    for file in stage.makes:
        if file not in written:
            return f"{file} is missing, which {stage.name} has to make"
    try:
        return CHECKS.get(stage.name, lambda workspace: "")(workspace)
    except (scorer.Invalid, csv.Error) as error:
        return str(error)


def _table(workspace, name):
    return scorer.read_table(Path(workspace, name), LARGEST)


def _rows(columns):
    return len(next(iter(columns.values()), []))


def _gaps(workspace):
    """Empty cells in columns of numbers; texts are not filled."""
    for name in ("train_imputed.csv", "test_imputed.csv"):
        for column, cells in _table(workspace, name).items():
            if "" in cells and all(_number(cell) for cell in cells if cell):
                return f"{name} has empty cells in {column!r}"
    return ""


def _texts(workspace):
    """Columns of texts among the features, which are those of the test table."""
    for column, cells in _table(workspace, "test_encoded.csv").items():
        if not all(_number(cell) for cell in cells if cell):
            return f"test_encoded.csv has texts in {column!r}"
    return ""


def _fit_each_other(first, second):
    def check(workspace):
        one, other = (_rows(_table(workspace, name)) for name in (first, second))
        return "" if one == other else f"{first} has {one} rows, {second} {other}"

    return check


def _splits(workspace):
    train = _fit_each_other("X_train.csv", "y_train.csv")(workspace)
    return train or _fit_each_other("X_test.csv", "ids.csv")(workspace)


def _submission(workspace):
    said, sample = _table(workspace, "submission.csv"), _table(workspace, "sample_submission.csv")
    if set(said) != set(sample):
        return "submission.csv has other columns than sample_submission.csv"
    return (
        ""
        if _rows(said) == _rows(sample)
        else f"submission.csv has {_rows(said)} rows, {_rows(sample)} are expected"
    )


def _number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


CHECKS = {
    "impute": _gaps,
    "encode": _texts,
    "save": _splits,
    "predict": _fit_each_other("predictions.csv", "ids.csv"),
    "write": _submission,
}
"""What has to hold of a decision's files, beyond that they are there."""
