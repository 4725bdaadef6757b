"""The words of the package: docstrings that can be read alone, classes that are nouns, and one
meaning for each word."""

import ast
import re

import pytest
from test_structure import PACKAGE, nodes_of_all

DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
WITHOUT_SUBJECT = frozenset(
    [
        *(
            "What",
            "Whether",
            "That",
            "Those",
            "Why",
            "Where",
            "How",
            "Which",
            "Who",
            "Whose",
            "Whom",
            "Whoever",
            "When",
            "While",
        ),
        *(
            "As",
            "Of",
            "By",
            "From",
            "For",
            "In",
            "On",
            "With",
            "Without",
            "Until",
            "After",
            "Before",
            "Around",
            "Except",
            "Like",
        ),
        *("To", "At", "Or", "Its", "Their", "It", "Them", "There", "Otherwise"),
    ]
)
"""Words with which a docstring begins whose first sentence has no subject of its own."""
IRREGULAR = {
    "Seen",
    "Given",
    "Known",
    "Shown",
    "Taken",
    "Written",
    "Said",
    "Kept",
    "Left",
    "Sent",
    "Told",
    "Found",
    "Caught",
    "Stuck",
}
PARTICIPLES = {
    "Finding": "a noun: a line of `openrlhf doctor`",
    "GraderFinding": "a noun",
    "Opened": "a message of Textual's, which are named after what happened",
    "JudgeTraining": "a noun: the training of a judge",
    "RunEnded": "an exception, which is named after what happened",
    "RunPaused": "an exception, which plugins raise by this name",
    "Sampling": "the field's noun for how tokens are drawn",
    "Seating": "a noun: which seats there are, and where",
    "Seen": "the view that a scorer is given: its parameter has this name in every recipe",
}
"""Classes that end like participles, and why they keep their names."""
TEXTS = [
    *PACKAGE.rglob("*.py"),
    *(PACKAGE.parent / "docs").glob("*.md"),
    PACKAGE.parent / "README.md",
]


def last_word(name):
    return re.findall(r"[A-Z]+[a-z]*|[a-z]+", name)[-1]


def is_participle(word):
    return word.endswith(("ed", "ing")) or word in IRREGULAR


def test_a_docstring_begins_with_its_subject_or_its_verb():
    without = [
        f"{file}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', '')}"
        for file, node in nodes_of_all()
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node)
        if ast.get_docstring(node).split()[0].strip("`,.:;") in WITHOUT_SUBJECT
    ]
    assert not without


def test_no_class_is_a_participle():
    """Names that are a participle with a noun (`ForwardedRows`) are nouns."""
    names = {node.name for _, node in nodes_of_all() if isinstance(node, ast.ClassDef)}
    assert {name for name in names if is_participle(last_word(name))} == PARTICIPLES.keys()


@pytest.mark.parametrize("words", ["beside the rollout", "beside other work", "what it is that"])
def test_beside_is_a_place(words):
    """What happens at the same time happens *during* the rollout; what is more comes *in addition
    to* the rest."""
    assert not [file.name for file in TEXTS if words in " ".join(file.read_text().split())]


def test_a_seat_is_a_device_that_training_processes_share():
    """docs/glossary.md: only process groups have seats."""
    named = {
        file
        for file, node in nodes_of_all()
        if isinstance(node, DEFINITIONS) and "seat" in getattr(node, "name", "").lower()
    }
    assert all(file.startswith("process_groups/") for file in named), named


def test_the_glossary_has_each_word_once():
    words = re.findall(
        r"^\| ([^|]+?) \|", (PACKAGE.parent / "docs" / "glossary.md").read_text(), re.MULTILINE
    )
    words = [word for word in words if word not in ("word", "---")]
    assert len(words) == len(set(words)) >= 30


VERBLESS = ("core/hookspecs.py", "contracts/")
"""Where a docstring is something else: a hook's says what a plugin does there, a contract's what is
promised."""
NOT_VERBS = frozenset(
    [
        "Advantages",
        "Arguments",
        "Attributions",
        "Bytes",
        "Contributions",
        "Cores",
        "Distributions",
        "Expressions",
        "Flags",
        "Folders",
        "Indices",
        "Keys",
        "Limits",
        "Mappings",
        "Metrics",
        "Mistakes",
        "Moments",
        "Names",
        "Nodes",
        "Nothing",
        "Numbers",
        "Parameters",
        "Paths",
        "Programs",
        "Prompts",
        "Rewards",
        "Rows",
        "Seats",
        "Seconds",
        "Statistics",
        "Texts",
        "This",
        "Threads",
        "Tokens",
        "Versions",
        "Warnings",
    ]
)


def public_functions(node):
    """Yields the public functions of a module and of its public classes that are no properties."""
    for part in ast.iter_child_nodes(node):
        if getattr(part, "name", "_").startswith("_"):
            continue
        if isinstance(part, ast.ClassDef):
            yield from public_functions(part)
        elif not any(
            "property" in ast.unparse(decorator)
            for decorator in getattr(part, "decorator_list", ())
        ):
            yield part


def test_a_functions_docstring_begins_with_a_verb_in_the_third_person():
    wrong = [
        f"{file.relative_to(PACKAGE)}:{function.lineno} {function.name}: {doc.splitlines()[0]}"
        for file in PACKAGE.rglob("*.py")
        if not str(file.relative_to(PACKAGE)).startswith(VERBLESS)
        for function in public_functions(ast.parse(file.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if (doc := ast.get_docstring(function)) and (word := doc.split()[0].strip(",;:.")) != "See"
        if not re.fullmatch(r"[A-Z][a-z]+s", word) or word in NOT_VERBS
    ]
    assert not wrong
