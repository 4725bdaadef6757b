"""Files of one folder are one package: they import each other, once, and two folders never meet."""

import sys

import pytest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load, load_file


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def refused(path):
    with pytest.raises(ConfigurationError) as caught:
        load_file(path)
    assert str(path) not in [getattr(module, "__file__", None) for module in sys.modules.values()]
    return str(caught.value.problems[0])


def test_nothing_is_written_into_a_folder_that_is_read(tmp_path, monkeypatch):
    """It may be what a run has recorded."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = write(tmp_path / "recorded", grader="from . import tasks", tasks="")
    load_file(folder / "grader.py")
    assert sorted(path.name for path in folder.iterdir()) == ["grader.py", "tasks.py"]
    assert sys.dont_write_bytecode is False


def test_files_of_a_folder_import_each_other(tmp_path):
    folder = write(
        tmp_path / "pair",
        tasks="seen = []\ndef load(split): return seen",
        grader="from .tasks import load\nfrom . import tasks",
        workflow="from .grader import tasks\nfrom .parts.words import WORD",
    )
    write(folder / "parts", words="from ..tasks import seen\nWORD = 'w'")
    grader, workflow, tasks = (
        load_file(folder / f"{name}.py") for name in ("grader", "workflow", "tasks")
    )
    assert grader.tasks is workflow.tasks is tasks
    assert grader.load is tasks.load
    assert workflow.WORD == "w"
    assert load(str(folder / "grader.py")) is grader


def test_two_folders_of_one_name_do_not_meet(tmp_path):
    folders = [
        write(
            tmp_path / where / "pair", tasks=f"where = {where!r}", grader="from .tasks import where"
        )
        for where in "ab"
    ]
    assert [load_file(folder / "grader.py").where for folder in folders] == ["a", "b"]


def test_a_file_that_was_just_written_is_found(tmp_path):
    folder = write(tmp_path, tasks="x = 1")
    for number in range(20):
        write(
            folder,
            **{f"part{number}": f"x = {number}", f"user{number}": f"from .part{number} import x"},
        )
        assert load_file(folder / f"user{number}.py").x == number


def test_a_mistake_in_a_file_that_another_imports_is_named_by_its_line(tmp_path):
    folder = write(tmp_path, tasks="x = 1\nx = 1 / 0", grader="from .tasks import x")
    assert f"{folder}/tasks.py:2: ZeroDivisionError" in refused(folder / "grader.py")
    write(folder, tasks="x = 1")  # once it is put right, nothing of the failed attempt is left
    assert load_file(folder / "grader.py").x == 1
