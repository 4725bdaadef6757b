"""`openrlhf recipes import SOURCE --to FOLDER`: a MARTI or MAPPA configuration as a recipe of ours.

The recipe's README lists what was taken, what was left out and why, and what to check. Unknown
options, tools and placeholders are reported together, each with file and line; nothing is written
then.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from marl_plugins.commands.imports import coach, flags, options, policies, roles, tasks
from marl_plugins.commands.imports.agents import read_agents
from marl_plugins.commands.imports.read import read
from marl_plugins.commands.imports.report import Report
from marl_plugins.commands.imports.shapes import Kind, identifier
from marl_plugins.commands.imports.tiny import tiny_yaml
from marl_plugins.commands.new_folder import taken, write_files
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.hosts import cpu


@dataclass(frozen=True)
class ImportRequest:
    """The command line, except for the source."""

    folder: Path
    model: str | None = None
    workflow: Kind | None = None
    grader: Path | None = None
    train_data: Path | None = None
    eval_data: Path | None = None
    skip_unknown: bool = False


@dataclass(frozen=True)
class ImportResult:
    """A finished recipe: its settings, the texts of all its files, and the report."""

    recipe: Mapping[str, Any]
    files: Mapping[str, str]
    report: Report


def run(source: Path, request: ImportRequest) -> int:
    """Imports a configuration, writes the recipe and prints what was written.

    Raises:
        ConfigurationError: Everything that prevents the import; nothing is written.
    """
    if problems := taken(request.folder):
        raise ConfigurationError(problems)
    imported = convert(source, request)
    write_files(imported.files, request.folder)
    report = imported.report
    print(
        f"imported {source} to {request.folder}: {len(imported.recipe['roles'])} roles, "
        f"{len(report.taken)} options taken"
    )
    print(
        f"{len(report.left_out)} options were left out, {len(report.notes)} things need checking: "
        "see README.md"
    )
    for note in report.notes:
        print(f"  check: {note}")
    folder, tiny = (
        shlex.quote(str(path)) for path in (request.folder, request.folder / "tiny.yaml")
    )
    print(f"  openrlhf recipes show {folder}")
    print(
        f"  openrlhf train --recipe {folder} --dry-run            # on GPUs; elsewhere, "
        f"{cpu.DEVICE}=cuda plans for them"
    )
    print(f"  openrlhf train --recipe {tiny} --dry-run  # on a CPU")
    return 0


def convert(path: Path, request: ImportRequest) -> ImportResult:
    """Returns the recipe's files.

    Raises:
        ConfigurationError: Everything that is wrong.
    """
    report = Report(request.skip_unknown)
    source = read(path)
    options.check(source, report)
    shape = roles.choose_shape(source, request.workflow, report)
    agents = read_agents(source)
    workflow = source.settings.get("agent_workflow") or shape.kind
    name = identifier(request.folder.name, ())
    description = f"{workflow} of {len(agents)} agents, imported from {path.name}"
    recipe: dict[str, Any] = {"name": name, "description": description}
    prompts = roles.translate_prompts(source, shape, agents, report)
    recipe["roles"] = roles.translate_roles(source, shape, agents, prompts, report)
    recipe["workflow"] = "workflow.py"
    if tools := roles.translate_tools(source, recipe["roles"], report):
        recipe["tools"] = tools
    files = {f"prompts/{role}.md": text for role, text in prompts.items()}
    files["workflow.py"] = roles.write_workflow(source, shape, recipe["roles"], prompts, report)
    recipe |= policies.translate_policies(source, agents, request.model, report)
    translated = flags.translate_flags(source, agents, report)
    for role, own in translated.policies.items():
        recipe.setdefault("policies", {}).setdefault(role, {})["flags"] = own
    recipe["flags"] = translated.run
    plugins = []
    if any("ds.lora.rank" in some for some in (translated.run, *translated.policies.values())):
        plugins.append("marl_plugins.adapters")
    imported_coach = coach.translate_coach(source, report)
    if imported_coach is not None:
        plugins.append("marl_plugins.coach")
        recipe["flags"] |= imported_coach.flags
        files |= imported_coach.files
    if plugins:
        recipe["plugins"] = plugins
    grader = tasks.read_grader(source, request.grader, imported_coach is not None, report)
    if grader is not None:
        recipe["grader"] = "grader.py"
        files["grader.py"] = grader
    data = tasks.read_tasks(source, request.train_data, request.eval_data, report)
    if data is not None:
        recipe["tasks"] = "tasks.py"
        files |= tasks.data_files(data, report)
        tasks.fit_flags(data, recipe["flags"])
    report.raise_problems()
    files["tiny.yaml"] = tiny_yaml(recipe)
    files["recipe.yaml"] = yaml.safe_dump(recipe, sort_keys=False, width=120, allow_unicode=True)
    files["README.md"] = report.readme(name, description, path)
    return ImportResult(recipe, files, report)
