"""`openrlhf recipes list | show | check | copy | import`: shipped recipes, and your own, also made
from other programs' files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from marl_plugins.commands import new_recipe
from marl_plugins.commands.imports.shapes import KINDS
from marl_plugins.commands.new_folder import taken, writing
from marl_plugins.commands.who_saw_whom import DependencyGraph
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.options import at_least
from marl_plugins.core.recipe.recipe_yaml import read_recipe
from marl_plugins.core.recipe.schema import base_of, find_recipe
from marl_plugins.core.recipe.shipped import recipes_root, shipped_recipes
from marl_plugins.core.redaction import inert, shown_flag
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan.build import collect, draft_plan
from marl_plugins.engine.plan.describe import players
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.problems import Problems
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.plan.resume import COMMAND_FILE
from marl_plugins.engine.plan.sections import load_recipe
from marl_plugins.engine.plan.tasks import known_tasks
from marl_plugins.engine.plan.workflow_file import WorkflowFile, workflow_of


def main(words: Sequence[str]) -> int:
    parser = UpstreamParser(
        prog="openrlhf recipes", description="Shipped recipes, and your own made from them."
    )
    commands = parser.add_subparsers(dest="command", parser_class=UpstreamParser)
    listing = commands.add_parser("list", help="all shipped recipes")
    showing = commands.add_parser("show", help="a recipe's roles, who calls whom, and its settings")
    showing.add_argument("recipe", help="name of a shipped recipe, a folder, or a YAML file")
    copying = commands.add_parser("copy", help="copy a recipe, to start your own")
    copying.add_argument("recipe", help="name of a shipped recipe, or a folder with a recipe.yaml")
    copying.add_argument("folder", type=Path, help="where to; it must not exist yet")
    new_recipe.add_parser(commands)
    checking = commands.add_parser(
        "check",
        help="a recipe's grader on what is known to be right and wrong, and its data",
        description="Grade the answers of the recipe's answers.py, if it has one: right ones have "
        "to be paid, wrong ones and "
        "tricks must not; some tricks are tried on every grader. Grade every label as an answer, a "
        "wrong one, an empty one and "
        "another task's label. Look for tasks that are there twice or in both splits. Exit code 1: "
        "something is not as it should be.",
    )
    checking.add_argument("recipe", help="name of a shipped recipe, a folder, or a YAML file")
    checking.add_argument(
        "--tasks",
        type=at_least(1),
        metavar="N",
        help="grade labels of so many tasks of each split, evenly spaced; default: all",
    )
    importing = commands.add_parser(
        "import",
        help="a recipe from a MARTI or MAPPA configuration",
        description="Turn a MARTI or MAPPA configuration, with its prompts and data, into a "
        "recipe. Its README lists what was "
        "taken, what was left out and why, and what to look at. See openrlhf docs marti.",
        epilog="Example: openrlhf recipes import marti/cli/configs/ma_chain.yaml --to my_recipe "
        "--model Qwen/Qwen2.5-3B-Instruct "
        "--train-data train.json",
    )
    add = importing.add_argument
    add(
        "source",
        type=Path,
        help="a Hydra .yaml, a .json with agent specifications, or the .sh that launches a run",
    )
    add(
        "--to",
        dest="folder",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="where to; it must not exist yet",
    )
    add(
        "--model",
        metavar="NAME",
        help="model of all agents, where the source leaves it open or another is wanted",
    )
    add(
        "--train-data",
        type=Path,
        metavar="FILE",
        help=".json or .jsonl; default: what the source names",
    )
    add(
        "--eval-data",
        type=Path,
        metavar="FILE",
        help="held-out tasks; default: what the source names",
    )
    add(
        "--workflow",
        choices=KINDS,
        help="shape to begin with, where the source's workflow has no counterpart",
    )
    add(
        "--grader",
        type=Path,
        metavar="FILE",
        help="a .py with score_outcome(trajectory); default: the one for mathematics",
    )
    add(
        "--skip-unknown",
        action="store_true",
        help="leave out what is unknown, and list it in the README",
    )
    forms = showing.add_mutually_exclusive_group()
    for command in (listing, checking, forms):
        command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    forms.add_argument(
        "--mermaid",
        action="store_true",
        help="print who sees whom as a Mermaid flowchart, and nothing else",
    )
    options = parser.parse_args(words)
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "import":
        from marl_plugins.commands.imports.write import ImportRequest, run

        names = [field.name for field in fields(ImportRequest)]
        return run(
            options.source, ImportRequest(**{name: getattr(options, name) for name in names})
        )
    if options.command == "check":
        from marl_plugins.commands.check_recipe import check

        return check(options.recipe, options.json, options.tasks)
    if options.command == "new":
        return new_recipe.new(options)
    if options.command == "copy":
        return copy(options.recipe, options.folder)
    return (
        show(options.recipe, options.json, options.mermaid)
        if options.command == "show"
        else list_all(options.json)
    )


def list_all(as_json: bool) -> int:
    """Returns every YAML of every shipped recipe."""
    recipes: list[dict[str, Any]] = []
    for path in shipped_recipes():
        recipe = base_of(read_recipe(path))
        folder = path.parent.name
        name = folder if path.name == "recipe.yaml" else f"{folder}/{path.name}"
        recipes.append(
            {
                "name": name,
                "model": recipe.model,
                "roles": list(recipe.roles),
                "description": recipe.description,
            }
        )
    if as_json:
        print(json.dumps(recipes, indent=2))
        return 0
    from marl_plugins.commands.tables import print_table

    rows = [[f["name"], str(f["model"]), ", ".join(f["roles"]), f["description"]] for f in recipes]
    print_table("Recipes; train one with --recipe NAME", ["name", "model", "roles", "about"], rows)
    return 0


def show(name: str, as_json: bool, as_mermaid: bool = False) -> int:
    """Shows one recipe.

    Raises:
        ConfigurationError: There is nothing to draw, because the workflow does not run.
    """
    path = find_recipe(name)
    tree = read_recipe(path)
    plugins, problems = Plugins(tree.plugins), Problems()
    recipe, sections = load_recipe(tree, plugins)
    settings = recipe.model_dump(exclude_defaults=True, exclude={"roles", "name", "description"})
    if recipe.flags:
        settings["flags"] = {f: shown_flag(f, value) for f, value in recipe.flags.items()}
    settings |= {section: shown for section, value in sections.items() if (shown := value.shown())}
    fullest, workflow = None, None
    plan = problems.attempt(lambda: draft_plan(["--recipe", str(path)], plugins))
    if plan is not None:
        if not _tasks_are_read(plan, problems):  # the workflow is rehearsed on an invented one
            plan = replace(plan, _tasks={"train": [], "eval": []})
        workflow = workflow_of(plan.plugins, plan.run)
        collect(plugins, problems, "marl_rehearse", plan=plan)
        fullest = plan.run.state(RehearsalResult).fullest
    graph = DependencyGraph(fullest)
    outline, drawn = list[str](), ""
    if isinstance(workflow, WorkflowFile):
        outline, drawn = workflow.outline(), workflow.mermaid()
    if as_mermaid:
        if not (outline or graph.nodes):
            raise ConfigurationError(problems)
        print(drawn or graph.mermaid())
        return 0
    about = {
        "name": recipe.name,
        "file": str(path),
        "description": recipe.description,
        "roles": {
            role: {**players(recipe, role), **config.model_dump(exclude_defaults=True)}
            for role, config in recipe.roles.items()
        },
        "graph": graph.lines(),
        **({"workflow": outline} if outline else {}),
        **graph.as_json(),
        "problems": list(map(str, problems)),
        "settings": settings,
    }
    if as_json:
        print(json.dumps(about, indent=2))
        return 0
    import yaml

    from marl_plugins.commands.tables import print_table

    print(f"{recipe.name}: {inert(recipe.description)}\n{path}\n")
    print_table(
        "Roles",
        ["role", "policy", "prompt", "tools", "turns"],
        [
            [
                r,
                ", ".join(recipe.policies_of(r)),
                c.prompt or "the program's",
                ", ".join(c.tools) or "none",
                str(c.max_turns),
            ]
            for r, c in recipe.roles.items()
        ],
    )
    if outline:
        print(f"\nNodes of {recipe.workflow}:" if recipe.workflow else "\nProgram:")
        print("\n".join(f"  {inert(line)}" for line in outline))
    print("\nWho sees whom (one run of the workflow with invented answers):")
    for line in [*graph.lines(), *(f"({problem})" for problem in problems)]:
        print(f"  {inert(line)}")
    print("\nSettings:")
    print("\n".join("  " + line for line in yaml.safe_dump(settings, sort_keys=False).splitlines()))
    return 0


def _tasks_are_read(plan: Plan, problems: Problems) -> bool:
    """Returns whether a plan's tasks can be read; a hub's are read when a run starts."""
    wrong = len(problems)
    for split in ("train", "eval"):
        problems.attempt(partial(known_tasks, plan, split))
    return len(problems) == wrong


def copy(name: str, folder: Path) -> int:
    """Copies a recipe's folder without the runs in it, and names the copy after its own.

    Raises:
        ConfigurationError: What is named is no recipe; or the target exists or cannot be written.
    """
    named = find_recipe(name)
    base_of(read_recipe(named))
    source = named.parent
    if problems := taken(folder):
        raise ConfigurationError(problems)
    with writing(folder):
        shutil.copytree(source, folder, ignore=_not_copied)
        files = sorted(
            filter(_is_recipe, folder.glob("*.yaml")),
            key=lambda path: (path.name != named.name, path.name),
        )
        for path in files:
            _rename(path, re.sub(r"\W", "_", folder.resolve().name.lower()))
    print(f"copied {source.resolve().name} to {folder}")
    for path in files:
        print(
            f"  openrlhf train --recipe {path if path.name != 'recipe.yaml' else folder} --dry-run"
        )
    return 0


def _not_copied(folder: str, names: list[str]) -> set[str]:
    """Returns the entries of a folder that are no part of a recipe: caches and environments of
    Python, folders that runs have written, and the answers that a shipped recipe's grader is held
    to."""
    omitted = {"__pycache__"}
    if recipes_root() in Path(folder).resolve().parents:
        omitted.add("answers.py")
    return {
        name
        for name in names
        if name in omitted
        or any((Path(folder) / name / file).is_file() for file in (COMMAND_FILE, "pyvenv.cfg"))
    }


def _is_recipe(path: Path) -> bool:
    """Returns whether a YAML file is a recipe, and no other file in the folder of one."""
    try:
        base_of(read_recipe(path))
    except ConfigurationError:
        return False
    return True


def _rename(path: Path, name: str) -> None:
    """Give a recipe's file another `name:`, where it has one and the other can be one."""
    if re.fullmatch(r"[a-z][a-z0-9_]*", name):
        text = path.read_text(encoding="utf-8")
        path.write_text(
            re.sub(r"^name: \w+$", f"name: {name}", text, count=1, flags=re.MULTILINE),
            encoding="utf-8",
        )
