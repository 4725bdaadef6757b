"""Exact match and F1 beside what SQuAD's script does, written out another way."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_plugins.grading import exact_match, f1, normalised

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def words_of(text):
    """Lower case, then punctuation, then articles, then spaces: character by character."""
    kept = "".join(c for c in text.lower() if c not in PUNCTUATION)
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def reference(said, right):
    mine, others, both = words_of(said), words_of(right), 0
    if not mine or not others:
        return Fraction(mine == others)
    left = list(others)
    for word in mine:
        if word in left:
            left.remove(word)
            both += 1
    if not both:
        return Fraction(0)
    precision, recall = Fraction(both, len(mine)), Fraction(both, len(others))
    return 2 * precision * recall / (precision + recall)


TEXTS = st.lists(
    st.sampled_from(["The", "a", "An", "Ulm", "ulm,", "town", "(town)", "U.S.", "3.5", "!", ""]),
    max_size=6,
).map(" ".join)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_they_are_squads(said, right):
    assert f1(said, right) == pytest.approx(
        float(max(reference(said, one) for one in right)), abs=1e-12
    )
    assert exact_match(said, right) == float(any(words_of(said) == words_of(one) for one in right))
    assert normalised(normalised(said)) == normalised(said)


@pytest.mark.parametrize(
    ("said", "label", "score", "exact"),
    [
        ("the cat sat", "a cat sat down", 0.8, 0.0),
        ("Ulm", ["Bonn", "ulm"], 1.0, 1.0),
        ("tea tea", "tea", 2 / 3, 0.0),
        ("", "tea", 0.0, 0.0),
        (None, "tea", 0.0, 0.0),
        ("1984", 1984, 1.0, 1.0),
    ],
)
def test_by_examples(said, label, score, exact):
    assert f1(said, label) == pytest.approx(score) and exact_match(said, label) == exact


@pytest.mark.parametrize("label", [None, [], {}, [None], {"a": 1}])
def test_a_label_that_is_none_is_refused(label):
    for score in (f1, exact_match):
        with pytest.raises(ValueError, match="label"):
            score("tea", label)
