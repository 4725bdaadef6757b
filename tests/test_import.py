"""`openrlhf recipes import`: MARTI and MAPPA configurations, written for these tests, become
recipes that load."""

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from reading import load
from refusals import briefs, found_by, refused
from simulated import CharacterChat

from marl_plugins.builtin.tools.python import PythonToolConfig
from marl_plugins.cli import dispatch
from marl_plugins.coach.model import read_prompt
from marl_plugins.commands.imports import items, options, shapes, shell, templates
from marl_plugins.commands.imports.read import read
from marl_plugins.commands.imports.write import ImportRequest, convert
from marl_plugins.commands.recipes import main
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.tasks import read_tasks
from marl_plugins.core.trajectory import Generation, Task
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.hosts.flags import FLAGS
from marl_plugins.engine.plan.build import build_plan

ROOT = Path(__file__).resolve().parent.parent

DEFAULT = """\
agent_workflow: base
shared_agents: false
verify_task: math
packing_samples: true
default_agent:
  is_tuning: true
  pretrain: null
  advantage_estimator: gae
  critic_learning_rate: 9.0e-6
  n_samples_per_prompt: 1
  rollout_batch_size: 8
  train_batch_size: 8
  prompt_max_len: 1000
  generate_max_len: 24
  freezing_actor_steps: -1
"""

MATHCHAT = """\
defaults:
  - default
  - _self_
agent_workflow: "chain-of-agents"
workflow_func_path: "marti/worlds/workflows/mathchat_workflow_with_coach.py"
workflow_args:
  generator_max_turns: 1
  coder_max_turns: 2
  refiner_max_turns: 1
  enable_ground_truth_eval: true
  coach_model: "gemini-small"
  coach_prompt_template: |
    Judge {agent_role} of {agent_name} on {problem}.
    Shown {agent_input}, it said {agent_output}; tools: {tool_observation}.
    Right: {ground_truth_answer}. Braces {{stay}}.
    PROCESS_SCORE: [0 to 10]
    - ANSWER_CORRECT: [0 or 1]
tools_config:
  num_workers: 4
  tools:
    code_interpreter: {type: sandbox_fusion, timeout: 7, rate_limit: 3}
agents:
  - thinker: {role: thinker, is_tuning: true, is_reasoning_model: true}
  - coder: {role: coder}
  - checker: {role: checker}
prompt_data: "json@./data/SUMS"
eval_dataset: "json@./data/SUMS"
input_key: problem
label_key: answer
default_agent:
  advantage_estimator: "reinforce_plus_plus"
  n_samples_per_prompt: 2
  actor_learning_rate: 1.0e-6
  zero_stage: 3
  vllm_enable_sleep: true
  colocate_all_models: true
  actor_num_gpus_per_node: 2
  ref_num_gpus_per_node: 2
  vllm_num_engines: 2
filter_agents_data: true
"""

WORKFLOW = '''\
async def workflow(prompt, label, agents, **rest):
    generator_prompt = """Think about
{problem}"""
    coder_prompt = """Check with a program: {problem}
{solution}
as {{a: 1}}"""
    refiner_prompt = "Decide {problem} from {execution}"
'''

AGENT = """\
AGENT{n}="{{
    \\"{n}\\": {{
        \\"role\\": \\"{role}\\",
        \\"pretrain\\": \\"${{PRETRAIN}}\\",
        \\"is_tuning\\": {tuning},
        \\"chat_template\\": [\\"{template}\\"]
    }}
}}"
"""

SCRIPT = """\
#!/bin/bash
# AGENT0="not this one"
MODEL_DIR="hub"   # a comment with "quotes
SHORT=${{1:-"small"}}
PRETRAIN="${{MODEL_DIR}}/${{SHORT}}"
LOG=$(date +%Y).log
export OTHER='$PRETRAIN'
WORKFLOW_ARGS="{{
    \\"num_rounds\\": 3
}}"
{agents}
echo "starting" > /dev/null
python3 -m openrlhf.cli.multi_agent_train_ppo_ray \\
    --agents {names} \\
    --workflow_args "$WORKFLOW_ARGS" \\
    --workflow_func_path openrlhf/agent_workflows/{workflow}.py \\
    --advantage_estimator group_norm \\
    --rollout_batch_size 4 \\
    --n_samples_per_prompt 2 \\
    --train_batch_size 8 \\
    --prompt_max_len 600 --generate_max_len 16 \\
    --actor_learning_rate 1e-6 \\
    --bf16 \\
    --prompt_data json@data/SUMS \\
    --input_key="problem" \\
    --label_key=answer \\
    --save_path "$LOG" 2>&1 | tee out.log
"""


V2 = "python -m marti.cli.multi_agent_train_ppo_ray"


def sums(count, start=0):
    return [
        {
            "problem": f"What is {n} + {n}?",
            "answer": 2 * n,
            "id": n - start,
            "extra_info": json.dumps({"size": n}),
        }
        for n in range(start, start + count)
    ]


@pytest.fixture
def checkout(tmp_path):
    """A tree of MAPPA's layout: configurations, a workflow with prompts, data."""
    for folder in ("marti/cli/configs", "marti/worlds/workflows", "data/SUMS", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "marti/cli/configs/default.yaml").write_text(DEFAULT)
    (tmp_path / "marti/cli/configs/mathchat.yaml").write_text(MATHCHAT)
    (tmp_path / "marti/worlds/workflows/mathchat_workflow_with_coach.py").write_text(WORKFLOW)
    (tmp_path / "data/SUMS/train.json").write_text(json.dumps(sums(40)))
    (tmp_path / "data/SUMS/test.jsonl").write_text("\n".join(map(json.dumps, sums(10, start=35))))
    return tmp_path


@pytest.fixture
def config(checkout):
    """MATHCHAT's file; `config(old, new)` changes it."""
    path = checkout / "marti/cli/configs/mathchat.yaml"

    def edit(*pairs):
        text = path.read_text()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        return path

    return edit


def script(checkout, workflow="chain_workflow", templates=None, tuning=("true", "true", "false")):
    templates = templates or {
        "writer": "\\\\$question\\\\n\\\\nin \\\\\\\\boxed{}",
        "critic": "Of $question: $writer",
        "editor": "$question $writer $critic costs $5",
    }
    agents = "".join(
        AGENT.format(n=n, role=role, template=text, tuning=tuning[n % 3])
        for n, (role, text) in enumerate(templates.items())
    )
    names = " ".join(f'"$AGENT{n}"' for n in range(len(templates)))
    path = checkout / "scripts/run.sh"
    path.write_text(SCRIPT.format(agents=agents, names=names, workflow=workflow))
    return path


def imported(source, *words, folder=None):
    """Import a recipe with the command; its folder."""
    folder = folder or source.parent / "made"
    assert main(["import", str(source), "--to", str(folder), *words]) == 0
    return folder


def loads(folder, monkeypatch, *words):
    runs = []
    for file, device in (("recipe.yaml", "cuda"), ("tiny.yaml", "cpu")):
        monkeypatch.setenv("MARL_PLUGINS_DEVICE", device)
        runs.append(build_plan(["--recipe", str(folder / file), *words]).run)
    assert main(["show", str(folder)]) == 0
    return runs[0]


def tasks_of(folder, split):
    return build_plan(["--recipe", str(folder / "tiny.yaml")]).tasks(split)


def problems(source, **wanted):
    folder = source.parent / "never"
    with pytest.raises(ConfigurationError) as caught:
        convert(source, ImportRequest(folder, **{"model": "hub/small", **wanted}))
    assert not folder.exists()
    return briefs(caught.value.problems)


def answers(folder, texts):
    """What each role of a recipe is shown first when the roles answer with these texts, and the
    trajectory."""
    recipe, *_ = load(folder / "recipe.yaml")
    chat, shown = CharacterChat(), {}
    workflow = load_file(folder / "workflow.py").run

    def renderer(name, file):
        def render(fields):
            text = (folder / file).read_text().format(**fields)
            shown.setdefault(name, text)
            return [{"role": "user", "content": text}]

        return render

    def spec(name):
        role = recipe.roles[name]
        later = renderer(f"{name}, later", role.followup) if role.followup else None
        return RoleSpec(
            name,
            name,
            renderer(name, role.prompt),
            chat,
            Sampling(1.0, 1.0, 100, 10000),
            render_next=later,
        )

    async def generate(call):
        ids = chat.encode(texts[call.role])
        return Generation(ids, (0.0,) * len(ids), "stop", call.policy, 0)

    roles = {name: spec(name) for name in recipe.roles}
    task = Task("t", "What is 1 + 1?", "2")
    trajectory = asyncio.run(
        run_workflow(
            workflow, task, 0, step=0, run_seed=0, roles=roles, tools={}, generate=generate
        )
    )
    return shown, trajectory


def test_mappas_configuration_becomes_a_recipe_that_loads(config, monkeypatch, capsys):
    folder = imported(config(), "--model", "hub/small")
    run = loads(folder, monkeypatch)
    assert list(run.recipe.roles) == ["thinker", "coder", "checker"]
    coder = run.recipe.roles["coder"]
    assert (coder.tools, coder.max_turns, coder.endless_tools) == (["python"], 2, "go_on")
    assert run.section(PythonToolConfig).seconds == 7
    assert run.args.algo.advantage.estimator == "reinforce"
    assert (run.args.rollout.n_samples_per_prompt, run.args.train.batch_size) == (2, 8)
    assert run.args.data.max_len == 1024 and run.args.rollout.max_new_tokens == 24
    assert (
        run.args.coach.model == "gemini-small" and "generativelanguage" in run.args.coach.base_url
    )
    assert len(tasks_of(folder, "train")) == 40 and len(tasks_of(folder, "eval")) == 5
    assert tasks_of(folder, "train")[3].metadata == {"size": 3}
    assert "What is 35" not in (folder / "data/eval.jsonl").read_text()
    out = capsys.readouterr().out
    assert "thinker -> coder" in out and "5 items" in out


def test_prompts_come_from_the_workflows_python_where_the_configuration_has_none(config):
    folder = imported(config(), "--model", "hub/small")
    assert (folder / "prompts/thinker.md").read_text() == "Think about\n{problem}\n"
    assert (folder / "prompts/coder.md").read_text().endswith("{problem}\n{thinker}\nas {{a: 1}}\n")
    assert (folder / "prompts/checker.md").read_text() == "Decide {problem} from {computed}\n"
    workflow = (folder / "workflow.py").read_text()
    assert (
        'coder_said = f"{coder}\\n\\n{coder.tool_output}"' in workflow
        and "after=[coder]" in workflow
    )


def test_the_coachs_template_becomes_two_prompts_that_are_checked(config):
    folder = imported(config(), "--model", "hub/small")
    common = read_prompt(folder / "prompts/coach.md", with_label=False)
    last = read_prompt(folder / "prompts/coach_last.md", with_label=True)
    assert "Judge {role} of {role} on {task}." in common and "Braces {{stay}}." in common
    assert "Right: N/A." in common and "Right: {label}." in last
    for text in (common, last):
        assert "----- {fence} -----\n{action}\n----- {fence} -----" in text
        assert "SCORE" not in text and "CORRECT" not in text and text.endswith("{form}\n")
    assert "PROCESS_SCORE: [0 to 10]; - ANSWER_CORRECT" in (folder / "README.md").read_text()


def test_a_label_that_every_score_saw_is_reported(config, capsys):
    folder = imported(config(("{ground_truth_answer}", "{label}")), "--model", "hub/small")
    assert "Right: N/A." in (folder / "prompts/coach.md").read_text()
    assert "{label} showed the label" in capsys.readouterr().out


def test_an_agents_prompt_may_not_show_the_label(checkout, config):
    workflow = checkout / "marti/worlds/workflows/mathchat_workflow_with_coach.py"
    workflow.write_text(WORKFLOW.replace("{execution}", "{execution}, which is {label}"))
    for skip in (False, True):
        where = ("mathchat_workflow_with_coach.py", "refiner_prompt")
        assert ("imports.shows_label", *where) in problems(config(), skip_unknown=skip)


def test_unknown_fields_of_a_prompt_stay_as_text_when_skipped(checkout, config, monkeypatch):
    workflow = checkout / "marti/worlds/workflows/mathchat_workflow_with_coach.py"
    workflow.write_text(WORKFLOW.replace("Think about", "Use {files} and {tools!r:>3}"))
    found = problems(config())
    assert (
        found
        == [("imports.unknown_field", "mathchat_workflow_with_coach.py", "generator_prompt")] * 2
    )
    folder = imported(config(), "--model", "hub/small", "--skip-unknown")
    assert (
        (folder / "prompts/thinker.md")
        .read_text()
        .startswith("Use {{files}} and {{tools}}\n{problem}")
    )
    loads(folder, monkeypatch)


def test_unknown_keys_are_reported_together_with_file_line_and_nearest_name(config):
    path = config(
        ("agent_workflow: ", "agent_workfow: x\nagent_workflow: "),
        ("  zero_stage: 3", "  zero_stag: 3"),
        ("coder: {role: coder}", "coder: {role: coder, is_tunning: true}"),
        ("  coach_model:", "  coach_modle: x\n  coach_model:"),
        ("  num_workers: 4", "  num_worker: 4"),
        ("rate_limit: 3}", "rate_limits: 3}"),
        ("{agent_role}", "{agent_rol}"),
    )
    found = problems(path)

    def place(text):
        return next(
            f"mathchat.yaml:{n}"
            for n, line in enumerate(path.read_text().splitlines(), 1)
            if text in line
        )

    unknown = {
        "agent_workfow": "agent_workfow",
        "default_agent.zero_stag": "zero_stag:",
        "agents.1.coder.is_tunning": "is_tunning",
        "workflow_args.coach_modle": "coach_modle",
        "tools_config.num_worker": "num_worker",
        "tools_config.tools.code_interpreter.rate_limits": "rate_limits",
    }
    assert set(found) == {
        ("imports.unknown_key", place(text), key) for key, text in unknown.items()
    } | {("imports.placeholder", place("coach_prompt_template"), "coach_prompt_template")}
    assert len(found) == 7


def test_the_command_ends_with_code_2_and_writes_nothing(config, tmp_path):
    path = config(("  zero_stage: 3", "  zero_stag: 3"))
    words = ["recipes", "import", str(path), "--to", str(tmp_path / "made")]
    done = subprocess.run(
        [sys.executable, "-m", "marl_plugins", *words], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "default_agent.zero_stag" in done.stderr and "give --model NAME_OR_FOLDER" in done.stderr
    assert not (tmp_path / "made").exists()


def test_unknown_keys_are_listed_when_skipped(config, monkeypatch):
    path = config(
        ("  zero_stage: 3", "  zero_stag: 3"), ("type: sandbox_fusion", "type: search_engine")
    )
    folder = imported(path, "--model", "hub/small", "--skip-unknown")
    readme = (folder / "README.md").read_text()
    assert "default_agent.zero_stag" in readme and "'search_engine'" in readme
    found = found_by(
        dispatch,
        [
            "recipes",
            "import",
            str(path),
            "--to",
            str(folder.parent / "other"),
            "--model",
            "hub/small",
        ],
    )
    assert ("imports.tool", "code_interpreter") in {(code, places[-1]) for code, *places in found}
    loads(folder, monkeypatch)


def test_the_readme_lists_what_was_taken_and_what_was_not(config):
    readme = (imported(config(), "--model", "hub/small") / "README.md").read_text()
    taken, left_out = readme.split("## Left out")
    assert "| `actor_learning_rate` | `actor.adam.lr: 1e-06` |" in taken
    assert "| `filter_agents_data` | not needed" in left_out
    assert (
        "critic_learning_rate" not in readme and "packing_samples" not in readme
    )  # of default.yaml, unchanged


@pytest.mark.usefixtures("config")
def test_a_launch_script_of_mappas_overrides_its_configuration(checkout, monkeypatch):
    path = checkout / "scripts/train.sh"
    path.write_text(
        "MODEL=hub/other\nROOT=$(pwd)\npython -m marti.cli.commands.train \\\n  --config-name "
        "mathchat \\\n"
        '  default_agent.pretrain="${MODEL}" \\\n  `# a remark` \\\n  '
        "default_agent.rollout_batch_size=4 \\\n"
        '  prompt_data="${ROOT}/data/SUMS/train.json" \\\n  workflow_args.coder_max_turns=3 \\\n'
        "  +default_agent.no_such=1 2>&1 | tee log\n"
    )
    assert ("imports.unknown_key", "train.sh:10", "default_agent.no_such") in problems(
        path, model=None
    )
    folder = imported(path, "--skip-unknown")
    run = loads(folder, monkeypatch)
    assert run.recipe.model == "hub/other" and run.recipe.roles["coder"].max_turns == 3
    assert run.args.rollout.batch_size == 4


def test_agent_specifications_in_a_v2_script_become_roles(checkout, monkeypatch):
    folder = imported(script(checkout))
    run = loads(folder, monkeypatch)
    assert run.recipe.model == "hub/small"
    assert {p.name: p.trainable for p in run.policies} == {
        "writer": True,
        "critic": True,
        "editor": False,
    }
    assert (
        run.args.algo.advantage.estimator == "group_norm" and run.args.groups.by == "task+role+turn"
    )
    assert (folder / "prompts/writer.md").read_text() == "{problem}\n\nin \\boxed{{}}\n"
    assert (folder / "prompts/editor.md").read_text() == "{problem} {writer} {critic} costs $5\n"
    shown, trajectory = answers(folder, {"writer": "two", "critic": "good", "editor": "2"})
    assert shown["editor"] == "What is 1 + 1? two good costs $5\n" and trajectory.answer == "2"


def test_lines_in_a_script_are_those_of_the_agents_text(checkout):
    path = script(checkout)
    path.write_text(path.read_text().replace('\\"is_tuning\\": false', '\\"is_tunning\\": false'))
    line = next(
        n for n, text in enumerate(path.read_text().splitlines(), 1) if "is_tunning" in text
    )
    assert problems(path) == [("imports.unknown_key", f"run.sh:{line}", "agents.2.2.is_tunning")]


@pytest.mark.parametrize("layout", ["agents", "unwrapped", "list"])
def test_agent_specifications_in_a_json_file(checkout, layout, monkeypatch):
    agents = {
        "0": {"role": "a", "pretrain": "hub/a", "actor_learning_rate": 1e-6},
        "1": {"role": "b", "pretrain": "hub/b"},
    }
    whole = {
        "agents": {
            "default_agent": {"temperature": 0.7},
            "agents": agents,
            "prompt_data": "data/SUMS/train.json",
        },
        "unwrapped": agents,
        "list": [{name: config} for name, config in agents.items()],
    }[layout]
    path = checkout / "agents.json"
    path.write_text(json.dumps(whole, indent=2))
    data = ["--train-data", str(checkout / "data/SUMS/train.json")]
    flags = ["--train.batch_size", "8", "--rollout.batch_size", "8"]
    run = loads(imported(path, *data), monkeypatch, *flags)
    assert {p.name: p.model for p in run.policies} == {"a": "hub/a", "b": "hub/b"}
    assert run.policy_args["a"].actor.adam.lr == 1e-6
    path.write_text(
        json.dumps(whole, indent=2).replace('"pretrain": "hub/b"', '"pretrian": "hub/b"')
    )
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "pretrian" in text)
    found = problems(path, train_data=checkout / "data/SUMS/train.json")
    assert [problem[:2] for problem in found] == [("imports.unknown_key", f"agents.json:{line}")]


def test_json_may_be_indented_with_tabs(tmp_path):
    path = tmp_path / "agents.json"
    path.write_text(json.dumps({"agents": {"0": {"role": "a\tb", "pretrain": "x"}}}, indent="\t"))
    source = read(path)
    assert source.settings["agents"] == [{"0": {"role": "a\tb", "pretrain": "x"}}] and source.where(
        "agents", "0", "0", "role"
    )


def test_an_item_may_have_what_ends_a_line_elsewhere(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(
        '{"question": "a\u2028b\u0085c", "answer": "1"}\n{"question": "d", "answer": "2"}\n',
        encoding="utf-8",
    )
    assert [item["prompt"] for item in items.read_items(path, None, None, None)] == [
        "a\u2028b\u0085c",
        "d",
    ]


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"question": "a", "answer": 1' + "0" * 5000 + "}"],
    ids=["too deep", "too many digits"],
)
def test_data_that_json_cannot_hold_is_refused(tmp_path, text):
    path = tmp_path / "train.jsonl"
    second = '{"question": "a", "answer": "1"}\n' + text
    for content, problem in (
        (text, ("unreadable", "train.jsonl")),
        (second, ("not_json", "train.jsonl:2")),
    ):
        path.write_text(content)
        with refused((f"imports.{problem[0]}", problem[1])):
            items.read_items(path, None, None, None)


def test_a_debate_answers_in_rounds_and_votes(checkout, monkeypatch):
    templates = {
        "generator": 'Solve $question\\", \\"Of $responses_str say $question',
        "other": "Solve $question",
    }
    folder = imported(script(checkout, "debate_workflow", templates))
    recipe = loads(folder, monkeypatch).recipe
    assert recipe.roles["other"].followup == "prompts/other_again.md"
    texts = {"generator": "\\boxed{\\frac{1}{2}}", "other": "it is \\boxed{2}"}
    shown, trajectory = answers(folder, texts)
    assert Counter(a.role for a in trajectory.actions) == {"generator": 3, "other": 3}
    assert all(a.before.role == a.role for a in trajectory.actions if a.turn)
    assert shown["generator, later"] == "Of Agent 1: it is \\boxed{2} say What is 1 + 1?\n"
    assert trajectory.answer == texts["generator"]
    majority = load_file(folder / "workflow.py").majority
    assert (
        majority(["\\boxed{\\frac{1}{2}}", "\\boxed{\\frac{1}{3}}", "so \\boxed{\\frac{1}{3}}"])
        == "\\boxed{\\frac{1}{3}}"
    )


def test_a_mixture_proposes_and_decides(checkout, monkeypatch):
    templates = {"generator": "$question", "aggregator": "$question: $responses_str"}
    path = script(checkout, "other_workflow", templates)
    assert problems(path)[0][0] == "imports.workflow"
    folder = imported(path, "--workflow", "mixture")
    loads(folder, monkeypatch)
    shown, trajectory = answers(folder, {"generator": "5", "aggregator": "6"})
    assert shown["aggregator"] == "What is 1 + 1?: Agent 1: 5\n" and trajectory.answer == "6"
    assert trajectory.actions[-1].parents == (trajectory.actions[0].path,)


def test_agents_that_differ_in_a_run_wide_option_are_an_error(config):
    found = problems(config(("coder: {role: coder}", "coder: {role: coder, train_batch_size: 4}")))
    assert found == [("imports.unequal", "mathchat.yaml:22", "train_batch_size")]


def test_adapters_stay_adapters(config, monkeypatch):
    """An alpha without a rank, which their defaults have, is nothing."""
    lora = "\n  lora_alpha: 32\n  target_modules: all-linear"
    path = config(
        ("n_samples_per_prompt: 2", f"n_samples_per_prompt: 2\n  lora_rank: 16{lora}"),
        ("zero_stage: 3", "zero_stage: 2"),
    )
    run = loads(imported(path, "--model", "hub/small"), monkeypatch)
    assert {(args.ds.lora.rank, args.ds.lora.alpha) for args in run.policy_args.values()} == {
        (16, 32)
    }
    assert run.processes.adapters and run.args.train.colocate_all
    whole = config(("lora_rank: 16", "lora_rank: 0"))
    assert (
        loads(
            imported(whole, "--model", "hub/small", folder=path.parent / "whole"), monkeypatch
        ).args.ds.lora.alpha
        == 16
    )


def test_impossible_numbers_are_fixed_and_reported(config, monkeypatch, capsys):
    path = config(
        ("n_samples_per_prompt: 2", "n_samples_per_prompt: 3\n  train_batch_size: 16"),
        ("vllm_num_engines: 2", "vllm_num_engines: 4"),
    )
    run = loads(imported(path, "--model", "hub/small"), monkeypatch)
    assert (run.args.train.batch_size, run.args.vllm.num_engines) == (12, 2)
    out = capsys.readouterr().out
    assert (
        "16 does not divide a step's 24 trajectories; 12 is used" in out
        and "vllm.num_engines was set to 2" in out
    )


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  - default\n", "  - missing\n", ("imports.defaults", 1, "defaults", "missing")),
        ("agents:", "agenst:", ("imports.no_agents", "")),
        ("./data/SUMS", "/nowhere", ("imports.data", 26, "prompt_data")),
        ("reinforce_plus_plus", "magic", ("imports.estimator", 22, "advantage_estimator")),
        ("{problem}", "{problem", ("imports.braces", 12, "coach_prompt_template")),
        ("filter_agents_data: true", "workflow_args: {}", ("recipe.repeated_key", 40)),
        ("agent_workflow:", "\tagent_workflow:", ("imports.unreadable", 4)),
        ("  - coder: {role: coder}", "  - coder", ("imports.value", 24, "agents.1")),
        (
            "    code_interpreter: {type: sandbox_fusion, timeout: 7, rate_limit: 3}",
            "    code_interpreter: 3",
            ("imports.value", 21, "tools_config.tools.code_interpreter"),
        ),
        (
            "coder_max_turns: 2",
            "coder_max_turns: many",
            ("imports.value", 8, "workflow_args.coder_max_turns"),
        ),
        (
            "n_samples_per_prompt: 2",
            "n_samples_per_prompt: ${n}",
            ("imports.value", 32, "default_agent.n_samples_per_prompt"),
        ),
        (
            "n_samples_per_prompt: 2",
            "n_samples_per_prompt: 2.5",
            ("imports.value", 32, "default_agent.n_samples_per_prompt"),
        ),
        (
            "timeout: 7,",
            "timeout: soon,",
            ("imports.value", 21, "tools_config.tools.code_interpreter.timeout"),
        ),
        ("filter_agents_data: true", "is_tuning: 'false'", ("imports.value", 40, "is_tuning")),
        ("filter_agents_data: true", "shared_agents: 'no'", ("imports.value", 40, "shared_agents")),
        (
            "  - coder: {role: coder}",
            "  - coder: {is_api_model: true}",
            ("imports.api_model", 22, "is_api_model", "coder"),
        ),
        ("filter_agents_data: true", "pretrain: 7", ("imports.value", 40, "pretrain")),
        (
            "filter_agents_data: true",
            "chat_template: {a: b}",
            ("imports.value", 40, "chat_template"),
        ),
        (
            "  - coder: {role: coder}",
            "  - coder: {role: [coder]}",
            ("imports.value", 24, "agents.1.coder.role"),
        ),
    ],
)
def test_wrong_values_are_named(config, old, new, problem):
    code, line, *rest = problem
    assert problems(config((old, new))) == [
        (code, f"mathchat.yaml:{line}" if line else "mathchat.yaml", *rest)
    ]


def test_a_whole_number_may_be_written_with_a_point(config, monkeypatch):
    path = config(("n_samples_per_prompt: 2", "n_samples_per_prompt: 2.0\n  train_batch_size: 8.0"))
    run = loads(imported(path, "--model", "hub/small"), monkeypatch)
    assert (run.args.rollout.n_samples_per_prompt, run.args.train.batch_size) == (2, 8)


def test_settings_of_none_count_as_missing(config, monkeypatch):
    path = config(
        ("coder_max_turns: 2", "coder_max_turns: null"), ("zero_stage: 3", "generate_max_len: null")
    )
    run = loads(imported(path, "--model", "hub/small"), monkeypatch)
    assert run.recipe.roles["coder"].max_turns == 1
    assert run.args.data.max_len == 2024


def test_without_a_grader_a_coach_is_required(config, monkeypatch):
    chess = ("filter_agents_data: true", "verify_task: chess")
    assert "imports.grader" in {
        code for code, *_ in problems(config(chess, ("  coach_model:", "  coach_type:")))
    }
    folder = imported(config(("  coach_type:", "  coach_model:")), "--model", "hub/small")
    assert "only the coach scores" in (folder / "README.md").read_text()
    loads(folder, monkeypatch)


def test_shared_agents_have_one_policy(config, monkeypatch):
    path = config(("filter_agents_data: true", "shared_agents: true"))
    assert [
        p.name for p in loads(imported(path, "--model", "hub/small"), monkeypatch).policies
    ] == ["shared"]


def test_an_existing_folder_is_not_changed(config, tmp_path):
    with refused(("files.exists", tmp_path.name)):
        main(["import", str(config()), "--to", str(tmp_path)])


def test_a_link_to_nowhere_is_no_new_folder(config, tmp_path):
    (tmp_path / "made").symlink_to(tmp_path / "elsewhere")
    with refused(("files.exists", "made")):
        main(["import", str(config()), "--to", str(tmp_path / "made"), "--model", "hub/small"])
    assert not (tmp_path / "elsewhere").exists()


def test_pipes_and_devices_are_not_read(config, checkout, tmp_path):
    """Their end may never come."""
    os.mkfifo(checkout / "data" / "PIPE")
    words = ("--to", str(tmp_path / "made"), "--model", "hub/small")
    for name in ("./data/PIPE", "/dev/zero"):
        with refused(("imports.data", "mathchat.yaml:26", "prompt_data")):
            main(["import", str(config(("json@./data/SUMS", f"json@{name}"))), *words])
        config((f"json@{name}", "json@./data/SUMS"))
    os.mkfifo(checkout / "mine.yaml")
    with refused(("files.pipe", "mine.yaml")):
        main(["import", str(checkout / "mine.yaml"), *words])


def test_a_disk_that_fills_up_leaves_no_half_recipe(config, tmp_path):
    folder = tmp_path / "here" / "made"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1500, before[1])
    )  # bytes per file: some files are larger
    try:
        with refused(("files.unwritable", "made")):
            main(["import", str(config()), "--to", str(folder), "--model", "hub/small"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(folder.parent.iterdir()) == []
    assert main(["import", str(config()), "--to", str(folder), "--model", "hub/small"]) == 0


def test_the_command_line_may_name_grader_and_data(config, checkout, monkeypatch):
    grader = checkout / "mine.py"
    grader.write_text("def score_outcome(trajectory):\n    return 1.0\n")
    held_out = checkout / "held_out.json"
    held_out.write_text(
        "\n".join(map(json.dumps, sums(3, start=90)))
    )  # JSON Lines with the suffix of JSON
    folder = imported(
        config(), "--model", "m/m", "--grader", str(grader), "--eval-data", str(held_out)
    )
    assert (folder / "grader.py").read_text() == grader.read_text()
    loads(folder, monkeypatch)
    assert len(tasks_of(folder, "eval")) == 3


@pytest.mark.parametrize("form", ["list", "lines", "one list under a key"])
def test_data_in_their_layouts(tmp_path, form):
    rows = [
        {"prompt": [{"role": "user", "content": "a"}], "label": 1, "metadata": {"k": 2}},
        {"prompt": "b", "label": "x"},
    ]
    text = {
        "list": json.dumps(rows),
        "lines": "\n".join(map(json.dumps, rows)),
        "one list under a key": json.dumps({"d": rows}),
    }
    path = tmp_path / "d.json"
    path.write_text(text[form])
    found = items.with_ids(items.read_items(path, "input", "label", "metadata"), "eval-")
    assert found == [
        {"prompt": "a", "answer": 1, "k": 2, "id": "eval-0"},
        {"prompt": "b", "answer": "x", "id": "eval-1"},
    ]
    out = tmp_path / "out.jsonl"
    out.write_text("\n".join(map(json.dumps, found)))
    assert [t.label for t in read_tasks(out)] == [1, "x"]


def test_broken_items_are_named(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "a", "answer": 1}\n{"prompt": ""}\n{"prompt": "c"}')
    with refused(("imports.no_text", "d.jsonl:2"), ("imports.no_label", "d.jsonl")):
        items.read_items(path, None, None, None)
    path.write_text('{"prompt": "a"}\n{')
    with refused(("imports.not_json", "d.jsonl:2")):
        items.read_items(path, None, None, None)


def test_a_label_of_none_everywhere_is_no_label(tmp_path):
    path = tmp_path / "d.json"
    path.write_text(json.dumps([{"prompt": "a", "answer": None}]))
    assert items.read_items(path, None, None, None) == [{"prompt": "a"}]


@pytest.mark.parametrize("text", ["3", "null", '"prompt"'])
def test_a_file_without_items_is_an_error(tmp_path, text):
    path = tmp_path / "train.json"
    path.write_text(text)
    with refused(("imports.items", "train.json")):
        items.read_items(path, None, None, None)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yaml", "", ("imports.mapping", "a.yaml")),
        ("a.yaml", "agents: 3", ("imports.no_agents", "a.yaml")),
        ("a.yaml", "agents: [3]", ("imports.value", "a.yaml:1", "agents.0")),
        ("a.json", '{"agents": ', ("imports.unreadable", "a.json:1")),
        ("a.json", "[1]", ("imports.value", "a.json:1", "agents.0")),
        ("a.sh", "echo hello", ("imports.launch", "a.sh")),
        ("a.sh", f"{V2} --agents 'no: [' --x", ("imports.unreadable", "a.sh:1")),
        ("a.sh", f"{V2} --agents 7", ("imports.value", "a.sh:1", "agents.0")),
        (
            "a.sh",
            "python -m marti.cli.commands.train --config-name none",
            ("imports.config_name", "a.sh", "--config-name none"),
        ),
        ("a.toml", "", ("imports.kind", "a.toml")),
        ("a.yaml", "x: 1\nagents: \x07", ("imports.unreadable", "a.yaml")),
        ("a.yaml", "agents: &all [*all]", ("imports.unreadable", "a.yaml")),
        ("a.yaml", "defaults: [a]\nagents: &all [{}]\n---\n", ("imports.unreadable", "a.yaml:3")),
        ("a.sh", f"{V2} --default_agent", ("imports.no_value", "a.sh:1", "default_agent")),
        ("a.sh", f"{V2} x --seed 1", ("imports.flag", "a.sh:1")),
        ("no_such.yaml", None, ("files.unreadable", "no_such.yaml")),
    ],
)
def test_a_file_without_a_configuration_is_an_error(tmp_path, name, text, problem):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert problems(tmp_path / name) == [problem]


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("agents.0.role=a", ("agents.0.role",)),
        ("verify_task.kind=a", ("verify_task.kind",)),
        ("~default_agent.seed", ()),
    ],
)
def test_impossible_overrides_are_named(config, tmp_path, word, part):
    path = config()
    script = tmp_path / "run.sh"
    script.write_text(
        f"python -m marti.cli.commands.train --config-name {path.stem} {word} num_episodes=1\n"
    )
    (tmp_path / f"{path.stem}.yaml").write_text("verify_task: math\nagents: [{a: {pretrain: m}}]\n")
    assert problems(script) == [("imports.override", "run.sh:1", *part)]


def test_scripts_are_split_as_a_shell_would():
    text = (
        'A=1 # x\nexport B="b $A" C=\'$A\'\nrun ${B} "${C}" ${D:-"d e"} $E x\\ y "q\\"\\$z" '
        "`no` $(a (b)) 2>&1 | tee\n"
    )
    words = next(shell.commands(text))
    assert [w.text for w in words] == ["run", "b 1", "$A", "d e", "$E", "x y", 'q"$z', "$(a (b))"]
    assert {w.line for w in words[3:]} == {3} and words[1].line == 2


def test_every_option_has_one_meaning_and_every_flag_exists():
    for known in options.options().values():
        for name, option in known.items():
            assert sum(map(bool, (option.flag, option.here, option.left_out))) == 1, name
            assert option.type in options.TYPES, name
    for option in options.options()["settings"].values():
        assert not option.flag or FLAGS[option.flag].status in ("all", "policy"), option


def test_coach_placeholders_are_ours():
    assert set(templates.COACH.values()) <= {*templates.FIELDS, *templates.LABEL_FIELDS}


def test_importing_loads_nothing_heavy(config, tmp_path):
    words = [
        "recipes",
        "import",
        str(config()),
        "--to",
        str(tmp_path / "made"),
        "--model",
        "hub/small",
    ]
    code = (
        f"import sys; from marl_plugins.cli import main; assert main({words!r}) == 0; "
        "print([m for m in ('torch', 'ray', 'transformers', 'numpy', 'openai', 'openrlhf') if m in "
        "sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_the_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "--skip-unknown" in out
        and "openrlhf recipes import marti/cli/configs/ma_chain.yaml --to my_recipe" in out
    )


def test_names_of_roles_can_be_called():
    assert shapes.identifier("Agent 1: Solver", ()) == "agent_1_solver"
    assert shapes.identifier("0", ()) == "agent_0" and shapes.identifier("class", ()) == "class_"
    assert (
        shapes.identifier("task", ()) == "task_" and shapes.identifier("a", ("a", "a_2")) == "a_3"
    )
    assert shapes.identifier("Lös er", ()) == "l_s_er" and shapes.identifier("求解", ()) == "agent"


def checkouts():
    """Real configurations, if MARTI_CHECKOUT or MAPPA_CHECKOUT names a checkout."""
    for variable, files in (
        (
            "MARTI_CHECKOUT",
            ["examples/multi-agent/run_train_mathchat.sh", "examples/multi-agent/run_train_mad.sh"],
        ),
        (
            "MAPPA_CHECKOUT",
            ["marti/cli/configs/mathchat_with_coach.yaml", "scripts/run_train_mathchat.sh"],
        ),
    ):
        if root := os.environ.get(variable):
            yield from (Path(root) / file for file in files)


@pytest.mark.parametrize("source", [None, *checkouts()], ids=lambda p: p.name if p else "mini")
def test_sources_import_and_load(source, config, checkout, monkeypatch, tmp_path):
    words = ["--model", "hub/small", "--train-data", str(checkout / "data/SUMS/train.json")]
    folder = imported(source or config(), *words, folder=tmp_path / "recipe")
    text = (folder / "recipe.yaml").read_text()
    data = yaml.safe_load(text)
    assert data["flags"].get("train.batch_size")
    loads(folder, monkeypatch)
