"""Where people start: help, pages, old names of flags, and the scripts that start runs on clusters."""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from marl_plugins.cli import main
from marl_plugins.commands import COMMANDS
from marl_plugins.core.recipe.shipped import data
from marl_plugins.engine.hosts import upstream_cli
from marl_plugins.engine.hosts.old_flags import old_flags
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.flags import OWN_FLAGS, own_parser

ROOT = Path(__file__).resolve().parent.parent


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [[c.name] for c in COMMANDS] + [["recipes", "copy"], ["patch", "apply"]],
    ids=" ".join,
)
def test_every_command_has_help(command, capsys):
    try:
        code = main([*command, "--help"])
    except SystemExit as ended:  # argparse's own way
        code = ended.code
    shown = capsys.readouterr().out
    assert code == 0 and f"usage: openrlhf {' '.join(command)}" in shown


def test_the_documentation_is_a_command(capsys):
    assert main(["docs"]) == 0
    listed = re.findall(r"openrlhf docs (\S+)", capsys.readouterr().out)
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert listed == sorted({*pages, "problems"}) and {"recipes", "slurm"} <= pages
    assert main(["docs", "docs/flags.md"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs/flags.md").read_text()
    assert main(["docs", "problems"]) == 0
    assert "\n| `docs.unknown` | there is no page PAGE" in capsys.readouterr().out


def test_the_pages_that_messages_name_exist():
    for path in (ROOT / "marl_plugins").rglob("*.py"):
        for name in re.findall(r"openrlhf docs ([a-z_]+)", path.read_text()):
            assert name in ("lists", "problems") or (data("docs") / f"{name}.md").is_file(), (
                path,
                name,
            )


# --- flags


def test_old_flags_have_names_that_upstream_has_today():
    today = upstream_cli.build_parser(upstream_cli.upstream_root()).of_upstream
    renamed, gone = old_flags().renamed, old_flags().gone
    assert set(renamed.values()) <= today
    assert not {*renamed, *gone} & today and not renamed.keys() & gone.keys()


def test_other_names_of_values_are_not_valid_ones():
    parser = upstream_cli.build_parser(upstream_cli.upstream_root())
    choices = {
        option[2:]: action.choices for action in parser._actions for option in action.option_strings
    }
    for flag, meant in old_flags().other_values.items():
        assert not set(meant) & set(choices[flag])
        assert all(
            any(word.strip(",") in choices[flag] for word in said.split())
            for said in meant.values()
        )


# --- the pages on clusters and for users of OpenRLHF

STAND_INS = {
    "openrlhf": 'printf "%s\\n" "openrlhf device=$MARL_PLUGINS_DEVICE address=${RAY_ADDRESS:-} $*" '
    '>> "$LOG"',
    "scontrol": "printf 'node-a\\nnode-b\\n'",
    "srun": 'echo "srun $*" >> "$LOG"; while [[ $1 == -* ]]; do if [[ $1 == -w ]]; then shift; fi; '
    'shift; done; exec "$@"',
    "ray": """
case $1 in
  start) echo "ray $*" >> "$LOG"; echo " 1 node_$RANDOM" >> "$JOINED" ;;
  status) cat "$JOINED" ;;
  job) echo "ray $*" >> "$LOG"; while [[ $1 != -- ]]; do shift; done; shift; exec "$@" ;;
esac
""",
    "sleep": "exec /bin/sleep 0.01",
}


@pytest.fixture
def cluster(tmp_path):
    """Runs a script of `entrypoints/` with stand-ins for Slurm, Ray and our command; what they were
    asked for, line by line."""
    for name, text in STAND_INS.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)
    (tmp_path / "joined").touch()
    places = {
        "LOG": str(tmp_path / "log"),
        "JOINED": str(tmp_path / "joined"),
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
    }

    def run(script, *words, **environment):
        clean = {
            k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SLURM_", "MARL_"))
        }
        command = ["bash", str(ROOT / "entrypoints" / script), *words]
        done = subprocess.run(
            command,
            env={**clean, **places, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        log = tmp_path / "log"
        return done, log.read_text().splitlines() if log.exists() else []

    return run


def test_one_node_is_one_command(cluster):
    done, asked = cluster("one_node.sh", "mathchat", "--max_steps", "3")
    assert (done.returncode, asked) == (
        0,
        ["openrlhf device= address= train --recipe mathchat --max_steps 3"],
    )


@pytest.mark.parametrize("script", ["one_node.sh", "ray_job.sh", "slurm.sh"])
def test_a_script_without_a_recipe_says_how_it_is_called(cluster, script):
    done, asked = cluster(script)
    assert done.returncode != 0 and f"{script} RECIPE [flags]" in done.stderr and not asked


@pytest.mark.parametrize(
    ("recipe", "folder", "name"),
    [("/r/mine/", "/r", "mine"), ("/r/mine/tiny.yaml", "/r/mine", "tiny.yaml")],
)
def test_a_ray_job_takes_the_recipes_folder_along(cluster, recipe, folder, name):
    done, asked = cluster("ray_job.sh", recipe, "--max_steps", "3")
    assert done.returncode == 0, done.stderr
    assert (
        asked[0].startswith(f"ray job submit --working-dir {folder} -- ")
        and "runtime-env" not in asked[0]
    )
    assert asked[1] == f"openrlhf device=cuda address= train --recipe {name} --max_steps 3"


@pytest.mark.parametrize("nodes", [1, 2])
def test_slurm_starts_ray_on_every_node_and_the_run_on_the_first(cluster, nodes):
    environment = {
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "RAY_PORT": "7000",
    }
    done, asked = cluster("slurm.sh", "mathchat", "--max_steps", "3", **environment)
    assert done.returncode == 0, done.stderr
    started = [line for line in asked if line.startswith("ray start")]
    assert (
        started
        == ["ray start --head --port=7000 --block", "ray start --address=node-a:7000 --block"][
            :nodes
        ]
    )
    assert (
        asked[-1]
        == "openrlhf device=cuda address=node-a:7000 train --recipe mathchat --max_steps 3"
    )
    assert ("srun --nodes=1 --ntasks=1 --exclude=node-a" in "\n".join(asked)) == (nodes == 2)


def test_the_flags_of_the_page_for_users_of_openrlhf_exist():
    """Old names too, which test_page_names.py does not know."""
    text = (ROOT / "docs/from_openrlhf.md").read_text()
    commands = re.findall(r"^    .*$|`[^`|]+`", text, re.MULTILINE)
    parser = upstream_cli.build_parser(upstream_cli.upstream_root())
    Plugins(["marl_plugins.coach"]).options(parser)
    actions = [*parser._actions, *own_parser()._actions]
    known = {option for action in actions for option in action.option_strings}
    known |= {f"--{old}" for old in itertools.chain(old_flags().renamed, old_flags().gone)}
    for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", "\n".join(commands)):
        assert flag in known or flag.startswith("--policy."), flag


def test_the_code_of_the_page_for_users_of_openrlhf_plans(tmp_path):
    text = (ROOT / "docs/from_openrlhf.md").read_text()
    for name in ("workflow.py", "grader.py"):
        (tmp_path / name).write_text(
            re.search(rf"```python\n(# {name}\n.*?)```", text, re.DOTALL)[1]
        )
    (tmp_path / "agent.md").write_text("{problem}")
    rows = [json.dumps({"problem": f"{n}+{n}=", "answer": str(n + n)}) for n in range(8)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    (tmp_path / "recipe.yaml").write_text(
        "name: agent\nroles: {agent: {prompt: agent.md}}\nworkflow: workflow.py\ngrader: "
        "grader.py\nmodel: tiny\n"
        "flags: {data.prompt_dataset: train.jsonl, rollout.batch_size: 8, train.batch_size: 8, "
        "data.max_len: 256}\n"
    )
    plan = build_plan(["--recipe", str(tmp_path)])
    assert len(plan.tasks("train")) == 8 and plan.run.grader_module is not None


def test_own_flags_are_those_of_the_parser():
    options = {option[2:] for action in own_parser()._actions for option in action.option_strings}
    assert options == set(OWN_FLAGS)
