"""Tries chat templates that lie on this machine before a run does: what each role is shown first,
and what the recipe gives them (`template:`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from marl_plugins.core.problems import Problem
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.run import Run
from marl_plugins.core.templates import (
    GENERATION,
    environment,
    in_channels,
    template_refuses,
    wrong_arguments,
)
from marl_plugins.engine.plan.lengths import empty_messages
from marl_plugins.engine.plan.models import read_object

TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def check_templates(run: Run) -> list[Problem]:
    """Returns what the chat templates of the policies' folders refuse or do not take."""
    problems: list[Problem] = []
    for policy in run.policies if find_spec("jinja2") else ():
        if (source := template_of(Path(policy.model))) is None:
            continue
        problems += [problem.within(policy=policy.name) for problem in in_channels(source)]
        problems += wrong_arguments(source, policy.template, f"policies.{policy.name}.template")
        for role in run.recipe.roles_of(policy.name):
            own = run.role(role).template
            problems += wrong_arguments(source, own, f"roles.{role}.template")
            messages = [
                {"role": r, "content": text or "?"} for r, text in empty_messages(run, role)
            ]
            if error := refusal(source, {"messages": messages, **policy.template, **own}):
                problems.append(template_refuses(policy.name, role, error))
    return list(dict.fromkeys(problems))


def template_of(folder: Path) -> str | None:
    """Returns the chat template of a model's folder, where it is there and one text."""
    if (file := folder / "chat_template.jinja").is_file():
        return read_text(file)
    file = folder / "tokenizer_config.json"
    template = read_object(file).get("chat_template") if file.is_file() else None
    return template if isinstance(template, str) else None


def refusal(source: str, values: Mapping[str, Any]) -> Exception | None:
    """Returns what a template raises of its own; other exceptions may come of what transformers
    alone has."""
    from jinja2 import TemplateError

    def refuse(message: str) -> None:
        raise TemplateError(message)

    ours = {"raise_exception": refuse, "strftime_now": date.today().strftime}
    try:
        environment().from_string(GENERATION.sub("", source)).render(
            add_generation_prompt=True, **dict.fromkeys(TOKENS, "?"), **ours, **values
        )
    except Exception as error:
        return error if type(error) is TemplateError else None
    return None
