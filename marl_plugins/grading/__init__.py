"""Parts of graders that read an agent's text (docs/recipes.md, "The grader").

extract.py     where an answer stands, and in which form: a box, a line `answer: X`, one word, a
               number
enclosed.py    what it encloses: a JSON object, a tag, a fenced block
overlap.py     how far its words are those of the label: exact match and F1
compare.py     whether it has the value of the label: numbers, lists, words, formulas

A grader that runs programs uses `Checker` of the sandbox (marl_plugins/sandbox/checker.py).
"""

from marl_plugins.grading.compare import ACCEPTED, clean, right, same
from marl_plugins.grading.enclosed import fenced, object_in, tagged
from marl_plugins.grading.extract import boxed, denied, final, lone_number, negated, stated, word
from marl_plugins.grading.numbers import number
from marl_plugins.grading.overlap import exact_match, f1, normalised

__all__ = [
    "ACCEPTED",
    "boxed",
    "clean",
    "denied",
    "exact_match",
    "f1",
    "fenced",
    "final",
    "lone_number",
    "negated",
    "normalised",
    "number",
    "object_in",
    "right",
    "same",
    "stated",
    "tagged",
    "word",
]
