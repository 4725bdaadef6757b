"""What people get wrong: edits of one working recipe, flags and whole commands, each with the exit
code, and each problem's code and places.

Every case of `CASES` runs what would be typed, `openrlhf train --recipe . --dry-run`: no traceback,
and no exit code but 0 and 2. Checks that no recipe reaches are called in test_refusing_checks.py.
"""

import io
import json
from typing import NamedTuple

import pytest
from refusals import brief

from marl_plugins.cli import dispatch, main
from marl_plugins.core.failures import ConfigurationError

RECIPE = """\
name: debate
description: Two debate, a third decides
roles:
  pro: {prompt: prompts/pro.md}
  con: {prompt: prompts/con.md}
  judge:
    prompt: prompts/judge.md
    max_new_tokens: 8
workflow: workflow.py
grader: grader.py
model: tiny
flags:
  data.prompt_dataset: train.json
  data.max_len: 512
  rollout.batch_size: 8
  rollout.max_new_tokens: 16
  train.batch_size: 8
  train.micro_batch_size: 4
"""
WORKFLOW = """\
import asyncio

async def run(task, roles, tools):
    pro = await roles.pro(question=task.prompt, history="")
    con = await roles.con(question=task.prompt, history=[pro])
    return await roles.judge(question=task.prompt, history=[pro, con])
"""
LAST = "    return await roles.judge(question=task.prompt, history=[pro, con])"
GRADER = (
    "def score_outcome(trajectory):\n    return float(trajectory.answer == trajectory.task.label)\n"
)
ROWS = [{"question": f"Is {n} even?", "answer": "con" if n % 2 else "pro"} for n in range(16)]
PROMPT = "Debate: {question}\n{history}\n"
CONFIG = {"architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 512}
FILES = {
    "recipe.yaml": RECIPE,
    "workflow.py": WORKFLOW,
    "grader.py": GRADER,
    "train.json": json.dumps(ROWS),
    "prompts/pro.md": PROMPT,
    "prompts/con.md": PROMPT,
    "prompts/judge.md": PROMPT,
}
SHORT = {
    "recipe": "recipe.yaml",
    "workflow": "workflow.py",
    "grader": "grader.py",
    "data": "train.json",
    "pro": "prompts/pro.md",
    "tasks": "tasks.py",
    "plugin": "plugin.py",
    "reward": "reward.py",
    "demo": "demo.py",
}
"""What the edits of a case call the files."""


class Case(NamedTuple):
    """Edits, and what comes of them.

    Args:
        problems: The errors, or the warnings of a plan, each as `shown` shows it.
        exit: The exit code; 0 without `problems` is a plan without warnings.
        words: Flags after `--recipe .`.
        files: By name, the whole content (None: no such file) or (old, new).
    """

    problems: tuple
    exit: int
    words: tuple
    files: dict


def shown(problem):
    """Code and places in one text: `:7` is a line of recipe.yaml, `--` stands before a flag of the
    command line."""
    text = ", ".join(brief(problem))
    return text.replace(", recipe.yaml:", ", :").replace(", command line, ", ", --")


def case(*problems, exit=2, words="", more=(), **files):
    words = (*words.split(), *more)
    if "plugin" in files:
        words = ("--plugin", "plugin.py", *words)
    files = {SHORT.get(name, name): content for name, content in files.items()}
    return Case(problems, exit, words, files)


def good(*problems, **edits):
    return case(*problems, exit=0, **edits)


def typed(words, *problems):
    return case(*problems, words=words)


def recipe(old, new, *problems, **more):
    return case(*problems, recipe=(old, new), **more)


def judge(line, *problems, **more):
    """A key of the role judge instead of its limit, in line 8."""
    return recipe("max_new_tokens: 8", line, *problems, **more)


def key(line, *problems, **more):
    """One more key of the recipe, in line 12."""
    return recipe("model: tiny\n", f"model: tiny\n{line}\n", *problems, **more)


def flag(line, *problems, **more):
    """One more flag of the recipe, in line 15."""
    return recipe("max_len: 512\n", f"max_len: 512\n  {line}\n", *problems, **more)


def ending(lines, *problems, **more):
    """A workflow whose last line is replaced; the first of the new ones is line 6."""
    return case(
        *problems, workflow=(LAST, "\n".join(f"    {line}" for line in lines.split("\n"))), **more
    )


def plugin(code, *problems, mark="@hookimpl", **more):
    """A plugin with one hook, in line 3."""
    return case(*problems, plugin=f"from marl_plugins import hookimpl\n{mark}\n{code}\n", **more)


def rows(change):
    return json.dumps([change(dict(row), n) for n, row in enumerate(ROWS)])


def lines(text):
    return {"recipe": ("train.json", "train.jsonl"), "data": None, "train.jsonl": text}


def loader(code, *problems, **more):
    return recipe(
        "model: tiny\nflags:\n  data.prompt_dataset: train.json\n",
        "model: tiny\ntasks: tasks.py\nflags:\n",
        *problems,
        tasks=f"from marl_plugins.core.trajectory import Task\n{code}\n",
        **more,
    )


def tasks(arguments, *problems):
    return loader(f"def load(split): return [Task({arguments}) for n in range(16)]", *problems)


def model(*problems, config=CONFIG, **files):
    files = {f"model/{name.replace('__', '.')}": content for name, content in files.items()}
    made = {
        "model/config.json": json.dumps(config),
        "model/tokenizer_config.json": '{"chat_template": "x"}',
    }
    return Case(
        problems,
        2 if problems else 0,
        (),
        {"recipe.yaml": ("model: tiny", "model: ./model"), **made, **files},
    )


def reward(code, *problems, head="def reward_func(queries, prompts, labels):", **more):
    return recipe(
        "grader: grader.py\n",
        "",
        *problems,
        words="--reward.remote_url reward.py",
        reward=f"{head}\n    {code}\n",
        **more,
    )


def demonstrations(code, *problems):
    text = (
        "from marl_plugins.core.demonstrations import Demonstration\n\ndef demonstrate(task, "
        "rng):\n    "
    )
    return key(
        "warm_start: {demonstrations: demo.py, steps: 3}", *problems, demo=text + code + "\n"
    )


A_RECIPE = {
    "unknown key of a role": judge(
        "max_tokens: 8", "recipe.unknown_key, :8, roles.judge.max_tokens"
    ),
    "role without a prompt": recipe(
        "    prompt: prompts/judge.md\n", "", "recipe.missing_key, :6, roles.judge.prompt"
    ),
    "role with a dash": recipe(
        "  pro: {", "  pro-side: {", "roles.name, :4, pro-side", "policies.name, pro-side"
    ),
    "limit above max_len": judge("max_new_tokens: 900", "lengths.no_room, :14, judge, judge"),
    "mapping misspelt": key("mapping: seperate", "recipe.value, :12, mapping"),
    "mapping without a role": key("mapping: {pro: a, con: b}", "roles.unmapped, :12, mapping"),
    "mapping of an unknown role": key(
        "mapping: {pro: a, con: a, judge: a, jury: a}", "roles.unknown, :12, mapping"
    ),
    "policy that nobody plays": key("policies: {jury: {trainable: false}}", "policies.unused, :12"),
    "policies all frozen": key(
        "policies: {pro: {trainable: false}, con: {trainable: false}, judge: {trainable: false}}",
        "policies.frozen, :12",
    ),
    "whole run's flag of a policy": key(
        "policies: {pro: {flags: {train.batch_size: 4}}}", "flags.whole_run, :12, train.batch_size"
    ),
    "plugin that does not exist": key(
        "plugins: [marl_plugins.coahc]", "plugin.unknown, marl_plugins.coahc"
    ),
    "extends what is not there": key("extends: base.yaml", "recipe.extends, :12, extends"),
    "tab": recipe(
        "    prompt: prompts/judge.md", "\tprompt: prompts/judge.md", "recipe.not_yaml, :7"
    ),
    "byte-order mark": good(recipe=b"\xef\xbb\xbf" + RECIPE.encode()),
    "UTF-16": case("files.encoding, recipe.yaml", recipe=RECIPE.encode("utf-16")),
    "grader elsewhere": recipe(
        "grader: grader.py", "grader: ../nope.py", "files.missing, :10, grader, nope.py"
    ),
    "no grader": recipe("grader: grader.py\n", "", "scores.none"),
    "keys and flags": recipe(
        "model: tiny\nflags:\n",
        "modle: tiny\nflags:\n  actor.adam.rl: 1\n  actor: {adam.lr: 1}\n",
        "recipe.unknown_key, :11, modle",
        "recipe.nested_flags, :14, flags.actor",
        "flags.unknown, :13, actor.adam.rl",
        "flags.unknown, --mapp",
        words="--mapp shared",
    ),
    "mistakes of all parts": recipe(
        "prompts/pro.md",
        "prompts/por.md",
        "flags.unknown, --actor.adam.rl",
        "flags.value, --rollout.temperature",
        "files.unreadable, :4, roles.pro.prompt, por.md",
        "flags.no_policy, --policy.por.actor.adam.lr",
        "plan.batch, :15",
        "files.missing, :9, workflow, workflow.py",
        workflow=None,
        words="--actor.adam.rl 1 --rollout.temperature hot --train.batch_size 5 "
        "--policy.por.actor.adam.lr 1",
    ),
}
A_FLAG = {
    "data file that is not there": recipe(
        "train.json", "nope.json", "tasks.no_file, :13, data.prompt_dataset, nope.json"
    ),
    "dashes": flag("--actor.adam.lr: 1e-4", "flags.unknown, :15, --actor.adam.lr"),
    "exponent": good(recipe=("max_len: 512\n", "max_len: 512\n  actor.adam.lr: 1e-4\n")),
    "false for a number": recipe(
        "max_len: 512", "max_len: false", "flags.no_switch, :14, data.max_len", "lengths.positions"
    ),
    "given twice": flag("data.max_len: 256", "recipe.repeated_key, :15"),
    "value of a switch": typed("--train.colocate_all true", "flags.value, --train.colocate_all"),
    "batch that is not divided": recipe(
        "train.batch_size: 8", "train.batch_size: 3", "plan.batch, :15, :17"
    ),
    "tasks beside data": key(
        "tasks: tasks.py",
        "flags.pointless, :14, data.prompt_dataset",
        tasks="def load(split): return []",
    ),
    "model beside its flag": flag(
        "actor.model_name_or_path: tiny:seed=3", "flags.pointless, :15, actor.model_name_or_path"
    ),
    "model beside its flag, both replaced": good(
        recipe=("flags:\n", "flags:\n  actor.model_name_or_path: tiny:seed=3\n"),
        words="--actor.model_name_or_path tiny",
    ),
    "flag without a value": flag(
        "logger.wandb.group:", "recipe.no_value, :15, flags.logger.wandb.group"
    ),
    "flag of a base recipe": case(
        "lengths.positions, base.yaml:14",
        recipe="extends: base.yaml\n",
        **{"base.yaml": RECIPE.replace("max_len: 512", "max_len: 5000")},
    ),
    "flag of one policy": key(
        "policies: {pro: {flags: {data.max_len: 5000}}}", "lengths.positions, :12, pro"
    ),
    "flag that the command line replaces": flag(
        "ckpt.output_dir: mine",
        "files.unwritable, ckpt.output_dir, grader.py",
        words="--ckpt.output_dir grader.py",
    ),
}
B_PROMPT = {
    "system prompt that is not there": judge(
        "system: s.md", "files.unreadable, :8, roles.judge.system, s.md"
    ),
    "field that nobody gives": case("rehearsal.mistake, workflow.py:4", pro="{nobody}"),
    "field that is not shown": good(pro="{question}"),
    "brace": case("roles.braces, :4, roles.pro.prompt, pro.md", pro="{question} {"),
    "JSON": case("roles.field, :4, roles.pro.prompt, pro.md", pro='{"a": 1} {question}'),
    "1 MB": case("lengths.prompt, :14, pro", pro="x" * 1_000_000 + "{question}"),
    "a field of Jinja's": case("roles.jinja, :4, roles.pro.prompt, pro.md", pro="{{ question }}"),
    "field without a name": case("roles.field, :4, roles.pro.prompt, pro.md", pro="{}"),
}
C_WORKFLOW = {
    "unknown role after one answer": ending(
        f"if 'again' in str(pro):\n    await roles.jury(question='')\n{LAST.strip()}",
        "rehearsal.not_reached, workflow.py:7",
        exit=0,
    ),
    "agents that always fail": ending(
        "from marl_plugins.core.failures import AgentFailure\nraise AgentFailure('no_answer', 'x')",
        "rehearsal.always_fails, workflow.py:3",
        "rehearsal.never_called, workflow.py:3",
        exit=0,
    ),
    "syntax": case(
        "code.syntax, :9, workflow, workflow.py:1", workflow="async def run(task, roles, tools)\n"
    ),
    "no function run": case(
        "files.no_function, :9, workflow", workflow="async def main(task, roles, tools): pass\n"
    ),
    "module that is missing": case(
        "code.failed, :9, workflow, workflow.py:1", workflow="import nopackage\n"
    ),
    "tool that nobody awaits": ending(
        f"tools.python('1')\n{LAST.strip()}", "rehearsal.mistake, workflow.py:6"
    ),
    "whole task shown": ending(
        "return await roles.judge(question='', history=str(task))", "rehearsal.label, workflow.py:6"
    ),
    "label out of the metadata": ending(
        "return await roles.judge(question=task.metadata['gold'], history=[pro, con])",
        "rehearsal.label, workflow.py:6",
        data=rows(lambda row, n: row | {"gold": row["answer"]}),
    ),
    "metadata that is the label once": good(
        workflow=("role", "role"),
        data=rows(lambda row, n: row | {"level": "pro" if n == 0 else "x"}),
    ),
    "metadata that some tasks lack": ending(
        f"task.metadata['hint']\n{LAST.strip()}",
        "rehearsal.raises, workflow.py:6",
        data=rows(lambda row, n: row if n else row | {"hint": "x"}),
    ),
    "answers that some tasks cannot take": ending(
        f"if task.metadata['type'] == 'number': int(str(pro))\n{LAST.strip()}",
        "rehearsal.may_raise, workflow.py:6",
        exit=0,
        data=rows(lambda row, n: row | {"type": "number" if n > 4 else "text"}),
    ),
    "role that only other tasks call": good(
        workflow=(LAST, f"    if task.metadata['type'] == 'easy': return con\n{LAST}"),
        data=rows(lambda row, n: row | {"type": "hard" if n > 3 else "easy"}),
    ),
    "nothing returned": ending(
        LAST.strip().removeprefix("return "), "rehearsal.no_answer, workflow.py", exit=0
    ),
    "actions returned in a dict": ending(
        "v = " + LAST.strip()[7:] + "\nreturn {'v': v}", "rehearsal.mistake, workflow.py:3"
    ),
    "network": ending(
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')",
        "rehearsal.may_raise, workflow.py:7",
        "rehearsal.never_called, workflow.py:3",
        exit=0,
    ),
}
D_DATA = {
    "last line cut": case(
        "files.json, train.jsonl:17", **lines("\n".join(map(json.dumps, ROWS)) + "\n{")
    ),
    "UTF-16": case("files.encoding, tasks, train.jsonl", **lines("{}".encode("utf-16"))),
    "two lists": case("tasks.no_list, train.json", data='{"train": [{}], "test": [{}]}'),
    "prompt under another name": case(
        "tasks.no_prompt_field, train.json: item 1",
        data=rows(lambda r, n: {"frage": "", "answer": ""}),
    ),
    "comma-separated with semicolons": case(
        "tasks.no_prompt_field, train.csv:2",
        recipe=("train.json", "train.csv"),
        **{"train.csv": "question;answer\na;b\n"},
    ),
    "input key that is not there": typed(
        "--data.input_key nope", "tasks.no_field, train.json: item 1"
    ),
    "labels that are null": case(
        "tasks.empty_label, train.json: item 3",
        data=rows(lambda r, n: r | {"answer": None if n == 2 else 1}),
    ),
    "answers that leave no room": recipe(
        "max_len: 512", "max_len: 60", "lengths.answers, :14, judge", exit=0
    ),
    "a grader that one label breaks": case(
        "rehearsal.raises, grader.py:2",
        data=rows(lambda r, n: r | {"answer": 5} if n == 5 else r),
        grader="def score_outcome(trajectory):\n    return float(trajectory.task.label.lower() == "
        "str(trajectory.answer))\n",
    ),
    "two messages": case(
        *(f"tasks.messages, train.json: item {n}" for n in range(1, 17)),
        data=rows(lambda r, n: {"prompt": [{"role": "system", "content": ""}, {"role": "user"}]}),
    ),
    "prompt that is blank": case(
        "tasks.prompt, train.json: item 4",
        data=rows(lambda r, n: r | {"question": "" if n == 3 else "x"}),
    ),
    "ids that are the same": case("tasks.ids, train", data=rows(lambda r, n: r | {"id": "x"})),
    "braces in a task": good(data=rows(lambda r, n: r | {"question": r["question"] + " {x} {}"})),
    "too few": case("tasks.too_few, :17", data=json.dumps(ROWS[:3])),
    "kind that is not read": recipe(
        "train.json", "train.jsonl.gz", "tasks.kind, :13, data.prompt_dataset, train.jsonl.gz"
    ),
    "every task too long": case(
        "lengths.tasks, :14, pro",
        "lengths.tasks, :14, con",
        "lengths.tasks, :14, judge",
        data=rows(lambda r, n: r | {"question": f"{n}" + "x" * 900}),
    ),
    "evaluated on one that is trained on": case(
        "tasks.leaked",
        words="--eval.dataset eval.json",
        **{
            "eval.json": json.dumps(
                [ROWS[3] | {"question": "Is  3 even?"}, {"question": "new", "answer": "x"}]
            )
        },
    ),
    "every line broken in another way": case(
        "files.json, train.jsonl:3",
        "tasks.prompt, train.jsonl:1",
        "tasks.no_object, train.jsonl:4",
        "tasks.no_field, train.jsonl:5",
        "tasks.no_field, train.jsonl:5",
        "tasks.no_field, train.jsonl:6",
        **lines('{"question": 3, "answer": 1}\n\nx\n[1]\n{"qestion": "x"}\n{"question": "y"}'),
    ),
}
G_LOADER = {
    "dicts": loader("def load(split): return [{'id': 'a'}]", "tasks.type, tasks.py, load('train')"),
    "one split only": loader(
        "def load(split): return {'train': []}[split]", "code.failed, tasks.py:2, marl_tasks"
    ),
    "nothing to evaluate": loader(
        "def load(split):\n    if split == 'train': return [Task('a', 'b')]",
        "tasks.type, tasks.py, load('eval')",
    ),
    "id that is a number": tasks("n, f'{split}{n}?'", "tasks.text, tasks.py, train/0"),
    "label that is a set": tasks(
        "split + str(n), f'{split}{n}?', {1}",
        "tasks.json, tasks.py, train/train0",
        "tasks.json, tasks.py, eval/eval0",
    ),
    "demonstrations that fail": demonstrations("1 / 0", "rehearsal.demonstration, demo.py:4"),
    "ids that are the same": tasks(
        "'x', f'{split}{n}?'",
        "tasks.ids, tasks.py, train",
        "tasks.ids, tasks.py, eval",
        "tasks.both_splits",
    ),
}
G_GRADER = {
    "nan": case(
        "rehearsal.mistake, grader.py:1", grader="def score_outcome(t): return float('nan')\n"
    ),
    "truth value": good(grader="def score_outcome(t): return t.answer == t.task.label\n"),
    "attribute that is not there": case(
        "rehearsal.raises, grader.py:1", grader="def score_outcome(t): return t.result\n"
    ),
    "role without an outcome": case(
        "rehearsal.mistake, grader.py:1",
        grader="def score_outcome(t): return {'pro': 1, 'con': 0}\n",
    ),
    "reward function": reward("return {'rewards': [1.0]}", exit=0),
    "reward out of range": reward("return {'rewards': [5.0]}", "rehearsal.mistake, reward.py:1"),
    "reward function's service": reward(
        "raise ConnectionRefusedError('down')", "rehearsal.may_raise, reward.py:2", exit=0
    ),
    "reward function of another name": reward(
        "pass", "reward.no_function, reward.remote_url", head="def score(queries):"
    ),
}
E_COMMAND_LINE = {
    "checkpoints where the best step is kept": typed(
        "--ckpt.output_dir out --ckpt.path out/best", "files.taken, ckpt.path"
    ),
    "word": case("flags.too_many, --recipe", more=["mathchat"]),
    "model by a short name": typed("--actor.model_name_or_path gpt2", "models.unknown"),
    "reward server": case(
        "reward.file, reward.remote_url",
        recipe=("grader: grader.py\n", ""),
        words="--reward.remote_url http://x",
    ),
    "two coaches": typed(
        "--plugin marl_plugins.coach --coach.rubric grader.py --coach.model x",
        "flags.exclusive, --coach.model, coach.rubric",
        "rubric.missing, grader.py",
    ),
    "resume of nothing": typed("--resume nope", "resume.recipe"),
    "temperature of 0": typed("--rollout.temperature 0", "flags.value, --rollout.temperature"),
    "flag of another estimator": typed("--groups.by task", "flags.other_estimator, groups.by"),
    "flag without effect": typed(
        "--algo.advantage.lambd 0.9", "flags.idle, --algo.advantage.lambd"
    ),
    "groups of different roles": typed(
        "--algo.advantage.estimator rloo --rollout.n_samples_per_prompt 4 --groups.by task",
        "estimator.roles, groups.by, LeaveOneOut",
    ),
    "flag that we replace": typed(
        "--train.agent_func_path a.py", "flags.replaced, --train.agent_func_path"
    ),
    "flag that we refuse": typed("--ds.load_in_4bit", "flags.refused, --ds.load_in_4bit"),
    "mapping without a sign": typed("--mapping nonsense", "flags.mapping, mapping"),
    "packed sequences": typed(
        "--ds.packing_samples --ds.attn_implementation flex", "devices.packing, ds.packing_samples"
    ),
    "trees in packed sequences": typed(
        "--sequences trees --ds.packing_samples", "trees.packing, ds.packing_samples"
    ),
    "trees and an attention that takes no mask": typed(
        "--sequences trees --ds.attn_implementation flex",
        "trees.attention, ds.attn_implementation",
    ),
    "attention of GPUs": typed("--ds.attn_implementation flash_attention_2", "devices.attention"),
    "micro batch below one sequence": typed(
        "--train.dynamic_batch_enable --train.max_tokens_per_gpu 100",
        "lengths.micro_batch, :14, train.max_tokens_per_gpu",
    ),
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
F_MODEL = {
    "good": model(model__safetensors="x"),
    "no weights": model("models.no_weights, :11, model"),
    "weights that are pointers": model("models.pointer, :11", model__safetensors=POINTER),
    "translation model": model(
        "models.architecture, :11, config.json",
        config={"architectures": ["T5ForConditionalGeneration"]},
        model__safetensors="x",
    ),
    "window that is shorter than rows": model(
        "trees.window, :14", config={**CONFIG, "sliding_window": 8}, model__safetensors="x"
    )._replace(words=("--sequences", "trees")),
    "tokenizer cut": model(
        "files.json, tokenizer.json:1", model__safetensors="x", tokenizer__json="{"
    ),
    "no tokenizer": model(
        "models.no_tokenizer, :11, model", model__safetensors="x", tokenizer_config__json=None
    ),
    "setting of a tiny model": recipe(
        "model: tiny", "model: 'tiny:layer=2'", "models.tiny_setting, :11, tiny:layer=2"
    ),
}
WRAPPER = "@hookimpl(wrapper=True)"
ADD = "def marl_options(parser): parser.add_argument"
H_PLUGIN = {
    "wrapper that loses the tasks": plugin(
        "def marl_tasks(run, split): yield", "tasks.none, plugin.py, marl_tasks", mark=WRAPPER
    ),
    "flag of another name": plugin(f"{ADD}('--limit')", "plugin.flag_name, plugin.py, limit"),
    "flag that has to be given": plugin(
        f"{ADD}('--mine.x', required=True)", "plugin.required_flag, plugin.py"
    ),
    "run that is changed": plugin(
        "def marl_configure(run): run.device = 'x'", "code.failed, plugin.py:3, marl_configure"
    ),
    "tasks that are a number": plugin(
        "def marl_tasks(run, split): return 3", "plugin.answer, plugin.py, marl_tasks, train"
    ),
    "wrapper that returns nothing": plugin(
        "def marl_policies(run): yield", "plugin.answer, plugin.py, marl_policies", mark=WRAPPER
    ),
    "estimator without return": plugin(
        "def marl_estimator(run):\n    pass",
        "plugin.no_estimator, plugin.py, marl_estimator",
        exit=0,
    ),
    "state that never comes back": plugin(
        "def marl_state(run): return {}", "plugin.no_restore, plugin.py, marl_state"
    ),
    "hook that is not marked": case(
        "hook.unmarked, plugin.py, plugin.py:1, marl_credit",
        plugin="def marl_credit(trajectories): return trajectories\n",
    ),
    "hook that does not exist": case(
        "hook.unknown, plugin.py, plugin.py:4, marl_slect",
        plugin="from marl_plugins import hookimpl\n\n\n@hookimpl\ndef marl_slect(rows): return "
        "rows\n",
    ),
    "module that is no plugin": typed("--plugin json", "plugin.no_hook, json"),
    "syntax": case("code.syntax, plugin.py:1", plugin="def marl_options(:\n"),
    "exit": case("code.exit, plugin.py:2", plugin="import sys\nsys.exit(3)\n"),
    **{
        f"{hook} that fails": plugin(
            f"def {hook}({arguments}): 1 / 0", f"code.failed, plugin.py:3, {hook}"
        )
        for hook, arguments in {
            "marl_options": "parser",
            "marl_tasks": "run, split",
        }.items()
    },
}
TABLES = {
    "recipe": A_RECIPE,
    "flag": A_FLAG,
    "prompt": B_PROMPT,
    "workflow": C_WORKFLOW,
    "data": D_DATA,
    "loader": G_LOADER,
    "grader": G_GRADER,
    "command line": E_COMMAND_LINE,
    "model": F_MODEL,
    "plugin": H_PLUGIN,
}
CASES = {
    f"{table}: {name}": made for table, cases in TABLES.items() for name, made in cases.items()
}


def write(folder, edits):
    for name, content in (FILES | edits).items():
        if isinstance(content, tuple):
            old, new = content
            assert old in FILES[name]
            content = FILES[name].replace(old, new, 1)
        if content is not None:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("tried", CASES.values(), ids=CASES)
def test_what_is_typed_gives_a_plan_or_names_culprit_and_fix(tmp_path, monkeypatch, capsys, tried):
    write(tmp_path, tried.files)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code = main(["train", "--recipe", ".", *tried.words, "--dry-run", "--json"])
    output = capsys.readouterr()
    assert code == tried.exit and "Traceback" not in output.err, output.err
    reported = json.loads(output.out)["problems" if code else "warnings"]
    assert [*map(shown, reported)] == list(tried.problems), reported


COMMANDS = {
    "recipe of a folder without one": typed("train --recipe prompts", "recipe.none"),
    "resume without a folder": typed("train --resume", "resume.folder"),
    "plugin alone": typed(
        "train --plugin marl_plugins.builtin.routing",
        "models.none, agent",
        "scores.none",
        "tasks.none",
    ),
    "evaluation without tasks": typed("eval --recipe .", "tasks.none_held_out"),
    "copy over a folder": typed("recipes copy . prompts", "files.exists, prompts"),
    "page that does not exist": typed("docs recipe", "docs.unknown"),
    "command that does nothing": typed(
        "hi --plugin idle.py", "plugin.answer, idle.py, marl_commands"
    ),
    "misspelt flag of upstream's": typed(
        "train --actor.adam.rl 1", "flags.unknown, --actor.adam.rl"
    ),
    "flag of ours alone": typed("train --dry-run", "train.no_recipe, dry-run"),
    "nothing": typed("train", "train.nothing"),
    "recipe that does not exist": typed("train --recipe mathchatt", "recipe.none"),
    "misspelt command": typed("trian", "command.unknown, openrlhf"),
    "argument that a command does not take": typed("doctor --nonsense", "flags.command_line"),
    "role of an evaluation": typed("eval --recipe . --only pro", "eval.only"),
    "evaluation of nothing": typed("eval", "flags.nothing"),
    "table that plans, without a recipe": typed(
        "export . --table rejudged", "export.no_recipe, table, rejudged"
    ),
    "half a command": typed("recipes copy", "flags.command_line"),
    "evaluation that is resumed": typed("eval --recipe . --resume runs/a", "eval.resumed, resume"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_other_commands_name_what_is_wrong(tmp_path, monkeypatch, name):
    idle = (
        "from marl_plugins import hookimpl\nfrom marl_plugins.core.command import Command\n"
        "@hookimpl\ndef marl_commands(): return [Command('hi', '', '', None)]"
    )
    write(tmp_path, {"idle.py": idle, "trajectories.jsonl": ""})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        dispatch([*COMMANDS[name].words])
    assert [*map(shown, caught.value.problems)] == [*COMMANDS[name].problems]


FIXES = {
    "--pretrain x": "--actor.model_name_or_path",
    "--max_st 5": "'max_steps'",
    "--algo.advantage.estimator grpo": "group_norm",
    "--coach.policy pro": "--plugin marl_plugins.coach",
    "--plugin coach": "'marl_plugins.coach'",
}


@pytest.mark.parametrize("words", FIXES)
def test_a_flag_of_another_name_is_answered_with_its_own(tmp_path, monkeypatch, words):
    write(tmp_path, {})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        dispatch(["train", "--recipe", ".", *words.split(), "--dry-run"])
    (problem,) = caught.value.problems
    assert FIXES[words] in problem.fix


def test_what_user_code_prints_is_no_part_of_the_plan(tmp_path, monkeypatch, capsys):
    write(
        tmp_path,
        {
            "grader.py": "print('mine')\n" + GRADER,
            "workflow.py": ("import asyncio", "print('too')"),
        },
    )
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--recipe", ".", "--dry-run", "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["recipe"] == "debate"
    assert {"mine", "too"} <= set(output.err.split())
