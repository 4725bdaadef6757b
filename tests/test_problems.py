"""Problems as values: how they are shown, their codes, and that nothing reads their sentences."""

import ast
import functools
import pickle
import re
from pathlib import Path

import pytest

from marl_plugins.commands import problem_codes
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import (
    MAX_LISTED_NAMES,
    Problem,
    as_json,
    at,
    first_of,
    meant,
    problem_of,
)
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.recipe.validation import without_misspelt

TESTS = Path(__file__).resolve().parent
PACKAGE = problem_codes.PACKAGE


def test_files_below_the_working_directory_are_relative_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here, above = tmp_path / "mine" / "grader.py", tmp_path.parent / "grader.py"
    shown = str(Problem("x.y", at(line=f"{here}:3"), f"{here} and {above}{here}"))
    assert shown == f"mine/grader.py:3: mine/grader.py and {above}{here}"


def problems():
    where = at(
        line=["a.yaml:1", "a.yaml:2"], policy="solver", flag=("actor.adam.lr", "ds.zero_stage")
    )
    return [
        (
            Problem("x.y", where, "no", "a number", "give one"),
            "a.yaml:1, a.yaml:2: policy 'solver': --actor.adam.lr and --ds.zero_stage: expected a "
            "number, got no; give one",
        ),
        (
            Problem("x.y", at(plugin="mine.py", hook="marl_tools"), "it fails"),
            "plugin mine.py: marl_tools: it fails",
        ),
        (Problem("x.y", got="it fails", fix="do not"), "it fails; do not"),
        (
            Problem("x.y", at(line="", key="roles"), expected="a mapping"),
            "roles: expected a mapping",
        ),
    ]


@pytest.mark.parametrize(("problem", "sentence"), problems())
def test_a_problem_is_shown_as_place_what_is_wrong_and_the_fix(problem, sentence):
    assert str(problem) == as_json(problem)["sentence"] == sentence


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


def test_an_unknown_name_is_answered_with_what_was_meant():
    assert meant("sovler", ["solver", "judge"]) == "did you mean 'solver'?"
    assert (
        meant("x", ["solver", "judge"]) == "valid: judge, solver"
        and meant("x", map(str, range(10, 50))) == ""
    )


def test_a_missing_key_that_is_misspelt_beside_it_is_one_problem():
    def of(code, key):
        return Problem(code, at(line="recipe.yaml:3", key=key))

    unknown, missing = "recipe.unknown_key", "recipe.missing_key"
    typo, meant_by_it = of(unknown, "roles.solver.promt"), of(missing, "roles.solver.prompt")
    elsewhere, alone = of(missing, "roles.judge.prompt"), of(missing, "workflow")
    assert without_misspelt([typo, meant_by_it, elsewhere, alone]) == [typo, elsewhere, alone]


def test_a_misspelt_field_of_a_prompt_is_named_once():
    with pytest.raises(KeyError) as caught:
        prompt_renderer("{solution} {advice}", None)({"solutoin": ""})
    assert str(caught.value).count("solutoin") == 2 and str(caught.value).count("advice") == 2


# --- codes


@functools.cache
def codes():
    return {problem_codes.code_of(call) for call, _ in problem_codes.calls()}


def test_every_code_is_dotted_and_written_out():
    assert not [code for code in codes() if not re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+|other", code)]


def test_every_code_is_listed_once():
    listed = re.findall(r"^\| `(.+?)` \|", problem_codes.page(), re.MULTILINE)
    assert listed == sorted(codes())


def test_every_code_is_named_by_a_test():
    text = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    named = set(re.findall(r'"([a-z_]+(?:\.[a-z_0-9]+)*)(?="|, )', text))
    assert sorted(codes() - named) == []


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


def test_no_regular_expression_reads_a_message():
    wrong = [
        f"{file}:{node.lineno}"
        for file, tree in trees(PACKAGE).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("match", "search", "fullmatch", "findall", "sub", "split")
        and len(node.args) > 1
        if ast.unparse(node.func.value) == "re"
        if any(
            re.search(r"\b(problems?|message|sentence|warning)\b", ast.unparse(argument))
            for argument in node.args[1:]
        )
    ]
    assert not wrong
