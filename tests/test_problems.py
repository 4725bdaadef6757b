"""Problems as values: how they are shown, their codes, and that nothing reads their sentences."""

import ast
import functools
import pickle
import re

import problem_codes
import pytest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import (
    MAX_LISTED_NAMES,
    Problem,
    at,
    first_of,
    problem_of,
)

PACKAGE = problem_codes.PACKAGE


def test_places_are_put_around_and_an_unknown_kind_is_refused():
    problem = Problem("x.y", at(file="prompt.md"), "is empty").within(
        line="recipe.yaml:4", key="roles.a.prompt"
    )
    assert [tuple(place) for place in problem.where] == [
        ("line", "recipe.yaml:4"),
        ("key", "roles.a.prompt"),
        ("file", "prompt.md"),
    ]
    assert problem.names("key") == ("roles.a.prompt",)
    with pytest.raises(ValueError, match="plcae"):
        at(plcae="x")


def test_an_error_keeps_codes_and_places_between_processes():
    error = ConfigurationError(
        [Problem("x.y", at(flag="a.b"), "no"), "a plain sentence of a recipe"]
    )
    again = pickle.loads(pickle.dumps(error))
    assert again.problems == error.problems and again.problems[1] == problem_of(
        "a plain sentence of a recipe"
    )
    assert [p.code for p in again.problems] == ["x.y", "other"]


def test_a_long_list_is_counted():
    many = [Problem("x.y", got=str(n)) for n in range(MAX_LISTED_NAMES + 5)]
    error = ConfigurationError(first_of(many, "data.jsonl"))
    assert len(error.problems) == MAX_LISTED_NAMES + 1 and error.count == MAX_LISTED_NAMES + 5
    assert error.problems[-1].code == "other.more"


# --- codes


@functools.cache
def codes():
    return {problem_codes.code_of(call) for call in problem_codes.calls()}


def test_every_code_is_dotted_and_written_out():
    assert not [code for code in codes() if not re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+|other", code)]


# --- nothing reads a sentence


@functools.cache
def trees(folder):
    return {
        str(path.relative_to(folder)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.py"))
    }


def texts(node):
    """The texts below a node that are no part of a `Problem`."""
    if any(called(node, name) for name in ("Problem", "wrong_answer", "at", "within", "names")):
        return
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    ):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


def called(node, name):
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name


def test_our_own_code_passes_values():
    sentences = [
        f"{file}:{node.lineno}"
        for file, tree in trees(PACKAGE).items()
        for node in ast.walk(tree)
        if called(node, "ConfigurationError") and node.args and any(texts(node.args[0]))
    ]
    assert not sentences, "pass a Problem"
