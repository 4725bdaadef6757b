"""`openrlhf recipes` and `openrlhf eval` as far as they go without engines."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refused

from marl_plugins.cli import dispatch, main
from marl_plugins.commands.evaluate import only_players, with_models
from marl_plugins.core.failures import ConfigurationError, RunEnded
from marl_plugins.core.recipe.recipe_yaml import read_recipe
from marl_plugins.core.recipe.schema import base_of
from marl_plugins.core.recipe.shipped import recipes_root, shipped_recipes
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.sandbox.checks import describe_sandbox
from marl_plugins.sandbox.section import SandboxConfig

TINY = str(recipes_root() / "mathchat" / "tiny.yaml")


def test_every_shipped_recipe_is_listed(capsys):
    assert main(["recipes", "list", "--json"]) == 0
    found = {r["name"]: r for r in json.loads(capsys.readouterr().out)}
    assert found.keys() == {
        p.parent.name if p.name == "recipe.yaml" else f"{p.parent.name}/{p.name}"
        for p in shipped_recipes()
    }
    assert found["mathchat/tiny.yaml"]["roles"] == ["solver", "coder", "verifier"]
    assert len({r["description"] for r in found.values()}) == len(found)


def test_a_recipe_is_shown_with_its_graph(capsys):
    assert main(["recipes", "show", "mathchat/tiny.yaml", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["graph"] == ["task -> solver", "solver -> coder", "coder, solver -> verifier"]
    assert (
        shown["nodes"][1] == {"id": "coder_1", "role": "coder", "number": 1}
        and ["task", "solver_1"] in shown["edges"]
    )
    assert shown["roles"]["coder"]["tools"] == ["python"]
    assert main(["recipes", "show", "mathchat"]) == 0
    text = capsys.readouterr().out
    assert "solver -> coder" in text and "actor.adam.lr" in text


def test_a_workflow_that_fails_on_empty_answers_is_said_and_not_raised(tmp_path, capsys):
    (tmp_path / "w.py").write_text(
        "async def run(task, roles, tools):\n    return int(str(await roles.a(q='x')))\n"
    )
    (tmp_path / "r.yaml").write_text("name: r\nroles: {a: {prompt: p.md}}\nworkflow: w.py\n")
    (tmp_path / "p.md").write_text("{q}")
    assert main(["recipes", "show", str(tmp_path / "r.yaml")]) == 0
    shown = capsys.readouterr().out
    assert f"{tmp_path}/w.py:2: " in shown and "ValueError: invalid literal for int()" in shown


def test_a_copied_recipe_plans_from_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "copy", "mathchat", "mine"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert (
        shown[1].strip() == "openrlhf train --recipe mine/tiny.yaml --dry-run"
    )  # what this machine can train comes first
    assert "  openrlhf train --recipe mine --dry-run" in shown
    assert base_of(read_recipe(Path("mine/tiny.yaml"))).name == "mine"
    assert not list(Path("mine").rglob("__pycache__"))
    assert main(["train", "--recipe", "mine/tiny.yaml", "--dry-run"]) == 0
    assert main(["recipes", "copy", "mathchat", "mine"]) == 2
    assert "mine: exists already" in capsys.readouterr().err


def test_only_a_recipe_is_copied_and_without_its_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "copy", "vote", "mine"]) == 0
    assert not (tmp_path / "mine" / "answers.py").exists()  # what our tests hold the grader to
    (tmp_path / "mine" / "answers.py").write_text("# the copy's own")
    (tmp_path / "mine" / "run_1" / "run").mkdir(parents=True)
    (tmp_path / "mine" / "run_1" / "run" / "command.json").write_text("[]")
    (tmp_path / "mine" / "services.yaml").write_text("name: postgres\n")
    capsys.readouterr()
    assert main(["recipes", "copy", "mine", "again"]) == 0
    assert capsys.readouterr().out.count("openrlhf train") == 2
    assert not (tmp_path / "again" / "run_1").exists()
    assert (tmp_path / "again" / "answers.py").exists()
    assert (tmp_path / "again" / "services.yaml").read_text() == "name: postgres\n"
    assert main(["recipes", "copy", "mine/services.yaml", "other"]) == 2
    assert (
        "roles: this key is missing" in capsys.readouterr().err
        and not (tmp_path / "other").exists()
    )


def test_the_file_that_was_named_is_the_first_to_be_tried(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "copy", "mathchat/tiny_outcome.yaml", "My-Recipe"]) == 0
    assert "recipe My-Recipe/tiny_outcome.yaml" in capsys.readouterr().out.splitlines()[1]
    assert base_of(read_recipe(Path("My-Recipe/recipe.yaml"))).name == "my_recipe"
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    assert main(["recipes", "copy", "mathchat", "2nd"]) == 0
    assert "--recipe 2nd --dry-run" in capsys.readouterr().out.splitlines()[1]
    assert (
        base_of(read_recipe(Path("2nd/recipe.yaml"))).name == "mathchat"
    )  # a name cannot begin with a digit


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
    with pytest.raises(
        ConfigurationError,
        match="no folder 'coder' with a model in it; it holds weights of solver, verifier",
    ):
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


def test_a_run_that_has_not_ended_has_no_weights_yet_and_how_it_gets_them_is_said(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "command.json").write_text("[]")
    (tmp_path / "solver").mkdir()
    assert main(["eval", "--recipe", TINY, "--models", str(tmp_path)]) == 2
    assert f"openrlhf train --resume {tmp_path}" in capsys.readouterr().err
    (tmp_path / "solver" / "config.json").write_text("{}")
    assert (
        main(["eval", "--recipe", TINY, "--models", str(tmp_path / "solver"), "--only", "solver"])
        == 2
    )
    assert "itself a model; " in capsys.readouterr().err


def test_an_evaluation_can_be_planned(capsys):
    assert main(["eval", "--recipe", "vote/tiny.yaml", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["recipe"] == "vote"


def test_an_evaluation_trains_nothing():
    run = build_plan(["--recipe", TINY]).run
    evaluated = only_players(run)
    assert not any(p.trainable for p in evaluated.policies) and all(
        p.trainable for p in run.policies
    )
    assert [p.name for p in evaluated.policies] == [p.name for p in run.policies]
    assert evaluated.state(dict) is run.state(dict)  # plugins meet their state again


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("train", "marl_plugins.engine.runtime.driver"),
        ("eval", "marl_plugins.engine.processes.cluster"),
    ],
)
def test_a_run_says_where_programs_of_agents_run(command, module, tmp_path, monkeypatch, capsys):
    """Ended where it would begin to start processes."""

    def end(run, debug):
        raise RunEnded("enough")

    monkeypatch.setattr(f"{module}.prepare_environment", end)
    line = f"programs of agents run in the sandbox: {describe_sandbox(SandboxConfig())}\n"
    for recipe, said in ((TINY, True), ("vote/tiny.yaml", False)):
        words = [
            command,
            "--recipe",
            recipe,
            "--ckpt.output_dir",
            str(tmp_path),
            "--ckpt.path",
            str(tmp_path),
        ]
        assert main(words) == 1
        assert (line in capsys.readouterr().out) is said


def test_a_run_is_frozen():
    run = build_plan(["--recipe", TINY]).run
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.policies = ()


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


def test_the_help_has_a_plugins_flags_under_a_heading_with_their_defaults(tmp_path, capsys):
    (tmp_path / "brevity.py").write_text(
        "from marl_plugins import hookimpl\n\n@hookimpl\ndef marl_options(parser):\n"
        "    parser.add_argument('--brevity.limit', type=int, default=8, help='longest')\n"
        "    parser.add_argument('--brevity.off', action='store_true', help='none is long')\n"
    )
    assert main(["train", "--plugin", str(tmp_path / "brevity.py"), "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    plugins, upstream = text.index("other flags of plugins:"), text.index("upstream:")
    assert plugins < text.index("longest (default: 8)") < text.index("none is long") < upstream
    assert text.index("--actor.adam.lr", plugins) > upstream


def test_the_shipped_plugins_command_is_listed_and_corrected(capsys):
    assert main(["--help"]) == 0
    assert "openrlhf swarm show ADDRESS" in capsys.readouterr().out
    assert main(["swamr", "x"]) == 2
    assert "did you mean 'swarm'?" in capsys.readouterr().err


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
    assert "0001-importable-parser-and-main" in command("patch", "--help").stdout
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
