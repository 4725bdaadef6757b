"""One cause, one problem: a file that is not there, or a role that is misspelt, is reported once,
wherever it is used."""

import shutil
from pathlib import Path

import pytest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.engine.plan.build import build_plan

GONE = {
    "a prompt of two roles": (
        "debate/tiny.yaml",
        "prompts/tiny/debater.md",
        "files.unreadable",
        ["roles.north.prompt", "roles.south.prompt"],
    ),
    "the workflow, which the grader imports": (
        "coder_tester/tiny.yaml",
        "workflow.py",
        "files.missing",
        ["workflow"],
    ),
}


@pytest.mark.parametrize("what", GONE)
def test_a_file_that_is_gone_is_reported_once_with_all_places_that_name_it(tmp_path, what):
    recipe, file, code, keys = GONE[what]
    folder = tmp_path / Path(recipe).parent
    shutil.copytree(
        Path("recipes", recipe).parent, folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / file).unlink()
    with pytest.raises(ConfigurationError) as caught:
        build_plan(["--recipe", str(tmp_path / recipe)])
    (problem,) = caught.value.problems
    assert (problem.code, list(problem.names("key"))) == (code, keys)
    assert problem.missing == str((folder / file).resolve())
    assert problem.names("file") == (str(folder / file),)


def test_the_file_that_an_import_looked_for_is_named(tmp_path):
    (tmp_path / "tasks.py").write_text(
        "import os\nfrom . import (\n    os as other,\n    judgin,\n)\n"
    )
    (tmp_path / "os.py").touch()
    (tmp_path / "judging.py").touch()
    with pytest.raises(ConfigurationError) as caught:
        load_file(tmp_path / "tasks.py")
    (problem,) = caught.value.problems
    assert problem.missing == str(tmp_path / "judgin.py") and "judging" in problem.fix
