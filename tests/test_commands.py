"""`openrlhf recipes` and `openrlhf eval` as far as they go without engines."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refused

from marl_plugins.cli import dispatch, main
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.engines_only import only_players, with_models

TINY = str(recipes_root() / "mathchat" / "tiny.yaml")


def test_saved_weights_take_the_place_of_the_recipes_models(tmp_path):
    for name in ("solver", "verifier"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    run = build_plan(["--recipe", TINY]).run
    changed = with_models(run, tmp_path, ["solver"])
    models = {p.name: p.model for p in changed.policies}
    assert models == {"solver": str(tmp_path / "solver"), "coder": "tiny", "verifier": "tiny"}
    assert changed.policy_args["solver"].actor.model_name_or_path == str(tmp_path / "solver")
    assert {p.model for p in run.policies} == {"tiny"}  # the checked run is as it was
    assert run.policy_args["solver"].actor.model_name_or_path == "tiny"
    with pytest.raises(ConfigurationError):
        with_models(run, tmp_path, [])


def test_an_evaluation_on_other_tasks_keeps_those_that_are_trained_on(tmp_path, capsys):
    file = tmp_path / "other.jsonl"
    file.write_text('{"prompt": "pen, cup, cup: how much?", "answer": "12"}\n')
    words = [
        "--recipe",
        str(recipes_root() / "tool_user" / "tiny.yaml"),
        "--eval.dataset",
        str(file),
        "--dry-run",
        "--json",
    ]
    for command in ("eval", "train"):
        assert main([command, *words]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["tasks"]["train"], shown["tasks"]["eval"]) == (137, 1)
        assert (
            str(file) in shown["task_source"]["eval"]
            and "load('train')" in shown["task_source"]["train"]
        )


def test_an_evaluation_trains_nothing():
    run = build_plan(["--recipe", TINY]).run
    evaluated = only_players(run)
    assert not any(p.trainable for p in evaluated.policies) and all(
        p.trainable for p in run.policies
    )
    assert [p.name for p in evaluated.policies] == [p.name for p in run.policies]
    assert evaluated.state(dict) is run.state(dict)  # plugins meet their state again


COMMAND = """
from marl_plugins import hookimpl
from marl_plugins.core.command import Command

def main(words):
    print("called with", words)
    return 7

@hookimpl
def marl_commands():
    return [Command({name!r}, "RUN", "counts what there is to count", main)]
"""


def test_a_plugin_brings_a_command(tmp_path, capsys):
    (tmp_path / "counting.py").write_text(COMMAND.format(name="count"))
    assert main(["count", "x", "--plugin", str(tmp_path / "counting.py")]) == 7
    assert "called with ['x', '--plugin'" in capsys.readouterr().out
    (tmp_path / "second.py").write_text(COMMAND.format(name="train"))
    with refused(("plugin.command_taken", "second.py")):
        dispatch(["count", "x", "--plugin", str(tmp_path / "second.py")])


def test_the_wheel_carries_recipes_that_can_be_listed_copied_and_planned(tmp_path):
    """Built, unpacked, and used from its own folder alone."""
    root = Path(__file__).resolve().parent.parent
    work = tmp_path / "source"
    shutil.copytree(
        root,
        work,
        ignore=shutil.ignore_patterns(".venv", ".git", "runs", "__pycache__", ".*_cache"),
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(tmp_path),
            str(work),
        ],
        check=True,
        capture_output=True,
    )
    wheel = next(tmp_path.glob("openrlhf_marl-*.whl"))
    shutil.unpack_archive(wheel, tmp_path / "unpacked", "zip")

    def command(*words):
        place = str(tmp_path / "unpacked")
        script = (
            f"import sys; sys.path.insert(0, {place!r}); from marl_plugins.cli import main; "
            "sys.exit(main())"
        )
        return subprocess.run(
            [sys.executable, "-c", script, *words], cwd=tmp_path, capture_output=True, text=True
        )

    listed = command("recipes", "list", "--json")
    assert "mathchat/tiny.yaml" in listed.stdout, listed.stderr
    assert str(tmp_path / "unpacked") in command("recipes", "show", "mathchat").stdout
    assert command("recipes", "copy", "mathchat", "mine").returncode == 0
    assert command("docs", "recipes").stdout == (root / "docs/recipes.md").read_text()
    about = next((tmp_path / "unpacked").glob("*.dist-info")).joinpath("METADATA").read_text()
    address = re.search(r"^Project-URL: Repository, (\S+)$", about, re.MULTILINE)[1]
    links = re.findall(r"\]\(([^)]+)\)", about)
    assert f"{address}/raw/main/docs/demo.png" in links and all(
        link.startswith("https://") for link in links
    )
    for link in links:
        if kept := re.match(rf"{re.escape(address)}/(?:raw|blob)/main/([^#]+)", link):
            assert (root / kept[1]).exists(), link
    planned = command("train", "--recipe", "mine/tiny.yaml", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "prompts/tiny/solver.md" in planned.stdout
