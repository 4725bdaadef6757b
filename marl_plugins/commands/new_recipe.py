"""`openrlhf recipes new FOLDER --roles a,b --data FILE` writes a recipe that works, to be changed.

Roles follow each other, each shown the task and what was said before; or an existing program asks
them (`--agent`, new_program.py). A grader compares the final answer with the label.
"""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from marl_plugins.commands.imports.items import json_lines, remove_trained
from marl_plugins.commands.imports.shapes import TAKEN, identifier, write_chain
from marl_plugins.commands.imports.tasks import TASKS
from marl_plugins.commands.imports.tiny import tiny_yaml
from marl_plugins.commands.new_folder import taken, write_files
from marl_plugins.commands.new_program import FOLDER, ExistingProgram
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.recipe.tasks import LABEL_KEYS, read_tasks
from marl_plugins.core.recipe.tiny import is_tiny
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.plan.checks.roles import NAME
from marl_plugins.engine.plan.tasks import field_warnings

Item = dict[str, Any]
"""A line of a file of tasks."""
MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
HELD_OUT_TASKS = 10
"""One task in this many is held out where no file of held-out tasks is given."""
ANSWER_TOKENS, SAMPLES, LARGEST_BATCH = 1024, 4, 64
LONGEST_FOR_TINY_BYTES = 3000
"""A tiny model has one token per byte; longer tasks get longer models."""


@dataclass(frozen=True)
class NewRecipe:
    """The request for a recipe.

    Args:
        data, eval_data: Files of tasks with labels, of the kinds that `--data.prompt_dataset`
            takes.
        input_key, label_key: Fields of prompt and label; None: by the usual names.
        program: Asks the roles; None: they follow each other.
    """

    folder: Path
    roles: tuple[str, ...]
    data: Path
    eval_data: Path | None = None
    model: str = MODEL
    input_key: str | None = None
    label_key: str | None = None
    program: ExistingProgram | None = None


def add_parser(commands: Any) -> None:
    """Adds `new` to the subcommands of `openrlhf recipes`."""
    parser = commands.add_parser(
        "new",
        help="a recipe of one's own, from names of roles and a file of tasks",
        description="Write a recipe that passes --dry-run, to be changed: roles that follow each "
        "other, a grader that compares "
        "the last one's final answer with the label, one policy for all roles (`mapping: shared`), "
        "the tasks, and a tiny.yaml for a laptop's CPU. With --agent an existing "
        "program asks the roles as models of an OpenAI-compatible endpoint (openrlhf docs agents).",
        epilog="Examples: openrlhf recipes new my_recipe --roles planner,solver --data tasks.jsonl "
        "--model Qwen/Qwen3-4B; "
        "openrlhf recipes new my_recipe --agent my_agent.py --roles planner,solver --data "
        "tasks.jsonl",
    )
    add = parser.add_argument
    add("folder", type=Path, help="where to; it must not exist yet")
    add(
        "--roles",
        required=True,
        metavar="A,B",
        help="names of the roles, in the order in which they act; of a program: its models",
    )
    add(
        "--data",
        type=Path,
        required=True,
        metavar="FILE",
        help=".jsonl, .json or .csv of tasks with labels",
    )
    add(
        "--eval-data",
        type=Path,
        metavar="FILE",
        help="held-out tasks; default: every tenth of --data",
    )
    add(
        "--model",
        default=MODEL,
        help=f"model of all roles ({MODEL}); `tiny` for a laptop's CPU alone",
    )
    add(
        "--data.input_key",
        "--input-key",
        dest="input_key",
        metavar="NAME",
        help="field of the prompt; default: the usual names",
    )
    add(
        "--data.label_key",
        "--label-key",
        dest="label_key",
        metavar="NAME",
        help="field of the label; default: the usual names",
    )
    add = parser.add_argument_group("an existing program in place of a workflow").add_argument
    add(
        "--agent",
        type=Path,
        metavar="FILE",
        help="Python file; it is copied, with the modules beside it that it imports",
    )
    add(
        "--function",
        metavar="NAME",
        help="function of it that is given the prompt and returns the answer (main)",
    )
    add(
        "--python", metavar="PATH", help="Python that has its packages; default: the one of the run"
    )
    add(
        "--calls",
        metavar="PARSER",
        help="format in which the model calls tools that the program sends, by vLLM's name: "
        "hermes, ...",
    )


def new(options: argparse.Namespace) -> int:
    """Writes a recipe, and prints how to go on.

    Raises:
        ConfigurationError: Everything that prevents it; nothing is written then.
    """
    request = _request(options)
    files = files_of(request)
    write_files(files, request.folder)
    print(f"wrote {len(files)} files to {request.folder}")
    print(f"  openrlhf recipes check {request.folder}")
    if "tiny.yaml" in files:
        print(f"  openrlhf train --recipe {request.folder / 'tiny.yaml'} --dry-run  # on a CPU")
    where = (
        ""
        if is_tiny(request.model)
        else f"            # on GPUs; elsewhere, {cpu.DEVICE}=cuda plans for them"
    )
    print(f"  openrlhf train --recipe {request.folder} --dry-run{where}")
    return 0


def _request(options: argparse.Namespace) -> NewRecipe:
    """The command line as a request."""
    roles = tuple(name.strip() for name in options.roles.split(","))
    more = {
        name: value for name in ("function", "python", "calls") if (value := getattr(options, name))
    }
    problems = [*wrong_roles(roles), *taken(options.folder)]
    if more and not options.agent:
        problems += [
            Problem("new.no_program", at(flag=name), "is of a program", fix="name it: --agent")
            for name in more
        ]
    if problems:
        raise ConfigurationError(problems)
    return NewRecipe(
        options.folder,
        roles,
        options.data,
        options.eval_data,
        options.model,
        options.input_key,
        options.label_key,
        ExistingProgram(options.agent, **more) if options.agent else None,
    )


def wrong_roles(roles: Sequence[str]) -> list[Problem]:
    """Returns what is wrong with names of roles."""
    expected = (
        "different names of letters, digits and underscores, a letter first, and no word of Python "
        "or of a workflow"
    )
    return [
        Problem("new.role", at(flag="roles"), repr(name), expected)
        for name in dict.fromkeys(roles)
        if not re.fullmatch(NAME, name)
        or name.startswith("_")
        or keyword.iskeyword(name)
        or name in TAKEN
        or roles.count(name) > 1
    ]


def files_of(request: NewRecipe) -> dict[str, str]:
    """Returns the texts of a new recipe's files, by name.

    Raises:
        ConfigurationError: The tasks cannot be read, have no labels, or have several fields that
            may be the prompt.
    """
    train, held_out = _items(request)
    roles, asked, files = _asked(request, train[0]["answer"])
    name = identifier(request.folder.resolve().name, ())
    longest = max(len(item["prompt"].encode()) for item in (*train, *held_out))
    recipe: dict[str, Any] = {
        "name": name,
        "description": f"{(' and ' if request.program else ' then ').join(request.roles)}, on "
        f"tasks of {request.data.name}",
        "roles": roles,
        **asked,
        "grader": "grader.py",
        "tasks": "tasks.py",
        "mapping": "shared",
        "model": request.model,
        "flags": _flags(len(train), longest, len(request.roles), bool(held_out)),
    }
    files["tasks.py"] = TASKS
    files["grader.py"] = (recipes_root() / "mathchat" / "grader.py").read_text("utf-8")
    files |= {
        f"data/{split}.jsonl": json_lines(items)
        for split, items in (("train", train), ("eval", held_out))
        if items
    }
    tiny = yaml.safe_load(tiny_yaml(recipe))
    if longest > LONGEST_FOR_TINY_BYTES:
        size = _at_least(longest + 1000)
        tiny["model"], tiny["flags"]["data.max_len"] = f"tiny:positions={size}", size
    if request.program and request.program.calls:
        tiny["model"] += ",tools=1"
    if is_tiny(request.model):
        flags = {**recipe["flags"], **tiny["flags"]}
        recipe |= {
            "model": tiny["model"],
            "flags": {flag: value for flag, value in flags.items() if value is not None},
        }
    else:
        files["tiny.yaml"] = yaml.safe_dump(tiny, sort_keys=False)
    files["recipe.yaml"] = yaml.safe_dump(recipe, sort_keys=False, width=120, allow_unicode=True)
    files["README.md"] = _readme(name, request)
    return files


def _asked(request: NewRecipe, label: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The recipe's roles, who asks them, and the texts of the files of both; the last role's
    example is the right answer to a task."""
    if program := request.program:
        return (
            dict.fromkeys(request.roles, program.role),
            {"agent": program.section},
            program.files(),
        )
    prompts = {role: _prompt(request.roles, number) for number, role in enumerate(request.roles)}
    files = {f"prompts/{role}.md": text for role, text in prompts.items()} | {
        "workflow.py": write_chain(prompts, ())
    }
    roles = {role: {"prompt": f"prompts/{role}.md"} for role in prompts}
    roles[request.roles[-1]]["example"] = f"The answer is \\boxed{{{label}}}."
    return roles, {"workflow": "workflow.py"}, files


def _items(request: NewRecipe) -> tuple[list[Item], list[Item]]:
    """The tasks to train on and the held-out ones, none of which has the prompt of another
    split's."""
    rows = _labelled(request.data, request)
    if request.eval_data:
        train = rows
        held_out = [
            {**item, "id": f"eval-{item['id']}"} for item in _labelled(request.eval_data, request)
        ]
    else:
        held_out = rows[HELD_OUT_TASKS - 1 :: HELD_OUT_TASKS]
        train = [item for number, item in enumerate(rows) if (number + 1) % HELD_OUT_TASKS]
    kept, removed = remove_trained(train, held_out)
    if removed:
        print(
            f"data/eval.jsonl: {removed} of {len(held_out)} tasks are trained on too and were "
            "left out of it"
        )
    return train, kept


def _labelled(path: Path, request: NewRecipe) -> list[Item]:
    """The items of a file, each of which has a label, and whose prompt has one field by the usual
    names: the recipe's file no longer shows which it was taken from."""
    tasks = read_tasks(path, request.input_key, request.label_key)
    if unclear := field_warnings(tasks):
        raise ConfigurationError(problem.as_error() for problem in unclear)
    if any(task.label is None for task in tasks):
        got = "has tasks without a label"
        fix = f"name its field: --data.label_key; the usual ones are {', '.join(LABEL_KEYS)}"
        raise ConfigurationError(Problem("new.no_labels", at(file=path), got, fix=fix))
    return [
        {**task.metadata, "id": task.id, "prompt": task.prompt, "answer": task.label}
        for task in tasks
    ]


def _prompt(roles: Sequence[str], number: int) -> str:
    shown = "".join(f"\n\nThe {role} said:\n{{{role}}}" for role in roles[:number])
    last = "\n\nEnd with the final answer in \\boxed{{}}." if number == len(roles) - 1 else ""
    return (
        f"{{problem}}{shown}\n\nYou are the {roles[number]}. Write here what this role is to "
        f"do.{last}\n"
    )


def _flags(tasks: int, longest: int, roles: int, evaluated: bool) -> dict[str, Any]:
    """Flags for one GPU; a step takes a power of two of the tasks.

    Args:
        longest: Bytes of the longest task, of which two at least are a token.
    """
    batch = min(LARGEST_BATCH, 1 << (tasks.bit_length() - 1))
    return {
        "rollout.batch_size": batch,
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.micro_batch_size": 8,
        "rollout.max_new_tokens": ANSWER_TOKENS,
        "train.batch_size": batch * SAMPLES,
        "train.micro_batch_size": 4,
        "data.max_len": _at_least(max(4096, longest // 2 + ANSWER_TOKENS * roles + 512)),
        "actor.num_gpus_per_node": 1,
        "actor.gradient_checkpointing_enable": True,
        "train.colocate_all": True,
        "vllm.num_engines": 1,
        "vllm.gpu_memory_utilization": 0.5,
        "vllm.enable_sleep": True,
        "ds.enable_sleep": True,
        "ds.zero_stage": 2,
        "actor.adam.lr": 1e-6,
        "algo.kl.init_coef": 0.01,
        **({"eval.steps": 10} if evaluated else {}),
        "ckpt.save_steps": 20,
    }


def _at_least(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _readme(name: str, request: NewRecipe) -> str:
    rows = {
        "prompts/": "what each role is shown: write here what it is to do",
        "workflow.py": "who is asked when, and what of the others' answers each sees",
    }
    if program := request.program:
        rows = {
            f"{FOLDER}/": f"the program, as {program.file.name} was: the models that it asks for "
            "are the roles"
        }
    rows |= {
        "grader.py": "1 for the final answer that the label has",
        "tasks.py, data/": f"the tasks of {request.data.name}; `eval.jsonl` is held out",
        "recipe.yaml": "`mapping: shared` is one policy for all roles; `separate` gives each its "
        "own",
    }
    table = "\n".join(f"| `{file}` | {what} |" for file, what in rows.items())
    return (
        f"# {name}\n\nWritten by `openrlhf recipes new`, to be changed.\n\n| file | what "
        f"|\n|---|---|\n{table}\n"
    )
