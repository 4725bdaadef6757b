"""What a newcomer gets wrong: edits of a working recipe or command, each with the exit code, and
each problem's code and place.

Every case runs the whole command as typed, `openrlhf train --recipe . --dry-run`: no traceback, and
no exit code but 0 and 2. Cases that other test files have (test_configuration, test_messages,
test_plan, test_rehearsal, test_plugins) are not repeated.
"""

import io
import json
from dataclasses import dataclass

import pytest
from refusals import briefs, refused

from marl_plugins.cli import dispatch, main

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


@dataclass(frozen=True)
class Case:
    """Edits, and what comes of them.

    Args:
        says: What is said, the errors or the warnings of a plan: each problem as `brief` shows it
            (refusals.py), all of them; or, of what a user's own code says, parts of its text.
        exit: The exit code; 0 without `says` is a plan without warnings.
        words: Flags after `--recipe .`.
        files: By name, the whole content (None: no such file) or (old, new).
    """

    says: tuple
    exit: int
    words: tuple
    files: dict


def case(*says, exit=2, words="", more=(), **files):
    words = (*words.split(), *more)
    if "plugin" in files:
        words = ("--plugin", "plugin.py", *words)
    return Case(
        says, exit, words, {SHORT.get(name, name): content for name, content in files.items()}
    )


def good(*says, **edits):
    return case(*says, exit=0, **edits)


def recipe(old, new, *says, **more):
    return case(*says, recipe=(old, new), **more)


def key(line, *says, **more):
    """One more key of the recipe, in line 12."""
    return recipe("model: tiny\n", f"model: tiny\n{line}\n", *says, **more)


def flag(line, *says, **more):
    """One more flag of the recipe, in line 15."""
    return recipe("max_len: 512\n", f"max_len: 512\n  {line}\n", *says, **more)


def ending(lines, *says, **more):
    """A workflow whose last line is replaced; the first of the new ones is line 6."""
    return case(
        *says, workflow=(LAST, "\n".join(f"    {line}" for line in lines.split("\n"))), **more
    )


def plugin(code, *says, **more):
    return case(*says, plugin="from marl_plugins import hookimpl\n@hookimpl\n" + code, **more)


def rows(change):
    return json.dumps([change(dict(row), n) for n, row in enumerate(ROWS)])


def lines(text):
    return {"recipe": ("train.json", "train.jsonl"), "data": None, "train.jsonl": text}


def loader(code, *says, **more):
    return recipe(
        "model: tiny\nflags:\n  data.prompt_dataset: train.json\n",
        "model: tiny\ntasks: tasks.py\nflags:\n",
        *says,
        tasks=f"from marl_plugins.core.trajectory import Task\n{code}\n",
        **more,
    )


def tasks(arguments, *says):
    return loader(f"def load(split): return [Task({arguments}) for n in range(16)]", *says)


def model(*says, config=CONFIG, tokenizer=None, **files):
    files = {f"model/{name.replace('__', '.')}": content for name, content in files.items()}
    made = {
        "model/config.json": json.dumps(config),
        "model/tokenizer_config.json": tokenizer or '{"chat_template": "x"}',
    }
    return Case(
        says,
        2 if says else 0,
        (),
        {"recipe.yaml": ("model: tiny", "model: ./model"), **made, **files},
    )


def reward(code, *says, **more):
    return recipe(
        "grader: grader.py\n",
        "",
        *says,
        words="--reward.remote_url reward.py",
        reward=f"def reward_func(queries, prompts, labels):\n    {code}\n",
        **more,
    )


def demonstrations(code, *says):
    text = (
        "from marl_plugins.core.demonstrations import Demonstration\n\ndef demonstrate(task, "
        "rng):\n    "
    )
    return key("warm_start: {demonstrations: demo.py, steps: 3}", *says, demo=text + code + "\n")


MAPPING = "expected separate, shared, or one `role: policy` per role"
A_RECIPE = {
    "policy called run": key(
        "mapping: {pro: run, con: best, judge: checkpoints}",
        ("files.taken", "run"),
        ("files.taken", "best"),
        ("files.taken", "checkpoints"),
    ),
    "name with a capital": recipe(
        "name: debate", "name: Debate", "recipe.yaml:1: name: expected lower-case letters"
    ),
    "name that is yes": recipe(
        "name: debate", "name: yes", "recipe.yaml:1: name: expected another value than true"
    ),
    "name that is a number": recipe(
        "name: debate", "name: 3", "recipe.yaml:1: name: expected a text, got 3"
    ),
    "no roles": recipe(
        RECIPE[RECIPE.index("roles:") : RECIPE.index("workflow")],
        "roles: {}\n",
        "roles: expected at least one",
    ),
    "role without a value": recipe(
        "  pro: {prompt: prompts/pro.md}", "  pro:", "roles.pro: expected a mapping such as"
    ),
    "unknown key of a role": recipe(
        "max_new_tokens: 8", "max_tokens: 8", ":8: roles.judge.max_tokens: unknown key", "max_new_t"
    ),
    "role without a prompt": recipe(
        "    prompt: prompts/judge.md\n", "", ":6: roles.judge.prompt: this key is missing"
    ),
    "role with a dash": recipe(
        "  pro: {",
        "  pro-side: {",
        ("roles.name", "recipe.yaml:4", "pro-side"),
        ("policies.name", "pro-side"),
    ),
    "role of 65 letters": recipe(
        "  pro: {",
        f"  {'p' * 65}: {{",
        (
            "roles.name",
            "recipe.yaml:4",
            "ppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp",
        ),
        ("policies.name", "ppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp"),
    ),
    "role of the package's own name": recipe(
        "  pro: {", "  _specs: {", ("roles.name", "recipe.yaml:4", "_specs")
    ),
    "role of another case": recipe(
        "  pro: {", "  Pro: {", "workflow.py:4: the recipe has no role 'pro'; did you mean 'Pro'?"
    ),
    "limit of 0": recipe(
        "max_new_tokens: 8",
        "max_new_tokens: 0",
        "roles.judge.max_new_tokens: expected at least 1, got 0",
    ),
    "limit in words": recipe(
        "max_new_tokens: 8", "max_new_tokens: eight", "expected a whole number, got 'eight'"
    ),
    "limit of half a token": recipe(
        "max_new_tokens: 8", "max_new_tokens: 8.5", "expected a whole number, got 8.5"
    ),
    "limit in quotes": good(recipe=("max_new_tokens: 8", "max_new_tokens: '8'")),
    "limit above max_len": recipe(
        "max_new_tokens: 8",
        "max_new_tokens: 900",
        ("lengths.no_room", "recipe.yaml:14", "judge", "judge"),
    ),
    "text for a list": recipe(
        "max_new_tokens: 8",
        "stop: END",
        "roles.judge.stop: expected a list, as in `[END]`, got 'END'",
    ),
    "tool's name for a list": recipe(
        "max_new_tokens: 8", "tools: python", "roles.judge.tools: expected a list, as in `[python]`"
    ),
    "turns without tools": recipe(
        "max_new_tokens: 8", "max_turns: 3", ("roles.turns", "recipe.yaml:8", "judge")
    ),
    "choice that does not exist": recipe(
        "max_new_tokens: 8", "endless_tools: no_idea", "expected 'fail' or 'go_on', got 'no_idea'"
    ),
    "mapping misspelt": key(
        "mapping: seperate", f":12: mapping: {MAPPING}, got 'seperate'; did you mean 'separate'?"
    ),
    "mapping that is a list": key("mapping: [a]", f":12: mapping: {MAPPING}, got ['a']"),
    "mapping without a value": key("mapping:", f":12: mapping: {MAPPING}, got None"),
    "mapping to a number": key(
        "mapping: {pro: 3, con: b, judge: b}",
        "mapping.pro: expected the name of a policy, or a list of several, got 3",
    ),
    "mapping without a role": key(
        "mapping: {pro: a, con: b}", ("roles.unmapped", "recipe.yaml:12", "mapping")
    ),
    "mapping of nobody": key(
        "mapping: {}",
        ("roles.unmapped", "recipe.yaml:12", "mapping"),
        ("roles.unmapped", "recipe.yaml:12", "mapping"),
        ("roles.unmapped", "recipe.yaml:12", "mapping"),
    ),
    "mapping of an unknown role": key(
        "mapping: {pro: a, con: a, judge: a, jury: a}",
        ("roles.unknown", "recipe.yaml:12", "mapping"),
    ),
    "policy that nobody plays": key(
        "policies: {jury: {trainable: false}}", ("policies.unused", "recipe.yaml:12")
    ),
    "policies all frozen": key(
        "policies: {pro: {trainable: false}, con: {trainable: false}, judge: {trainable: false}}",
        ("policies.frozen", "recipe.yaml:12"),
    ),
    "unknown key of a policy": key(
        "policies: {pro: {trainble: no}}",
        "policies.pro.trainble: unknown key; did you mean 'trainable'",
    ),
    "trainable maybe": key(
        "policies: {pro: {trainable: maybe}}",
        "policies.pro.trainable: expected true or false, got 'maybe'",
    ),
    "whole run's flag of a policy": key(
        "policies: {pro: {flags: {train.batch_size: 4}}}",
        ("flags.whole_run", "recipe.yaml:12", "train.batch_size"),
    ),
    "plugins without a value": key(
        "plugins:", ":12: plugins: has no value; give one, or remove the key"
    ),
    "plugin that is no list": key(
        "plugins: marl_plugins.coach", "plugins: expected a list, as in `[marl_plugins.coach]`"
    ),
    "plugin that does not exist": key(
        "plugins: [marl_plugins.coahc]", ("plugin.unknown", "marl_plugins.coahc")
    ),
    "plugin's file that does not exist": key("plugins: [mine.py]", ("files.missing", "mine.py")),
    "deadline of 0": key(
        "limits: {task_seconds: 0}", "limits.task_seconds: expected a number above 0, got 0"
    ),
    "deadline that is no number": key(
        "limits: {task_seconds: .nan}", "limits.task_seconds: expected a number above 0, got nan"
    ),
    "unknown limit": key(
        "limits: {seconds: 3}", "limits.seconds: unknown key; did you mean 'task_seconds'?"
    ),
    "setting of a tool that does not exist": key(
        "tools: {calc: {seconds: 1}}",
        "tools.calc: unknown key; valid: mcp, python, sandbox, search, sql",
    ),
    "extends what is not there": key(
        "extends: base.yaml", ":12: extends: base.yaml: no such file: base.yaml"
    ),
    "extends two": key(
        "extends: [a, b]",
        ":12: extends: expected one file in the same folder, with its prompts, got ['a', 'b']",
    ),
    "merge key": recipe(
        "  con: {prompt: prompts/con.md}",
        "  con:\n    <<: {prompt: p}",
        ":6: `<<` is not read",
        "`extends: FILE`",
    ),
    "anchor": good(
        recipe=(
            "pro: {prompt: prompts/pro.md}\n  con: {prompt: prompts/con.md}",
            "pro: &p {prompt: prompts/pro.md}\n  con: *p",
        )
    ),
    "anchor that does not exist": recipe(
        "con: {prompt: prompts/con.md}", "con: *p", ":5: not YAML: found undefined alias"
    ),
    "alias of itself": recipe(
        "description: Two debate, a third decides",
        "description: &a [*a]",
        "an alias refers to itself",
    ),
    "tab": recipe("    prompt: prompts/judge.md", "\tprompt: prompts/judge.md", ":7: not YAML"),
    "two documents": case("not YAML: but found another document", recipe=RECIPE + "---\nname: x\n"),
    "line ends of Windows": good(recipe=RECIPE.replace("\n", "\r\n")),
    "byte-order mark": good(recipe=b"\xef\xbb\xbf" + RECIPE.encode()),
    "UTF-16": case("recipe.yaml: is not UTF-8 text (byte 0)", recipe=RECIPE.encode("utf-16")),
    "key that is a list": key("[a]: x", ":12: a key is a word"),
    "workflow that is a prompt": recipe(
        "workflow: workflow.py",
        "workflow: prompts/pro.md",
        ("files.not_python", "recipe.yaml:9", "workflow", "pro.md"),
    ),
    "grader elsewhere": recipe(
        "grader: grader.py",
        "grader: ../nope.py",
        ("files.missing", "recipe.yaml:10", "grader", "nope.py"),
    ),
    "no grader": recipe("grader: grader.py\n", "", ("scores.none",)),
}
A_FLAG = {
    "data file that is not there": recipe(
        "train.json",
        "nope.json",
        ("tasks.no_file", "recipe.yaml:13", "data.prompt_dataset", "nope.json"),
    ),
    "evaluation file that is not there": flag(
        "eval.dataset: nope.json", ("tasks.no_file", "recipe.yaml:15", "eval.dataset", "nope.json")
    ),
    "two values": recipe(
        "max_len: 512",
        "max_len: [512, 3]",
        ("flags.too_many", "recipe.yaml:14", "data.max_len"),
        ("lengths.positions", "recipe.yaml:14"),
    ),
    "dashes": flag("--actor.adam.lr: 1e-4", ("flags.dashes", "recipe.yaml:15", "--actor.adam.lr")),
    "exponent": good(recipe=("max_len: 512\n", "max_len: 512\n  actor.adam.lr: 1e-4\n")),
    "number in words": flag(
        "actor.adam.lr: fast", ("flags.value", "recipe.yaml:15", "actor.adam.lr")
    ),
    "false for a number": recipe(
        "max_len: 512",
        "max_len: false",
        ("flags.no_switch", "recipe.yaml:14", "data.max_len"),
        ("lengths.positions",),
    ),
    "true for a number": recipe(
        "max_len: 512",
        "max_len: true",
        ("flags.value", "recipe.yaml:14", "data.max_len"),
        ("lengths.positions", "recipe.yaml:14"),
    ),
    "given twice": flag("data.max_len: 256", ":15: key 'data.max_len' is given twice"),
    "value of a switch": case(
        ("flags.switch", "command line", "train.colocate_all"),
        words="--train.colocate_all true",
    ),
    "flag of one policy that does not exist": case(
        ("flags.unknown", "command line", "policy.pro.actor.lr"), words="--policy.pro.actor.lr 1"
    ),
    "folder of a model that is taken for the hub's name": good(
        ("models.hub",),
        words="--actor.model_name_or_path prompts/x",
    ),
    "indented differently": recipe("  con: {", "   con: {", "this line is indented differently"),
    "tab": recipe("  con: {", "\tcon: {", "indent with spaces, not tabs"),
    "colon in a text": recipe(
        "name: debate",
        "name: a: b",
        "recipe.yaml:1: not YAML",
        "quote a text that contains a colon",
    ),
    "dry-run": flag("dry-run: true", ("flags.unknown", "recipe.yaml:15", "dry-run")),
    "one policy's": flag(
        "policy.pro.actor.adam.lr: 1e-4",
        ("flags.unknown", "recipe.yaml:15", "policy.pro.actor.adam.lr"),
    ),
    "schedule": flag(
        "actor.lr_scheduler: wavy", ("flags.value", "recipe.yaml:15", "actor.lr_scheduler")
    ),
    "batch that is not divided": recipe(
        "train.batch_size: 8",
        "train.batch_size: 3",
        ("plan.batch", "recipe.yaml:15", "recipe.yaml:17"),
    ),
    "tasks beside data": key(
        "tasks: tasks.py",
        ("flags.pointless", "recipe.yaml:14", "data.prompt_dataset"),
        tasks="def load(split): return []",
    ),
}
B_PROMPT = {
    "file that is not there": case(
        ("files.unreadable", "recipe.yaml:4", "roles.pro.prompt", "pro.md"), pro=None
    ),
    "folder": recipe(
        "prompts/judge.md",
        "prompts",
        ("files.unreadable", "recipe.yaml:7", "roles.judge.prompt", "prompts"),
    ),
    "device": recipe(
        "prompts/judge.md",
        "/dev/zero",
        ("files.pipe", "recipe.yaml:7", "roles.judge.prompt", "zero"),
    ),
    "system prompt that is not there": recipe(
        "max_new_tokens: 8",
        "system: s.md",
        ("files.unreadable", "recipe.yaml:8", "roles.judge.system", "s.md"),
    ),
    "field of the system prompt": recipe(
        "max_new_tokens: 8",
        "system: s.md",
        "workflow.py:6: role 'judge'",
        "['are'",
        **{"s.md": "{are}"},
    ),
    "field that nobody gives": case(
        "workflow.py:4: role 'pro' was called with the wrong fields", "['nobody'", pro="{nobody}"
    ),
    "field that is not shown": good(pro="{question}"),
    "brace": case(
        ("roles.braces", "recipe.yaml:4", "roles.pro.prompt", "pro.md"), pro="{question} {"
    ),
    "JSON": case(
        ("roles.field", "recipe.yaml:4", "roles.pro.prompt", "pro.md"), pro='{"a": 1} {question}'
    ),
    "format that is none": case(
        ("roles.format", "recipe.yaml:4", "roles.pro.prompt", "pro.md"),
        pro="{question:%d}{history}",
    ),
    "conversion that is none": case(
        ("roles.format", "recipe.yaml:4", "roles.pro.prompt", "pro.md"), pro="{question!x}{history}"
    ),
    "field called after": case(
        ("roles.taken_field", "recipe.yaml:4", "roles.pro.prompt", "pro.md"),
        pro="{question}{after}",
    ),
    "field called class": case(
        ("roles.taken_field", "recipe.yaml:4", "roles.pro.prompt", "pro.md"),
        pro="{question}{class}",
    ),
    "field called self": good(
        pro="{question}{self}", workflow=('history="")', 'history="", self="x")')
    ),
    "line ends of Windows": good(pro="{question}\r\n{history}"),
    "1 MB": case(
        ("lengths.prompt", "recipe.yaml:14", "pro"),
        pro="x" * 1_000_000 + "{question}",
    ),
}
C_WORKFLOW = {
    "unknown role after one answer": ending(
        f"if 'again' in str(pro):\n    await roles.jury(question='')\n{LAST.strip()}",
        "workflow.py:7: not reached: line 7",
        "give the role an example",
        exit=0,
    ),
    "unknown field after one answer": ending(
        f"match str(con):\n    case 'yes':\n        await roles.pro(question='')\n{LAST.strip()}",
        "workflow.py:8: not reached: line 8",
        "give the role an example",
        exit=0,
    ),
    "exception after one answer": ending(
        f"if str(pro).startswith('again'):\n    1 / 0\n{LAST.strip()}",
        "workflow.py:7: not reached: line 7",
        "give the role an example",
        exit=0,
    ),
    "agents that always fail": ending(
        "from marl_plugins.core.failures import AgentFailure\nraise AgentFailure('no_answer', 'x')",
        "every run of the workflow with invented answers ends in a failure (no_answer)",
        exit=0,
    ),
    "tool that is always lost": ending(
        "from marl_plugins.core.failures import InfrastructureFailure\nraise "
        "InfrastructureFailure('shop', 'x')",
        "every run of the workflow with invented answers ends in a failure (shop)",
        exit=0,
    ),
    "exception without a text": ending(
        "class E(Exception):\n    def __str__(self): raise KeyError\nraise E",
        "workflow.py:8: E: its text cannot be shown: KeyError",
    ),
    "exception of its own kind": ending(
        "class E(BaseException): pass\nraise E('x')", "workflow.py:7: E: x"
    ),
    "syntax": case(
        ("code.syntax", "recipe.yaml:9", "workflow", "workflow.py:1"),
        workflow="async def run(task, roles, tools)\n",
    ),
    "no function run": case(
        ("files.no_function", "recipe.yaml:9", "workflow"),
        workflow="async def main(task, roles, tools): pass\n",
    ),
    "run is a number": case(
        ("files.no_function", "recipe.yaml:9", "workflow"), workflow="run = 3\n"
    ),
    "run is a class": case(
        "run gives run at once; write `async def",
        workflow="class run:\n    def __init__(self, *a): pass\n",
    ),
    "module that is missing": case(
        ("code.failed", "recipe.yaml:9", "workflow", "workflow.py:1"), workflow="import nopackage\n"
    ),
    "exit": case(("code.exit", "recipe.yaml:9", "workflow", "workflow.py:1"), workflow="exit()\n"),
    "tool that nobody awaits": ending(
        f"tools.python('1')\n{LAST.strip()}",
        "workflow.py:6: tools.python is called, and nobody awaits it",
    ),
    "tool's call as a field": ending(
        "x = tools.python('1')\nreturn await roles.judge(question='', history=x)",
        "write `await` before",
    ),
    "tool's function that nobody awaits": ending(
        f"tools.python.python(code='1')\n{LAST.strip()}",
        "workflow.py:6: tools.python.python is called, and nobody awaits it",
    ),
    "tool's function with a text": ending(
        "await tools.python.python('1')", "workflow.py:6:", "takes 0 positional arguments but 1 was"
    ),
    "tool without a text": ending(
        "await tools.python()", "workflow.py:6:", "tools.python() missing 1 required"
    ),
    "tool with a number": ending(
        "await tools.python(3)", "workflow.py:6:", "tools.python takes a text, got int"
    ),
    "tool with an action": ending(
        "await tools.python(pro)",
        "workflow.py:6:",
        "takes a text, got Action; an action's is str(action)",
    ),
    "tool that does not exist": ending(
        "await tools.calc('1')", "workflow.py:6: the recipe has no tool 'calc'; valid: python"
    ),
    "roles by brackets": ending(
        "await roles['pro'](question='', history='')",
        "workflow.py:6: TypeError: 'Roles' object is not sub",
    ),
    "roles one by one": ending(
        "for r in roles: await r()", "workflow.py:6: TypeError: 'Roles' object is not iterable"
    ),
    "roles by name": good(workflow=("await roles.pro(", "await getattr(roles, 'pro')(")),
    "input": ending("input()", "workflow.py:6:"),
    "recursion": case(
        "RecursionError: maximum recursion depth",
        workflow="async def run(task, roles, tools):\n    await run(task, roles, tools)\n",
    ),
    "task that is changed": ending(
        "task.prompt = ''", "workflow.py:6: FrozenInstanceError: cannot assign to field 'prompt'"
    ),
    "loop of its own": ending(
        "asyncio.run(asyncio.sleep(0))",
        "workflow.py:6: RuntimeError: asyncio.run() cannot be called",
    ),
    "field of the task": ending(
        "task.subject", "workflow.py:6: AttributeError: 'Task' object has no attribute 'subject'"
    ),
    "whole task shown": ending(
        "return await roles.judge(question='', history=str(task))",
        "workflow.py:6:",
        "is shown the task's label",
    ),
    "label out of the metadata": ending(
        "return await roles.judge(question=task.metadata['gold'], history=[pro, con])",
        "workflow.py:6: role 'judge' is shown the task's label, in field 'question'",
        "also where it comes from the metadata",
        data=rows(lambda row, n: row | {"gold": row["answer"]}),
    ),
    "metadata that is the label once": good(
        workflow=("role", "role"),
        data=rows(lambda row, n: row | {"level": "pro" if n == 0 else "x"}),
    ),
    "metadata that some tasks lack": ending(
        f"task.metadata['hint']\n{LAST.strip()}",
        "workflow.py:6: KeyError: 'hint'; the task has no such metadata: every field of the data "
        "but prompt and label is in it "
        "(the workflow, on task '1', raises it whatever the agents answer)",
        data=rows(lambda row, n: row if n else row | {"hint": "x"}),
    ),
    "answers that some tasks cannot take": ending(
        f"if task.metadata['type'] == 'number': int(str(pro))\n{LAST.strip()}",
        "workflow.py:6: the workflow, on task '5', does not run when every answer is a word: "
        "ValueError",
        exit=0,
        data=rows(lambda row, n: row | {"type": "number" if n > 4 else "text"}),
    ),
    "role that only other tasks call": good(
        workflow=(LAST, f"    if task.metadata['type'] == 'easy': return con\n{LAST}"),
        data=rows(lambda row, n: row | {"type": "hard" if n > 3 else "easy"}),
    ),
    "nothing returned": ending(
        LAST.strip().removeprefix("return "),
        ("rehearsal.no_answer", "workflow.py"),
        exit=0,
    ),
    "iterator shown": ending(
        "return await roles.judge(question='', history=map(str, [pro]))",
        "a map has no text; write a list",
    ),
    "actions returned in a dict": ending(
        "v = " + LAST.strip()[7:] + "\nreturn {'v': v}",
        "what run returns: a dict that holds actions",
    ),
    "five votes": good(
        workflow=(
            LAST,
            (
                "    votes = await asyncio.gather(*(roles.con(question='', history='') for _ in "
                "range(5)))\n"
                "    return await roles.judge(question='', history=votes)"
            ),
        )
    ),
    "print": good(workflow=(LAST, f"    print('hello')\n{LAST}")),
    "network": ending(
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')",
        "workflow.py:7: the workflow does not run: URLError",
        exit=0,
    ),
}
NO_PROMPT = (
    "no field 'input', nor prompt, problem, question, query, instruction; name the field of the "
    "prompt with "
    "--data.input_key"
)
D_DATA = {
    "number of thousands of digits": case(
        ("tasks.long_number", "train.jsonl:1"),
        **lines('{"question": "x", "answer": 1' + "0" * 5000 + "}"),
    ),
    "long field of a table": case(
        ("lengths.some_tasks", "recipe.yaml:14", "pro"),
        ("lengths.some_tasks", "recipe.yaml:14", "con"),
        ("lengths.answers", "recipe.yaml:14", "con"),
        ("lengths.some_tasks", "recipe.yaml:14", "judge"),
        ("lengths.answers", "recipe.yaml:14", "judge"),
        exit=0,
        recipe=("train.json", "train.csv"),
        data=None,
        **{
            "train.csv": "question,answer\n"
            + "x" * 200_000
            + ",pro\n"
            + "".join(f"Is {n} even?,pro\n" for n in range(16))
        },
    ),
    "list in lines": case(("tasks.list_in_lines", "train.jsonl:1"), **lines("[\n{}\n]")),
    "commas between lines": case(
        ("files.json", "train.jsonl:1"), **lines('{"question": "a"},\n{"question": "b"}')
    ),
    "last line cut": case(
        ("files.json", "train.jsonl:17"), **lines("\n".join(map(json.dumps, ROWS)) + "\n{")
    ),
    "blank lines": good(**lines("\n\n".join(map(json.dumps, ROWS)))),
    "line ends of Windows": good(**lines("\r\n".join(map(json.dumps, ROWS)))),
    "UTF-16": case(("files.encoding", "tasks", "train.jsonl"), **lines("{}".encode("utf-16"))),
    "comment": case(("files.json", "train.json:1"), data="// tasks\n[]"),
    "two lists": case(("tasks.no_list", "train.json"), data='{"train": [{}], "test": [{}]}'),
    "texts": case(
        ("tasks.no_object", "train.json:1: item 1"),
        ("tasks.no_object", "train.json:1: item 2"),
        data='["a", "b"]',
    ),
    "null": case(("tasks.no_list", "train.json"), data="null"),
    "empty list": case(("tasks.empty_file", "train.json"), data="[]"),
    "integer of 5000 digits": case(
        ("tasks.long_number", "train.json"), data='[{"question": "a", "answer": %s}]' % ("1" * 5000)
    ),
    "prompt under another name": case(
        ("tasks.no_prompt_field", "train.json:1: item 1"),
        data=rows(lambda r, n: {"frage": "", "answer": ""}),
    ),
    "chat under another name": case(
        ("tasks.no_prompt_field", "train.json:1: item 1"), data=rows(lambda r, n: {"messages": []})
    ),
    "comma-separated with semicolons": case(
        ("tasks.separator", "train.csv:1"),
        recipe=("train.json", "train.csv"),
        **{"train.csv": "question;answer\na;b\n"},
    ),
    "input key that is not there": case(
        ("tasks.no_field", "train.json:1: item 1"), words="--data.input_key nope"
    ),
    "label key that is not there": case(
        ("tasks.no_field", "train.json:1: item 1"), words="--data.label_key nope"
    ),
    "labels that are null": case(
        ("tasks.empty_label", "train.json:1: item 3"),
        data=rows(lambda r, n: r | {"answer": None if n == 2 else 1}),
    ),
    "an action taken for its text": ending(
        "return pro.strip()", "workflow.py:6: AttributeError", "an action's text is `action.text`"
    ),
    "answers that leave no room": recipe(
        "max_len: 512", "max_len: 60", ("lengths.answers", "recipe.yaml:14", "judge"), exit=0
    ),
    "a grader that one label breaks": case(
        "score_outcome, on task '5', ",
        "'int' object has no attribute 'lower'",
        data=rows(lambda r, n: r | {"answer": 5} if n == 5 else r),
        grader="def score_outcome(trajectory):\n    return float(trajectory.task.label.lower() == "
        "str(trajectory.answer))\n",
    ),
    "a grader that gives a text": case(
        "expected a number in [0, 1]", grader="def score_outcome(trajectory):\n    return '1.0'\n"
    ),
    "labels that are empty": case(
        "train.json:1: item 1: field 'answer' is empty; give every item a label",
        data=rows(lambda r, n: r | {"answer": ""}),
    ),
    "two messages": case(
        ("tasks.messages", "train.json:1: item 1"),
        ("tasks.messages", "train.json:1: item 2"),
        ("tasks.messages", "train.json:1: item 3"),
        ("tasks.messages", "train.json:1: item 4"),
        ("tasks.messages", "train.json:1: item 5"),
        ("tasks.messages", "train.json:1: item 6"),
        ("tasks.messages", "train.json:1: item 7"),
        ("tasks.messages", "train.json:1: item 8"),
        ("tasks.messages", "train.json:1: item 9"),
        ("tasks.messages", "train.json:1: item 10"),
        ("tasks.messages", "train.json:1: item 11"),
        ("tasks.messages", "train.json:1: item 12"),
        ("tasks.messages", "train.json:1: item 13"),
        ("tasks.messages", "train.json:1: item 14"),
        ("tasks.messages", "train.json:1: item 15"),
        ("tasks.messages", "train.json:1: item 16"),
        data=rows(
            lambda r, n: {
                "prompt": [{"role": "system", "content": ""}, {"role": "user", "content": ""}]
            }
        ),
    ),
    "prompt that is a number": case(
        ("tasks.prompt", "train.json:1: item 1"),
        ("tasks.prompt", "train.json:1: item 2"),
        ("tasks.prompt", "train.json:1: item 3"),
        ("tasks.prompt", "train.json:1: item 4"),
        ("tasks.prompt", "train.json:1: item 5"),
        ("tasks.prompt", "train.json:1: item 6"),
        ("tasks.prompt", "train.json:1: item 7"),
        ("tasks.prompt", "train.json:1: item 8"),
        ("tasks.prompt", "train.json:1: item 9"),
        ("tasks.prompt", "train.json:1: item 10"),
        ("tasks.prompt", "train.json:1: item 11"),
        ("tasks.prompt", "train.json:1: item 12"),
        ("tasks.prompt", "train.json:1: item 13"),
        ("tasks.prompt", "train.json:1: item 14"),
        ("tasks.prompt", "train.json:1: item 15"),
        ("tasks.prompt", "train.json:1: item 16"),
        data=rows(lambda r, n: r | {"question": n}),
    ),
    "prompt that is blank": case(
        ("tasks.prompt", "train.json:1: item 4"),
        data=rows(lambda r, n: r | {"question": "" if n == 3 else "x"}),
    ),
    "id that is a list": case(
        ("tasks.id", "train.json:1: item 1"),
        ("tasks.id", "train.json:1: item 2"),
        ("tasks.id", "train.json:1: item 3"),
        ("tasks.id", "train.json:1: item 4"),
        ("tasks.id", "train.json:1: item 5"),
        ("tasks.id", "train.json:1: item 6"),
        ("tasks.id", "train.json:1: item 7"),
        ("tasks.id", "train.json:1: item 8"),
        ("tasks.id", "train.json:1: item 9"),
        ("tasks.id", "train.json:1: item 10"),
        ("tasks.id", "train.json:1: item 11"),
        ("tasks.id", "train.json:1: item 12"),
        ("tasks.id", "train.json:1: item 13"),
        ("tasks.id", "train.json:1: item 14"),
        ("tasks.id", "train.json:1: item 15"),
        ("tasks.id", "train.json:1: item 16"),
        data=rows(lambda r, n: r | {"id": [n]}),
    ),
    "ids that are the same": case(
        ("tasks.same_id", "train.json"), data=rows(lambda r, n: r | {"id": "x"})
    ),
    "braces in a task": good(data=rows(lambda r, n: r | {"question": r["question"] + " {x} {}"})),
    "too few": case(("tasks.too_few", "recipe.yaml:17"), data=json.dumps(ROWS[:3])),
    "evaluated on what is trained": case(("tasks.leaked",), words="--eval.dataset train.json"),
    "kind that is not read": recipe(
        "train.json",
        "train.jsonl.gz",
        ("tasks.kind", "recipe.yaml:13", "data.prompt_dataset", "train.jsonl.gz"),
    ),
    "address": case(
        ("tasks.no_file", "data.prompt_dataset", "a.json"),
        words="--data.prompt_dataset https://example.org/a.json",
    ),
    "two files": case(
        ("tasks.no_file", "data.prompt_dataset", "a.json,b.json"),
        words="--data.prompt_dataset a.json,b.json",
    ),
    "every task too long": case(
        ("lengths.tasks", "recipe.yaml:14", "pro"),
        ("lengths.tasks", "recipe.yaml:14", "con"),
        ("lengths.tasks", "recipe.yaml:14", "judge"),
        data=rows(lambda r, n: r | {"question": f"{n}" + "x" * 900}),
    ),
}
TEXT = "its metadata must be a dict whose keys are texts"
G_LOADER = {
    "label of half a pair": tasks(
        "split + str(n), f'{split}{n}?', chr(0xD800)",
        ("tasks.unicode", "train/train0"),
        ("tasks.unicode", "eval/eval0"),
    ),
    "label of thousands of digits": tasks(
        "split + str(n), f'{split}{n}?', 10**5000",
        ("tasks.json", "train/train0"),
        ("tasks.json", "eval/eval0"),
    ),
    "metadata in itself": loader(
        "def load(split):\n    m = {}\n    m['m'] = m\n    return [Task(split + str(n), "
        "f'{split}{n}?', '', m) for n in range(16)]",
        ("tasks.json", "train/train0"),
        ("tasks.json", "eval/eval0"),
    ),
    "good": good(
        **loader(
            "def load(split): return [Task(split + str(n), f'{split}{n}?', 'pro') for n in "
            "range(16)]"
        ).files
    ),
    "dicts": loader(
        "def load(split): return [{'id': 'a'}]", ("tasks.type", "tasks.py", "load('train')")
    ),
    "text": loader("def load(split): return 'abc'", ("tasks.type", "tasks.py", "load('train')")),
    "one split only": loader(
        "def load(split): return {'train': []}[split]", ("code.failed", "tasks.py:2", "marl_tasks")
    ),
    "nothing to evaluate": loader(
        "def load(split):\n    if split == 'train': return [Task('a', 'b')]",
        ("tasks.no_iterable", "tasks.py:2", "load('eval')"),
    ),
    "file that is missing": loader(
        "def load(split): return open('/no/such')", ("code.failed", "tasks.py:2", "marl_tasks")
    ),
    "arguments of a task": loader(
        "def load(split): return [Task(id='a', question='b')]",
        ("code.failed", "tasks.py:2", "marl_tasks"),
    ),
    "id that is a number": tasks("n, f'{split}{n}?'", ("tasks.text", "train/0")),
    "prompt that is None": tasks("split + str(n), None", ("tasks.text", "train/train0")),
    "metadata that is None": tasks(
        "split + str(n), f'{split}{n}?', '', None",
        ("tasks.metadata", "train/train0"),
        ("tasks.metadata", "eval/eval0"),
    ),
    "metadata that is a list": tasks(
        "split + str(n), f'{split}{n}?', '', [1]",
        ("tasks.metadata", "train/train0"),
        ("tasks.metadata", "eval/eval0"),
    ),
    "metadata by number": tasks(
        "split + str(n), f'{split}{n}?', '', {1: 2}",
        ("tasks.metadata", "train/train0"),
        ("tasks.metadata", "eval/eval0"),
    ),
    "label that is a set": tasks(
        "split + str(n), f'{split}{n}?', {1}",
        ("tasks.json", "train/train0"),
        ("tasks.json", "eval/eval0"),
    ),
    "same ids in both splits": tasks("str(n), f'{split}{n}?'", ("tasks.both_splits",)),
    "demonstrations of nothing": demonstrations(
        "yield 1", ("rehearsal.demonstration", "demo.py:3")
    ),
    "demonstrations that fail": demonstrations("1 / 0", ("rehearsal.demonstration", "demo.py:4")),
    "demonstrations of another role": demonstrations(
        "yield Demonstration('jury', {}, ['x'])",
        ("rehearsal.demonstration", "demo.py:3"),
        "'jury'",
    ),
    "demonstrations of other fields": demonstrations(
        "yield Demonstration('pro', {'task': ''}, ['x'])",
        "demo.py:3:",
        "role 'pro'",
        "the demonstration gave ['task']",
    ),
}
G_GRADER = {
    "nan": case(
        "grader.py:1:",
        "is nan; scores lie in [0, 1]",
        grader="def score_outcome(t): return float('nan')\n",
    ),
    "truth value": good(grader="def score_outcome(t): return t.answer == t.task.label\n"),
    "pair": case(
        "grader.py:1:",
        "(1.0, {}); expected a number in [0, 1], or None",
        grader="def score_outcome(t): return 1.0, {}\n",
    ),
    "other name": case(
        ("files.no_function", "recipe.yaml:10", "grader"), grader="def score(t): return 1\n"
    ),
    "attribute that is not there": case(
        "grader.py:1: AttributeError", "'result'", grader="def score_outcome(t): return t.result\n"
    ),
    "role without an outcome": case(
        "role 'judge' acted and has none",
        grader="def score_outcome(t): return {'pro': 1, 'con': 0}\n",
    ),
    "outcome of an unknown role": case(
        "'jury' is no role of the recipe; valid: con, judge, pro",
        grader="def score_outcome(t): return {'pro': 1, 'con': 0, 'judge': 1, 'jury': 1}\n",
    ),
    "reward function": reward("return {'rewards': [1.0]}", exit=0),
    "reward out of range": reward(
        "return {'rewards': [5.0]}", "reward.py:1:", "is 5.0; scores lie in [0, 1]"
    ),
    "reward function that fails": reward(
        "1 / 0", "reward.py:2: ZeroDivisionError", "(reward_func raises it whatever"
    ),
    "reward function without return": reward(
        "pass", "reward.py:1:", "reward_func returned None; expected {'rewards': [...]}"
    ),
    "reward that is a number": reward(
        "return 1.0", "reward.py:1:", "reward_func returned 1.0; expected {'rewards': [...]}"
    ),
    "reward for nobody": reward("return []", "reward.py:1:", "reward_func returned []; expected"),
    "reward function's service": reward(
        "raise ConnectionRefusedError('down')",
        "reward_func does not run: ConnectionRefused",
        exit=0,
    ),
}
OUT_OF_RANGE = "is out of range: expected"
E_COMMAND_LINE = {
    "checkpoints where the best step is kept": case(
        ("files.taken", "ckpt.path"),
        words="--ckpt.output_dir out --ckpt.path out/best",
    ),
    "word": case(("flags.too_many", "command line", "recipe"), more=["mathchat"]),
    "one dash": case(("flags.hyphens", "command line", "recipe"), words="-max_steps 3"),
    "dashes of a word processor": case(
        ("flags.hyphens", "command line", "recipe"), words="\u2013\u2013max_steps 3"
    ),
    "two values": case(
        ("flags.too_many", "command line", "rollout.batch_size"), words="--rollout.batch_size 8 9"
    ),
    "no value": case(
        ("flags.value", "command line", "rollout.batch_size"), words="--rollout.batch_size"
    ),
    "half a task": case(
        ("flags.value", "command line", "rollout.batch_size"), words="--rollout.batch_size 8.5"
    ),
    "twice": good(("flags.repeated", "max_steps"), words="--max_steps 2 --max_steps 3"),
    "twice the same": good(words="--max_steps 2 --max_steps 2"),
    "with an equals sign": good(words="--max_steps=2"),
    "beginning of a name": case(
        ("flags.unknown", "command line", "rollout.batch"), words="--rollout.batch 8"
    ),
    "dash for an underscore": case(
        ("flags.unknown", "command line", "rollout.batch-size"), words="--rollout.batch-size 8"
    ),
    "mapping of nothing": case(("flags.mapping", "mapping"), words="--mapping="),
    "mapping without roles": case(
        ("roles.unmapped", "mapping"), ("roles.unmapped", "mapping"), words="--mapping pro=a"
    ),
    "mapping of an unknown role": case(
        ("roles.unknown", "mapping"), words="--mapping pro=a,con=a,judge=a,jury=b"
    ),
    "recipe twice": case(("recipe.twice",), words="--recipe mathchat"),
    "infinite learning rate": case(
        ("flags.value", "command line", "actor.adam.lr"), words="--actor.adam.lr 1e400"
    ),
    "no room at all": case(
        ("lengths.no_room", "recipe.yaml:16"),
        ("lengths.no_room", "judge", "judge"),
        words="--data.max_len 1",
    ),
    "schedule that needs more": case(
        ("flags.value", "command line", "actor.lr_scheduler"),
        words="--actor.lr_scheduler warmup_stable_decay",
    ),
    "schedule": good(words="--actor.lr_scheduler linear --critic.lr_scheduler cosine_with_min_lr"),
    "one sample to compare": case(
        ("upstream.refused",), words="--algo.advantage.estimator rloo --groups.by task+role"
    ),
    "model by a short name": case(("models.unknown",), words="--actor.model_name_or_path gpt2"),
    "model by an address": case(
        ("models.unknown",), words="--actor.model_name_or_path https://huggingface.co/a/b"
    ),
    "model that is a file": case(("models.file",), words="--actor.model_name_or_path grader.py"),
    "tiny model of no width": case(
        ("models.tiny_heads", "tiny:heads=3"), words="--actor.model_name_or_path tiny:heads=3"
    ),
    "output in a file": case(
        ("files.unwritable", "ckpt.output_dir", "grader.py"), words="--ckpt.output_dir grader.py"
    ),
    "reward server": case(
        ("reward.file", "reward.remote_url"),
        recipe=("grader: grader.py\n", ""),
        words="--reward.remote_url http://x",
    ),
    "policy that does not exist": case(
        ("flags.no_policy", "command line", "policy.jury.actor.adam.lr"),
        words="--policy.jury.actor.adam.lr 1",
    ),
    "coach without a kind": case(
        ("coach.none", "marl_plugins.coach"), words="--plugin marl_plugins.coach"
    ),
    "coach's file that is not there": case(
        ("files.missing", "nope.py"), words="--plugin marl_plugins.coach --coach.rubric nope.py"
    ),
    "two coaches": case(
        ("flags.exclusive", "command line", "coach.model", "coach.rubric"),
        ("rubric.missing", "grader.py"),
        words="--plugin marl_plugins.coach --coach.rubric grader.py --coach.model x",
    ),
    "resume of nothing": case(("resume.recipe",), words="--resume nope"),
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
F_MODEL = {
    "good": model(model__safetensors="x"),
    "no weights": model(("models.no_weights", "recipe.yaml:11", "model")),
    "weights that are pointers": model(
        ("models.pointer", "recipe.yaml:11"), model__safetensors=POINTER
    ),
    "no architecture": model(
        ("models.architecture", "recipe.yaml:11", "config.json"), config={}, model__safetensors="x"
    ),
    "translation model": model(
        ("models.architecture", "recipe.yaml:11", "config.json"),
        config={"architectures": ["T5ForConditionalGeneration"]},
        model__safetensors="x",
    ),
    "settings of the tokenizer cut": model(
        (
            "files.json",
            "pro",
            "pro",
            "con",
            "con",
            "judge",
            "judge",
            "recipe.yaml:11",
            "tokenizer_config.json:1",
        ),
        tokenizer="{",
        model__safetensors="x",
    ),
    "tokenizer cut": model(
        ("files.json", "tokenizer.json:1"), model__safetensors="x", tokenizer__json="{"
    ),
    "configuration in UTF-16": model(
        (
            "files.json",
            "pro",
            "pro",
            "con",
            "con",
            "judge",
            "judge",
            "recipe.yaml:11",
            "config.json",
        ),
        model__safetensors="x",
        config__json="{}".encode("utf-16"),
    ),
    "another user's folder": recipe(
        "model: tiny", "model: ~/nope", ("models.unknown", "recipe.yaml:11")
    ),
    "setting of a tiny model": recipe(
        "model: tiny",
        "model: 'tiny:layer=2'",
        ("models.tiny_setting", "recipe.yaml:11", "tiny:layer=2"),
    ),
}
OWN_NAME = "plugins name flags after themselves"
ADD = "def marl_options(parser): parser.add_argument"
H_PLUGIN = {
    "wrapper with two yields": case(
        ("code.failed", "plugin.py", "marl_tasks"),
        plugin="from marl_plugins import hookimpl\n@hookimpl(wrapper=True)\ndef marl_tasks(run, "
        "split):\n    yield (yield)\n",
    ),
    "wrapper that loses the tasks": case(
        ("tasks.none", "plugin.py", "marl_tasks"),
        plugin="from marl_plugins import hookimpl\n@hookimpl(wrapper=True)\ndef marl_tasks(run, "
        "split):\n    yield\n",
    ),
    "tool whose functions are numbers": plugin(
        "def marl_tools():\n    from marl_plugins.core.tools import Tool\n    async def run(call): "
        "pass\n"
        "    return [Tool('t', run, functions=[1])]",
        ("tools.functions", "plugin.py", "marl_tools", "t"),
    ),
    "tool that is a text": plugin(
        "def marl_tools(): return ['t']", ("tools.kind", "plugin.py", "marl_tools")
    ),
    "version of thousands of digits": plugin(
        f"def marl_log(): pass\nMARL_HOOKS = '2.{'9' * 5000}'",
        ("plugin.version", "plugin.py", "MARL_HOOKS"),
    ),
    "free flags as a text": plugin(
        "def marl_log(): pass\nmay_differ = 'mine.x'",
        ("plugin.may_differ", "plugin.py", "may_differ"),
    ),
    "flag whose type fails": plugin(
        f"{ADD}('--mine.x', type={{}}.__getitem__)",
        ("code.failed", "command line", "mine.x"),
        words="--mine.x 3",
    ),
    "flag that may be given several times": plugin(
        f"{ADD}('--mine.x', action='append')", exit=0, words="--mine.x 3 --mine.x 4"
    ),
    "twice on the command line": plugin(
        "def marl_log(): pass",
        ("plugin.twice", "plugin"),
        exit=0,
        words="--plugin ../{}/plugin.py",
    ),
    "twice in the recipe": key(
        "plugins: [one.py, ./one.py]",
        ("plugin.twice", "recipe.yaml:12", "plugins"),
        exit=0,
        **{"one.py": "from marl_plugins import hookimpl\n@hookimpl\ndef marl_log(): pass\n"},
    ),
    "in the recipe and on the command line": plugin(
        "def marl_log(): pass", exit=0, recipe=("model: tiny", "model: tiny\nplugins: [plugin.py]")
    ),
    "flag of another name": plugin(f"{ADD}('--limit')", ("plugin.flag_name", "plugin.py", "limit")),
    "flag like a policy's": plugin(
        f"{ADD}('--policy.x')", ("plugin.flag_name", "plugin.py", "policy.x")
    ),
    "flag that begins others": plugin(
        f"{ADD}('--actor.adam')", ("plugin.flag_prefix", "plugin.py", "actor.adam")
    ),
    "flag that goes on": plugin(
        f"{ADD}('--actor.adam.lr.x')", ("plugin.flag_prefix", "plugin.py", "actor.adam.lr.x")
    ),
    "flag that has to be given": plugin(
        f"{ADD}('--mine.x', required=True)", ("plugin.required_flag", "plugin.py")
    ),
    "argument without dashes": plugin(f"{ADD}('mine')", ("plugin.required_flag", "plugin.py")),
    "flag whose help is no format": plugin(
        f"{ADD}('--mine.x', help='50% of it')", ("plugin.flag_help", "plugin.py", "mine.x")
    ),
    "flag of a wrong default": plugin(
        f"{ADD}('--mine.x', type=int, default='many')", ("flags.value", "mine.x")
    ),
    "problem as a number": plugin(
        "def marl_configure(run): return 3", ("plugin.answer", "plugin.py", "marl_configure")
    ),
    "problem as True": plugin(
        "def marl_configure(run): return True", ("plugin.answer", "plugin.py", "marl_configure")
    ),
    "problems that are numbers": plugin(
        "def marl_configure(run): return [3]", ("plugin.answer", "plugin.py", "marl_configure")
    ),
    "run that is changed": plugin(
        "def marl_configure(run): run.device = 'x'",
        ("code.failed", "plugin.py:3", "marl_configure"),
    ),
    "tasks that are texts": plugin(
        "def marl_tasks(run, split): return ['a']",
        ("tasks.kind_of_value", "plugin.py", "marl_tasks"),
    ),
    "tasks that are a number": plugin(
        "def marl_tasks(run, split): return 3",
        ("plugin.answer", "plugin.py", "marl_tasks", "train"),
    ),
    "workflow that is a text": plugin(
        "def marl_workflow(run): return 'x'", "'x' is not a callable object"
    ),
    "policies that are texts": plugin(
        "def marl_policies(run): return ['pro']", ("plugin.answer", "plugin.py", "marl_policies")
    ),
    "no policies": plugin(
        "def marl_policies(run): return []", ("plugin.answer", "plugin.py", "marl_policies")
    ),
    "wrapper that returns nothing": case(
        ("plugin.answer", "plugin.py", "marl_policies"),
        plugin="from marl_plugins import hookimpl\n@hookimpl(wrapper=True)\ndef "
        "marl_policies(run):\n    yield\n",
    ),
    "policy whose model is a number": plugin(
        "def marl_policies(run):\n    from marl_plugins.core.policy import Policy\n    return "
        "[Policy('pro', 3)]",
        ("plugin.answer", "plugin.py", "marl_policies"),
    ),
    "estimator without return": plugin(
        "def marl_estimator(run):\n    pass",
        ("plugin.no_estimator", "plugin.py", "marl_estimator"),
        exit=0,
    ),
    "estimator of another scope": plugin(
        "def marl_estimator(run):\n    from marl_plugins.core.estimators import Estimator\n    "
        "return Estimator(scope='world')",
        ("estimator.field", "plugin.py", "Estimator"),
    ),
    "estimator that discounts by 7": plugin(
        "def marl_estimator(run):\n    from marl_plugins.core.estimators import Estimator\n    "
        "return Estimator(gamma=7)",
        ("estimator.gamma", "plugin.py", "Estimator"),
    ),
    "state that never comes back": plugin(
        "def marl_state(run): return {}", ("plugin.no_restore", "plugin.py", "marl_state")
    ),
    "hook that is not marked": case(
        ("hook.unmarked", "plugin.py", "plugin.py:1", "marl_credit"),
        plugin="def marl_credit(trajectories): return trajectories\n",
    ),
    "hook that does not exist": case(
        ("hook.unknown", "plugin.py", "plugin.py:4", "marl_slect"),
        plugin="from marl_plugins import hookimpl\n\n\n@hookimpl\ndef marl_slect(rows): return "
        "rows\n",
    ),
    "module that is no plugin": case(("plugin.no_hook", "json"), words="--plugin json"),
    "folder": case(("plugin.name", "prompts/x"), words="--plugin prompts/x"),
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
    words = [word.format(tmp_path.name) if "{}" in word else word for word in tried.words]
    code = main(["train", "--recipe", ".", *words, "--dry-run", "--json"])
    shown = capsys.readouterr()
    assert code == tried.exit and "Traceback" not in shown.err, shown.err
    found = json.loads(shown.out)["problems" if code else "warnings"]
    coded, text = (
        briefs(found),
        "\n".join(problem["sentence"].replace(f"{tmp_path}/", "") for problem in found),
    )
    if all(isinstance(said, tuple) for said in tried.says):
        assert coded == list(tried.says), text
    missing = [
        part for part in tried.says if part not in (text if isinstance(part, str) else coded)
    ]
    assert not missing, f"{missing} in {text}"


COMMANDS = {
    "flags without a command": (["--recipe", "."], [("command.expected", "openrlhf")]),
    "recipe of a folder without one": (["train", "--recipe", "prompts"], [("recipe.none",)]),
    "recipe that is a grader": (
        ["train", "--recipe", "grader.py"],
        [
            ("recipe.unknown_key", "grader.py:1", "def score_outcome(trajectory)"),
            ("recipe.missing_key", "grader.py:1", "name"),
            ("recipe.missing_key", "grader.py:1", "roles"),
            ("recipe.missing_key", "grader.py:1", "workflow"),
        ],
    ),
    "recipe that is data": (["train", "--recipe", "train.json"], [("recipe.value", "train.json")]),
    "recipe without a name": (
        ["train", "--recipe", "--dry-run"],
        [("flags.value", "command line", "recipe")],
    ),
    "resume without a folder": (["train", "--resume"], [("resume.folder",)]),
    "plugin alone": (
        ["train", "--plugin", "marl_plugins.routing"],
        [("models.none", "agent"), ("scores.none",), ("tasks.none",)],
    ),
    "help of a recipe that is not there": (
        ["train", "--help", "--recipe", "nope"],
        [("recipe.none",)],
    ),
    "evaluation without tasks": (["eval", "--recipe", "."], [("tasks.none_held_out",)]),
    "copy over a folder": (["recipes", "copy", ".", "prompts"], [("files.exists", "prompts")]),
    "verdicts of nothing": (
        ["export", "nowhere", "--table", "verdicts"],
        [("records.unreadable", "nowhere")],
    ),
    "judging nothing, by no recipe": (
        ["export", "nowhere", "--table", "rejudged", "--recipe", "no"],
        [("records.unreadable", "nowhere")],
    ),
    "page that does not exist": (["docs", "recipe"], [("docs.unknown",)]),
    "command that is a number": (
        ["hi", "--plugin", "three.py"],
        [("plugin.answer", "three.py", "marl_commands")],
    ),
    "command that does nothing": (
        ["hi", "--plugin", "idle.py"],
        [("plugin.answer", "idle.py", "marl_commands")],
    ),
}


@pytest.mark.parametrize(("words", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_other_commands_name_what_is_wrong(tmp_path, monkeypatch, words, expected):
    hook = (
        "from marl_plugins import hookimpl\nfrom marl_plugins.core.command import "
        "Command\n@hookimpl\ndef marl_commands():\n"
    )
    idle = "Command('hi', '', '', None)"
    write(
        tmp_path, {"three.py": f"{hook}    return [3]\n", "idle.py": f"{hook}    return [{idle}]\n"}
    )
    monkeypatch.chdir(tmp_path)
    with refused(*expected):
        dispatch(words)


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
    shown = capsys.readouterr()
    assert json.loads(shown.out)["recipe"] == "debate"
    assert {"mine", "too"} <= set(shown.err.split())
