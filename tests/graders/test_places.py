"""Where an answer stands: what is read there, what leaves it open, and how long that takes,
whatever stands there."""

import asyncio
import time
from fractions import Fraction

import pytest

from marl_plugins.grading import (
    boxed,
    clean,
    final,
    lone_number,
    negated,
    number,
    right,
    stated,
    word,
)

SIDES = ("north", "south", "n", "s")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{59}", "59"),
        ("\\boxed {59}", "59"),
        ("\\boxed{\\dfrac{79}{173}}", "\\dfrac{79}{173}"),
        ("\\boxed{58} no: \\boxed{59}", "59"),
        ("\\boxed{59} stands in \\boxed{}", "59"),
        ("\\boxed{59} stands in \\boxed{ }", "59"),
        ("\\boxed{}", ""),
        ("\\boxed{59} no: \\boxed{58", ""),
        ("59", None),
    ],
)
def test_the_last_box_with_a_content_counts(text, content):
    assert boxed(text) == content


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("**Answer:**\n\nB", "B"),
        ("**Answer**: B", "B"),
        ("Answer: **B**", "B"),
        ("_Answer:_ 'B'", "B"),
        ("#### 59", "59"),
        ("#### B", "B"),
        ("#### x = 59", "x = 59"),
        ("Answer: B\n#### Step 1", "B"),
        ("Answer: B\n#### 1. Compare them", "B"),
        ("Answer: B\n##### 7", "B"),
        ("#### Step 1", None),
    ],
)
def test_what_is_stated_is_read_without_marks(text, said):
    assert stated(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("The verdict is clear.\n\nnorth", "north"),
        ("#### Step 1: the north\nIt has 7.\n\nsouth", "south"),
        ("Answer: the depot in the north", "north"),
        ("The winner is clear. So north it is.", "north"),
        ("The verdict is clear.\nSo it is the north.", "north"),
        ("Answer: north.\nThe conclusion is clear.", "north"),
        ("```\nnorth\n```", "north"),
        ("Answer: north (970 > 812)", "north"),
        ("Answer: north, not south", "north"),
        ("Answer: north. South had 812.", "north"),
        ("Answer: north or maybe south", ""),
        ("Answer: north; south", ""),
        ("Answer: north vs. the south", ""),
        ("Answer: not the north", ""),
        ("It can't be the north.", ""),
        ("I refuse to choose north", ""),
        ("The north does not win.", ""),
        ("The north has more. Answer: neither.", ""),
        ("\\boxed{\\text{anything but north}}", ""),
    ],
)
def test_a_word_is_read_where_it_is_demanded_and_not_where_it_is_denied(text, said):
    assert word(text, SIDES) == said


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("#### Step 1\n12 and 47 are to be added.\nThat makes 59.", "59"),
        ("#### 1. Add\nThat makes 59.", "59"),
        ("The result is not hard to find.\nIt is 59.", "59"),
        ("Answer: 59.\nThe conclusion is clear.", "59"),
        ("59 (12+47)", "59"),
        ("Answer: 59 (12+47)", "59"),
        ("\\boxed{59\\text{ pens}}", "59"),
        ("\\boxed{\\text{59}}", "59"),
        ("\\boxed{\\,59}", "59"),
        ("\\boxed{\\(59\\)}", "59"),
        ("\u20127", "-7"),
        ("\\boxed{\uff0d7}", "-7"),
        ("Answer: 59. 58 is wrong.", "59"),
        ("\\boxed{59 or 58}", None),
        ("\\boxed{59 not 58}", None),
        ("\\boxed{59 58}", None),
        ("\\boxed{59; 58}", None),
        ("\\boxed{59\\text{ or }58}", None),
        ("Answer: 59 or 58", None),
        ("Answer: 59 58", None),
        ("Answer: 59 (or 58)", None),
        ("Answer: 59 to 61", None),
        ("Answer: never 59", None),
        ("It isn't 59", None),
        ("So 59. Answer: unknown", None),
        ("(12+47)", None),
    ],
)
def test_a_number_is_read_where_it_is_stated_and_alone_there(text, value):
    assert number(clean(final(text))) == (None if value is None else Fraction(value))


@pytest.mark.parametrize(
    "text",
    [
        "not 59",
        "It isn't 59",
        "59 through 60",
        "59..60",
        "59 \u00b1 1",
        "58 < x < 59",
        "59-60",
        "up to 59 or so",
    ],
)
def test_a_line_that_denies_its_figure_or_has_a_range_says_none(text):
    assert lone_number(text) == ""


def test_what_denies_an_answer():
    denied = (
        "not ",
        "I won't choose the ",
        "anything but ",
        "neither ",
        "It can\u2019t be ",
        "**not** ",
    )
    others = ("", "knot ", "I do not know. ", "Not the south: ", "but ", "all in all ")
    assert all(map(negated, denied)) and not any(map(negated, others))


MUCH = (
    *(
        "\n",
        " ",
        "$",
        "{",
        "}",
        "(",
        "\\boxed{",
        "\\boxed",
        "\\boxed{}",
        "\\text{",
        "1",
        "1,",
        ",",
        "1 ",
        "1 1,",
        "- ",
        "-",
        "=",
        "*",
        "_",
        "not ",
    ),
    *(
        "answer",
        "answer:",
        "answer: ",
        "answer is ",
        "answer ",
        "answer *",
        "<answer>",
        "####",
        "#### 1\n",
        "north ",
        "n ",
        "n or ",
        "or ",
    ),
    *(
        "1+",
        "(1)+",
        "1/",
        "1e9",
        "\\frac{",
        "\\frac11",
        "\\ ",
        "\\,",
        "^",
        "\u00bd",
        "\u2079",
        "' ",
        "I ",
        "a\n",
        "A) ",
        "1 thousand",
        "minus ",
    ),
)


@pytest.mark.parametrize("much", MUCH)
def test_a_long_answer_is_read_at_once(much):
    """30,000 characters, alone and where an answer is stated."""
    for begin, end in (
        ("", ""),
        ("\\boxed{", "}"),
        ("answer: ", ""),
        ("", "1"),
        ("1", "x"),
        ("answer", "x"),
    ):
        text = begin + much * (30_000 // len(much)) + end
        begun = time.process_time()
        word(text, SIDES), final(text), lone_number(text), boxed(text), stated(text)
        assert time.process_time() - begun < 1, begin


@pytest.mark.parametrize("much", MUCH)
def test_a_long_answer_is_compared_at_once(much):
    """Beside what math-verify takes, in its own process."""
    texts = ("\\boxed{" + much * (length // len(much)) + "}" for length in (900, 30_000))
    begun = time.process_time()
    for text in texts:
        for label in ("59", "\\frac{\\sqrt{2}}{2}", "1,2,3", "yes"):
            asyncio.run(right(text, label))
    assert time.process_time() - begun < 1
