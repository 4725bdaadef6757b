"""What a recipe and a command line make of a run: which value counts, which model, which tasks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import briefs

from marl_plugins.core.recipe.shipped import shipped_recipes
from marl_plugins.core.recipe.tasks import read_tasks
from marl_plugins.engine.hosts import upstream_cli
from marl_plugins.engine.hosts.flags import flags_of
from marl_plugins.engine.hosts.releases import TRAINED
from marl_plugins.engine.hosts.seams import check_seams, seams_of
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.fingerprint import fingerprint

ROOT = Path(__file__).resolve().parent.parent
SUMS = ROOT / "tests" / "recipes" / "sums"
TINY = str(SUMS / "tiny.yaml")
RLOO = "--algo.advantage.estimator rloo --rollout.n_samples_per_prompt 4 --groups.by"


def planned(words="", recipe=TINY):
    return build_plan(["--recipe", str(recipe), *words.split()])


PLANNED = [path for path in shipped_recipes() if path.parent.name != "environments"]
"""Those of environments need packages of others (test_environments.py)."""


@pytest.fixture
def recipe(tmp_path):
    """A copy of a recipe; `edit(old, new)` changes its tiny.yaml's base."""
    shutil.copytree(SUMS, tmp_path / "mathchat")
    folder = tmp_path / "mathchat"

    def edit(old, new, file="recipe.yaml"):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
        return folder / "tiny.yaml"

    edit.folder = folder
    return edit


@pytest.mark.parametrize("path", PLANNED, ids=lambda path: "/".join(path.parts[-2:]))
def test_every_shipped_recipe_has_a_plan_without_a_warning(path, monkeypatch):
    on_cpu = path.name.startswith(("tiny", "pool"))
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cpu" if on_cpu else "cuda")
    plan = build_plan(["--recipe", str(path)])
    expected = ["mathchat.generated"] * path.name.endswith("paper.yaml")  # without the files
    assert [warning.code for warning in plan.run.warnings] == expected
    assert json.dumps(describe(plan))


def test_a_flag_at_its_default_does_no_harm_with_any_estimator():
    plan = planned(f"{RLOO} task+role+turn --algo.advantage.gamma 1.0")
    estimator = plan.plugins.hook.marl_estimator(run=plan.run)
    assert (type(estimator).__name__, estimator.group_by) == ("LeaveOneOut", "task+role+turn")


def test_a_critic_starts_from_its_policys_model_or_its_own():
    plan = planned(
        "--algo.advantage.estimator gae --policy.coder.critic.model_name_or_path tiny:seed=9 "
        "--critic.adam.lr 2e-5 --policy.solver.critic.adam.lr 3e-5"
    )
    run = plan.run
    assert {name: a.critic.model_name_or_path for name, a in run.policy_args.items()} == {
        "solver": "tiny",
        "coder": "tiny:seed=9",
        "verifier": "tiny:seed=2",
    }
    assert [a.critic.adam.lr for a in run.policy_args.values()] == [3e-5, 2e-5, 2e-5]
    assert describe(plan)["devices"] == {"solver": 3, "coder": 3, "verifier": 3}
    assert fingerprint(plan)["policies"]["solver"]["critic"] == 1
    plain = planned()
    assert describe(plain)["policies"]["solver"]["critic"] is None
    assert "critic" not in fingerprint(plain)["policies"]["solver"]


@pytest.mark.parametrize(
    ("mapping", "policies"),
    [
        ("separate", ["solver", "coder", "verifier"]),
        ("shared", ["shared"]),
        ("solver=a,coder=a,verifier=b", ["a", "b"]),
    ],
)
def test_one_line_shares_policies_in_full_in_part_or_not(recipe, mapping, policies):
    of_policies = 'policies:\n  coder: {model: "tiny:seed=1"}\n  verifier: {model: "tiny:seed=2"}\n'
    run = planned(f"--mapping {mapping}", recipe(of_policies, "", "tiny.yaml")).run
    assert [p.name for p in run.policies] == policies


def test_the_command_line_chooses_the_model():
    run = planned(
        "--actor.model_name_or_path tiny:seed=8 --policy.coder.actor.model_name_or_path tiny:seed=9"
    ).run
    assert {p.name: p.model for p in run.policies} == {
        "solver": "tiny:seed=8",
        "coder": "tiny:seed=9",
        "verifier": "tiny:seed=8",
    }


def test_policies_that_a_mapping_leaves_idle_are_a_warning():
    run = planned("--mapping shared").run
    assert [p.name for p in run.policies] == ["shared"]
    assert set(briefs(run.warnings)) == {("policies.idle",)}


def test_precedence_command_line_recipe_defaults_upstream():
    run = planned("--actor.adam.lr 3e-4 --policy.coder.actor.adam.lr 5e-5").run
    assert run.args.algo.advantage.estimator == "reinforce"  # our default
    assert run.args.rollout.batch_size == 32  # the recipe's
    assert run.args.train.seed == 42  # upstream's
    rates = {name: args.actor.adam.lr for name, args in run.policy_args.items()}
    assert rates == {"solver": 3e-4, "coder": 5e-5, "verifier": 3e-4}


@pytest.mark.parametrize(
    ("words", "output", "path"),
    [
        ("", "runs/vote", "runs/vote/checkpoints"),
        ("--ckpt.output_dir mine", "mine", "mine/checkpoints"),
        ("--ckpt.path saved", "runs/vote", "saved"),
    ],
)
def test_a_recipe_has_folders_of_its_own_by_default(words, output, path):
    ckpt = planned(words, "vote/tiny.yaml").run.args.ckpt
    assert (ckpt.output_dir, ckpt.path) == (output, path)


@pytest.mark.parametrize(
    ("words", "rate"),
    [("", 7e-3), ("--actor.adam.lr 1e-7", 1e-7), ("--policy.coder.actor.adam.lr 2e-7", 2e-7)],
)
def test_the_command_line_beats_what_the_recipe_says_of_one_policy(recipe, words, rate):
    tiny = recipe('"tiny:seed=1"}', '"tiny:seed=1", flags: {actor.adam.lr: 7e-3}}', "tiny.yaml")
    assert planned(words, tiny).run.policy_args["coder"].actor.adam.lr == rate


def test_a_plugin_alone_makes_one_role_of_upstreams_own_flags(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"input": "1+1=", "label": "2"}\n' * 8)
    (tmp_path / "reward.py").write_text("def reward_func(q, p, l): return {'rewards': [1.0]}\n")
    words = (
        "--plugin marl_plugins.filter_agents_data --actor.model_name_or_path tiny "
        f"--data.prompt_dataset {tmp_path}/data.jsonl --reward.remote_url {tmp_path}/reward.py "
        "--rollout.batch_size 8 --train.batch_size 8 --data.label_key label --data.max_len 256"
    )
    plan = build_plan(words.split())
    assert [p.name for p in plan.run.policies] == ["agent"]
    assert plan.tasks("train")[0].label == "2"


def test_the_flag_table_is_upstreams_parser():
    assert flags_of(TRAINED) == upstream_cli.build_parser(upstream_cli.upstream_root()).of_upstream


def test_all_seams_hold_in_the_installed_release():
    assert check_seams(upstream_cli.upstream_root(), seams_of(TRAINED)) == []


def test_a_changed_seam_is_named(tmp_path):
    root = tmp_path / "openrlhf"
    shutil.copytree(
        upstream_cli.upstream_root(), root, ignore=shutil.ignore_patterns("__pycache__")
    )
    file = root / "trainer/ray/ppo_actor.py"
    file.write_text(
        file.read_text().replace("def fit(self, kl_ctl: float = 0)", "def fit(self, kl: float = 0)")
    )
    (root / "trainer/ppo_utils/length_penalty.py").unlink()
    gone, changed = sorted(check_seams(root, seams_of(TRAINED)), key=lambda seam: "fit" in seam)
    assert "trainer.ppo_utils.length_penalty" in gone and "PolicyModelActor.fit" in changed


# --- task files


def test_both_layouts_give_the_same_tasks(tmp_path):
    items = [
        {"id": f"q{n}", "prompt": f"{n}?", "answer": str(n), "year": 2000 + n} for n in range(3)
    ]
    (tmp_path / "a.json").write_text(json.dumps(items))
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(i) for i in items))
    one, two = (read_tasks(tmp_path / name, "prompt", "answer") for name in ("a.json", "a.jsonl"))
    assert one == two
    assert (one[1].id, one[1].prompt, one[1].label, one[1].metadata) == (
        "q1",
        "1?",
        "1",
        {"year": 2001},
    )


@pytest.mark.parametrize(
    ("items", "prompt", "label"),
    [
        ([{"problem": "1+1", "answer": 2}], "1+1", 2),
        ([{"Question": "1+1", "Answer": "2", "ID": 7}], "1+1", "2"),
        ({"version": 1, "data": [{"query": "1+1"}]}, "1+1", None),
        ([{"prompt": [{"role": "user", "content": "1+1"}], "label": "2"}], "1+1", "2"),
    ],
)
def test_the_usual_layouts_need_no_keys(tmp_path, items, prompt, label):
    (tmp_path / "data.json").write_text(json.dumps(items))
    task = read_tasks(tmp_path / "data.json")[0]
    assert (task.prompt, task.label) == (prompt, label)


# --- the command


LIGHT = """
import contextlib, io, sys
from marl_plugins.cli import main
for code, words in (2, ["train"]), *((0, words) for words in {commands}):
    with contextlib.redirect_stdout(io.StringIO()):
        ended = main(words)
    heavy = {{"torch", "ray", "transformers", "numpy", "openai", "vllm", "deepspeed", "openrlhf"}}
    heavy |= {{"pydantic"}} if words == ["train"] else set()
    assert ended == code and not heavy & set(sys.modules), (words, ended, heavy & set(sys.modules))
"""


def test_light_commands_import_nothing_heavy():
    commands = [
        ["--help"],
        ["--version"],
        ["plugins"],
        ["train", "--help"],
        ["train", "--recipe", TINY, "--dry-run"],
        ["doctor", "--static"],
    ]
    script = LIGHT.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
