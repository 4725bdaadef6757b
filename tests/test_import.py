"""`openrlhf recipes import`: MARTI and MAPPA configurations, written for these tests, become
recipes that load."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
from reading import load
from refusals import briefs
from simulated import CharacterChat

from marl_plugins.builtin.tools.python import PythonToolConfig
from marl_plugins.coach.model import read_prompt
from marl_plugins.commands.imports import items
from marl_plugins.commands.imports.write import ImportRequest, convert
from marl_plugins.commands.recipes import main
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.tasks import read_tasks
from marl_plugins.core.trajectory import Generation, Task
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
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


def test_an_agents_prompt_may_not_show_the_label(checkout, config):
    workflow = checkout / "marti/worlds/workflows/mathchat_workflow_with_coach.py"
    workflow.write_text(WORKFLOW.replace("{execution}", "{execution}, which is {label}"))
    for skip in (False, True):
        where = ("mathchat_workflow_with_coach.py", "refiner_prompt")
        assert ("imports.shows_label", *where) in problems(config(), skip_unknown=skip)


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


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  - default\n", "  - missing\n", ("imports.defaults", 1, "defaults", "missing")),
        ("agents:", "agenst:", ("imports.no_agents", "")),
        ("./data/SUMS", "/nowhere", ("imports.data", 26, "prompt_data")),
        ("reinforce_plus_plus", "magic", ("imports.estimator", 22, "advantage_estimator")),
        ("filter_agents_data: true", "workflow_args: {}", ("recipe.repeated_key", 40)),
        (
            "coder_max_turns: 2",
            "coder_max_turns: many",
            ("imports.value", 8, "workflow_args.coder_max_turns"),
        ),
        (
            "  - coder: {role: coder}",
            "  - coder: {is_api_model: true}",
            ("imports.api_model", 22, "is_api_model", "coder"),
        ),
    ],
)
def test_wrong_values_are_named(config, old, new, problem):
    code, line, *rest = problem
    assert problems(config((old, new))) == [
        (code, f"mathchat.yaml:{line}" if line else "mathchat.yaml", *rest)
    ]


def test_shared_agents_have_one_policy(config, monkeypatch):
    path = config(("filter_agents_data: true", "shared_agents: true"))
    assert [
        p.name for p in loads(imported(path, "--model", "hub/small"), monkeypatch).policies
    ] == ["shared"]


def test_the_label_is_the_field_that_the_source_names(checkout, config):
    named = [{**item, "label": "easy"} for item in sums(40)]
    (checkout / "data/SUMS/train.json").write_text(json.dumps(named))
    folder = imported(config(), "--model", "hub/small")
    assert [task.label for task in tasks_of(folder, "train")][:3] == [0, 2, 4]


@pytest.mark.parametrize("form", ["list", "one list under a key", "lines"])
def test_data_in_their_layouts(tmp_path, form):
    rows = [
        {"prompt": [{"role": "user", "content": "a"}], "label": 1, "metadata": {"k": 2}},
        {"prompt": "b", "label": "x"},
    ]
    text = {
        "list": json.dumps(rows),
        "one list under a key": json.dumps({"d": rows}),
        "lines": "\n".join(map(json.dumps, rows)),
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


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yaml", "", ("imports.mapping", "a.yaml")),
        ("a.sh", "echo hello", ("imports.launch", "a.sh")),
        (
            "a.sh",
            "python -m marti.cli.commands.train --config-name none",
            ("imports.config_name", "a.sh", "--config-name none"),
        ),
        ("a.toml", "", ("imports.kind", "a.toml")),
    ],
)
def test_a_file_without_a_configuration_is_an_error(tmp_path, name, text, problem):
    (tmp_path / name).write_text(text)
    assert problems(tmp_path / name) == [problem]
