"""The forms that graders read: what stands in them, what does not, and how long that takes,
whatever stands there."""

import asyncio
import time
from fractions import Fraction

import pytest

from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.grading import boxed, compare, exact_match, f1, final, number, right, word


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{59}", "59"),
        ("\\boxed {59}", "59"),
        ("\\boxed{\\dfrac{79}{173}}", "\\dfrac{79}{173}"),
        ("\\boxed{58} no: \\boxed{59}", "59"),
        ("\\boxed{59} stands in \\boxed{ }", "59"),
        ("\\boxed{}", ""),
        ("\\boxed{59} no: \\boxed{58", ""),
        ("59", None),
    ],
)
def test_the_last_box_with_a_content_counts(text, content):
    assert boxed(text) == content


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: B\n\\boxed{A} stands in \\boxed{}", "A"),
        ("\\boxed{A} or \\boxed{", ""),
        ("**Answer:**\n\nB", "B"),
        ("_answer_: 'B'", "B"),
        ("**Final answer: B**", "B"),
        ("> Answer: B", "B"),
        ("#### B", "B"),
        ("A\nB\n```", "B"),
        ("Answer: A or B", "A or B"),
        ("Answer: A\nor B", "or B"),
        ("The answer is B", "The answer is B"),
        ("Answer:", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_an_answer_is_in_a_box_or_the_last_line(text, answer):
    assert final(text) == answer


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("north", "north"),
        ("**North.**", "north"),
        ("It has 7.\n\nAnswer: south", "south"),
        ("\\boxed{\\text{north}}", "north"),
        ("N", "n"),
        ("the north", ""),
        ("north or south", ""),
        ("not north", ""),
        ("north\nI am sure.", ""),
        ("that's", ""),
    ],
)
def test_a_word_stands_alone(text, said):
    assert word(text, ("north", "south", "n", "s")) == said


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("59", "59"), ("-59", "-59"), ("\u2212 59", "-59"), ("+59.50", "59.5"), (".5", "0.5")),
        *(("1,234,567", "1234567"), ("12,34", None), ("5 9", None), ("59 pens", None)),
        *(("1.5e3", "1500"), ("1e9999", None), ("3/4", "0.75"), ("3/0", None), ("2+3", None)),
        *(("\\frac{-3}{4}", "-0.75"), ("5\\frac12", "5.5"), ("\\$59\\%", "59"), ("", None)),
        *(("59\\text{ m}^\\circ", None), ("59^\\circ", "59"), ("٥٩", None), ("1" * 5000, None)),
    ],
)
def test_a_number_is_all_of_the_text(text, value):
    assert number(text) == (None if value is None else Fraction(value))


ecommerce = load_file(recipes_root() / "ecommerce" / "grader.py")
search = load_file(recipes_root() / "search" / "grader.py")


@pytest.mark.parametrize(
    ("label", "paid", "unpaid"),
    [
        ("A", ["A", " A "], ["", " ", "the", "?"]),
        ("The The", ["the the"], ["", "a"]),
        ("%", ["%"], ["", "?"]),
    ],
)
def test_an_answer_of_articles_and_punctuation_has_to_be_the_label(label, paid, unpaid):
    for text in (*paid, *unpaid):
        found = max(search.fair(measure, text, label) for measure in (exact_match, f1))
        assert (found > 0) == (text in paid)


MUCH = (
    "\n",
    " ",
    "$",
    "{",
    "(",
    "\\boxed{",
    "\\text{",
    "1",
    "1,",
    "-",
    "=",
    "x=",
    "answer: ",
    "1e9",
)
MUCH += ("north ", "1/", "\\frac{", "\\ ", "^", "\u00bd", "\\end{a}")


def test_a_long_answer_is_read_at_once(monkeypatch):
    """30,000 characters, alone and where an answer is stated; also compared, but for what
    math-verify takes in its own process."""

    async def verified(answer, label):
        return False

    monkeypatch.setattr(compare, "verified", verified)
    for much in MUCH:
        for begin, end in (("", ""), ("\\boxed{", "}"), ("answer: ", ""), ("1", "x"), ("1: ", "")):
            texts = [begin + much * (length // len(much)) + end for length in (900, 30_000)]
            begun = time.process_time()
            for text in texts:
                word(text, ("north", "south")), number(text), ecommerce.lines(text)
                for label in ("59", "\\frac{\\sqrt{2}}{2}", "1,2,3", "yes"):
                    asyncio.run(right(text, label))
            assert time.process_time() - begun < 1, (begin, much)
