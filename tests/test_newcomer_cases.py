"""What a newcomer gets wrong: edits of a working recipe or command, each with the exit code and the words of culprit and fix.

Every case runs the whole command as typed, `openrlhf train --recipe . --dry-run`: no traceback, and no exit code but 0 and 2.
Cases that other test files have (test_configuration, test_messages, test_plan, test_rehearsal, test_plugins) are not repeated.
"""

import io
import json
from dataclasses import dataclass

import pytest

from marl_plugins.cli import main

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
GRADER = "def score_outcome(trajectory):\n    return float(trajectory.answer == trajectory.task.label)\n"
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
        says: Parts of what is said: among the errors, or the warnings of a plan.
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
    return Case(says, exit, words, {SHORT.get(name, name): content for name, content in files.items()})


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
    return case(*says, workflow=(LAST, "\n".join(f"    {line}" for line in lines.split("\n"))), **more)


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
    made = {"model/config.json": json.dumps(config), "model/tokenizer_config.json": tokenizer or '{"chat_template": "x"}'}
    return Case(says, 2 if says else 0, (), {"recipe.yaml": ("model: tiny", "model: ./model"), **made, **files})


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
    text = "from marl_plugins.core.demonstrations import Demonstration\n\ndef demonstrate(task, rng):\n    "
    return key("warm_start: {demonstrations: demo.py, steps: 3}", *says, demo=text + code + "\n")


MAPPING = "expected separate, shared, or one `role: policy` per role"
A_RECIPE = {
    "policy called run": key(
        "mapping: {pro: run, con: best, judge: checkpoints}",
        "policy 'run': its weights would lie in",
        "policy 'best': its weights",
        "policy 'checkpoints': its weights",
    ),
    "name with a capital": recipe("name: debate", "name: Debate", "recipe.yaml:1: name: expected lower-case letters"),
    "name that is yes": recipe("name: debate", "name: yes", "recipe.yaml:1: name: expected another value than true"),
    "name that is a number": recipe("name: debate", "name: 3", "recipe.yaml:1: name: expected a text, got 3"),
    "no roles": recipe(
        RECIPE[RECIPE.index("roles:") : RECIPE.index("workflow")], "roles: {}\n", "roles: expected at least one"
    ),
    "role without a value": recipe("  pro: {prompt: prompts/pro.md}", "  pro:", "roles.pro: expected a mapping such as"),
    "unknown key of a role": recipe(
        "max_new_tokens: 8", "max_tokens: 8", ":8: roles.judge.max_tokens: unknown key", "max_new_t"
    ),
    "role without a prompt": recipe("    prompt: prompts/judge.md\n", "", ":6: roles.judge.prompt: this key is missing"),
    "role with a dash": recipe(
        "  pro: {", "  pro-side: {", "role 'pro-side' cannot be called", "letters, digits and underscores"
    ),
    "role of 65 letters": recipe("  pro: {", f"  {'p' * 65}: {{", "cannot be called", "at most 64"),
    "role of the package's own name": recipe("  pro: {", "  _specs: {", "role '_specs' cannot be called", "a letter first"),
    "role of another case": recipe(
        "  pro: {", "  Pro: {", "workflow.py:4: the recipe has no role 'pro'; did you mean 'Pro'?"
    ),
    "limit of 0": recipe(
        "max_new_tokens: 8", "max_new_tokens: 0", "roles.judge.max_new_tokens: expected at least 1, got 0"
    ),
    "limit in words": recipe("max_new_tokens: 8", "max_new_tokens: eight", "expected a whole number, got 'eight'"),
    "limit of half a token": recipe("max_new_tokens: 8", "max_new_tokens: 8.5", "expected a whole number, got 8.5"),
    "limit in quotes": good(recipe=("max_new_tokens: 8", "max_new_tokens: '8'")),
    "limit above max_len": recipe(
        "max_new_tokens: 8", "max_new_tokens: 900", "max_new_tokens 900 leaves no room in --data.max_len"
    ),
    "text for a list": recipe(
        "max_new_tokens: 8", "stop: END", "roles.judge.stop: expected a list, as in `[END]`, got 'END'"
    ),
    "tool's name for a list": recipe(
        "max_new_tokens: 8", "tools: python", "roles.judge.tools: expected a list, as in `[python]`"
    ),
    "turns without tools": recipe("max_new_tokens: 8", "max_turns: 3", "role 'judge' has 3 turns and no tools"),
    "choice that does not exist": recipe(
        "max_new_tokens: 8", "endless_tools: no_idea", "expected 'fail' or 'go_on', got 'no_idea'"
    ),
    "mapping misspelt": key("mapping: seperate", f":12: mapping: {MAPPING}, got 'seperate'; did you mean 'separate'?"),
    "mapping that is a list": key("mapping: [a]", f":12: mapping: {MAPPING}, got ['a']"),
    "mapping without a value": key("mapping:", f":12: mapping: {MAPPING}, got None"),
    "mapping to a number": key("mapping: {pro: 3, con: b, judge: b}", "mapping.pro: expected the name of a policy, got 3"),
    "mapping without a role": key("mapping: {pro: a, con: b}", ":12: role 'judge' is mapped to no policy"),
    "mapping of nobody": key("mapping: {}", "role 'pro' is mapped to no policy", "role 'judge' is mapped to no policy"),
    "mapping of an unknown role": key(
        "mapping: {pro: a, con: a, judge: a, jury: a}", ":12: there is no role 'jury' to be mapped"
    ),
    "policy that nobody plays": key(
        "policies: {jury: {trainable: false}}", ":12: no role is mapped to policy 'jury'", "judge"
    ),
    "policies all frozen": key(
        "policies: {pro: {trainable: false}, con: {trainable: false}, judge: {trainable: false}}",
        "every policy is frozen (trainable: false); at least one must be trained",
    ),
    "unknown key of a policy": key(
        "policies: {pro: {trainble: no}}", "policies.pro.trainble: unknown key; did you mean 'trainable'"
    ),
    "trainable maybe": key(
        "policies: {pro: {trainable: maybe}}", "policies.pro.trainable: expected true or false, got 'maybe'"
    ),
    "whole run's flag of a policy": key(
        "policies: {pro: {flags: {train.batch_size: 4}}}", ":12: --train.batch_size holds for the"
    ),
    "plugins without a value": key("plugins:", ":12: plugins: has no value; give one, or remove the key"),
    "plugin that is no list": key("plugins: marl_plugins.coach", "plugins: expected a list, as in `[marl_plugins.coach]`"),
    "plugin that does not exist": key(
        "plugins: [marl_plugins.coahc]", "'marl_plugins.coahc'", "did you mean 'marl_plugins.coach'?"
    ),
    "plugin's file that does not exist": key("plugins: [mine.py]", "mine.py: no such file"),
    "deadline of 0": key("limits: {task_seconds: 0}", "limits.task_seconds: expected a number above 0, got 0"),
    "deadline that is no number": key(
        "limits: {task_seconds: .nan}", "limits.task_seconds: expected a number above 0, got nan"
    ),
    "unknown limit": key("limits: {seconds: 3}", "limits.seconds: unknown key; did you mean 'task_seconds'?"),
    "setting of a tool that does not exist": key(
        "tools: {calc: {seconds: 1}}", "tools.calc: unknown key; valid: mcp, python, sandbox, sql"
    ),
    "extends what is not there": key("extends: base.yaml", ":12: extends: base.yaml: no such file: base.yaml"),
    "extends two": key(
        "extends: [a, b]", ":12: extends: expected one file in the same folder, with its prompts, got ['a', 'b']"
    ),
    "merge key": recipe(
        "  con: {prompt: prompts/con.md}", "  con:\n    <<: {prompt: p}", ":6: `<<` is not read", "`extends: FILE`"
    ),
    "anchor": good(
        recipe=(
            "pro: {prompt: prompts/pro.md}\n  con: {prompt: prompts/con.md}",
            "pro: &p {prompt: prompts/pro.md}\n  con: *p",
        )
    ),
    "anchor that does not exist": recipe("con: {prompt: prompts/con.md}", "con: *p", ":5: not YAML: found undefined alias"),
    "alias of itself": recipe(
        "description: Two debate, a third decides", "description: &a [*a]", "an alias refers to itself"
    ),
    "tab": recipe("    prompt: prompts/judge.md", "\tprompt: prompts/judge.md", ":7: not YAML"),
    "two documents": case("not YAML: but found another document", recipe=RECIPE + "---\nname: x\n"),
    "line ends of Windows": good(recipe=RECIPE.replace("\n", "\r\n")),
    "byte-order mark": good(recipe=b"\xef\xbb\xbf" + RECIPE.encode()),
    "UTF-16": case("recipe.yaml: is not UTF-8 text (byte 0)", recipe=RECIPE.encode("utf-16")),
    "key that is a list": key("[a]: x", ":12: a key is a word"),
    "workflow that is a prompt": recipe(
        "workflow: workflow.py", "workflow: prompts/pro.md", ":9: workflow: prompts/pro.md: is not a"
    ),
    "grader elsewhere": recipe("grader: grader.py", "grader: ../nope.py", ":10: grader: ../nope.py: no such file"),
    "no grader": recipe("grader: grader.py\n", "", "nothing scores the agents: give the recipe a grader"),
}
A_FLAG = {
    "data file that is not there": recipe("train.json", "nope.json", ":13: --data.prompt_dataset nope.json: no such file"),
    "evaluation file that is not there": flag("eval.dataset: nope.json", ":15: --eval.dataset nope.json: no such file"),
    "two values": recipe("max_len: 512", "max_len: [512, 3]", ":14: --data.max_len takes fewer values, got 512 3"),
    "dashes": flag("--actor.adam.lr: 1e-4", ":15: flags stand in a recipe without dashes: actor.adam.lr"),
    "exponent": good(recipe=("max_len: 512\n", "max_len: 512\n  actor.adam.lr: 1e-4\n")),
    "number in words": flag("actor.adam.lr: fast", ":15: --actor.adam.lr: invalid float value: 'fast'"),
    "false for a number": recipe("max_len: 512", "max_len: false", ":14: data.max_len: false is for switches"),
    "true for a number": recipe("max_len: 512", "max_len: true", ":14: --data.max_len: expected one argument"),
    "given twice": flag("data.max_len: 256", ":15: key 'data.max_len' is given twice"),
    "value of a switch": case(
        "command line: --train.colocate_all is a switch: it is on when given and takes no value, got true",
        words="--train.colocate_all true",
    ),
    "flag of one policy that does not exist": case(
        "unknown flag --policy.pro.actor.lr; did you mean 'actor.adam.lr' or", words="--policy.pro.actor.lr 1"
    ),
    "folder of a model that is taken for the hub's name": good(
        "model 'prompts/x' is loaded from the hub: the folder prompts is here and has no x in it",
        words="--actor.model_name_or_path prompts/x",
    ),
    "indented differently": recipe("  con: {", "   con: {", "this line is indented differently"),
    "tab": recipe("  con: {", "\tcon: {", "indent with spaces, not tabs"),
    "colon in a text": recipe(
        "name: debate", "name: a: b", "recipe.yaml:1: not YAML", "quote a text that contains a colon"
    ),
    "dry-run": flag("dry-run: true", ":15: unknown flag --dry-run; it is for the whole run, and only the command line"),
    "one policy's": flag("policy.pro.actor.adam.lr: 1e-4", ":15:", "`policies: {pro: {flags: {actor.adam.lr: VALUE}}}`"),
    "schedule": flag(
        "actor.lr_scheduler: wavy", ":15: --actor.lr_scheduler: invalid choice: 'wavy'", "'cosine_with_min_lr'"
    ),
    "batch that is not divided": recipe(
        "train.batch_size: 8", "train.batch_size: 3", "8 trajectories", "3 (trajectories per"
    ),
    "tasks beside data": key(
        "tasks: tasks.py", ":14: --data.prompt_dataset would have no effect", tasks="def load(split): return []"
    ),
}
B_PROMPT = {
    "file that is not there": case("recipe.yaml:4: roles.pro.prompt: cannot read prompts/pro.md", pro=None),
    "folder": recipe("prompts/judge.md", "prompts", ":7: roles.judge.prompt: cannot read prompts: Is a directory"),
    "device": recipe("prompts/judge.md", "/dev/zero", "cannot read /dev/zero: it is a pipe or a device"),
    "system prompt that is not there": recipe("max_new_tokens: 8", "system: s.md", "roles.judge.system: cannot read s.md"),
    "field of the system prompt": recipe(
        "max_new_tokens: 8", "system: s.md", "workflow.py:6: role 'judge'", "['are'", **{"s.md": "{are}"}
    ),
    "field that nobody gives": case(
        "workflow.py:4: role 'pro' was called with the wrong fields", "['nobody'", pro="{nobody}"
    ),
    "field that is not shown": good(pro="{question}"),
    "brace": case(
        "recipe.yaml:4:", "Single '{' encountered in format string; write {{ and }} for braces", pro="{question} {"
    ),
    "JSON": case(
        "recipe.yaml:4:", 'pro.md: {"a"} is not a field', "braces are written {{ and }}", pro='{"a": 1} {question}'
    ),
    "format that is none": case(
        "recipe.yaml:4:", "pro.md: Invalid format specifier", "a name alone", pro="{question:%d}{history}"
    ),
    "conversion that is none": case(
        "recipe.yaml:4:", "pro.md: Unknown conversion specifier x", pro="{question!x}{history}"
    ),
    "field called after": case("recipe.yaml:4:", "{after} cannot be given", "rename the field", pro="{question}{after}"),
    "field called class": case("recipe.yaml:4:", "{class} cannot be given", "rename the field", pro="{question}{class}"),
    "field called self": good(pro="{question}{self}", workflow=('history="")', 'history="", self="x")')),
    "line ends of Windows": good(pro="{question}\r\n{history}"),
    "1 MB": case(
        "recipe.yaml:14: role 'pro': its prompt",
        "leaves no room",
        "shorten it or raise",
        pro="x" * 1_000_000 + "{question}",
    ),
}
C_WORKFLOW = {
    "unknown role after one answer": ending(
        f"if 'again' in str(pro): await roles.jury(question='')\n{LAST.strip()}",
        "workflow.py:6: the recipe has no role 'jury'",
    ),
    "unknown field after one answer": ending(
        f"match str(con):\n    case 'yes': await roles.pro(question='')\n{LAST.strip()}",
        "workflow.py:7: role 'pro' was called with the wrong fields",
    ),
    "exception after one answer": ending(
        f"if str(pro).startswith('again'): 1 / 0\n{LAST.strip()}",
        "workflow.py:6: the workflow does not run when role 'pro' says 'again': ZeroDivisionError",
        exit=0,
    ),
    "agents that always fail": ending(
        "from marl_plugins.core.failures import AgentFailure\nraise AgentFailure('no_answer', 'x')",
        "every run of the workflow with invented answers ends in a failure (no_answer)",
        exit=0,
    ),
    "tool that is always lost": ending(
        "from marl_plugins.core.failures import InfrastructureFailure\nraise InfrastructureFailure('shop', 'x')",
        "every run of the workflow with invented answers ends in a failure (shop)",
        exit=0,
    ),
    "exception without a text": ending(
        "class E(Exception):\n    def __str__(self): raise KeyError\nraise E",
        "workflow.py:8: E: its text cannot be shown: KeyError",
    ),
    "exception of its own kind": ending("class E(BaseException): pass\nraise E('x')", "workflow.py:7: E: x"),
    "syntax": case(
        "recipe.yaml:9: workflow:", "workflow.py:1: expected ':'", workflow="async def run(task, roles, tools)\n"
    ),
    "no function run": case("workflow.py has no function run", workflow="async def main(task, roles, tools): pass\n"),
    "run is a number": case("workflow.py has no function run", workflow="run = 3\n"),
    "run is a class": case(
        "run gives run at once; write `async def", workflow="class run:\n    def __init__(self, *a): pass\n"
    ),
    "module that is missing": case(
        "workflow.py:1: ModuleNotFoundError: No module named 'nopackage'", workflow="import nopackage\n"
    ),
    "exit": case("workflow.py:1: sys.exit(None) ends the program", workflow="exit()\n"),
    "tool that nobody awaits": ending(
        f"tools.python('1')\n{LAST.strip()}", "workflow.py:6: tools.python is called, and nobody awaits it"
    ),
    "tool's call as a field": ending(
        "x = tools.python('1')\nreturn await roles.judge(question='', history=x)", "write `await` before"
    ),
    "tool's function that nobody awaits": ending(
        f"tools.python.python(code='1')\n{LAST.strip()}",
        "workflow.py:6: tools.python.python is called, and nobody awaits it",
    ),
    "tool's function with a text": ending(
        "await tools.python.python('1')", "workflow.py:6:", "takes 0 positional arguments but 1 was"
    ),
    "tool without a text": ending("await tools.python()", "workflow.py:6:", "tools.python() missing 1 required"),
    "tool with a number": ending("await tools.python(3)", "workflow.py:6:", "tools.python takes a text, got int"),
    "tool with an action": ending(
        "await tools.python(pro)", "workflow.py:6:", "takes a text, got Action; an action's is str(action)"
    ),
    "tool that does not exist": ending(
        "await tools.calc('1')", "workflow.py:6: the recipe has no tool 'calc'; valid: python"
    ),
    "roles by brackets": ending(
        "await roles['pro'](question='', history='')", "workflow.py:6: TypeError: 'Roles' object is not sub"
    ),
    "roles one by one": ending("for r in roles: await r()", "workflow.py:6: TypeError: 'Roles' object is not iterable"),
    "roles by name": good(workflow=("await roles.pro(", "await getattr(roles, 'pro')(")),
    "input": ending("input()", "workflow.py:6:"),
    "recursion": case(
        "workflow.py:2: RecursionError", workflow="async def run(task, roles, tools):\n    await run(task, roles, tools)\n"
    ),
    "task that is changed": ending(
        "task.prompt = ''", "workflow.py:6: FrozenInstanceError: cannot assign to field 'prompt'"
    ),
    "loop of its own": ending(
        "asyncio.run(asyncio.sleep(0))", "workflow.py:6: RuntimeError: asyncio.run() cannot be called"
    ),
    "field of the task": ending("task.subject", "workflow.py:6: AttributeError: 'Task' object has no attribute 'subject'"),
    "whole task shown": ending(
        "return await roles.judge(question='', history=str(task))", "workflow.py:6:", "is shown the task's label"
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
        "workflow.py:6: KeyError: 'hint'; the task has no such metadata: every field of the data but prompt and label is in it "
        "(the workflow, on task '1', raises it whatever the agents answer)",
        data=rows(lambda row, n: row if n else row | {"hint": "x"}),
    ),
    "answers that some tasks cannot take": ending(
        f"if task.metadata['type'] == 'number': int(str(pro))\n{LAST.strip()}",
        "workflow.py:6: the workflow, on task '5', does not run when every answer is a word: ValueError",
        exit=0,
        data=rows(lambda row, n: row | {"type": "number" if n > 4 else "text"}),
    ),
    "role that only other tasks call": good(
        workflow=(LAST, f"    if task.metadata['type'] == 'easy': return con\n{LAST}"),
        data=rows(lambda row, n: row | {"type": "hard" if n > 3 else "easy"}),
    ),
    "nothing returned": ending(
        LAST.strip().removeprefix("return "),
        "workflow.py: run returns nothing, and the grader reads trajectory.answer",
        exit=0,
    ),
    "iterator shown": ending(
        "return await roles.judge(question='', history=map(str, [pro]))", "a map has no text; write a list"
    ),
    "actions returned in a dict": ending(
        "v = " + LAST.strip()[7:] + "\nreturn {'v': v}", "what run returns: a dict that holds actions"
    ),
    "five votes": good(
        workflow=(
            LAST,
            (
                "    votes = await asyncio.gather(*(roles.con(question='', history='') for _ in range(5)))\n"
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
    "no field 'input', nor prompt, problem, question, query, instruction; name the field of the prompt with "
    "--data.input_key"
)
D_DATA = {
    "number of thousands of digits": case(
        "train.jsonl:1: holds a whole number of thousands of digits; write it as a text",
        **lines('{"question": "x", "answer": 1' + "0" * 5000 + "}"),
    ),
    "long field of a table": case(
        "leave no room for an answer",
        exit=0,
        recipe=("train.json", "train.csv"),
        data=None,
        **{"train.csv": "question,answer\n" + "x" * 200_000 + ",pro\n" + "".join(f"Is {n} even?,pro\n" for n in range(16))},
    ),
    "list in lines": case(
        "train.jsonl:1: expected an object per line, got a list; a list belongs in a .json file", **lines("[\n{}\n]")
    ),
    "commas between lines": case(
        "train.jsonl:1: not JSON: a comma after the object", **lines('{"question": "a"},\n{"question": "b"}')
    ),
    "last line cut": case("train.jsonl:17: not JSON: it ends too early", **lines("\n".join(map(json.dumps, ROWS)) + "\n{")),
    "blank lines": good(**lines("\n\n".join(map(json.dumps, ROWS)))),
    "line ends of Windows": good(**lines("\r\n".join(map(json.dumps, ROWS)))),
    "UTF-16": case("train.jsonl is not UTF-8 text (byte 0); save it as UTF-8", **lines("{}".encode("utf-16"))),
    "comment": case("train.json:1: not JSON: Expecting value at column 1", data="// tasks\n[]"),
    "two lists": case("train.json: expected a list of objects, got an object", data='{"train": [{}], "test": [{}]}'),
    "texts": case("train.json:1: item 1: expected an object, got a string", data='["a", "b"]'),
    "null": case("train.json: expected a list of objects, got null", data="null"),
    "empty list": case("train.json: no tasks in it", data="[]"),
    "integer of 5000 digits": case(
        "train.json: holds a whole number of thousands of digits", data='[{"question": "a", "answer": %s}]' % ("1" * 5000)
    ),
    "prompt under another name": case(
        f"item 1: {NO_PROMPT}: frage, answer", data=rows(lambda r, n: {"frage": "", "answer": ""})
    ),
    "chat under another name": case(f"item 1: {NO_PROMPT}: messages", data=rows(lambda r, n: {"messages": []})),
    "comma-separated with semicolons": case(
        "train.csv:1: one field named 'question;answer'; separate values with commas, not ';'",
        recipe=("train.json", "train.csv"),
        **{"train.csv": "question;answer\na;b\n"},
    ),
    "input key that is not there": case(
        "item 1: no field 'nope' (--data.input_key); valid: ans", words="--data.input_key nope"
    ),
    "label key that is not there": case(
        "item 1: no field 'nope' (--data.label_key); valid: ans", words="--data.label_key nope"
    ),
    "labels that are null": case(
        "item 3: field 'answer' is null; give every item a label",
        data=rows(lambda r, n: r | {"answer": None if n == 2 else 1}),
    ),
    "an action taken for its text": ending(
        "return pro.strip()", "workflow.py:6: AttributeError", "an action's text is `action.text`"
    ),
    "answers that leave no room": recipe(
        "max_len: 512", "max_len: 60", "role 'judge': its prompt, the longest task and the answers that it is shown", exit=0
    ),
    "a grader that one label breaks": case(
        "score_outcome, on task '5', ",
        "'int' object has no attribute 'lower'",
        data=rows(lambda r, n: r | {"answer": 5} if n == 5 else r),
        grader="def score_outcome(trajectory):\n    return float(trajectory.task.label.lower() == str(trajectory.answer))\n",
    ),
    "a grader that gives a text": case(
        "expected a number in [0, 1]", grader="def score_outcome(trajectory):\n    return '1.0'\n"
    ),
    "labels that are empty": case(
        "train.json:1: item 1: field 'answer' is empty; give every item a label", data=rows(lambda r, n: r | {"answer": ""})
    ),
    "two messages": case(
        "item 1: field 'prompt' must be a non-empty string, or chat messages of which one is there",
        "got a list of 2",
        "`tasks:`",
        data=rows(lambda r, n: {"prompt": [{"role": "system", "content": ""}, {"role": "user", "content": ""}]}),
    ),
    "prompt that is a number": case(
        "item 1: field 'question' must be a non-empty string, got a number (0)", data=rows(lambda r, n: r | {"question": n})
    ),
    "prompt that is blank": case(
        "item 4: field 'question' must be a non-empty string",
        data=rows(lambda r, n: r | {"question": "" if n == 3 else "x"}),
    ),
    "id that is a list": case(
        "item 1: field 'id' must be a string or an integer, got a list", data=rows(lambda r, n: r | {"id": [n]})
    ),
    "ids that are the same": case("the id 'x' is used twice", data=rows(lambda r, n: r | {"id": "x"})),
    "braces in a task": good(data=rows(lambda r, n: r | {"question": r["question"] + " {x} {}"})),
    "too few": case(
        "recipe.yaml:17: 3 tasks x 1 samples are fewer trajectories than one optimiser step", data=json.dumps(ROWS[:3])
    ),
    "evaluated on what is trained": case(
        "16 of 16 evaluation tasks are in the training data too", words="--eval.dataset train.json"
    ),
    "kind that is not read": recipe(
        "train.json", "train.jsonl.gz", ":13:", "only .json, .jsonl, .csv are read; convert it to .jsonl"
    ),
    "address": case(
        "--data.prompt_dataset https://example.org/a.json: no such file",
        words="--data.prompt_dataset https://example.org/a.json",
    ),
    "two files": case("--data.prompt_dataset a.json,b.json: no such file", words="--data.prompt_dataset a.json,b.json"),
    "every task too long": case(
        "recipe.yaml:14: role 'pro': no task leaves room", data=rows(lambda r, n: r | {"question": f"{n}" + "x" * 900})
    ),
}
TEXT = "its metadata must be a dict whose keys are texts"
G_LOADER = {
    "label of half a pair": tasks(
        "split + str(n), f'{split}{n}?', chr(0xD800)",
        "its label or metadata holds half of a UTF-16 pair, which no file takes",
    ),
    "label of thousands of digits": tasks(
        "split + str(n), f'{split}{n}?', 10**5000",
        "label and metadata must be JSON values: holds a whole number of thousands",
    ),
    "metadata in itself": loader(
        "def load(split):\n    m = {}\n    m['m'] = m\n    return [Task(split + str(n), f'{split}{n}?', '', m) for n in range(16)]",
        "label and metadata must be JSON values: it contains itself",
    ),
    "good": good(
        **loader("def load(split): return [Task(split + str(n), f'{split}{n}?', 'pro') for n in range(16)]").files
    ),
    "dicts": loader("def load(split): return [{'id': 'a'}]", "tasks.py: load('train') gave dict, expected marl_plugins"),
    "text": loader("def load(split): return 'abc'", "tasks.py: load('train') gave str"),
    "one split only": loader("def load(split): return {'train': []}[split]", "tasks.py:2: marl_tasks: KeyError: 'eval'"),
    "nothing to evaluate": loader(
        "def load(split):\n    if split == 'train': return [Task('a', 'b')]", "load('eval') returned nothing"
    ),
    "file that is missing": loader(
        "def load(split): return open('/no/such')", "tasks.py:2: marl_tasks: FileNotFoundError", "/no/such"
    ),
    "arguments of a task": loader(
        "def load(split): return [Task(id='a', question='b')]", "tasks.py:2:", "unexpected keyword argument"
    ),
    "id that is a number": tasks("n, f'{split}{n}?'", "train task 0: its id must be a non-empty string, got 0"),
    "prompt that is None": tasks("split + str(n), None", "its prompt must be a non-empty string, got None"),
    "metadata that is None": tasks("split + str(n), f'{split}{n}?', '', None", f"train task 'train0': {TEXT}, got None"),
    "metadata that is a list": tasks("split + str(n), f'{split}{n}?', '', [1]", f"train task 'train0': {TEXT}, got [1]"),
    "metadata by number": tasks("split + str(n), f'{split}{n}?', '', {1: 2}", f"train task 'train0': {TEXT}, got {{1: 2}}"),
    "label that is a set": tasks("split + str(n), f'{split}{n}?', {1}", "label and metadata must be JSON values", "set"),
    "same ids in both splits": tasks("str(n), f'{split}{n}?'", "16 tasks are in both train and eval, the first '0'"),
    "demonstrations of nothing": demonstrations("yield 1", "demo.py:3: demonstrate yields 1, expected a Demonstration"),
    "demonstrations that fail": demonstrations("1 / 0", "demo.py:4: ZeroDivisionError"),
    "demonstrations of another role": demonstrations(
        "yield Demonstration('jury', {}, ['x'])",
        "demo.py:3: demonstrate: there is no role 'jury'; the recipe has pro, con, judge",
    ),
    "demonstrations of other fields": demonstrations(
        "yield Demonstration('pro', {'task': ''}, ['x'])", "demo.py:3:", "role 'pro'", "the demonstration gave ['task']"
    ),
}
G_GRADER = {
    "nan": case("grader.py:1:", "is nan; scores lie in [0, 1]", grader="def score_outcome(t): return float('nan')\n"),
    "truth value": good(grader="def score_outcome(t): return t.answer == t.task.label\n"),
    "pair": case(
        "grader.py:1:", "(1.0, {}); expected a number in [0, 1], or None", grader="def score_outcome(t): return 1.0, {}\n"
    ),
    "other name": case(
        "recipe.yaml:10: grader: grader.py has no function score_outcome", grader="def score(t): return 1\n"
    ),
    "attribute that is not there": case(
        "grader.py:1: AttributeError", "'result'", grader="def score_outcome(t): return t.result\n"
    ),
    "role without an outcome": case(
        "role 'judge' acted and has none", grader="def score_outcome(t): return {'pro': 1, 'con': 0}\n"
    ),
    "outcome of an unknown role": case(
        "'jury' is no role of the recipe; valid: con, judge, pro",
        grader="def score_outcome(t): return {'pro': 1, 'con': 0, 'judge': 1, 'jury': 1}\n",
    ),
    "reward function": reward("return {'rewards': [1.0]}", exit=0),
    "reward out of range": reward("return {'rewards': [5.0]}", "reward.py:1:", "is 5.0; scores lie in [0, 1]"),
    "reward function that fails": reward("1 / 0", "reward.py:2: ZeroDivisionError", "(reward_func raises it whatever"),
    "reward function without return": reward(
        "pass", "reward.py:1:", "reward_func returned None; expected {'rewards': [...]}"
    ),
    "reward that is a number": reward(
        "return 1.0", "reward.py:1:", "reward_func returned 1.0; expected {'rewards': [...]}"
    ),
    "reward for nobody": reward("return []", "reward.py:1:", "reward_func returned []; expected"),
    "reward function's service": reward(
        "raise ConnectionRefusedError('down')", "reward_func does not run: ConnectionRefused", exit=0
    ),
}
OUT_OF_RANGE = "is out of range: expected"
E_COMMAND_LINE = {
    "checkpoints where the best step is kept": case(
        "--ckpt.path out/best: the run keeps something else in this folder",
        words="--ckpt.output_dir out --ckpt.path out/best",
    ),
    "word": case("command line: --recipe takes fewer values, got . mathchat", more=["mathchat"]),
    "one dash": case("--recipe: '-max_steps' is no value; a flag begins with two hyphens (--NAME)", words="-max_steps 3"),
    "dashes of a word processor": case(
        "'\u2013\u2013max_steps' is no value; a flag begins with two hyphens", words="\u2013\u2013max_steps 3"
    ),
    "two values": case("command line: --rollout.batch_size takes fewer values, got 8 9", words="--rollout.batch_size 8 9"),
    "no value": case("command line: --rollout.batch_size: expected one argument", words="--rollout.batch_size"),
    "half a task": case("--rollout.batch_size: invalid int value: '8.5'", words="--rollout.batch_size 8.5"),
    "twice": good("--max_steps is given 2 times (2, 3); the last one holds", words="--max_steps 2 --max_steps 3"),
    "twice the same": good(words="--max_steps 2 --max_steps 2"),
    "with an equals sign": good(words="--max_steps=2"),
    "beginning of a name": case(
        "unknown flag --rollout.batch; did you mean 'rollout.batch_size'?", words="--rollout.batch 8"
    ),
    "dash for an underscore": case("did you mean 'rollout.batch_size'?", words="--rollout.batch-size 8"),
    "mapping of nothing": case("--mapping : expected separate, shared, or role=policy", words="--mapping="),
    "mapping without roles": case("--mapping: role 'con' is mapped to no policy", "role 'judge'", words="--mapping pro=a"),
    "mapping of an unknown role": case(
        "--mapping: there is no role 'jury' to be mapped", words="--mapping pro=a,con=a,judge=a,jury=b"
    ),
    "recipe twice": case("--recipe is given 2 times", "a run has one recipe: keep one", words="--recipe mathchat"),
    "infinite learning rate": case(f"--actor.adam.lr: 1e400 {OUT_OF_RANGE} at least 0", words="--actor.adam.lr 1e400"),
    "no room at all": case(
        "leaves no room for a prompt in --data.max_len 1", "max_new_tokens 8 leaves no room", words="--data.max_len 1"
    ),
    "schedule that needs more": case(
        "invalid choice: 'warmup_stable_decay'", words="--actor.lr_scheduler warmup_stable_decay"
    ),
    "schedule": good(words="--actor.lr_scheduler linear --critic.lr_scheduler cosine_with_min_lr"),
    "one sample to compare": case(
        "n_samples_per_prompt > 1", words="--algo.advantage.estimator rloo --groups.by task+role"
    ),
    "model by a short name": case(
        "model 'gpt2' is neither a folder that exists nor a hub name", words="--actor.model_name_or_path gpt2"
    ),
    "model by an address": case(
        "nor a hub name (owner/name)", words="--actor.model_name_or_path https://huggingface.co/a/b"
    ),
    "model that is a file": case("is a file; a folder with config.json", words="--actor.model_name_or_path grader.py"),
    "tiny model of no width": case(
        "hidden=128 is not a multiple of heads=3", words="--actor.model_name_or_path tiny:heads=3"
    ),
    "output in a file": case(
        "--ckpt.output_dir grader.py: no file can be created there", words="--ckpt.output_dir grader.py"
    ),
    "reward server": case(
        "--reward.remote_url http://x: only a .py file",
        recipe=("grader: grader.py\n", ""),
        words="--reward.remote_url http://x",
    ),
    "policy that does not exist": case(
        "there is no policy 'jury'; valid: con, judge, pro", words="--policy.jury.actor.adam.lr 1"
    ),
    "coach without a kind": case(
        "needs one of --coach.rubric FILE, --coach.model NAME and", words="--plugin marl_plugins.coach"
    ),
    "coach's file that is not there": case(
        "nope.py: no such file", words="--plugin marl_plugins.coach --coach.rubric nope.py"
    ),
    "two coaches": case("exclude each other", words="--plugin marl_plugins.coach --coach.rubric grader.py --coach.model x"),
    "resume of nothing": case("--resume nope repeats the run with the recipe that it recorded", words="--resume nope"),
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
F_MODEL = {
    "good": model(model__safetensors="x"),
    "no weights": model("recipe.yaml:11: model folder model has no weights (*.safetensors, *.bin)"),
    "weights that are pointers": model(
        "model.safetensors is a pointer of Git LFS", "git lfs pull", model__safetensors=POINTER
    ),
    "no architecture": model("names no architecture (`architectures`), got None", config={}, model__safetensors="x"),
    "translation model": model(
        "is not a causal language model", config={"architectures": ["T5ForConditionalGeneration"]}, model__safetensors="x"
    ),
    "settings of the tokenizer cut": model("tokenizer_config.json:1: not JSON", tokenizer="{", model__safetensors="x"),
    "tokenizer cut": model(
        "tokenizer.json: not JSON; download the model's tokenizer again", model__safetensors="x", tokenizer__json="{"
    ),
    "configuration in UTF-16": model("config.json: not JSON", model__safetensors="x", config__json="{}".encode("utf-16")),
    "another user's folder": recipe("model: tiny", "model: ~/nope", ":11: model '~/nope' is neither a folder that exists"),
    "setting of a tiny model": recipe(
        "model: tiny", "model: 'tiny:layer=2'", ":11:", "'layer=2' is not a setting", "did you mean 'layers'?"
    ),
}
OWN_NAME = "plugins name flags after themselves"
ADD = "def marl_options(parser): parser.add_argument"
H_PLUGIN = {
    "wrapper with two yields": case(
        "plugin.py: marl_tasks: RuntimeError:",
        "has second yield",
        plugin="from marl_plugins import hookimpl\n@hookimpl(wrapper=True)\ndef marl_tasks(run, split):\n    yield (yield)\n",
    ),
    "wrapper that loses the tasks": case(
        "plugin.py: marl_tasks: there are no tasks to train on",
        plugin="from marl_plugins import hookimpl\n@hookimpl(wrapper=True)\ndef marl_tasks(run, split):\n    yield\n",
    ),
    "tool whose functions are numbers": plugin(
        "def marl_tools():\n    from marl_plugins.core.tools import Tool\n    async def run(call): pass\n"
        "    return [Tool('t', run, functions=[1])]",
        "tool 't': functions must be Functions of marl_plugins.core.tools, got [1]",
    ),
    "tool that is a text": plugin(
        "def marl_tools(): return ['t']", "a tool is a Tool of marl_plugins.core.tools, got str 't'"
    ),
    "version of thousands of digits": plugin(
        f"def marl_log(): pass\nMARL_HOOKS = '2.{'9' * 5000}'", 'expected "major.minor"'
    ),
    "free flags as a text": plugin(
        "def marl_log(): pass\nmay_differ = 'mine.x'", "plugin.py: may_differ = 'mine.x': expected names of flags"
    ),
    "flag whose type fails": plugin(
        f"{ADD}('--mine.x', type={{}}.__getitem__)", "command line: --mine.x: KeyError: '3'", words="--mine.x 3"
    ),
    "flag that may be given several times": plugin(
        f"{ADD}('--mine.x', action='append')", exit=0, words="--mine.x 3 --mine.x 4"
    ),
    "twice on the command line": plugin(
        "def marl_log(): pass",
        "--plugin: plugin.py is named 2 times, and takes part once",
        exit=0,
        words="--plugin ../{}/plugin.py",
    ),
    "twice in the recipe": key(
        "plugins: [one.py, ./one.py]",
        ":12: one.py is named 2 times, and takes part once",
        exit=0,
        **{"one.py": "from marl_plugins import hookimpl\n@hookimpl\ndef marl_log(): pass\n"},
    ),
    "in the recipe and on the command line": plugin(
        "def marl_log(): pass", exit=0, recipe=("model: tiny", "model: tiny\nplugins: [plugin.py]")
    ),
    "flag of another name": plugin(f"{ADD}('--limit')", f"adds the flag --limit; {OWN_NAME}: --NAME.limit"),
    "flag like a policy's": plugin(f"{ADD}('--policy.x')", f"adds the flag --policy.x; {OWN_NAME}"),
    "flag that begins others": plugin(
        f"{ADD}('--actor.adam')", "adds the flag --actor.adam, and there is --actor.adam.", "rename it"
    ),
    "flag that goes on": plugin(
        f"{ADD}('--actor.adam.lr.x')", "adds the flag --actor.adam.lr.x, and there is --actor.adam.lr:"
    ),
    "flag that has to be given": plugin(
        f"{ADD}('--mine.x', required=True)", "adds --mine.x, which has to be given", "marl_configure"
    ),
    "argument without dashes": plugin(f"{ADD}('mine')", "adds mine, which has to be given; add a flag with a default"),
    "flag whose help is no format": plugin(
        f"{ADD}('--mine.x', help='50% of it')", "help cannot be shown: write %% for a percent"
    ),
    "flag of a wrong default": plugin(
        f"{ADD}('--mine.x', type=int, default='many')", "--mine.x: invalid int value: 'many'"
    ),
    "problem as a number": plugin(
        "def marl_configure(run): return 3", "plugin.py: marl_configure returned 3, expected a list of texts"
    ),
    "problem as True": plugin(
        "def marl_configure(run): return True", "marl_configure returned True, expected a list of texts"
    ),
    "problems that are numbers": plugin(
        "def marl_configure(run): return [3]", "marl_configure returned [3], expected a list of texts"
    ),
    "run that is changed": plugin(
        "def marl_configure(run): run.device = 'x'", "plugin.py:3: marl_configure: FrozenInstanceError"
    ),
    "tasks that are texts": plugin(
        "def marl_tasks(run, split): return ['a']", "a task is a marl_plugins.core.trajectory.Task, got 'a'"
    ),
    "tasks that are a number": plugin(
        "def marl_tasks(run, split): return 3", "marl_tasks returned 3 for 'train', expected a list"
    ),
    "workflow that is a text": plugin("def marl_workflow(run): return 'x'", "'x' is not a callable object"),
    "policies that are texts": plugin(
        "def marl_policies(run): return ['pro']", "plugin.py: marl_policies returned ['pro'], expected a"
    ),
    "no policies": plugin("def marl_policies(run): return []", "marl_policies returned [], expected a list of Policy"),
    "wrapper that returns nothing": case(
        "marl_policies returned None",
        plugin="from marl_plugins import hookimpl\n@hookimpl(wrapper=True)\ndef marl_policies(run):\n    yield\n",
    ),
    "policy whose model is a number": plugin(
        "def marl_policies(run):\n    from marl_plugins.core.policy import Policy\n    return [Policy('pro', 3)]",
        "the name of its model",
    ),
    "estimator without return": plugin(
        "def marl_estimator(run):\n    pass", "marl_estimator gave nothing, so reinforce trains", exit=0
    ),
    "estimator of another scope": plugin(
        "def marl_estimator(run):\n    from marl_plugins.core.estimators import Estimator\n    return Estimator(scope='world')",
        "Estimator has scope='world'; expected one of 'action', 'group', 'batch'",
    ),
    "estimator that discounts by 7": plugin(
        "def marl_estimator(run):\n    from marl_plugins.core.estimators import Estimator\n    return Estimator(gamma=7)",
        "Estimator has gamma=7; expected a number from 0 to 1",
    ),
    "state that never comes back": plugin(
        "def marl_state(run): return {}", "marl_state without marl_restore", "add marl_restore"
    ),
    "hook that is not marked": case(
        "marl_credit is not marked with @marl_plugins.hookimpl and would never be called",
        plugin="def marl_credit(trajectories): return trajectories\n",
    ),
    "hook that does not exist": case(
        "plugin.py: line 4: there is no hook 'marl_slect'; did you mean 'marl_select'?",
        plugin="from marl_plugins import hookimpl\n\n\n@hookimpl\ndef marl_slect(rows): return rows\n",
    ),
    "module that is no plugin": case("plugin json: implements no hook", words="--plugin json"),
    "folder": case("plugin 'prompts/x': expected a dotted module name", words="--plugin prompts/x"),
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
CASES = {f"{table}: {name}": made for table, cases in TABLES.items() for name, made in cases.items()}


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
    code = main(["train", "--recipe", ".", *words, "--dry-run"])
    shown = capsys.readouterr()
    said = shown.err if code else shown.out.partition("\nwarnings:")[2]
    said = said.replace(f"{tmp_path}/", "")
    assert code == tried.exit, said
    assert "Traceback" not in shown.err
    missing = [part for part in tried.says if part not in said]
    assert not missing, f"{missing} in {said}"
    assert tried.says or said.strip() == "none"


COMMANDS = {
    "flags without a command": (
        ["--recipe", "."],
        "expected a command before --recipe, as in `openrlhf train --recipe ...`",
    ),
    "recipe of a folder without one": (
        ["train", "--recipe", "prompts"],
        "--recipe prompts: no such file, no folder with a recipe",
    ),
    "recipe that is a grader": (["train", "--recipe", "grader.py"], "grader.py:1: roles: this key is missing"),
    "recipe that is data": (
        ["train", "--recipe", "train.json"],
        "train.json: expected a recipe, which is a mapping of keys",
    ),
    "recipe without a name": (["train", "--recipe", "--dry-run"], "command line: --recipe: expected one argument"),
    "resume without a folder": (
        ["train", "--resume"],
        "--resume takes one run's folder and is given once: --resume FOLDER",
    ),
    "plugin alone": (["train", "--plugin", "marl_plugins.routing"], "policy 'agent': it has no model: give `model:`"),
    "help of a recipe that is not there": (["train", "--help", "--recipe", "nope"], "--recipe nope: no such file"),
    "evaluation without tasks": (["eval", "--recipe", "."], "there are no held-out tasks"),
    "copy over a folder": (["recipes", "copy", ".", "prompts"], "prompts: exists already; give a folder that does not"),
    "verdicts of nothing, without a recipe": (
        ["verdicts", "nowhere"],
        "nowhere: No such file or directory; expected a run's output",
    ),
    "verdicts without a recipe": (["verdicts", "nowhere"], "the following arguments are required: --recipe"),
    "judging nothing, by no recipe": (["coach", "nowhere", "--recipe", "no"], "error: --recipe no: no such file"),
    "page that does not exist": (["docs", "recipe"], "there is no page 'recipe'; did you mean 'recipes'?"),
    "command that is a number": (["hi", "--plugin", "three.py"], "three.py: marl_commands gave 3, expected a Command"),
    "command that does nothing": (["hi", "--plugin", "idle.py"], "idle.py: marl_commands gave Command(name='hi'"),
}


@pytest.mark.parametrize(("words", "part"), COMMANDS.values(), ids=COMMANDS)
def test_other_commands_name_what_is_wrong(tmp_path, monkeypatch, capsys, words, part):
    hook = "from marl_plugins import hookimpl\nfrom marl_plugins.core.command import Command\n@hookimpl\ndef marl_commands():\n"
    idle = "Command('hi', '', '', None)"
    write(tmp_path, {"three.py": f"{hook}    return [3]\n", "idle.py": f"{hook}    return [{idle}]\n"})
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert part in capsys.readouterr().err


def test_what_user_code_prints_is_no_part_of_the_plan(tmp_path, monkeypatch, capsys):
    write(tmp_path, {"grader.py": "print('mine')\n" + GRADER, "workflow.py": ("import asyncio", "print('too')")})
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--recipe", ".", "--dry-run", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["recipe"] == "debate"
    assert {"mine", "too"} <= set(shown.err.split())
