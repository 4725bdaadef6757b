"""What commands say: to wrong flags, to user code that fails while a run is planned, and to people
who look for help."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import found_by, refused

from marl_plugins.cli import dispatch, main
from marl_plugins.commands import COMMANDS
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.shipped import data
from marl_plugins.engine.hosts import upstream_cli
from marl_plugins.engine.hosts.old_flags import old_flags
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.flags import OWN_FLAGS, own_parser

ROOT = Path(__file__).resolve().parent.parent
SUMS = ROOT / "tests" / "recipes" / "sums"
TINY = str(SUMS / "tiny.yaml")


@pytest.fixture
def recipe(tmp_path):
    """A copy of a small recipe; `edit(old, new, file)` changes one of its files."""
    folder = tmp_path / "sums"
    shutil.copytree(SUMS, folder)

    def edit(old, new, file="tiny.yaml"):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))
        return folder / "tiny.yaml"

    edit.folder = folder
    return edit


def line_of(path, text):
    """`file:line` of the first line with a text."""
    return f"{path}:{next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)}"


def problems(*words):
    with pytest.raises(ConfigurationError) as caught:
        build_plan([str(word) for word in words])
    return [*map(str, caught.value.problems)]


def only(found, *parts):
    """The one problem in which all parts occur."""
    matching = [p for p in found if all(part in p for part in parts)]
    assert len(matching) == 1, f"{parts} in {found}"
    return matching[0]


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [[c.name] for c in COMMANDS] + [["recipes", "copy"], ["patch", "apply"]],
    ids=" ".join,
)
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_every_command_has_help(command, word, capsys):
    try:
        code = main([*command, word])
    except SystemExit as ended:  # argparse's own way
        code = ended.code
    shown = capsys.readouterr().out
    assert code == 0 and f"usage: openrlhf {' '.join(command)}" in shown


def test_train_without_a_word_says_what_to_type():
    script = (
        "import sys; from marl_plugins.cli import main; code = main(['train']); "
        "sys.exit(99 if {'ray', 'torch', 'openrlhf', 'pydantic'} & set(sys.modules) else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        "openrlhf train --recipe mathchat/tiny.yaml" in done.stderr
        and "train --help" in done.stderr
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mathchat"], [("flags.no_flag", "command line")]),
        (["--pretrain", "x"], [("flags.unknown", "command line", "pretrain")]),
        (["--actor.adam.rl", "1"], [("flags.unknown", "command line", "actor.adam.rl")]),
        (["--max_st", "5"], [("flags.unknown", "command line", "max_st")]),
    ],
)
def test_a_command_line_for_upstreams_trainer_is_checked_before_it_starts(words, expected):
    with refused(*expected):
        dispatch(["train", *words])


def test_the_documentation_is_a_command(capsys):
    assert main(["docs"]) == 0
    listed = re.findall(r"openrlhf docs (\S+)", capsys.readouterr().out)
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert listed == sorted({*pages, "problems"}) and {"recipes", "slurm"} <= pages
    assert main(["docs", "docs/flags.md"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs/flags.md").read_text()
    assert main(["docs", "problems"]) == 0
    assert "\n| `docs.unknown` | there is no page PAGE" in capsys.readouterr().out
    assert main(["docs", "flag"]) == 2
    assert "there is no page 'flag'; did you mean 'flags'?" in capsys.readouterr().err


def test_the_pages_that_messages_name_exist():
    for path in (ROOT / "marl_plugins").rglob("*.py"):
        for name in re.findall(r"openrlhf docs ([a-z_]+)", path.read_text()):
            assert name in ("lists", "problems") or (data("docs") / f"{name}.md").is_file(), (
                path,
                name,
            )


# --- flags
# --------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["--pretrain", "x"],
            ["--pretrain: unknown flag; since OpenRLHF 0.10.2 it is --actor.model_name_or_path"],
        ),
        (["--init_kl_coef", "0.1"], ["it is --algo.kl.init_coef"]),
        (
            ["--use_icepop"],
            ["it is --algo.advantage.is_correction_mode", "icepop is mask by token"],
        ),
        (["--perf"], ["--perf: unknown flag; upstream no longer has it: remove it"]),
        (
            ["--policy.coder.actor_learning_rate", "1"],
            ["--policy.coder.actor_learning_rate", "it is --actor.adam.lr"],
        ),
        (["--max_st", "5"], ["--max_st: unknown flag; did you mean 'max_steps'?"]),
        (["--dry_run"], ["--dry_run: unknown flag; did you mean 'dry-run'?"]),
        (["--lr", "1"], ["did you mean 'actor.adam.lr' or"]),
        (["--algo.advantage.estimator", "grpo"], ["GRPO is group_norm (--groups.by", "or dr_grpo"]),
        (["--algo.advantage.estimator", "reinforce++"], ["REINFORCE++ is reinforce"]),
        (
            ["--policy.coder.max_steps", "3"],
            ["--policy.coder.max_steps: unknown flag; it is for the whole run"],
        ),
        (
            ["mathchat", "--max_steps", "3"],
            ["expected a flag (--name), got 'mathchat'; a recipe is named by --recipe mathchat"],
        ),
    ],
    ids=lambda value: value[0],
)
def test_wrong_flags_on_the_command_line(words, parts):
    words = words if words[0] == "mathchat" else ["--recipe", TINY, *words]
    only(problems(*words), *parts)


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("pretrain: x", "since OpenRLHF 0.10.2 it is --actor.model_name_or_path"),
        ("max_steps: 3", "only the command line takes it"),
        ("data.max_len: 5000", "--data.max_len 5000 is over the 512 positions"),
        ("train.batch_size: 33", "--train.batch_size 33"),
        ("ckpt.output_dir: /dev/null/out", "no file can be created there"),
        ("reward.remote_url: nowhere.py", "--reward.remote_url: would have no effect"),
        ("train.colocate_all: true", "there is none here"),
        ("rollout.temperature: 0", "is out of range"),
        ("algo.advantage.lambd: 0.9", "has no effect with --algo.advantage.estimator reinforce"),
        ("groups.by: task", "--groups.by: belongs to"),
        ("actor: {adam: {lr: 1}}", "flags are written flat: actor.adam.lr"),
        ("logger.wandb.group:", "has no value"),
    ],
)
@pytest.mark.parametrize(
    "file", ["tiny.yaml", "recipe.yaml"]
)  # the second is extended by the first
def test_a_recipes_flag_is_named_by_file_and_line(recipe, flag, part, file):
    name = flag.partition(":")[0]
    for yaml in recipe.folder.glob("*.yaml"):  # take the flag out where it stands already
        yaml.write_text(
            "".join(
                line
                for line in yaml.read_text().splitlines(True)
                if not line.strip().startswith(f"{name}:")
            )
        )
    recipe("\nflags:\n", f"\nflags:\n  {flag}\n", file)
    place = line_of(recipe.folder / file, f"  {flag}")
    found = problems("--recipe", recipe.folder / "tiny.yaml")
    assert any(place in p.partition(": ")[0].split(", ") and part in p for p in found), found


@pytest.mark.parametrize(
    ("flag", "code"),
    [("actor: {adam: {lr: 1}}", "recipe.nested_flags"), ("logger.wandb.group:", "recipe.no_value")],
)
def test_a_flag_without_one_value_has_a_code(recipe, flag, code):
    recipe("\nflags:\n", f"\nflags:\n  {flag}\n")
    found = found_by(build_plan, ["--recipe", str(recipe.folder / "tiny.yaml")])
    assert code in {problem[0] for problem in found}


def test_a_policys_own_flag_is_named_by_file_and_line(recipe):
    tiny = recipe(
        'coder: {model: "tiny:seed=1"}',
        'coder: {model: "tiny:seed=1", flags: {data.max_len: 5000}}',
    )
    place = line_of(tiny, "data.max_len: 5000")
    assert only(
        problems("--recipe", tiny), "policy 'coder'", "5000 is over the 512 positions"
    ).startswith(place)


def test_a_flag_that_the_command_line_overrides_is_not_the_recipes(recipe):
    tiny = recipe("\nflags:\n", "\nflags:\n  ckpt.output_dir: runs/mine\n")
    wrong = only(
        problems("--recipe", tiny, "--ckpt.output_dir", "/dev/null/out"),
        "no file can be created there",
    )
    assert wrong.startswith("--ckpt.output_dir: /dev/null/out")
    wrong = only(
        problems("--recipe", tiny, "--policy.coder.data.max_len", "5000"),
        "5000 is over the 512 positions",
    )
    assert wrong.startswith("policy 'coder': --data.max_len 5000")


def test_a_model_is_named_by_file_and_line(recipe):
    tiny = recipe('coder: {model: "tiny:seed=1"}', "coder: {model: /no/such}")
    only(
        problems("--recipe", tiny),
        "policy 'coder'",
        line_of(tiny, "/no/such"),
        "model '/no/such' is neither",
    )


def test_policies_without_a_model_are_named(recipe):
    text = (recipe.folder / "tiny.yaml").read_text()
    text = re.sub(r"^model:.*\n", "model: null\n", text, flags=re.MULTILINE)
    (recipe.folder / "tiny.yaml").write_text(
        re.sub(r"^policies:\n(  .*\n)+", "", text, flags=re.MULTILINE)
    )
    only(
        problems("--recipe", recipe.folder / "tiny.yaml"),
        "'solver', 'coder', 'verifier': it has no model; give `model:`",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n", [("recipe.value", "r.yaml")]),
        (
            "name: r\nroles: [a]\nworkflow: w.py\n",
            [("recipe.value", "r.yaml:2", "roles")],
        ),
        (
            "name: r\nroles: {a: p.md}\nworkflow: w.py\n",
            [("recipe.value", "r.yaml:2", "roles.a")],
        ),
        (
            "name: r\nroles: {a: {prompt: p.md}}\nworkflow: w.py\nflags: 3\n",
            [("recipe.value", "r.yaml:4", "flags")],
        ),
        (
            "name: r\nroles: {a: {prompt: p.md}}\nworkflow: w.py\npolicies: {a: x}\n",
            [("recipe.value", "r.yaml:4", "policies.a")],
        ),
        (
            "name: r\nroles: {class: {prompt: p.md}}\nworkflow: w.py\n",
            [
                ("roles.keyword", "r.yaml:2", "class"),
                ("files.unreadable", "r.yaml:2", "roles.class.prompt", "p.md"),
                ("models.none", "class"),
                ("files.missing", "r.yaml:3", "workflow", "w.py"),
                ("scores.none",),
                ("tasks.none",),
            ],
        ),
    ],
)
def test_mistakes_of_shape_show_what_is_expected(tmp_path, text, expected):
    (tmp_path / "r.yaml").write_text(text)
    with refused(*expected):
        build_plan(["--recipe", str(tmp_path / "r.yaml")])


# --- files that cannot be read
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_of_a_recipe(name):
    only(problems("--recipe", name), "--recipe is empty")


@pytest.mark.parametrize(
    "file", ["prompts/solver.md", "workflow.py", "grader.py", "tasks.py", "recipe.yaml"]
)
def test_a_folder_in_a_files_place_is_named(recipe, file):
    (recipe.folder / file).unlink()
    (recipe.folder / file).mkdir()
    assert any(
        str(recipe.folder / file) in p for p in problems("--recipe", recipe.folder / "tiny.yaml")
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--recipe", "x" * 300],
        ["--recipe", TINY, "--plugin", "x" * 300 + ".py"],
        ["--recipe", TINY, "--actor.model_name_or_path", "/" + "x" * 300],
        ["--recipe", TINY, "--ckpt.path", "x" * 300],
        ["--recipe", TINY, "--data.prompt_dataset", "x" * 300 + ".jsonl"],
    ],
    ids=lambda words: words[-2],
)
def test_what_the_system_refuses_is_named(words):
    """A name that is too long is refused as a folder without permission is, also to root."""
    assert any("x" * 100 in p for p in problems(*words))


# --- user code that fails while a run is planned
# --------------------------------------------------------------------------

RAISES = {
    "an exception": ("{}raise LookupError('no such thing')", "LookupError: no such thing"),
    "a call of exit": ("{}import sys; sys.exit(3)", "sys.exit(3) ends the program"),
    "a library's exception": ("{}import json; json.loads('[')", "JSONDecodeError"),
}
HOOKS = {
    "marl_options(parser)": "marl_options",
    "marl_configure(run)": "marl_configure",
    "marl_tasks(run, split)": "marl_tasks",
    "marl_policies(run)": "marl_policies",
    "marl_tools(run)": "marl_tools",
    "marl_workflow(run)": "marl_workflow",
}


@pytest.mark.parametrize(("code", "said"), RAISES.values(), ids=RAISES)
@pytest.mark.parametrize("file", ["workflow.py", "grader.py", "tasks.py"])
def test_a_recipes_file_that_fails_when_it_is_imported(recipe, file, code, said):
    path = recipe.folder / file
    path.write_text("# mine\n" + code.format("") + "\n" + path.read_text())
    only(problems("--recipe", recipe.folder / "tiny.yaml"), f"{path}:2: {said}")


@pytest.mark.parametrize(("code", "said"), RAISES.values(), ids=RAISES)
def test_a_plugin_that_fails_when_it_is_imported(tmp_path, code, said):
    (tmp_path / "mine.py").write_text("import math\n" + code.format("") + "\n")
    only(
        problems("--recipe", TINY, "--plugin", tmp_path / "mine.py"),
        f"{tmp_path}/mine.py:2: {said}",
    )


@pytest.mark.parametrize(("hook", "name"), HOOKS.items(), ids=HOOKS.values())
@pytest.mark.parametrize(("code", "said"), RAISES.values(), ids=RAISES)
def test_a_plugins_hook_that_fails(tmp_path, hook, name, code, said):
    text = f"from marl_plugins import hookimpl\n\n@hookimpl\ndef {hook}:\n{code.format('    ')}\n"
    (tmp_path / "mine.py").write_text(text)
    only(
        problems("--recipe", TINY, "--plugin", tmp_path / "mine.py"),
        f"{tmp_path}/mine.py:5: {name}: {said}",
    )


def test_a_recipes_load_that_fails(recipe):
    path = recipe.folder / "tasks.py"
    path.write_text(path.read_text() + "\ndef load(split):\n    return {}['train']\n")
    only(
        problems("--recipe", recipe.folder / "tiny.yaml"),
        f"{line_of(path, 'return {}')}: marl_tasks: KeyError: 'train'",
    )


def test_a_file_that_is_not_python(tmp_path):
    (tmp_path / "mine.py").write_text("def marl_options(:\n")
    only(problems("--plugin", tmp_path / "mine.py"), f"{tmp_path}/mine.py:1: invalid syntax")
    (tmp_path / "zero.py").write_bytes(b"x = 1\0\n")
    only(problems("--plugin", tmp_path / "zero.py"), f"{tmp_path}/zero.py: ")


def test_a_helper_beside_a_plugin_is_the_users_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "helper_of_messages.py").write_text("def f():\n    1 / 0\n\nf()\n")
    (tmp_path / "mine.py").write_text("import helper_of_messages\n")
    only(
        problems("--plugin", tmp_path / "mine.py"),
        f"{tmp_path}/helper_of_messages.py:2: ZeroDivisionError",
    )


def test_what_a_plugin_requires_is_a_list_of_names(tmp_path):
    (tmp_path / "mine.py").write_text("requires = 'marl_plugins.coach'\n")
    only(
        problems("--plugin", tmp_path / "mine.py"),
        "requires: expected a list of names of plugins, got 'marl_plugins.coach'",
    )


@pytest.mark.parametrize(("debug", "traceback"), [([], False), (["--debug"], True)])
def test_a_traceback_only_to_debug(tmp_path, debug, traceback):
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(3)\n")
    words = ["train", "--recipe", TINY, "--plugin", str(tmp_path / "mine.py"), "--dry-run", *debug]
    done = subprocess.run(
        [sys.executable, "-m", "marl_plugins", *words], capture_output=True, text=True, cwd=ROOT
    )
    assert ("Traceback" in done.stderr) == traceback and "mine.py:2" in done.stderr
    assert traceback or done.returncode == 2


# --- the pages on clusters and for users of OpenRLHF
# ----------------------------------------------------------------------

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


@pytest.mark.parametrize("page", ["slurm.md", "from_openrlhf.md"])
def test_the_flags_and_files_of_a_page_exist(page):
    text = (ROOT / "docs" / page).read_text()
    commands = (
        "\n".join(re.findall(r"^    .*$", text, re.MULTILINE))
        + "\n"
        + "\n".join(re.findall(r"`([^`|]+)`", text))
    )
    for file in re.findall(r"\b(?:entrypoints|tests)/[\w/]+\.\w+", text):
        assert (ROOT / file).is_file(), file
    from marl_plugins.engine.manager import Plugins

    parser = upstream_cli.build_parser(upstream_cli.upstream_root())
    Plugins(["marl_plugins.coach"]).options(parser)
    others = {option for action in own_parser()._actions for option in action.option_strings}
    known = {option for action in parser._actions for option in action.option_strings} | others
    known |= {f"--{old}" for old in itertools.chain(old_flags().renamed, old_flags().gone)}
    slurms = {"--nodes", "--gpus-per-node", "--cpus-per-task", "--time", "--requeue"}
    for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", commands):
        assert flag in known | slurms or flag.startswith("--policy."), flag


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
