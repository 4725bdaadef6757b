"""`openrlhf recipes list | show | copy | import`: shipped recipes, and your own made from them or from other programs' files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marl_plugins.commands.imports.shapes import KINDS
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe import find_recipe, load_recipe
from marl_plugins.core.shipped import recipes_root
from marl_plugins.core.trajectory import Task
from marl_plugins.hosts.upstream_cli import Parser
from marl_plugins.manager import Plugins
from marl_plugins.plan.build import recipe_plugins
from marl_plugins.plan.rehearsal import rehearse, workflow_of
from marl_plugins.run import Run


def main(words: Sequence[str]) -> int:
    parser = Parser(prog="openrlhf recipes", description="Shipped recipes, and your own made from them.")
    commands = parser.add_subparsers(dest="command", parser_class=Parser)
    listing = commands.add_parser("list", help="all shipped recipes")
    showing = commands.add_parser("show", help="a recipe's roles, who calls whom, and its settings")
    showing.add_argument("recipe", help="name of a shipped recipe, a folder, or a YAML file")
    copying = commands.add_parser("copy", help="copy a recipe, to start your own")
    copying.add_argument("recipe", help="name of a shipped recipe, or a folder with a recipe.yaml")
    copying.add_argument("folder", type=Path, help="where to; it must not exist yet")
    importing = commands.add_parser(
        "import",
        help="a recipe from a MARTI or MAPPA configuration",
        description="Turn a MARTI or MAPPA configuration, with its prompts and data, into a recipe. Its README lists what was "
        "taken, what was left out and why, and what to look at. See docs/marti.md.",
        epilog="Example: openrlhf recipes import marti/cli/configs/ma_chain.yaml --to my_recipe --model Qwen/Qwen2.5-3B-Instruct "
        "--train-data train.json",
    )
    add = importing.add_argument
    add("source", type=Path, help="a Hydra .yaml, a .json with agent specifications, or the .sh that launches a run")
    add("--to", type=Path, required=True, metavar="FOLDER", help="where to; it must not exist yet")
    add("--model", metavar="NAME", help="model of all agents, where the source leaves it open or another is wanted")
    add("--train-data", type=Path, metavar="FILE", help=".json or .jsonl; default: what the source names")
    add("--eval-data", type=Path, metavar="FILE", help="held-out tasks; default: what the source names")
    add("--workflow", choices=KINDS, help="shape to begin with, where the source's workflow has no counterpart")
    add(
        "--grader", type=Path, metavar="FILE", help="a .py with score_outcome(trajectory); default: the one for mathematics"
    )
    add("--skip-unknown", action="store_true", help="leave out what is unknown, and list it in the README")
    for command in (listing, showing):
        command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(list(words))
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "import":
        from marl_plugins.commands.imports.write import run, wanted_from

        return run(options.source, wanted_from(options))
    if options.command == "copy":
        return copy(options.recipe, options.folder)
    return show(options.recipe, options.json) if options.command == "show" else list_all(options.json)


def list_all(as_json: bool) -> int:
    """Every YAML of every shipped recipe."""
    found: list[dict[str, Any]] = []
    for path in sorted(recipes_root().glob("*/*.yaml")):
        recipe, _ = load_recipe(path)
        folder = path.parent.name
        name = folder if path.name == "recipe.yaml" else f"{folder}/{path.name}"
        found.append({"name": name, "model": recipe.model, "roles": list(recipe.roles), "description": recipe.description})
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    from marl_plugins.commands.tables import print_table

    rows = [[f["name"], str(f["model"]), ", ".join(f["roles"]), f["description"]] for f in found]
    print_table("Recipes; train one with --recipe NAME", ["name", "model", "roles", "about"], rows)
    return 0


def show(name: str, as_json: bool) -> int:
    """One recipe."""
    path = find_recipe(name)
    recipe, _ = load_recipe(path)
    settings = recipe.model_dump(exclude_defaults=True, exclude={"roles", "name", "description"})
    run = Run(recipe, path.parent, SimpleNamespace(), device="")
    workflow = workflow_of(Plugins(recipe_plugins(recipe, path.parent)), run)
    seen = rehearse(run, workflow, Task("example", "an example", "0"), ["python"])
    edges = seen.graph or [f"({problem})" for problem in seen.wrong + seen.unclear]
    about = {
        "name": recipe.name,
        "file": str(path),
        "description": recipe.description,
        "roles": {
            role: {"policy": recipe.policy_of(role), **config.model_dump(exclude_defaults=True)}
            for role, config in recipe.roles.items()
        },
        "graph": edges,
        "settings": settings,
    }
    if as_json:
        print(json.dumps(about, indent=2))
        return 0
    import yaml

    from marl_plugins.commands.tables import print_table

    print(f"{recipe.name}: {recipe.description}\n{path}\n")
    print_table(
        "Roles",
        ["role", "policy", "prompt", "tools", "turns"],
        [
            [r, recipe.policy_of(r), c.prompt, ", ".join(c.tools) or "none", str(c.max_turns)]
            for r, c in recipe.roles.items()
        ],
    )
    print("\nWho sees whom (one run of the workflow with empty answers):")
    for edge in edges:
        print(f"  {edge}")
    print("\nSettings:")
    print("\n".join("  " + line for line in yaml.safe_dump(settings, sort_keys=False).splitlines()))
    return 0


def copy(name: str, folder: Path) -> int:
    """Copy a recipe's folder.

    Raises:
        ConfigurationError: The target exists or cannot be written.
    """
    source = find_recipe(name).parent
    if folder.exists():
        raise ConfigurationError(f"{folder}: exists already; give a folder that does not")
    try:
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot be written: {error.strerror or error}") from None
    print(f"copied {source.name} to {folder}")
    for path in sorted(folder.glob("*.yaml")):
        print(f"  openrlhf train --recipe {path if path.name != 'recipe.yaml' else folder} --dry-run")
    return 0
