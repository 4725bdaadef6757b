"""The scorer of the recipe dsbench: strict, aligned by id, equal to independent formulas, and what
MAPPA and DSBench report."""

import csv
import math
import os
import pickle
import random
import time
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
@pytest.mark.parametrize("seed", range(8))
def test_it_equals_an_independent_formula(metric, seed, tmp_path):
    a, p = drawn(metric, random.Random(seed))
    ids = list(range(len(a)))
    found = scored(tmp_path, metric, {"id": ids, "y": a}, {"id": ids, "y": p})
    assert found.value == pytest.approx(REFERENCE[metric](a, p), abs=1e-12), found.reason


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=15, deadline=None)
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


def test_map_counts_ranks_and_hit_does_not(tmp_path):
    right, said = (
        {"id": [1, 2, 3, 4], "y": list("abcd")},
        {"id": [1, 2, 3, 4], "y": ["a b c", "a b c", "a a b c", "a b c d"]},
    )
    assert scored(tmp_path, "map_at_3", right, said).value == pytest.approx((1 + 1 / 2 + 1 / 3) / 4)
    assert scored(tmp_path, "hit_at_3", right, said).value == 0.75


def test_a_constant_prediction_has_no_correlation_and_half_an_auc(tmp_path):
    ids = list(range(6))
    for metric, value in (("spearman", 0.0), ("pearson", 0.0), ("roc_auc", 0.5), ("gini", 0.0)):
        right = {"id": ids, "y": [0, 1, 0, 1, 1, 0]}
        assert scored(tmp_path, metric, right, {"id": ids, "y": [0.3] * 6}).value == value


RIGHT = {"id": [11, 12, 13], "y": [1.0, 2.0, 3.0]}
INVALID = [
    ("wrong columns: without 'y' and with 'x'", {"id": [11, 12, 13], "x": [1, 2, 3]}),
    ("wrong columns: with ''", {"": [0, 1, 2], "id": [11, 12, 13], "y": [1, 2, 3]}),
    ("wrong columns: without 'id'", {"y": [1, 2, 3]}),
    ("1 ids of 3 are missing, the first is '13'", {"id": [11, 12], "y": [1, 2]}),
    ("3 ids of 3 are missing", {"id": [], "y": []}),
    ("ids are doubled, the first is '11'", {"id": [11, 11, 12, 13], "y": [1, 1, 2, 3]}),
    ("1 ids are not the task's, the first is '14'", {"id": [11, 12, 13, 14], "y": [1, 2, 3, 4]}),
    ("1 ids are not the task's", {"id": [11, 12, 13, "x"], "y": [1, 2, 3, 4]}),
    ("1 missing values", {"id": [11, 12, 13], "y": [1, "", 3]}),
    ("holds 'nan'", {"id": [11, 12, 13], "y": [1, "nan", 3]}),
    ("holds 'inf'", {"id": [11, 12, 13], "y": [1, "inf", 3]}),
    ("holds 'two'", {"id": [11, 12, 13], "y": [1, "two", 3]}),
    ("holds '[1.0]'", {"id": [11, 12, 13], "y": [1, "[1.0]", 3]}),
]


@pytest.mark.parametrize(("reason", "said"), INVALID)
def test_what_is_no_valid_submission_says_why(reason, said, tmp_path):
    found = scored(tmp_path, "rmse", RIGHT, said)
    assert found.value is None and reason in found.reason


@pytest.mark.parametrize(
    ("metric", "value", "reason"),
    [
        ("rmsle", -1, "above -1"),
        ("log_loss", 1.2, "from 0 to 1"),
        ("qwk", 0.5, "whole ratings"),
        ("qwk", 1e9, "whole ratings"),
    ],
)
def test_values_that_a_metric_cannot_take_are_no_valid_submission(metric, value, reason, tmp_path):
    found = scored(tmp_path, metric, {"id": [1, 2], "y": [0, 1]}, {"id": [1, 2], "y": [0, value]})
    assert found.value is None and reason in found.reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"id,y\n11,1\n12,2,9\n13,3\n", "row 3 has 3 cells"),
        (b"id,y\n11\n", "row 2 has 1 cells"),
        (b"id,id,y\n11,1,1\n", "two columns of one name"),
        (b'id,y\n11,"1\n', "no CSV"),
        (b"\xff\xfe\x00", "no CSV"),
        (pickle.dumps(os.getcwd), "CSV"),
    ],
)
def test_what_is_no_csv_is_no_valid_submission(content, reason, tmp_path):
    (tmp_path / "s.csv").write_bytes(content)
    found = scored(tmp_path, "rmse", RIGHT, tmp_path / "s.csv")
    assert found.value is None and reason in found.reason


@pytest.mark.parametrize("much", ["14,1\n", "\n", "a", '"\n', "x,\n"])
def test_a_submission_of_many_rows_is_not_read_to_its_end(much, tmp_path):
    (tmp_path / "s.csv").write_text("id,y\n" + much * (8 * 2**20 // len(much)))
    begun = time.process_time()
    assert scored(tmp_path, "rmse", RIGHT, tmp_path / "s.csv").value is None
    assert time.process_time() - begun < 0.5


def test_empty_rows_between_those_of_a_submission_are_none(tmp_path):
    (tmp_path / "s.csv").write_text("id,y\n\n11,1\n\n12,2\n\n13,3\n\n")
    assert scored(tmp_path, "rmse", RIGHT, tmp_path / "s.csv").value == 0.0


CELLS = (
    "",
    " ",
    "0",
    "1",
    "-1",
    "0.5",
    "nan",
    "None",
    "inf",
    "-inf",
    "1e308",
    "1e-320",
    "9" * 400,
    "True",
    "a b c d",
    "\x00",
    "٣",
    "1,5",
    "é",
)


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=25, deadline=None)
@given(
    cells=st.lists(st.sampled_from(CELLS), min_size=5, max_size=5),
    ids=st.permutations(("1", "2", "3", "4", "5.0")),
)
def test_whatever_a_submission_holds_it_is_scored_or_refused(metric, cells, ids, tmp_path_factory):
    folder = tmp_path_factory.mktemp("s")
    right = {
        "id": [1, 2, 3, 4, 5],
        "y": ["a", "b", "c", "a", "b"]
        if METRICS[metric].kind in ("texts", "ranked")
        else [0, 1, 1, 0, 1],
    }
    found = scored(folder, metric, right, {"id": list(ids), "y": cells})
    assert (found.value is None) == bool(found.reason)
    if found.value is not None:
        assert (
            math.isfinite(found.value)
            and METRICS[metric].low <= found.value <= METRICS[metric].high
        )
        assert all(map(math.isfinite, found.quality.values()))


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


def test_ids_are_numbers_or_texts_and_labels_too(tmp_path):
    assert (
        scored(tmp_path, "rmse", RIGHT, {"id": ["13.0", " 11", "12"], "y": [3, 1, 2]}).value == 0.0
    )
    names = {"id": ["a", "b"], "y": ["True", "False"]}
    assert (
        scored(tmp_path, "accuracy", names, {"id": ["b", "a"], "y": ["False", "True"]}).value == 1.0
    )
    assert scored(tmp_path, "accuracy", names, {"id": ["b", "a"], "y": ["0", "1"]}).value == 0.0
    labels = {"id": [1, 2], "y": [0, 1]}
    assert scored(tmp_path, "accuracy", labels, {"id": [1, 2], "y": ["0.0", "0.7"]}).value == 0.5
    assert (
        "finite numbers"
        in scored(tmp_path, "accuracy", labels, {"id": [1, 2], "y": ["no", "yes"]}).reason
    )


def test_an_answer_that_cannot_be_scored_against_is_a_fault_of_the_data(tmp_path):
    with pytest.raises(ValueError, match="expected 0 and 1"):
        scored(tmp_path, "roc_auc", {"id": [1, 2], "y": [1, 1]}, {"id": [1, 2], "y": [0.1, 0.2]})
    with pytest.raises(ValueError, match="something else than numbers"):
        scored(tmp_path, "rmse", {"id": [1, 2], "y": ["x", 1]}, {"id": [1, 2], "y": [0.1, 0.2]})


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


def test_the_summary_counts_what_failed(tmp_path):
    ids = [1, 2, 3, 4]
    labels, numbers = {"id": ids, "y": [0, 1, 1, 0]}, {"id": ids, "y": [0.0, 10.0, 5.0, 5.0]}
    good = scored(tmp_path, "roc_auc", labels, {"id": ids, "y": [0.1, 0.9, 0.8, 0.7]})
    assert good.quality["accuracy"] == 0.75
    close = scored(tmp_path, "rmse", numbers, {"id": ids, "y": [1.0, 9.0, 6.0, 4.0]})
    assert close.quality == pytest.approx({"mae": 10.0, "rmse": 10.0})
    failed = scorer.Scored(None, "nothing there")
    made = {"engineer": True, "analyst": False}
    found = scorer.summary(
        [
            scorer.Result(
                "classification", "roc_auc", good, 0.5, {"engineer": True, "analyst": True}
            ),
            scorer.Result("classification", "roc_auc", failed, made=made),
            scorer.Result("regression", "rmse", close, 1.0, {"engineer": True, "analyst": True}),
            scorer.Result("regression", "rmse", failed, made={"engineer": False, "analyst": False}),
        ]
    )
    expected = {
        "success": 0.5,
        "rpg": 0.375,
        "made/engineer": 0.75,
        "made/analyst": 0.5,
        "success/classification": 0.5,
        "success/regression": 0.5,
        "accuracy/raw": 0.75,
        "accuracy/fair": 0.625,
        "mae/raw": 10.0,
        "mae/fair": 30.0,
        "rmse/raw": 10.0,
        "rmse/fair": 30.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
