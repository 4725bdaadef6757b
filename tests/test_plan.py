"""What a plan sees before anything starts: data, models, lengths, what plugins bring, and what it
says of the run."""

import json
import os
import textwrap
from pathlib import Path

import pytest
from refusals import brief, found_by, refused

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.tasks import read_tasks
from marl_plugins.core.recipe.tiny import count_tokens
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe

RECIPE = """\
name: small
roles:
  solver: {prompt: solver.md, max_new_tokens: 16}
workflow: workflow.py
grader: grader.py
model: tiny
flags:
  data.prompt_dataset: data.jsonl
  data.max_len: 128
  rollout.batch_size: 16
  rollout.n_samples_per_prompt: 2
  rollout.max_new_tokens: 16
  train.batch_size: 32
  train.num_episodes: 3
"""
WORKFLOW = """\
async def run(task, roles, tools):
    return await roles.solver(problem=task.prompt)
"""
GRADER = """\
def score_outcome(trajectory):
    return float(trajectory.answer == trajectory.task.label)
"""
ROWS = [{"problem": f"{n} + {n} = ?", "answer": str(2 * n)} for n in range(64)]


class Files:
    """A recipe folder whose files are written anew by name."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, **files):
        for name, content in files.items():
            path = self.folder / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def edit(self, old, new):
        path = self.folder / "recipe.yaml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        return self

    def plan(self, *words):
        return build_plan(["--recipe", str(self.folder), *words])

    def problem(self, *words):
        """The only problem of the plan."""
        with pytest.raises(ConfigurationError) as caught:
            self.plan(*words)
        assert len([*map(str, caught.value.problems)]) == 1, [*map(str, caught.value.problems)]
        return next(map(str, caught.value.problems))

    def refused(self, *expected, words=()):
        """Expects a plan with these problems."""
        with refused(*expected):
            self.plan(*words)

    def warned(self, *codes, words=()):
        """Expects a plan with warnings of these codes."""
        assert [warning.code for warning in self.plan(*words).run.warnings] == list(codes)

    def warnings(self, *words):
        return [*map(str, self.plan(*words).run.warnings)]

    def model(self, config, tokenizer=None, template="x"):
        """A model folder, named by the recipe."""
        made = self.folder / "model"
        made.mkdir()
        (made / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        (made / "model.safetensors").touch()
        if tokenizer is not None:
            tokenizer.save(str(made / "tokenizer.json"))
        return self.edit("model: tiny", "model: ./model")


@pytest.fixture
def recipe(tmp_path):
    rows = "\n".join(map(json.dumps, ROWS))
    files = Files(tmp_path)
    return files.write(
        recipe_yaml=RECIPE,
        workflow_py=WORKFLOW,
        grader_py=GRADER,
        solver_md="Solve: {problem}\n",
        data_jsonl=rows,
    )


def says(text, *parts):
    assert all(part in text for part in parts), text


def test_a_good_recipe_has_no_warnings(recipe):
    assert recipe.warnings() == []


# --- data files
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'[\n {"problem": "1"},\n]', [("files.json", "data.json:3")]),
        (b'[{"problem": "1", "answer": NaN}]', [("tasks.json", "train/0")]),
        (
            b'[{"problem": "1", "answer": "2"}, {"problem": "2"}]',
            [("tasks.no_field", "data.json: item 2")],
        ),
        (
            b'[{"problem": "1"}, {"problem": "2", "answer": "2"}]',
            [("tasks.no_field", "data.json: item 1")],
        ),
    ],
)
def test_a_broken_json_file_says_what_and_where(recipe, content, expected):
    recipe.write(data_json=content).edit("data.jsonl", "data.json").edit(
        "size: 32", "size: 2"
    ).edit("size: 16", "size: 2")
    recipe.refused(*expected)


def test_csv_is_read(recipe):
    text = 'problem,answer,year\r\n"1, 2 and\n3?",6,2000\r\n\r\na\u2028b,7,2001\r\n'
    recipe.write(data_csv=b"\xef\xbb\xbf" + text.encode())
    first, second = read_tasks(recipe.folder / "data.csv")
    assert (first.prompt, first.label, first.metadata) == ("1, 2 and\n3?", "6", {"year": "2000"})
    assert second.prompt == "a\u2028b"
    more = text + "".join(f"{n}?,{n},1\r\n" for n in range(62))
    plan = recipe.write(data_csv=more).edit("data.jsonl", "data.csv").plan()
    assert len(plan.tasks("train")) == 64


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("problem,answer\n1,2,3\n", [("tasks.columns", "data.csv:2")]),
        ('problem,answer\n"1,2\n', [("files.csv", "data.csv:2")]),
    ],
)
def test_a_broken_csv_file_says_where(recipe, content, expected):
    recipe.write(data_csv=content)
    with refused(*expected):
        read_tasks(recipe.folder / "data.csv")


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ("{'../x': __file__}", "tasks.file_path"),
        ("{'x': 'gone.csv'}", "tasks.no_source"),
        ("{'x': __file__, 'x/y': __file__}", "tasks.file_tree"),
    ],
    ids=range(3),
)
def test_files_that_no_workspace_can_begin_with(recipe, files, code):
    recipe.edit("workflow: workflow.py", "workflow: workflow.py\ntasks: tasks.py").edit(
        "  data.prompt_dataset: data.jsonl\n", ""
    )
    recipe.write(
        tasks_py="from marl_plugins.core.trajectory import Task\n\ndef load(split):\n"
        f"    given = lambda n: {files} if (split, n) == ('train', 7) else {{}}\n"
        "    return [Task(f'{split}{n}', f'{split} {n}?', 'x', files=given(n)) for n in "
        "range(64)]\n"
    )
    with refused((code, "tasks.py", "train/train7", "files")):
        recipe.plan()


@pytest.mark.parametrize("name", ["solution", "output", "ground_truth"])
def test_labels_have_many_names(recipe, name):
    rows = [{"problem": r["problem"], name: r["answer"]} for r in ROWS]
    recipe.write(data_jsonl="\n".join(map(json.dumps, rows)))
    assert read_tasks(recipe.folder / "data.jsonl")[3].label == "6"


def test_no_labels_are_a_warning_where_the_grader_reads_them(recipe):
    recipe.write(
        data_jsonl="\n".join(
            json.dumps({"problem": r["problem"], "result": r["answer"]}) for r in ROWS
        )
    )
    recipe.warned("tasks.no_label")
    assert recipe.warnings("--data.label_key", "result") == []
    recipe.write(
        grader_py="def score_outcome(trajectory):\n    return 1.0 if trajectory.answer else 0.0\n"
    )
    os.utime(recipe.folder / "grader.py")
    assert recipe.warnings() == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def load():\n    return []\n", [("code.arguments", "tasks", "tasks.py:1")]),
        ("def load(split):\n    return []\n", [("tasks.none",)]),
    ],
)
def test_a_loader_that_cannot_work_is_named(recipe, code, expected):
    recipe.write(tasks_py=code).edit(
        "workflow: workflow.py", "workflow: workflow.py\ntasks: tasks.py"
    )
    recipe.edit("  data.prompt_dataset: data.jsonl\n", "").refused(*expected)


# --- models
# --------------------------------------------------------------------------------------------------

QWEN = {"architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": {}},
            [("models.architecture", "recipe.yaml:6", "config.json")],
        ),
        (QWEN | {"max_position_embeddings": 64}, [("lengths.positions", "recipe.yaml:9")]),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(recipe, config, expected):
    recipe.model(config).refused(*expected)


def test_a_saved_adapter_is_refused_as_a_model(recipe):
    (recipe.model(QWEN).folder / "model" / "adapter_config.json").write_text("{}")
    recipe.refused(("models.adapter", "recipe.yaml:6", "model"))


def test_a_model_whose_rope_is_scaled_has_more_positions(recipe):
    scaled = QWEN | {"max_position_embeddings": 32, "rope_scaling": {"factor": 4.0}}
    assert recipe.model(scaled).warnings() == []


MINE = {"AutoModelForCausalLM": "modeling.Mine"}


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (
            "config.json",
            QWEN | {"architectures": ["MyForCausalLM"], "auto_map": MINE},
            "modeling.Mine",
        ),
        (
            "config.json",
            QWEN | {"configuration_files": ["config.4.0.0.json"]},
            "`configuration_files`",
        ),
        (
            "tokenizer_config.json",
            {"chat_template": "x", "auto_map": ["tokenization.Mine", None]},
            "tokenization.Mine",
        ),
        ("processor_config.json", {"image_processor": {"auto_map": MINE}}, "modeling.Mine"),
        ("custom_generate/generate.py", {}, "code of the model's own"),
    ],
    ids=["config", "other configuration", "tokenizer", "part of a processor", "generate"],
)
def test_a_model_that_brings_code_needs_to_be_trusted(recipe, file, content, said):
    path = recipe.model(QWEN).folder / "model" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    recipe.refused(("models.code", "recipe.yaml:6", Path(file).name))
    recipe.plan("--trust_remote_code")
    critic = str(recipe.edit("model: ./model", "model: tiny").folder / "model")
    words = ("--algo.advantage.estimator", "gae", "--critic.model_name_or_path", critic)
    says(recipe.problem(*words), "--critic.model_name_or_path: ", said)


def test_code_is_refused_before_the_runtime_loads_a_model(tmp_path, monkeypatch):
    """Also what a plan does not see: models of the hub, and the saved weights of an evaluation."""
    hub = pytest.importorskip("huggingface_hub")
    from marl_plugins.engine.processes.model_code import refuse_code

    files = {
        "me/custom": ("config.json", {"auto_map": MINE}),
        "me/adapter": ("adapter_config.json", {}),
        "me/plain": ("x", {}),
    }
    for model, (name, content) in files.items():
        (tmp_path / model).mkdir(parents=True)
        (tmp_path / model / name).write_text(json.dumps(content))

    def download(model, name):
        if not (tmp_path / model / name).is_file():
            raise hub.errors.LocalEntryNotFoundError(name)
        return str(tmp_path / model / name)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    refuse_code(["me/plain", str(tmp_path / "me" / "plain")])
    with pytest.raises(ConfigurationError) as refused:
        refuse_code(["me/custom", "me/adapter", "me/plain", str(tmp_path / "me" / "custom")])
    first, _, third = [*map(str, refused.value.problems)]
    assert first == third
    says(first, "me/custom/config.json: ", "modeling.Mine")
    assert [p.code for p in refused.value.problems] == [
        "models.code",
        "models.adapter",
        "models.code",
    ]


# --- lengths
# --------------------------------------------------------------------------------------------------


def test_tasks_that_leave_no_room_are_counted(recipe):
    rows = [*ROWS[:60], *({"problem": "y" * n, "answer": "1"} for n in (90, 200, 300, 400))]
    recipe.write(data_jsonl="\n".join(map(json.dumps, rows)))
    warnings = recipe.plan().run.warnings
    assert [(brief(w)[0], w.names("role")) for w in warnings] == [
        ("lengths.some_tasks", ("solver",)),
    ]
    says(str(warnings[0]), "3 of 64", "'63', 429 tokens")
    shown = describe(recipe.plan())["lengths"]["solver"]
    says(
        shown,
        "29 tokens of prompt + 400 of the longest task, of 128",
        "max_new_tokens 16",
        "one token per byte",
    )


def test_a_folders_own_tokenizer_counts(recipe):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"x": 0, "Solve": 1, ":": 2}, unk_token="x"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    rows = [*ROWS[:63], {"problem": "word " * 500, "answer": "1"}]
    recipe.model(QWEN, words).write(data_jsonl="\n".join(map(json.dumps, rows)))
    (warning,) = recipe.warnings()
    says(warning, "1 of 64 tasks leave no room", "502 tokens with the prompt")
    says(
        describe(recipe.plan())["lengths"]["solver"],
        "2 tokens of prompt + 500",
        "with the tokenizer in ",
        "model",
    )


def test_trees_have_in_common_what_stands_before_a_prompts_first_field(recipe):
    recipe.write(solver_md="Solve it: {problem} Now {problem}")
    shown = describe(recipe.plan("--sequences", "trees"))["lengths"]["solver"]
    says(shown, "as trees 10 tokens of prompt once", "all of it once for 2 samples")
    assert "trees" not in describe(recipe.plan())["lengths"]["solver"]


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ((), 32 * (40 + 40 + 16)),
        # one tree: the prompt once, each of 16 tasks once
        (("--sequences", "trees", "--train.micro_batch_size", "32"), 40 + 16 * 40 + 32 * 16),
        # a tree has 8 x 128 tokens, of 32 x 96: three trees, each begins with the prompt
        (("--sequences", "trees", "--train.micro_batch_size", "8"), 3 * 40 + 16 * 40 + 32 * 16),
    ],
)
def test_the_time_of_training_counts_prompts_as_often_as_they_are_computed(
    recipe, monkeypatch, words, tokens
):
    from tokenizers import Tokenizer, models, pre_tokenizers

    text = Tokenizer(models.WordLevel({"x": 0, "Solve": 1}, unk_token="x"))
    text.pre_tokenizer = pre_tokenizers.Whitespace()
    rows = "\n".join(json.dumps({"problem": "word " * 40, "answer": "1"}) for _ in range(64))
    recipe.write(data_jsonl=rows, solver_md="Solve " * 40 + "{problem}").model(QWEN, text)
    os.truncate(recipe.folder / "model" / "model.safetensors", int(2e12))  # 1,000 B parameters
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    words = (*words, "--actor.num_gpus_per_node", "1", "--ds.attn_implementation", "sdpa")
    shown = describe(recipe.plan(*words))["estimate"]["step"]
    seconds = tokens * (6 + 2 + 2) * 1e12 / 330e12
    assert shown.endswith(f", {seconds:.0f} s to train")


@pytest.mark.parametrize("text", ["2 + 2 = ?", "e\u0301 \u00e9 \U0001f600", "a<eos>b\n\n  <user>"])
def test_a_tiny_models_tokens_are_counted_without_it(text):
    transformers = pytest.importorskip("transformers")
    from marl_plugins.core.conversation import ChatFormat
    from marl_plugins.engine.runtime.tiny_model import resolve

    chat = ChatFormat(transformers.AutoTokenizer.from_pretrained(resolve("tiny")), "p")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": text}]
    assert count_tokens([(m["role"], m["content"]) for m in messages]) == len(
        chat.opening(messages)
    )


# --- values
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", [("roles.empty_prompt", "recipe.yaml:3", "roles.solver.prompt", "solver.md")]),
        (
            "Ein langer Prompt f\u00fcr alle".encode("latin-1"),
            [("files.encoding", "recipe.yaml:3", "roles.solver.prompt", "solver.md")],
        ),
    ],
)
def test_prompt_files_that_are_no_text(recipe, content, expected):
    recipe.write(solver_md=content).refused(*expected)


def test_a_device_that_does_not_exist(recipe, monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "tpu")
    assert [code for code, *_ in found_by(recipe.plan)] == ["machine.device"]


# --- what plugins bring
# --------------------------------------------------------------------------------------------------

PLUGIN = """\
from marl_plugins import hookimpl
from marl_plugins.core.estimators import Estimator
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.core.tools import Tool

async def run(call):
    return ToolResult("calc", call.text, "", ok=True)

def find(text):
    return []

class Mine(Estimator):
    pass

@hookimpl
def {hook}(run):
    return {answer}
"""


def plugin(folder, hook, answer):
    file = folder / f"{hook}.py"
    file.write_text(textwrap.dedent(PLUGIN.format(hook=hook, answer=answer)))
    return ["--plugin", str(file)]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("[run]", ("plugin.answer",)),
        ("[Tool('python', run, find)]", ("tools.twice", "python")),
    ],
)
def test_what_is_no_new_tool_is_refused(recipe, answer, problem):
    code, *places = problem
    with refused((code, "marl_tools.py", "marl_tools", *places)):
        recipe.plan(*plugin(recipe.folder, "marl_tools", answer))


def test_a_right_tool_is_there(recipe):
    recipe.edit("max_new_tokens: 16}", "max_new_tokens: 16, tools: [calc], max_turns: 2}")
    words = plugin(recipe.folder, "marl_tools", "[Tool('calc', run_tool, find)]")
    file = recipe.folder / "marl_tools.py"
    file.write_text(file.read_text().replace("async def run(", "async def run_tool("))
    assert recipe.warnings(*words) == []
    recipe.refused(("roles.no_tool", "recipe.yaml:3", "roles.solver.tools"))


def test_a_plugins_estimator_is_checked(recipe):
    found = found_by(recipe.plan, *plugin(recipe.folder, "marl_estimator", "Mine(scope='group')"))
    assert [code for code, *_ in found] == ["estimator.no_group"]


def test_an_estimator_by_name_beside_a_plugins_is_refused(recipe):
    words = plugin(recipe.folder, "marl_estimator", "Mine()")
    found = found_by(recipe.plan, *words, "--algo.advantage.estimator", "rloo")
    assert [code for code, *_ in found] == ["estimator.replaced"]
    says(describe(recipe.plan(*words))["estimator"], "Mine of plugin ", "marl_estimator.py")


# --- what the plan says
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["--max_steps", "5"], "= 12 steps, ended after 5 (--max_steps)"),
        (
            ["--data.max_samples", "56"],
            "56 tasks / 16 = 3 steps an episode (8 tasks are left over each time",
        ),
        (
            ["--data.max_samples", "56", "--train.batch_size", "16"],
            "56 tasks / 16 = 4 steps an episode (the last with 8 tasks)",
        ),
    ],
)
def test_the_plan_says_how_the_number_of_steps_comes_about(recipe, words, steps):
    says(describe(recipe.plan(*words))["steps"], steps)


@pytest.mark.parametrize("empty", ["  ", []])
def test_a_label_that_is_empty_is_refused_like_one_that_is_null(recipe, empty):
    recipe.write(
        data_jsonl="\n".join(
            json.dumps({**r, "answer": empty} if n == 3 else r) for n, r in enumerate(ROWS)
        )
    )
    with refused(("tasks.empty_label", "data.jsonl:4")):
        recipe.plan()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--reward.clip_range", "10", "-10"],
            [("lengths.clip_range", "reward.clip_range")],
        ),
        (
            ["--reward.stop_properly_penalty_coef", "1.5"],
            [("flags.value", "command line", "reward.stop_properly_penalty_coef")],
        ),
        (
            ["--algo.advantage.gamma", "1.5"],
            [("flags.value", "command line", "algo.advantage.gamma")],
        ),
    ],
)
def test_numbers_of_rewards_have_a_range(recipe, words, expected):
    recipe.refused(*expected, words=words)


def test_the_overlong_buffer_fits_into_the_limit_of_a_role(recipe):
    words = ["--rollout.max_new_tokens", "40", "--reward.overlong_buffer_len", "20"]
    with refused(("lengths.overlong",)):
        recipe.plan(*words)


def test_a_secret_does_not_stand_in_a_recipe(recipe):
    recipe.edit("flags:\n", "flags:\n  logger.wandb.key: 0123456789abcdef\n")
    with refused(("flags.secret", "recipe.yaml:8", "logger.wandb.key")) as caught:
        recipe.plan()
    assert "0123456789abcdef" not in str(caught.value)
