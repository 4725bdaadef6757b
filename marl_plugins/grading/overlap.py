"""Exact match and F1 of short answers, as SQuAD's evaluation has them (arXiv 1606.05250,
1806.03822; its script, version 2).

    f1("The Danube.", "danube")                             1.0
    f1("Danube and Rhine", ["Danube", "the river Rhine"])   0.5, the better of 1/2 and 2/5
    exact_match("Ulm", ["Bonn", "ulm"])                     1.0

Answers are compared in lower case, without punctuation, the articles a, an and the, and doubled
spaces. F1 counts words, each as often as both have it; where one of two answers has none, it is 1
if neither has any.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import Any

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Returns an answer as it is compared."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def gold(label: Any) -> list[str]:
    """Returns the right answers of a label: a text, or a list of texts.

    Raises:
        ValueError: There is none.
    """
    answers = [label] if isinstance(label, str | int | float) else label
    if (
        isinstance(answers, list)
        and answers
        and all(isinstance(one, str | int | float) for one in answers)
    ):
        return [str(one) for one in answers]
    raise ValueError(
        f"the label is {label!r}; expected an answer, or a list of answers (--data.label_key names "
        "its field)"
    )


def exact_match(text: str | None, label: Any) -> float:
    """Returns 1 where an answer is one of the right ones, else 0.

    Raises:
        ValueError: There is no label.
    """
    return float(normalised(text or "") in [normalised(one) for one in gold(label)])


def f1(text: str | None, label: Any) -> float:
    """Returns how far the words of an answer are those of the right one, in [0, 1]; of several
    right ones, of the nearest.

    Raises:
        ValueError: There is no label.
    """
    words = normalised(text or "").split()
    return max(_f1(words, normalised(one).split()) for one in gold(label))


def _f1(words: list[str], right: list[str]) -> float:
    if not words or not right:
        return float(words == right)
    both = (Counter(words) & Counter(right)).total()
    return 2 * both / (len(words) + len(right))
