"""Everything wrong is said at once, before anything starts, with its place and the cure."""

import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import briefs, found_by, refused

from marl_plugins.cli import dispatch
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.recipe_yaml import read_recipe
from marl_plugins.core.recipe.schema import base_of
from marl_plugins.core.recipe.shipped import shipped_recipes
from marl_plugins.core.recipe.tasks import read_tasks
from marl_plugins.engine.hosts import upstream_cli
from marl_plugins.engine.hosts.flags import FLAGS, flags_of
from marl_plugins.engine.hosts.releases import TRAINED
from marl_plugins.engine.hosts.seams import check_seams, seams_of
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.fingerprint import fingerprint

ROOT = Path(__file__).resolve().parent.parent
SUMS = ROOT / "tests" / "recipes" / "sums"
RLOO = ["--algo.advantage.estimator", "rloo", "--rollout.n_samples_per_prompt", "4", "--groups.by"]
GAE = ["--algo.advantage.estimator", "gae"]
HEAVY = ("torch", "ray", "transformers", "numpy", "openai", "vllm", "deepspeed", "openrlhf")


@pytest.fixture
def recipe(tmp_path):
    """A copy of the shipped recipe that may be spoilt; `edit(old, new)` changes its tiny.yaml's
    base."""
    shutil.copytree(SUMS, tmp_path / "mathchat")
    folder = tmp_path / "mathchat"

    def edit(old, new, file="recipe.yaml"):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
        return folder

    edit.folder = folder
    return edit


def problems(*words):
    with pytest.raises(ConfigurationError) as caught:
        build_plan(list(words))
    return [*map(str, caught.value.problems)]


def only(found, *parts):
    """The one problem in which all parts occur."""
    matching = [p for p in found if all(part in p for part in parts)]
    assert len(matching) == 1, f"{parts} in {found}"
    return matching[0]


@pytest.mark.parametrize("path", shipped_recipes(), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_shipped_recipe_is_valid(path, monkeypatch):
    of_cpu = path.name.startswith(("tiny", "pool"))
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cpu" if of_cpu else "cuda")
    assert json.dumps(describe(build_plan(["--recipe", str(path)])))


def test_many_mistakes_are_reported_together(recipe):
    recipe("workflow: workflow.py", "workflow: workfow.py\nmodle: x")
    recipe("max_turns: 3", "max_turns: many")
    recipe("tasks: tasks.py", "taks: tasks.py")
    found = problems("--recipe", str(recipe.folder))
    only(found, "recipe.yaml:", "modle: unknown key", "did you mean 'model'?")
    only(found, "roles.coder.max_turns", "got 'many'")
    only(found, "taks: unknown key", "did you mean 'tasks'?")


def test_mistakes_beyond_the_yaml_are_reported_together(recipe):
    recipe("workflow: workflow.py", "workflow: workfow.py")
    recipe("prompt: prompts/solver.md", "prompt: prompts/sovler.md")
    recipe("tools: [python]", "tools: [pyhton]")
    recipe("actor.adam.lr", "actor.adam.rl")
    found = problems(
        "--recipe",
        str(recipe.folder / "tiny.yaml"),
        "--train.batch_size",
        "33",
        "--policy.sovler.actor.adam.lr",
        "1",
        "--rollout.temperature",
        "hot",
    )
    only(found, "workflow:", "workfow.py: no such file")
    only(found, "roles.solver.prompt", "sovler.md")
    only(found, "there is no tool 'pyhton'", "did you mean 'python'?")
    only(found, "--actor.adam.rl: unknown flag", "did you mean 'actor.adam.lr'?", "recipe.yaml:")
    only(found, "there is no policy 'sovler'", "did you mean 'solver'?", "command line")
    only(found, "--rollout.temperature", "invalid float value: 'hot'")
    only(found, "32 trajectories", "--train.batch_size 33", "does not divide")


def test_lines_are_those_of_the_file(recipe):
    folder = recipe("model: Qwen", "modle: Qwen")
    line = next(
        n
        for n, text in enumerate((folder / "recipe.yaml").read_text().splitlines(), 1)
        if text.startswith("modle")
    )
    only(problems("--recipe", str(folder)), f"recipe.yaml:{line}: modle: unknown key")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--plugin", "marl_plugins.routnig"], [("plugin.unknown", "marl_plugins.routnig")]),
        (["--plugin", "no/such.py"], [("files.missing", "such.py")]),
        (["--recipe", "mathchatt"], [("recipe.none",)]),
        (
            ["--plugin", "marl_plugins.filter_agents_data", "--filter_agents_data.multiple", "0"],
            [("flags.value", "command line", "filter_agents_data.multiple")],
        ),
        (
            ["--train.partial_rollout_enable"],
            [("upstream.refused",)],
        ),
        (["--ds.lora.rank", "8"], [("policies.adapter", "ds.lora.rank")]),
        (["--ds.load_in_4bit"], [("flags.refused", "command line", "ds.load_in_4bit")]),
        (
            ["--ds.packing_samples", "--ds.attn_implementation", "flex"],
            [("devices.packing", "ds.packing_samples")],
        ),
        (["--ds.ring_attn_size", "2"], [("devices.ring_attention",)]),
        (
            ["--train.dynamic_batch_enable", "--train.max_tokens_per_gpu", "100"],
            [("lengths.micro_batch", "tiny.yaml:14", "train.max_tokens_per_gpu")],
        ),
        (
            ["--train.agent_func_path", "a.py"],
            [("flags.replaced", "command line", "train.agent_func_path")],
        ),
        (
            ["--policy.solver.train.batch_size", "4"],
            [("flags.whole_run", "command line", "train.batch_size")],
        ),
        (["--groups.by", "task"], [("flags.other_estimator", "groups.by")]),
        (["--gae.scope", "policy"], [("flags.other_estimator", "gae.scope")]),
        (
            ["--algo.advantage.lambd", "0.9"],
            [("flags.idle", "command line", "algo.advantage.lambd")],
        ),
        (
            ["--policy.coder.critic.adam.lr", "1e-5"],
            [("flags.idle", "command line", "critic.adam.lr")],
        ),
        ([*RLOO, "task"], [("estimator.turns", "groups.by", "LeaveOneOut")]),
        ([*RLOO, "task+role"], [("estimator.turns", "groups.by", "LeaveOneOut")]),
        (
            [*RLOO, "task+role+turn", "--reinforce_pp.scope", "policy"],
            [("flags.other_estimator", "reinforce_pp.scope")],
        ),
        (
            [*RLOO, "task+role+turn", "--algo.advantage.gamma", "0.9"],
            [("flags.idle", "command line", "algo.advantage.gamma")],
        ),
        (
            [*RLOO, "task+role+turn", "--algo.advantage.no_std_norm"],
            [("flags.idle", "command line", "algo.advantage.no_std_norm")],
        ),
        ([*GAE, "--groups.scope", "policy"], [("flags.other_estimator", "groups.scope")]),
        (
            [*GAE, "--algo.advantage.lambd", "1.5"],
            [("flags.value", "command line", "algo.advantage.lambd")],
        ),
        ([*GAE, "--critic.adam.lr", "nan"], [("flags.value", "command line", "critic.adam.lr")]),
        (
            [*GAE, "--critic.num_gpus_per_node", "0"],
            [("flags.value", "command line", "critic.num_gpus_per_node")],
        ),
        (
            [*GAE, "--critic.model_name_or_path", "/no/such"],
            [("models.unknown", "critic.model_name_or_path")],
        ),
        (
            [*GAE, "--train.colocate_critic_reward"],
            [("flags.refused", "command line", "train.colocate_critic_reward")],
        ),
        (
            [*GAE, "--logical_gpus", "8"],
            [("plan.logical_gpus", "recipe.yaml:24", "recipe.yaml:26", "logical_gpus")],
        ),
        (
            [*GAE, "--train.colocate_all", "--critic.num_gpus_per_node", "2"],
            [("devices.colocated",), ("devices.no_gpu",)],
        ),
        (["--ds.zero_stage", "4"], [("flags.value", "command line", "ds.zero_stage")]),
        (["--vllm.num_engines", "0"], [("flags.value", "command line", "vllm.num_engines")]),
        (["--rollout.max_new_tokens", "500"], [("lengths.no_room", "tiny.yaml:14")]),
        (
            ["--logical_gpus", "5"],
            [("plan.logical_gpus", "recipe.yaml:24", "recipe.yaml:26", "logical_gpus")],
        ),
        (["--mapping", "solver=a,coder=a"], [("roles.unmapped", "mapping")]),
        (["--mapping", "nonsense"], [("flags.mapping", "mapping")]),
        (["--policy.a"], [("flags.of_policy", "command line", "policy.a")]),
        (["--policy.coder.actor.model_name_or_path", "/no/such"], [("models.unknown", "coder")]),
        (["--actor.model_name_or_path", "/no/such"], [("models.unknown",)]),
        (["--actor.model_name_or_path", "tiny:foo=1"], [("models.tiny_setting", "tiny:foo=1")]),
        (["--actor.model_name_or_path", "tiny:heads=0"], [("models.tiny_setting", "tiny:heads=0")]),
        (["--data.max_len", "5000"], [("lengths.positions",)]),
        (
            ["--data.prompt_dataset", "x.jsonl"],
            [("tasks.no_file", "data.prompt_dataset", "x.jsonl")],
        ),
        (
            ["--reward.remote_url", "x.py"],
            [("flags.pointless", "reward.remote_url"), ("reward.file", "reward.remote_url")],
        ),
        (
            ["--actor.num_gpus_per_node", "0"],
            [("flags.value", "command line", "actor.num_gpus_per_node")],
        ),
        (["--train.max_epochs", "0"], [("flags.value", "command line", "train.max_epochs")]),
        (
            ["--rollout.max_new_tokens", "-3"],
            [("flags.value", "command line", "rollout.max_new_tokens")],
        ),
        (["--ds.zero_stage", "7"], [("flags.value", "command line", "ds.zero_stage")]),
        (["--actor.adam.lr", "nan"], [("flags.value", "command line", "actor.adam.lr")]),
        (
            ["--rollout.temperature", "0"],
            [("flags.value", "command line", "rollout.temperature")],
        ),
        (["--rollout.top_p", "1.5"], [("flags.value", "command line", "rollout.top_p")]),
        (["--eval.temperature", "-1"], [("flags.value", "command line", "eval.temperature")]),
        (["--reward.overlong_buffer_len", "99"], [("lengths.overlong", "tiny.yaml:11")]),
        (
            ["--actor.aux_loss_coef", "0.1"],
            [("flags.refused", "command line", "actor.aux_loss_coef")],
        ),
        (["--train.colocate_all"], [("devices.no_gpu",)]),
        (
            ["--train.colocate_all", "--vllm.num_engines", "2"],
            [("devices.colocated",), ("devices.no_gpu",)],
        ),
        (["--plugin", ""], [("plugin.name",)]),
        (["--ckpt.output_dir", "/dev/null/out"], [("files.unwritable", "ckpt.output_dir", "out")]),
        (["--max_steps", "0"], [("flags.value", "command line", "max_steps")]),
        (["--rollout.batch_size", "0"], [("flags.value", "command line", "rollout.batch_size")]),
        (["--algo.advantage.is_correction_threshold", "1", "2", "3"], [("upstream.refused",)]),
    ],
)
def test_bad_flags(words, expected):
    base = [] if words[0] == "--recipe" else ["--recipe", str(SUMS / "tiny.yaml")]
    with refused(*expected):
        build_plan([*base, *words])


def test_a_flag_at_its_default_does_no_harm_with_any_estimator():
    plan = build_plan(
        [
            "--recipe",
            str(SUMS / "tiny.yaml"),
            *RLOO,
            "task+role+turn",
            "--algo.advantage.gamma",
            "1.0",
        ]
    )
    estimator = plan.plugins.hook.marl_estimator(run=plan.run)
    assert (type(estimator).__name__, estimator.group_by) == ("LeaveOneOut", "task+role+turn")


@pytest.mark.parametrize(
    "name",
    ["reinforce", "flash_reinforce", "rloo", "reinforce_baseline", "dr_grpo", "group_norm", "gae"],
)
def test_every_estimator_of_upstreams_is_there(name):
    grouped = name not in ("reinforce", "flash_reinforce", "gae")
    more = [*RLOO[2:], "task+role+turn", "--groups.scope", "policy"] if grouped else []
    plan = build_plan(
        ["--recipe", str(SUMS / "tiny.yaml"), "--algo.advantage.estimator", name, *more]
    )
    estimator = plan.plugins.hook.marl_estimator(run=plan.run)
    assert estimator.needs_critic == (name == "gae")
    assert estimator.return_scope == ("policy" if more else "action")
    assert estimator.gamma == 1


def test_roles_that_are_not_trained_may_differ_within_a_group(recipe):
    folder = recipe(
        'coder: {model: "tiny:seed=1"}',
        'coder: {model: "tiny:seed=1", trainable: false}',
        file="tiny.yaml",
    )
    words = ["--recipe", str(folder / "tiny.yaml"), *RLOO]
    only(problems(*words, "task"), "LeaveOneOut: groups by task, but 2 roles saw different inputs")
    build_plan([*words, "task+role"])


def test_a_critic_starts_from_its_policys_model_or_its_own():
    words = [
        "--recipe",
        str(SUMS / "tiny.yaml"),
        *GAE,
        "--policy.coder.critic.model_name_or_path",
        "tiny:seed=9",
    ]
    plan = build_plan(
        [*words, "--critic.adam.lr", "2e-5", "--policy.solver.critic.adam.lr", "3e-5"]
    )
    run = plan.run
    assert {name: a.critic.model_name_or_path for name, a in run.policy_args.items()} == {
        "solver": "tiny",
        "coder": "tiny:seed=9",
        "verifier": "tiny:seed=2",
    }
    assert [a.critic.adam.lr for a in run.policy_args.values()] == [3e-5, 2e-5, 2e-5]
    assert {p["critic"] for p in describe(plan)["policies"].values()} == {
        "tiny",
        "tiny:seed=9",
        "tiny:seed=2",
    }
    assert describe(plan)["devices"] == {"solver": 3, "coder": 3, "verifier": 3}
    assert fingerprint(plan)["policies"]["solver"]["critic"] == 1
    plain = build_plan(words[:2])
    assert describe(plain)["policies"]["solver"]["critic"] is None
    assert "critic" not in fingerprint(plain)["policies"]["solver"]


def test_a_model_that_does_not_exist_and_one_without_a_chat_template(recipe, tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    (tmp_path / "bare" / "tokenizer_config.json").write_text("{}")
    folder = recipe("model: tiny", f"model: {tmp_path}/missing", file="tiny.yaml")
    recipe(
        'coder: {model: "tiny:seed=1"}', f'coder: {{model: "{tmp_path}/bare"}}', file="tiny.yaml"
    )
    found = problems("--recipe", str(folder / "tiny.yaml"))
    only(found, "policy 'solver'", "missing' is neither a folder that exists nor a hub name")
    only(found, "policy 'coder'", "has no chat template")


def test_a_role_mapped_to_a_missing_policy(recipe):
    folder = recipe("mapping: separate  ", "mapping: {solver: a, coder: a, verfier: b}  ")
    found = found_by(build_plan, ["--recipe", str(folder / "tiny.yaml")])
    assert found[0] == ("roles.unknown", "recipe.yaml:11", "mapping")
    assert [code for code, *_ in found[1:]] == ["policies.unused"] * 2


@pytest.mark.parametrize(
    ("mapping", "policies"),
    [
        ("separate", ["solver", "coder", "verifier"]),
        ("shared", ["shared"]),
        ("solver=a,coder=a,verifier=b", ["a", "b"]),
    ],
)
def test_one_line_shares_policies_in_full_in_part_or_not(recipe, mapping, policies):
    folder = recipe(
        'policies:\n  coder: {model: "tiny:seed=1"}\n  verifier: {model: "tiny:seed=2"}\n',
        "",
        file="tiny.yaml",
    )
    run = build_plan(["--recipe", str(folder / "tiny.yaml"), "--mapping", mapping]).run
    assert [p.name for p in run.policies] == policies


def test_numbers_with_exponents_and_dashes_are_values():
    tiny = str(SUMS / "tiny.yaml")
    run = build_plan(
        ["--recipe", tiny, "--reward.clip_range", "-1e-1", "1", "--logger.wandb.group=-x"]
    ).run
    assert run.args.reward.clip_range == [-0.1, 1.0]
    assert run.args.logger.wandb.group == "-x"


def test_false_takes_a_switch_back_and_is_checked(recipe):
    folder = recipe(
        "  actor.adam.lr: 1e-3",
        "  actor.adam.lr: 1e-3\n  vllm.enforce_eager: false",
        file="tiny.yaml",
    )
    run = build_plan(["--recipe", str(folder / "tiny.yaml")]).run
    assert run.args.vllm.enforce_eager is False
    recipe("  actor.adam.lr: 1e-3", "  actor.adam.lr: false\n  no.such: false", file="tiny.yaml")
    found = problems("--recipe", str(folder / "tiny.yaml"))
    only(found, "actor.adam.lr: false is for switches")
    only(found, "--no.such: unknown flag")


def test_the_command_line_chooses_the_model():
    tiny = str(SUMS / "tiny.yaml")
    words = [
        "--actor.model_name_or_path",
        "tiny:seed=8",
        "--policy.coder.actor.model_name_or_path",
        "tiny:seed=9",
    ]
    run = build_plan(["--recipe", tiny, *words]).run
    assert {p.name: p.model for p in run.policies} == {
        "solver": "tiny:seed=8",
        "coder": "tiny:seed=9",
        "verifier": "tiny:seed=8",
    }


def test_policies_that_a_mapping_leaves_idle_are_a_warning():
    run = build_plan(["--recipe", str(SUMS / "tiny.yaml"), "--mapping", "shared"]).run
    assert [p.name for p in run.policies] == ["shared"]
    assert set(briefs(run.warnings)) == {("policies.idle",)} and any(
        "'coder'" in str(w) for w in run.warnings
    )


@pytest.mark.parametrize(
    ("old", "new", "file", "expected"),
    [
        (
            "mapping: separate ",
            "mapping: sepparate ",
            "recipe.yaml",
            [("recipe.value", "recipe.yaml:11", "mapping")],
        ),
        ("name: sums", "name: !foo x", "recipe.yaml", [("recipe.not_yaml", "recipe.yaml:2")]),
        (
            "description: ",
            "description: 2024-13-45 #",
            "recipe.yaml",
            [("recipe.unreadable", "recipe.yaml")],
        ),
        (
            "extends: recipe.yaml",
            "extends: ../mathchat/recipe.yaml",
            "tiny.yaml",
            [("recipe.extends", "tiny.yaml:2", "extends")],
        ),
        (
            "{problem}",
            "{}",
            "prompts/solver.md",
            [("roles.field", "recipe.yaml:5", "roles.solver.prompt", "solver.md")],
        ),
        (
            "{problem}",
            "{a.b}",
            "prompts/solver.md",
            [("roles.field", "recipe.yaml:5", "roles.solver.prompt", "solver.md")],
        ),
        (
            "import re",
            "import re\n1 / 0",
            "grader.py",
            [("code.failed", "recipe.yaml:9", "grader", "grader.py:5")],
        ),
        (
            "  verifier: {prompt",
            "  ver-ifier: {prompt",
            "recipe.yaml",
            [
                ("roles.name", "recipe.yaml:7", "ver-ifier"),
                ("policies.unused", "tiny.yaml:6"),
                ("policies.name", "ver-ifier"),
            ],
        ),
        (
            'f"{a}{sign}{b}"',
            '"same"',
            "tasks.py",
            [("tasks.ids", "train"), ("tasks.ids", "eval"), ("tasks.both_splits",)],
        ),
        (
            "str(label)))",
            "{1}))",
            "tasks.py",
            [("tasks.json", "train/2-2"), ("tasks.json", "eval/2+3")],
        ),
    ],
)
def test_mistakes_in_the_recipes_files(recipe, old, new, file, expected):
    folder = recipe(old, new, file)
    with refused(*expected):
        build_plan(["--recipe", str(folder / "tiny.yaml")])


def test_a_data_file_is_read_by_the_dry_run(recipe):
    folder = recipe("tasks: tasks.py\n", "")
    only(
        problems("--recipe", str(folder / "tiny.yaml"), "--data.prompt_dataset", "/no/data.jsonl"),
        "--data.prompt_dataset: /no/data.jsonl: no such file",
    )


def test_precedence_command_line_recipe_defaults_upstream():
    tiny = str(SUMS / "tiny.yaml")
    run = build_plan(
        ["--recipe", tiny, "--actor.adam.lr", "3e-4", "--policy.coder.actor.adam.lr", "5e-5"]
    ).run
    assert run.args.algo.advantage.estimator == "reinforce"  # our default
    assert run.args.rollout.batch_size == 32  # the recipe's
    assert run.args.train.seed == 42  # upstream's
    rates = {name: args.actor.adam.lr for name, args in run.policy_args.items()}
    assert rates == {"solver": 3e-4, "coder": 5e-5, "verifier": 3e-4}


@pytest.mark.parametrize(
    ("words", "output", "path"),
    [
        ([], "runs/vote", "runs/vote/checkpoints"),
        (["--ckpt.output_dir", "mine"], "mine", "mine/checkpoints"),
        (["--ckpt.path", "saved"], "runs/vote", "saved"),
    ],
)
def test_a_recipe_has_folders_of_its_own_by_default(words, output, path):
    ckpt = build_plan(["--recipe", "vote/tiny.yaml", *words]).run.args.ckpt
    assert (ckpt.output_dir, ckpt.path) == (output, path)


def test_the_command_line_beats_what_the_recipe_says_of_one_policy(recipe):
    tiny = str(
        recipe('"tiny:seed=1"}', '"tiny:seed=1", flags: {actor.adam.lr: 7e-3}}', "tiny.yaml")
        / "tiny.yaml"
    )
    for words, rate in (
        ([], 7e-3),
        (["--actor.adam.lr", "1e-7"], 1e-7),
        (["--policy.coder.actor.adam.lr", "2e-7"], 2e-7),
    ):
        run = build_plan(["--recipe", tiny, *words]).run
        assert run.policy_args["coder"].actor.adam.lr == rate


def test_upstreams_completions_reach_every_policy():
    run = build_plan(["--recipe", str(SUMS / "tiny.yaml"), "--actor.eps_clip", "0.3"]).run
    assert all(args.actor.eps_clip_low_high == (0.3, 0.3) for args in run.policy_args.values())


@pytest.mark.parametrize(
    ("code", "part"),
    [("def reward_func(:", "reward.py:1"), ("x = 1", "has no function reward_func")],
)
def test_a_reward_function_is_tried_before_anything_starts(tmp_path, code, part):
    (tmp_path / "data.jsonl").write_text('{"input": "1+1=", "label": "2"}\n' * 8)
    (tmp_path / "reward.py").write_text(code)
    words = ["--plugin", "marl_plugins.routing", "--actor.model_name_or_path", "tiny"]
    words += [
        "--data.prompt_dataset",
        str(tmp_path / "data.jsonl"),
        "--reward.remote_url",
        str(tmp_path / "reward.py"),
    ]
    only(problems(*words), part)


def test_prompts_that_are_not_text_are_refused(recipe):
    folder = recipe('f"{a} {sign} {b} = ?"', '[{"role": "user", "content": "x"}]', "tasks.py")
    only(
        problems("--recipe", str(folder / "tiny.yaml")),
        "its prompt must be a non-empty string",
        "tasks:",
    )


def test_a_plugin_alone_makes_one_role_of_upstreams_own_flags(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"input": "1+1=", "label": "2"}\n' * 8)
    (tmp_path / "reward.py").write_text("def reward_func(q, p, l): return {'rewards': [1.0]}\n")
    plan = build_plan(
        [
            "--plugin",
            "marl_plugins.filter_agents_data",
            "--actor.model_name_or_path",
            "tiny",
            "--data.prompt_dataset",
            str(tmp_path / "data.jsonl"),
            "--reward.remote_url",
            str(tmp_path / "reward.py"),
            "--rollout.batch_size",
            "8",
            "--train.batch_size",
            "8",
            "--data.label_key",
            "label",
            "--data.max_len",
            "256",
        ]
    )
    assert [p.name for p in plan.run.policies] == ["agent"]
    assert plan.tasks("train")[0].label == "2"


def test_the_flag_table_is_upstreams_parser():
    assert flags_of(TRAINED) == upstream_cli.build_parser(upstream_cli.upstream_root()).of_upstream


def test_flags_that_are_not_honoured_say_why():
    assert all(flag.note for flag in FLAGS.values() if flag.status in ("refused", "replaced"))


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
    found = check_seams(root, seams_of(TRAINED))
    only(found, "PolicyModelActor.fit takes (self, kl), expected (self, kl_ctl)")
    only(found, "openrlhf.trainer.ppo_utils.length_penalty is gone")
    assert len(found) == 2


# --- task files
# --------------------------------------------------------------------------------------------------


def test_every_broken_line_of_a_data_file_is_named(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(
        '{"input": "ok", "label": 1}\n{"input": 3, "label": 1}\n\nnot json\n[1]\n{"inptu": "x", '
        '"label": 1}\n{"input": "y"}\n'
    )
    with pytest.raises(ConfigurationError) as caught:
        read_tasks(file, "input", "label")
    found = [*map(str, caught.value.problems)]
    only(found, "data.jsonl:2", "must be a non-empty string, got a number (3)")
    only(found, "data.jsonl:4", "not JSON")
    only(found, "data.jsonl:5", "expected an object, got a list")
    only(found, "data.jsonl:6", "no field 'input'", "did you mean 'inptu'?")
    only(found, "data.jsonl:7", "no field 'label'")


def test_many_broken_lines_are_counted(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text("x\n" * 100)
    with pytest.raises(ConfigurationError) as caught:
        read_tasks(file, "input", None)
    assert len([*map(str, caught.value.problems)]) == 21
    assert "80 more problems" in [*map(str, caught.value.problems)][-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no tasks in it"),
        ('{"a": 1}', "expected a list of objects, got an object"),
        ("[{]", "not JSON"),
    ],
)
def test_bad_json_files(tmp_path, content, message):
    file = tmp_path / ("data.jsonl" if not content else "data.json")
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_tasks(file, "input", None)


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


def test_evaluation_data_that_was_trained_on_is_refused(recipe, tmp_path):
    folder = recipe("tasks: tasks.py\n", "")
    lines = [json.dumps({"problem": f"{n} + {n} = ?", "answer": str(2 * n)}) for n in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    (tmp_path / "eval.jsonl").write_text(
        "\n".join(
            [
                json.dumps({"problem": "3 +  3 = ?", "answer": "6"}),
                '{"problem": "new", "answer": "1"}',
            ]
        )
    )
    words = [
        "--recipe",
        str(folder / "tiny.yaml"),
        "--data.prompt_dataset",
        str(tmp_path / "train.jsonl"),
    ]
    found = problems(*words, "--eval.dataset", str(tmp_path / "eval.jsonl"))
    only(found, "1 of 2 evaluation tasks are in the training data too", "'3 +  3 = ?'")


def test_null_takes_a_key_of_the_base_recipe_back(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "name: a\nroles: {r: {prompt: p.md}}\nworkflow: w.py\nflags: {x: 1, y: 2}\ntasks: t.py\n"
    )
    (tmp_path / "b.yaml").write_text("extends: a.yaml\nflags: {x: null, z: 3}\ntasks: null\n")
    recipe = base_of(read_recipe(tmp_path / "b.yaml"))
    assert (recipe.flags, recipe.tasks) == ({"y": 2, "z": 3}, None)


def test_separators_inside_strings_do_not_end_a_line(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"input": "a\u2028b\x85c"}, ensure_ascii=False) + "\n")
    assert read_tasks(file, "input", None)[0].prompt == "a\u2028b\x85c"


# --- the command
# --------------------------------------------------------------------------------------------------


def command(*words, code=None):
    script = (
        f"import sys; from marl_plugins.cli import main; c = main({list(words)!r}); "
        + (code or "pass")
        + "; sys.exit(c)"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)


TINY = str(SUMS / "tiny.yaml")


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["plugins"],
        ["train", "--help"],
        ["train", "--recipe", TINY, "--dry-run"],
        ["doctor", "--static"],
    ],
    ids=" ".join,
)
def test_light_commands_import_nothing_heavy(words):
    shown = "heavy = [m for m in " + repr(HEAVY) + " if m in sys.modules]; print('HEAVY', heavy)"
    result = command(*words, code=shown)
    assert result.stdout.strip().splitlines()[-1] == "HEAVY []", result.stderr
    assert result.returncode == 0


def test_a_mistake_ends_with_code_2_and_no_traceback():
    result = command("train", "--recipe", TINY, "--actor.adam.rl", "1", "--train.batch_size", "5")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert re.search(
        r"error: command line: --actor.adam.rl: unknown flag; did you mean", result.stderr
    )
    assert "2 problems; nothing was done" in result.stderr


def test_debug_gives_the_traceback():
    result = command("train", "--recipe", TINY, "--max_steps", "0", "--debug")
    assert "Traceback" in result.stderr


def test_an_unknown_command_is_corrected():
    result = command("trian")
    assert (result.returncode, "did you mean 'train'?" in result.stderr) == (2, True)


def test_the_dry_run_is_machine_readable():
    result = command("train", "--recipe", TINY, "--dry-run", "--json")
    plan = json.loads(result.stdout)
    assert plan["devices"] == {"solver": 2, "coder": 2, "verifier": 2}
    assert plan["step"]["optimiser_steps"] == 1


def test_the_json_of_plugins_names_the_hooks():
    found = {p["name"]: p["hooks"] for p in json.loads(command("plugins", "--json").stdout)}
    assert found["marl_plugins.filter_agents_data"] == [
        "marl_options",
        "marl_describe",
        "marl_select",
    ]


def test_a_recipe_may_not_extend_itself(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with refused(("recipe.extends", "a.yaml")):
        read_recipe(tmp_path / "a.yaml")


@pytest.mark.parametrize("text", ["", "- a\n", "name: [\n", "name: a\nname: b\n"])
def test_files_that_are_no_recipe(tmp_path, text):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"r\.yaml"):
        read_recipe(tmp_path / "r.yaml")


TEN = "&a [x, x, x, x, x, x, x, x, x, x]"
BOMB = [
    TEN,
    *(
        f"&{name} [{', '.join([f'*{before}'] * 10)}]"
        for before, name in itertools.pairwise("abcdefghi")
    ),
]


@pytest.mark.parametrize("line", ["k{}: {}\n", "? {1}\n: x\n"], ids=["values", "keys"])
def test_aliases_of_aliases_are_refused(tmp_path, line):
    """In separate processes with limits: 10^9 values would take all memory."""
    (tmp_path / "recipe.yaml").write_text("".join(itertools.starmap(line.format, enumerate(BOMB))))
    commands = (
        ("recipes", "show", "."),
        ("train", "--recipe", ".", "--dry-run"),
        ("recipes", "import", "recipe.yaml", "--to", "mine", "--model", "tiny"),
    )
    for words in commands:
        done = subprocess.run(
            [
                "bash",
                "-c",
                'ulimit -v 4000000 -t 20; exec "$@"',
                "bash",
                sys.executable,
                "-m",
                "marl_plugins",
                *words,
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        said = re.search(r"recipe\.yaml:.* (10000 values|a key is a word)", done.stderr)
        assert done.returncode == 2 and said, (words, done.stderr)


def test_a_workflows_mistakes_stop_the_plan(recipe):
    recipe("roles.solver(", "roles.solvr(", "workflow.py")
    only(
        problems("--recipe", str(recipe.folder / "tiny.yaml")),
        "workflow.py:",
        "no role 'solvr'; did you mean 'solver'?",
    )


def test_a_workflow_that_needs_real_answers_is_a_warning(recipe):
    recipe("code.tool_output or str(code)", "str(int(str(code)))", "workflow.py")
    run = build_plan(["--recipe", str(recipe.folder / "tiny.yaml")]).run
    only(
        [*map(str, run.warnings)],
        "workflow.py:",
        "the workflow does not run when every answer is a word: ValueError",
    )


def test_a_recipes_own_code_that_fails_is_named(recipe):
    recipe("def load(split", "def load(splt", "tasks.py")
    only(
        problems("--recipe", str(recipe.folder / "tiny.yaml")), "tasks.py:", "marl_tasks: NameError"
    )


def test_a_recipes_data_are_beside_it(recipe, tmp_path, monkeypatch):
    recipe("tasks: tasks.py", "")
    recipe("flags:", "flags:\n  data.prompt_dataset: own.jsonl")
    rows = [json.dumps({"problem": f"{n}+{n}=", "answer": str(n + n)}) for n in range(64)]
    (recipe.folder / "own.jsonl").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    assert len(build_plan(["--recipe", "mathchat/tiny.yaml"]).tasks("train")) == 64
    (tmp_path / "other.jsonl").write_text(
        "\n".join(rows[:32])
    )  # a command line's is beside whoever types it
    plan = build_plan(["--recipe", "mathchat/tiny.yaml", "--data.prompt_dataset", "other.jsonl"])
    assert len(plan.tasks("train")) == 32


def test_a_shipped_plugins_flag_names_the_plugin():
    found = problems(
        "--recipe", str(SUMS / "tiny.yaml"), "--coach.policy", "judge", "--nobody.knows", "1"
    )
    only(
        found,
        "--coach.policy: unknown flag; it is marl_plugins.coach's: add --plugin marl_plugins.coach",
    )
    assert any(p.endswith("--nobody.knows: unknown flag") for p in found)


def test_what_is_multi_agent_alone_is_not_upstreams():
    with refused(("train.no_recipe", "dry-run")):
        dispatch(["train", "--dry-run"])
    with refused(("train.nothing",)):
        dispatch(["train"])


@pytest.mark.parametrize(
    ("flag", "meant"), [("recip", "recipe"), ("recipes", "recipe"), ("plugins", "plugin")]
)
def test_a_misspelt_recipe_is_named_and_not_the_flag_beside_it(flag, meant):
    with refused(("train.no_recipe", flag)) as error:
        dispatch(["train", f"--{flag}", "mathchat/tiny.yaml", "--dry-run"])
    assert f"did you mean --{meant}?" in str(error.value)


def test_the_plan_counts_tasks_steps_and_devices():
    plan = build_plan(["--recipe", "mathchat/tiny.yaml", "--max_steps", "7"])
    shown = describe(plan)
    assert shown["tasks"] == {"train": len(plan.tasks("train")), "eval": 400, "steps": 7}
    assert shown["devices_together"] == sum(shown["devices"].values())
