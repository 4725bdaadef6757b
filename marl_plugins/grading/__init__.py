"""Parts of graders that read an agent's text (docs/recipes.md, "The grader").

Each reads one stated form, and nothing reads English: what stands in another place, or beside
other words, is no answer.

extract.py     the form: a box, `answer: X` on the last line, one word or number alone there
enclosed.py    a JSON object, a tag, a fenced block
compare.py     whether an answer has the value of the label: numbers, words, formulas
mistakes.py    which kinds of mistakes there are, and who puts them right
overlap.py     how far its words are those of the label: exact match and F1

A grader that runs programs uses `Checker` of the sandbox (marl_plugins/sandbox/checker.py).
"""

from marl_plugins.grading.compare import ACCEPTED, right, same
from marl_plugins.grading.enclosed import fenced, object_in, tagged
from marl_plugins.grading.extract import boxed, final, word
from marl_plugins.grading.mistakes import mistake_parts
from marl_plugins.grading.numbers import number
from marl_plugins.grading.overlap import exact_match, f1, normalised

__all__ = [
    "ACCEPTED",
    "boxed",
    "exact_match",
    "f1",
    "fenced",
    "final",
    "mistake_parts",
    "normalised",
    "number",
    "object_in",
    "right",
    "same",
    "tagged",
    "word",
]
