"""The scorer of the recipe dsbench: strict, aligned by id, equal to independent formulas, and what
MAPPA and DSBench report."""

import csv
import math
import os
import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.shipped import recipes_root

scorer = load_file(recipes_root() / "dsbench" / "scorer.py")
METRICS = scorer.METRICS


def write(path, columns):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def card(metric, targets=("y",), id="id"):
    return SimpleNamespace(
        metric=metric, id=id, targets=targets, targets_of=lambda columns: list(targets)
    )


def scored(folder, metric, right, said, targets=("y",)):
    answer = write(folder / "test_answer.csv", right)
    submission = write(folder / "submission.csv", said) if isinstance(said, dict) else said
    return scorer.score(card(metric, targets), answer, submission)


# --- reference formulas, one row after the other in float64
# ------------------------------------------------------------------


def auc(a, p):
    """The share of pairs of a positive and a negative that are ordered rightly; ties count half."""
    pairs = [
        (x, y)
        for x, i in zip(p, a, strict=True)
        for y, j in zip(p, a, strict=True)
        if i == 1 and j == 0
    ]
    return sum(1.0 if x > y else 0.5 if x == y else 0.0 for x, y in pairs) / len(pairs)


def f1_of(label, a, p):
    hit = sum(x == y == label for x, y in zip(a, p, strict=True))
    said, are = sum(y == label for y in p), sum(x == label for x in a)
    return 2 * hit / (said + are) if said + are else 0.0


def qwk(a, p):
    """1 - observed / expected squared distance."""
    n = len(a)
    observed = sum((x - y) ** 2 for x, y in zip(a, p, strict=True)) / n
    expected = sum((x - y) ** 2 for x in a for y in p) / n**2
    return 1 - observed / expected if expected else 1.0


def ranks(values):
    return [sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values]


def pearson(a, p):
    ma, mp = math.fsum(a) / len(a), math.fsum(p) / len(p)
    top = math.fsum((x - ma) * (y - mp) for x, y in zip(a, p, strict=True))
    below = math.sqrt(math.fsum((x - ma) ** 2 for x in a) * math.fsum((y - mp) ** 2 for y in p))
    return top / below if below else 0.0


def gini(a, p):
    """Area between the curve of the positives' share and the diagonal, over the perfect one's; ties
    take every order alike."""

    def area(key):
        groups = {}
        for x, k in zip(a, key, strict=True):
            groups.setdefault(-k, []).append(x)
        total, seen, points = sum(a), 0.0, [(0.0, 0.0)]
        for k in sorted(groups):
            seen += sum(groups[k])
            points.append((points[-1][0] + len(groups[k]) / len(a), seen / total))
        return sum((x2 - x1) * (y1 + y2 - x1 - x2) / 2 for (x1, y1), (x2, y2) in pairwise(points))

    return area(p) / area(a)


def mean(values):
    values = list(values)
    return math.fsum(values) / len(values)


REFERENCE = {
    "roc_auc": auc,
    "accuracy": lambda a, p: mean(x == y for x, y in zip(a, p, strict=True)),
    "f1": lambda a, p: f1_of(1, a, p),
    "f1_macro": lambda a, p: mean(f1_of(label, a, p) for label in {*a, *p}),
    "f1_micro": lambda a, p: mean(x == y for x, y in zip(a, p, strict=True)),
    "log_loss": lambda a, p: -mean(math.log(y if x else 1 - y) for x, y in zip(a, p, strict=True)),
    "qwk": qwk,
    "rmse": lambda a, p: math.sqrt(mean((x - y) ** 2 for x, y in zip(a, p, strict=True))),
    "rmsle": lambda a, p: math.sqrt(
        mean((math.log1p(x) - math.log1p(y)) ** 2 for x, y in zip(a, p, strict=True))
    ),
    "mae": lambda a, p: mean(abs(x - y) for x, y in zip(a, p, strict=True)),
    "median_ae": lambda a, p: float(np.median([abs(x - y) for x, y in zip(a, p, strict=True)])),
    "mse": lambda a, p: mean((x - y) ** 2 for x, y in zip(a, p, strict=True)),
    "smape": lambda a, p: (
        100
        * mean(
            2 * abs(x - y) / (abs(x) + abs(y)) if x or y else 0.0 for x, y in zip(a, p, strict=True)
        )
    ),
    "r2": lambda a, p: (
        1
        - sum((x - y) ** 2 for x, y in zip(a, p, strict=True)) / sum((x - mean(a)) ** 2 for x in a)
    ),
    "gini": gini,
    "spearman": lambda a, p: pearson(ranks(a), ranks(p)),
    "pearson": pearson,
}
WORDS = ("red", "Blue", "a tree", "tree a", "house", "red house")


def drawn(metric, rng, rows=23):
    """An answer and a prediction of a metric's kind."""
    kind = METRICS[metric].kind
    if kind in ("chances", "shares"):
        return [0, 1, *(rng.randrange(2) for _ in range(rows - 2))], [
            rng.randrange(1, 20) / 20 for _ in range(rows)
        ]
    if kind == "labels":
        return [rng.randrange(2) for _ in range(rows)], [rng.randrange(2) for _ in range(rows)]
    if kind == "ratings":
        return [rng.randrange(3, 9) for _ in range(rows)], [
            rng.randrange(3, 9) for _ in range(rows)
        ]
    if kind == "texts":
        return [rng.choice(WORDS) for _ in range(rows)], [rng.choice(WORDS) for _ in range(rows)]
    if kind == "ranked":
        return [rng.choice("abcde") for _ in range(rows)], [
            " ".join(rng.sample("abcde", 3)) for _ in range(rows)
        ]
    low = 0 if kind == "above -1" else -5
    return [rng.randrange(10 * low, 80) / 7 for _ in range(rows)], [
        rng.randrange(10 * low, 80) / 7 for _ in range(rows)
    ]


@pytest.mark.parametrize("metric", [m for m in METRICS if m in REFERENCE])
def test_it_equals_an_independent_formula(metric, tmp_path):
    for seed in range(8):
        a, p = drawn(metric, random.Random(seed))
        ids = list(range(len(a)))
        found = scored(tmp_path, metric, {"id": ids, "y": a}, {"id": ids, "y": p})
        assert found.value == pytest.approx(REFERENCE[metric](a, p), abs=1e-12), found.reason


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_order_of_rows_and_columns_never_changes_a_score_and_it_stays_in_its_bounds(
    metric, seed, tmp_path_factory
):
    folder, rng, about = tmp_path_factory.mktemp("m"), random.Random(seed), METRICS[metric]
    (a, p), (a2, p2) = drawn(metric, rng), drawn(metric, rng)
    ids = [f"r{n}" for n in range(len(a))]
    right, targets = {"id": ids, "y": a, "z": a2}, ("y", "z")
    if metric == "log_loss":
        right["z"] = [1 - x for x in a]
    value = scored(folder, metric, right, {"id": ids, "y": p, "z": p2}, targets).value
    assert about.low <= value <= about.high
    order = rng.sample(range(len(ids)), len(ids))
    shuffled = {
        name: [column[n] for n in order] for name, column in {"z": p2, "id": ids, "y": p}.items()
    }
    assert scored(folder, metric, right, shuffled, targets).value == value
    best = scored(folder, metric, right, right, targets).value
    assert best >= value if about.higher else best <= value
    assert best == pytest.approx({True: 1.0, False: 0.0}[about.higher], abs=1e-9)


def test_several_columns_are_the_mean_over_them_and_log_loss_takes_them_as_classes(tmp_path):
    right = {"id": [1, 2, 3, 4], "y": [0, 0, 1, 1], "z": [1, 1, 0, 0]}
    said = {"id": [1, 2, 3, 4], "y": [0.1, 0.6, 0.5, 0.9], "z": [0.9, 0.4, 0.5, 0.1]}
    assert scored(tmp_path, "roc_auc", right, said, ("y", "z")).value == 0.75
    both = scored(tmp_path, "mcrmse", right, said, ("y", "z")).value
    each = [
        math.sqrt(mean((a - p) ** 2 for a, p in zip(right[c], said[c], strict=True))) for c in "yz"
    ]
    assert both == pytest.approx(mean(each), abs=1e-15)
    doubled = {**said, "y": [2 * v / 2 for v in said["y"]]}
    loss = -mean(math.log(v) for v in (0.9, 0.4, 0.5, 0.9))
    assert scored(tmp_path, "log_loss", right, doubled, ("y", "z")).value == pytest.approx(loss)
    assert (
        "all 0"
        in scored(
            tmp_path, "log_loss", right, {**said, "y": [0] * 4, "z": [0] * 4}, ("y", "z")
        ).reason
    )


RIGHT = {"id": [11, 12, 13], "y": [1.0, 2.0, 3.0]}
INVALID = [
    ("wrong columns: without 'y' and with 'x'", {"id": [11, 12, 13], "x": [1, 2, 3]}),
    ("wrong columns: with ''", {"": [0, 1, 2], "id": [11, 12, 13], "y": [1, 2, 3]}),
    ("1 ids of 3 are missing, the first is '13'", {"id": [11, 12], "y": [1, 2]}),
    ("3 ids of 3 are missing", {"id": [], "y": []}),
    ("ids are doubled, the first is '11'", {"id": [11, 11, 12, 13], "y": [1, 1, 2, 3]}),
    ("1 ids are not the task's, the first is '14'", {"id": [11, 12, 13, 14], "y": [1, 2, 3, 4]}),
    ("1 missing values", {"id": [11, 12, 13], "y": [1, "", 3]}),
    ("holds 'nan'", {"id": [11, 12, 13], "y": [1, "nan", 3]}),
    ("holds 'two'", {"id": [11, 12, 13], "y": [1, "two", 3]}),
]


@pytest.mark.parametrize(("reason", "said"), INVALID)
def test_what_is_no_valid_submission_says_why(reason, said, tmp_path):
    found = scored(tmp_path, "rmse", RIGHT, said)
    assert found.value is None and reason in found.reason


def test_links_folders_pipes_and_huge_files_are_not_read(tmp_path, monkeypatch):
    """A link to the answer would be a perfect submission."""
    answer = write(tmp_path / "test_answer.csv", RIGHT)
    (tmp_path / "link.csv").symlink_to(answer)
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    monkeypatch.setattr(scorer, "MARGIN", 0)
    (tmp_path / "huge.csv").write_bytes(answer.read_bytes() * 9)
    for name in ("link", "folder", "pipe", "huge", "none"):
        assert scored(tmp_path, "rmse", RIGHT, Path(tmp_path / f"{name}.csv")).value is None


# --- sets of submissions
# --------------------------------------------------------------------------------------------------


def test_the_gap_is_0_at_the_baseline_and_below_1_at_the_best_and_has_the_direction_of_the_metric():
    assert [scorer.relative_gap(p, 0.5, 0.9) for p in (0.4, 0.5, 0.7, 0.9)] == pytest.approx(
        [0, 0, 0.5, 1]
    )
    assert [scorer.relative_gap(p, 30.0, 10.0) for p in (40, 20, 10, 5)] == pytest.approx(
        [0, 0.5, 1, 1.25]
    )
    with pytest.raises(ValueError, match="both 1"):
        scorer.relative_gap(2.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("raw", "valid", "total", "penalty", "reported"),
    [
        (0.690, 7, 16, 0.5, 0.583),
        (0.288, 7, 16, 0.0, 0.126),
        (7.1, 5, 8, 50, 23.2),
        (9.8, 5, 8, 50, 24.9),
        (0.889, 9, 16, 0.5, 0.719),
        (6.9, 7, 8, 50, 12.3),
        (9.5, 7, 8, 50, 14.6),
        (0.889, 7, 16, 0.5, 0.670),
        (8.0, 7, 8, 50, 13.2),
    ],
)
def test_fair_measures_are_those_of_the_papers_table(raw, valid, total, penalty, reported):
    places = 3 if penalty < 1 else 1
    assert scorer.fair(raw, valid, total, penalty) == pytest.approx(
        reported, abs=0.51 * 10**-places
    )
