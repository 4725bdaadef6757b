"""What a chat template takes beside the messages (`template:`), read off its source."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from marl_plugins.core.problems import Problem, at, meant

if TYPE_CHECKING:
    from jinja2 import Environment

OURS = (
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "raise_exception",
    "strftime_now",
)
"""What the run gives every template."""


def template_refuses(policy: str, role: str, error: Exception) -> Problem:
    """Returns the problem of a role's messages that a policy's chat template refuses."""
    return Problem(
        "models.template_refuses",
        at(policy=policy),
        f"its chat template refuses the messages of role {role!r}: {error}",
    )


GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""What transformers marks an assistant's words with; jinja itself does not know it."""


def environment() -> Environment:
    """Returns an environment as transformers has it for chat templates."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )


def in_channels(template: object) -> list[Problem]:
    """Returns that a chat template shows answers in channels (Harmony, gpt-oss): it refuses an
    earlier answer that says its own, which a message has no other place for."""
    if "<|channel|>" not in str(template):
        return []
    got = "its chat template writes answers in channels (<|channel|>), which messages cannot have"
    return [Problem("models.channels", got=got, fix="use another model, or serve it (`endpoint:`)")]


def wrong_arguments(
    template: object, arguments: Iterable[str], key: str = "template"
) -> list[Problem]:
    """Returns the arguments that a chat template does not take, of those that a recipe gives it
    under a key; transformers ignores them silently."""
    if not arguments or not isinstance(template, str):
        return []
    from jinja2 import TemplateError, meta

    try:
        parsed = environment().parse(GENERATION.sub("", template))
    except TemplateError:  # another engine's, or broken: whoever renders it says so
        return []
    takes = sorted(meta.find_undeclared_variables(parsed).difference(OURS))
    got = f"the chat template takes no argument of this name, only {', '.join(takes) or 'none'}"
    return [
        Problem("models.template_argument", at(key=f"{key}.{name}"), got, fix=meant(name, takes))
        for name in arguments
        if name not in takes
    ]
