"""Forms of answers that are easily taken for another one: what is paid, and what is not, by recipe
and label."""

import asyncio

import pytest

from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.grading import clean, exact_match, f1, final, number, right

GRADERS = {
    name: load_file(recipes_root() / name / "grader.py")
    for name in ("vote", "debate", "ecommerce", "search")
}
OPTIONS = ["January", "May", "June", "July"]


def paid(recipe, label, text):
    if recipe == "mathchat":
        return asyncio.run(right(text, label))
    if recipe == "sum":  # tool_user and swarm
        return number(clean(final(text))) == number(label)
    if recipe == "search":
        return (
            max(GRADERS["search"].fair(measure, text, label) for measure in (exact_match, f1)) > 0
        )
    if recipe == "figure":
        return (
            GRADERS["ecommerce"].score(
                {"form": "number", "value": float(label), "tolerance": 0.5}, text
            )
            > 0
        )
    if recipe == "month":
        return (
            GRADERS["ecommerce"].score({"form": "word", "value": label, "options": OPTIONS}, text)
            > 0
        )
    if recipe == "line":
        return GRADERS["ecommerce"].number_in(GRADERS["ecommerce"].lines(text).get(1, "")) == float(
            label
        )
    return {"vote": GRADERS["vote"].letter, "debate": GRADERS["debate"].decision}[recipe](
        text
    ) == label


NOT_PAID = {
    # the sign of what stands before the number
    ("mathchat", "59"): [
        *(
            "-$59",
            "- $59",
            "-\u20ac59",
            "\u2212\u00a359",
            "minus $59",
            "minus **59**",
            "-`59`",
            "-$59$",
            "$-$59$",
        ),
        *(
            "The answer is -$59$.",
            "**-**59",
            "-**59**",
            "Answer: -$59",
            "\\boxed{-\\$59}",
            "\\boxed{\\text{minus }59}",
        ),
        *(
            "\\boxed{\\text{minus \\$}59}",
            "negative $59",
            "\\boxed{-\\text{\\$}59}",
            "minus the number **59**",
        ),
    ],
    ("sum", "19"): [
        "-$19",
        "\u2212\u20ac19",
        "\\boxed{\\text{minus }19}",
        "- $19",
        "minus $19",
        "\\boxed{-\\text{19}}",
    ],
    ("figure", "4310"): [
        "-$4310",
        "\u2212\u20ac4310",
        "- \u20ac4310",
        "minus \u20ac4310",
        "-**4310**",
    ],
}
PAID = {
    ("mathchat", "59"): [
        "$59",
        "\u20ac59",
        "It costs $59",
        "12 + $47$ = $59$",
        "Total - $59$ in all",
        "* $59$",
    ],
    ("mathchat", "-59"): [
        "-$59",
        "minus $59",
        "-\u20ac59",
        "- $59",
        "-$59$",
        "$-$59",
        "minus **59**",
        "-`59`",
        "$-59$",
    ],
    ("sum", "-19"): ["-$19", "minus $19", "\u2212\u20ac19", "\\boxed{\\text{minus }19}"],
    ("figure", "-4310"): ["-$4310", "\u2212\u20ac4310", "minus \u20ac4310"],
}
MORE_NOT_PAID = {
    # bases
    ("mathchat", "59"): ["\\boxed{111011_2}", "\\boxed{73_8}", "\\boxed{3b_{16}}"],
    ("mathchat", "111011_2"): ["\\boxed{59}", "\\boxed{73_8}"],
    # the task itself
    ("mathchat", "\\frac{\\sqrt{2}}{2}"): [
        "\\boxed{\\sin(\\frac{\\pi}{4})}",
        "\\boxed{\\cos\\frac{\\pi}{4}}",
    ],
    ("mathchat", "\\frac{\\pi}{4}"): ["\\boxed{\\arctan 1}", "\\boxed{\\tan^{-1}(1)}"],
    ("mathchat", "2x"): [
        *(
            "\\boxed{\\frac{\\partial}{\\partial x} x^2}",
            "\\boxed{\\frac{dx^2}{dx}}",
            "\\boxed{\\frac{d}{dx}x^2}",
        ),
        *(
            "\\boxed{\\frac{\\mathrm{d}}{\\mathrm{d}x}x^2}",
            "\\boxed{\\dfrac{d(x^2)}{dx}}",
            "\\boxed{\\frac{d x^2}{d x}}",
        ),
    ],
    ("mathchat", "\\begin{pmatrix}3\\\\4\\end{pmatrix}"): [
        "\\boxed{\\begin{pmatrix}1\\\\2\\end{pmatrix}+\\begin{pmatrix}2\\\\2\\end{pmatrix}}",
        "\\boxed{\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}\\begin{pmatrix}3\\\\4\\end{pmatrix}}",
    ],
    # both, or another one
    ("mathchat", "yes"): [
        *(
            "\\boxed{\\text{yes, no}}",
            "\\boxed{\\text{yes, or no}}",
            "yes, or no",
            "Yes. Or no.",
            "Answer: yes, no",
        ),
        *("\\boxed{\\text{yes; no}}", "Yes, but no.", "yes or no"),
    ],
    ("mathchat", "no"): ["no; yes", "no, but yes", "\\boxed{\\text{no; yes}}"],
    ("mathchat", "C"): [
        "\\boxed{(C) (D)}",
        "\\boxed{C. D}",
        "\\boxed{B=C}",
        "\\boxed{(C) or (D)}",
        "\\boxed{C: D}",
    ],
    ("mathchat", "(1,2)"): [
        "\\boxed{1 or 2}",
        "\\boxed{(3,4)=(1,2)}",
        "\\boxed{1 \\text{ or } 2}",
        "\\boxed{1 and 2}",
    ],
    ("mathchat", "2\\sqrt{2}"): ["\\boxed{3\\sqrt{2} = 2\\sqrt{2}}"],
}
UNITS_NOT = [
    *(
        "incorrect",
        "rejected",
        "never",
        "impossible",
        "cannot be",
        "except",
        "no ",
        "maybe sixty",
        "alternatively sixty",
    ),
    *(
        "versus sixty",
        "but sixty",
        "perhaps",
        "gross",
        "score",
        "pairs",
        "lakh",
        "crore",
        "k",
        "kilo",
        "fifths",
        "quarters",
    ),
    *(
        "point five",
        "times two",
        "remainder five",
        "dozen",
        "unlikely",
        "isn't it",
        "wrong",
        "does not work",
        "plus one",
    ),
    *(
        "doubled",
        "and a half",
        "something",
        "was rejected",
        "sixty",
        "sixty pens",
        "pens, or sixty",
        "tens",
        "few",
    ),
    *("too small", "pens too many", "pens wide of the mark by six", "or so", "approximately"),
]
UNITS = [
    "pens",
    "km/h",
    "square feet",
    "dollars",
    "miles per hour",
    "cubic meters",
    "red balls",
    "cents",
    "feet",
    "ways",
    "days",
]
MORE_NOT_PAID["mathchat", "59"] += [f"\\boxed{{59\\text{{ {unit}}}}}" for unit in UNITS_NOT]
MORE_NOT_PAID["mathchat", "59"] += [
    *(
        "\\boxed{59 k}",
        "\\boxed{59'}",
        "\\boxed{59''}",
        "\\boxed{59?}",
        "\\boxed{59\\,\\text{k}}",
        "\\boxed{59k}",
    ),
    *(
        "Answer: > 59",
        "Answer: at least 59",
        "at least 59",
        "less than 59",
        "at most 59",
        "twice 59",
        "half of 59",
    ),
    *(
        "59 squared",
        "59 dozen",
        "59 or more",
        "59 and a half",
        "Answer: 59 dozen",
        "more than 59",
        "The answer is twice 59.",
    ),
    *(
        "Answer: 59 squared",
        "over 59",
        "under 59",
        "The answer is at most 59.",
        "59 pairs",
        "59k",
        "double 59",
    ),
]
MORE_NOT_PAID["mathchat", "59"] += [
    "Is it 59?",
    "59?",
    "59+",
    "\\boxed{59+}",
    "not quite 59",
    "(-59)",
    "59 thousand",
]
MORE_PAID = {
    ("mathchat", "59"): [f"\\boxed{{59\\text{{ {unit}}}}}" for unit in UNITS]
    + ["\\boxed{59^\\circ}"]
}
MORE_PAID["mathchat", "59"] += [
    "59 pens",
    "Answer: 59 km/h",
    "It is 59, which is odd.",
    "59 is the answer",
    "There are 59 in all.",
]
MORE_PAID["mathchat", "111011_2"] = ["\\boxed{111011_2}", "\\boxed{111011_{2}}", "\\boxed{111011}"][
    :2
]
MORE_PAID["mathchat", "yes"] = [
    "Yes, it is.",
    "\\boxed{\\text{Yes}}",
    "Yes, because no divisor is left.",
]
MORE_PAID["mathchat", "C"] = ["\\boxed{(C) 7}", "\\boxed{C}", "\\boxed{\\text{(C)}}"]
MORE_PAID["mathchat", "(1,2)"] = ["\\boxed{(x,y)=(1,2)}", "\\boxed{(1,2)}", "\\boxed{1, 2}"]
WORDS_NOT = {
    ("debate", "north"): [
        *(
            "Answer: no north",
            "The loser is north",
            "I reject north",
            "Verdict: against the north",
            "The north should lose.",
        ),
        *(
            "Answer: north is the loser",
            "\\boxed{\\text{north or not}}",
            "Answer: north? south!",
            "The north fails.",
        ),
    ],
    ("vote", "B"): [
        *(
            "\\boxed{B \\lor A}",
            "\\boxed{B \\quad A}",
            "Answer: B. No, A.",
            "Answer: B, no: A",
            "Answer: B, alternatively A",
        ),
        *("Answer: B (A)", "A\nor\nB", "The answer isn't\nB", "\\boxed{B \\text{ rather than } A}"),
    ],
    ("figure", "4310"): [
        *(
            "more than 4310",
            "at most 4310",
            "4310 dozen",
            "4310k",
            "4310 plus 100",
            "4310 times 2",
            "4310 (5000)",
        ),
        *(
            "4310 maybe 5000",
            "4310 is wrong",
            "no 4310",
            "it is 5000, was 4310",
            "about twice 4310",
        ),
    ],
    ("month", "June"): ["excluding June", "other than June", "June is not it", "June, JULY"],
    ("search", "A"): ["", " ", "the", "?"],
    ("search", "The The"): ["", "a"],
    ("search", "%"): ["", "?"],
}
WORDS_NOT["debate", "north"] += ["north?", "I doubt north", "north must not win"]
WORDS_NOT["month", "June"] += ["June?", "June or July"]
WORDS = {
    ("search", "A"): ["A", " A "],
    ("search", "%"): ["%"],
    ("debate", "north"): [
        "North wins over South.",
        "North has no rival.",
        "Answer: north. The south fails.",
    ],
    ("vote", "B"): [
        *(
            "I choose B.",
            "I vote for B.",
            "The correct option is B.",
            "B is the answer.",
            "Answer: \\(B\\)",
            "Answer: [B]",
        ),
        "**B**\n\nBecause 3.41 > 3.40.",
    ],
    ("figure", "4310"): [
        *(
            "12 + 4298 = 4310",
            "In May 2025, 4310 cents",
            "43.10 euros (4310 cents)",
            "4310 cents",
            "4310 (of 5000)",
        ),
        *("\u20ac4310", "4310 units", "it is 4310"),
    ],
    ("line", "5"): ["1 : 5", "| 1 | 5 |", "1: 5", "1. 5"],
    ("month", "June"): ["June", "June, not July", "it may be June", "not July: June"],
    ("mathchat", "59"): [
        *(
            '{"answer": 59}',
            '```json\n{"answer": 59}\n```',
            "\\boxed{\\textcolor{blue}{59}}",
            "\\boxed{\\color{red}{59}}",
        ),
        *(
            "\\boxed{\\bf{59}}",
            "\\boxed{**59**}",
            "\\boxed{59\u00b0C}",
            "\\boxed{\\text{Total: } 59}",
            "**59!**",
        ),
    ],
    ("mathchat", "Monday"): ["It is Monday."],
    ("mathchat", "C"): ["\\boxed{\\text{Option (C)}}"],
}


def cases(*tables):
    return [(*key, text) for table in tables for key, texts in table.items() for text in texts]


@pytest.mark.parametrize(("recipe", "label", "text"), cases(NOT_PAID, MORE_NOT_PAID, WORDS_NOT))
def test_what_is_another_answer_is_not_paid(recipe, label, text):
    assert not paid(recipe, label, text)


@pytest.mark.parametrize(("recipe", "label", "text"), cases(PAID, MORE_PAID, WORDS))
def test_what_is_the_answer_is_paid(recipe, label, text):
    assert paid(recipe, label, text)
