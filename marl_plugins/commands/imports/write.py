"""`openrlhf recipes import SOURCE --to FOLDER`: a MARTI or MAPPA configuration as a recipe of ours.

The recipe's README lists what was taken, what was left out and why, and what to check. Unknown
options, tools and placeholders are reported together, each with file and line; nothing is written
then.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from marl_plugins.commands.imports import coach, flags, policies, roles, tasks, validate
from marl_plugins.commands.imports.agents import Agent, read_agents
from marl_plugins.commands.imports.read import ImportSource, read
from marl_plugins.commands.imports.report import Report
from marl_plugins.commands.imports.shapes import Kind, Shape, identifier
from marl_plugins.commands.imports.tiny import tiny_yaml
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.hosts import cpu

COACH = "marl_plugins.coach"


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


def wanted_from(arguments: Any) -> ImportRequest:
    """Returns the request that a parsed command line makes."""
    return ImportRequest(
        folder=arguments.to,
        model=arguments.model,
        workflow=cast("Kind | None", arguments.workflow),
        grader=arguments.grader,
        train_data=arguments.train_data,
        eval_data=arguments.eval_data,
        skip_unknown=arguments.skip_unknown,
    )


def run(source: Path, wanted: ImportRequest) -> int:
    """Imports a configuration, writes the recipe and prints what was written.

    Raises:
        ConfigurationError: Everything that prevents the import; nothing is written.
    """
    if os.path.lexists(wanted.folder):
        got, fix = "exists already", "give a folder that does not"
        raise ConfigurationError(
            Problem("imports.folder_exists", at(folder=wanted.folder), got, fix=fix)
        )
    imported = convert(source, wanted)
    try:
        write_files(imported.files, wanted.folder)
    except OSError as error:
        got = f"cannot be written: {error.strerror or error}"
        raise ConfigurationError(
            Problem("imports.unwritable", at(folder=wanted.folder), got)
        ) from None
    report = imported.report
    print(
        f"imported {source} to {wanted.folder}: {len(imported.recipe['roles'])} roles, "
        f"{len(report.taken)} options taken"
    )
    print(
        f"{len(report.left_out)} options were left out, {len(report.notes)} things need checking: "
        "see README.md"
    )
    for note in report.notes:
        print(f"  check: {note}")
    folder, tiny = (shlex.quote(str(path)) for path in (wanted.folder, wanted.folder / "tiny.yaml"))
    print(f"  openrlhf recipes show {folder}")
    print(
        f"  openrlhf train --recipe {folder} --dry-run            # on GPUs; elsewhere, "
        f"{cpu.DEVICE}=cuda plans for them"
    )
    print(f"  openrlhf train --recipe {tiny} --dry-run  # on a CPU")
    return 0


def convert(path: Path, wanted: ImportRequest) -> ImportResult:
    """Returns the recipe's files.

    Raises:
        ConfigurationError: Everything that is wrong.
    """
    report = Report(wanted.skip_unknown)
    source = read(path)
    validate.check_form(source)
    for problem in validate.find_unknown(source):
        report.unknown(problem)
    shape = roles.choose_shape(source, wanted.workflow, report)
    agents = read_agents(source, report)
    workflow = source.settings.get("agent_workflow") or shape.kind
    name = identifier(wanted.folder.name, ())
    description = f"{workflow} of {len(agents)} agents, imported from {path.name}"
    recipe: dict[str, Any] = {"name": name, "description": description}
    files = _add_roles(recipe, source, shape, agents, report)
    _add_flags(recipe, source, agents, wanted, report)
    files |= _add_coach(recipe, source, report)
    files |= _add_tasks(recipe, source, wanted, report)
    report.raise_problems()
    files["tiny.yaml"] = tiny_yaml(recipe)
    files["recipe.yaml"] = yaml.safe_dump(recipe, sort_keys=False, width=120, allow_unicode=True)
    files["README.md"] = report.readme(name, description, path)
    return ImportResult(recipe, files, report)


def _add_roles(
    recipe: dict[str, Any], source: ImportSource, shape: Shape, agents: list[Agent], report: Report
) -> dict[str, str]:
    """`roles:`, `workflow:`, `mapping:` and `tools:`; their files."""
    prompts = roles.translate_prompts(source, shape, agents, report)
    translated = roles.translate_roles(source, shape, agents, prompts, report)
    names = [agent.role for agent in agents]
    workflow = roles.write_workflow(source, shape, names, translated, prompts, report)
    recipe |= {"roles": translated, "workflow": "workflow.py"}
    if tools := roles.translate_tools(source, translated, report):
        recipe["tools"] = tools
    return {
        **{f"prompts/{name}.md": text for name, text in prompts.items()},
        "workflow.py": workflow,
    }


def _add_flags(
    recipe: dict[str, Any],
    source: ImportSource,
    agents: list[Agent],
    wanted: ImportRequest,
    report: Report,
) -> None:
    """`model:`, `mapping:`, `policies:` and `flags:`."""
    recipe |= policies.translate_policies(source, agents, wanted.model, report)
    translated = flags.translate_flags(source, agents, report)
    policies.merge_flags(recipe, translated.policies)
    recipe["flags"] = translated.run
    if any("ds.lora.rank" in own for own in (translated.run, *translated.policies.values())):
        recipe["plugins"] = ["marl_plugins.adapters"]


def _add_coach(recipe: dict[str, Any], source: ImportSource, report: Report) -> dict[str, str]:
    """`plugins:` and the coach's flags; its prompts."""
    found = coach.translate_coach(source, report)
    if found is None:
        return {}
    recipe["plugins"] = [*recipe.get("plugins", []), COACH]
    recipe["flags"] |= found.flags
    return found.files


def _add_tasks(
    recipe: dict[str, Any], source: ImportSource, wanted: ImportRequest, report: Report
) -> dict[str, str]:
    """`grader:` and `tasks:`; their files."""
    files = {}
    grader = tasks.read_grader(source, wanted.grader, COACH in recipe.get("plugins", ()), report)
    if grader is not None:
        recipe["grader"] = "grader.py"
        files["grader.py"] = grader
    found = tasks.read_tasks(source, wanted.train_data, wanted.eval_data, report)
    if found is None:
        return files
    recipe["tasks"] = "tasks.py"
    if not found.held_out:
        for flag in tasks.EVALUATION_FLAGS:
            recipe["flags"].pop(flag, None)
    files |= tasks.data_files(found, report)
    tasks.check_amount(found, recipe["flags"], report)
    return files


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Writes all files or none: first into a temporary folder next to the target, which is then
    renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        complete = Path(temporary) / folder.name
        for name, text in files.items():
            path = complete / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        complete.rename(folder)
