"""The coach's flags and prompts, where the configuration has a coach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from marl_plugins.commands.imports import templates
from marl_plugins.commands.imports.options import options
from marl_plugins.commands.imports.read import ImportSource
from marl_plugins.commands.imports.report import Report
from marl_plugins.core.problems import at

ENDPOINTS = (
    ("gemini", "https://generativelanguage.googleapis.com/v1beta/openai/", "GEMINI_API_KEY"),
    ("claude", "https://api.anthropic.com/v1/", "ANTHROPIC_API_KEY"),
    ("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
)
"""Providers that MAPPA recognises by the start of a model's name: OpenAI-compatible endpoint,
variable with the key."""


@dataclass(frozen=True)
class ImportedCoach:
    flags: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)


def translate_coach(source: ImportSource, report: Report) -> ImportedCoach | None:
    arguments = source.settings.get("workflow_args") or {}
    model, template = arguments.get("coach_model"), arguments.get("coach_prompt_template")
    if not model:
        if template:
            report.note(
                "coach_prompt_template: was not taken, because without coach_model there is no "
                "coach"
            )
        return None
    table, flags = options()["workflow_args"], dict[str, Any]()
    for theirs, option in table.items():
        ours = option.flag
        if ours and arguments.get(theirs) is not None:
            flags[ours] = arguments[theirs]
            report.take(f"workflow_args.{theirs}", f"`{ours}: {arguments[theirs]}`")
    for start, url, variable in ENDPOINTS:
        if str(model).startswith(start):
            flags |= {"coach.base_url": url, "coach.api_key_env": variable}
            report.note(
                f"coach.base_url: {url} is the endpoint for {model}, its key is read from "
                f"${variable}; change both if needed"
            )
            break
    if arguments.get("enable_ground_truth_eval") is False:
        flags["coach.ground_truth"] = "none"
    if not template:
        return ImportedCoach(flags)
    where = at(
        line=source.where("workflow_args", "coach_prompt_template"), key="coach_prompt_template"
    )
    common, last = templates.split_coach_template(template, where, report)
    flags |= {"coach.prompt": "prompts/coach.md", "coach.last_prompt": "prompts/coach_last.md"}
    report.take("workflow_args.coach_prompt_template", table["coach_prompt_template"].here)
    return ImportedCoach(flags, {"prompts/coach.md": common, "prompts/coach_last.md": last})
