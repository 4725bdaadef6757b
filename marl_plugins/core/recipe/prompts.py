"""A role's prompt files as chat messages."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at, close_names
from marl_plugins.core.recipe.recipe_yaml import yaml_hint
from marl_plugins.core.recipe.texts import read_text

Render = Callable[[Mapping[str, str]], list[dict[str, str]]]


def read_examples(path: Path) -> list[dict[str, str]]:
    """Returns the messages of a file of examples: a list in YAML, each with the texts `user` and
    `assistant`, in which braces are braces.

    Raises:
        ConfigurationError: It is something else.
    """
    fix = 'put what YAML takes for a number, a date or a mapping in quotes: `assistant: "12"`'
    try:
        items = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError) as error:  # the latter of a date that there is not
        items, fix = str(error), yaml_hint(str(error)) or fix
    if isinstance(items, list) and items:
        messages = [
            {"role": role, "content": text}
            for item in items
            if isinstance(item, dict) and item.keys() == {"user", "assistant"}
            for role in ("user", "assistant")
            if isinstance(text := item[role], str) and text.strip()
        ]
        if len(messages) == 2 * len(items):
            return messages
    got = f"it holds {items!r:.200}"
    expected = "a list, each item with the texts `user` and `assistant`"
    raise ConfigurationError(Problem("roles.examples", at(file=path), got, expected, fix))


def followup_renderer(followup: str | None) -> Render | None:
    """Returns `render(fields)` for calls that continue a conversation; None: they are shown the
    opening's user message."""
    return None if followup is None else prompt_renderer(followup, None)


def fields_of(texts: Iterable[str]) -> list[str]:
    """Returns the fields that prompts have, each once.

    Raises:
        ValueError: Braces are not closed.
    """
    parsed = (part for text in texts for part in string.Formatter().parse(text))
    return list(dict.fromkeys(name for _, name, _, _ in parsed if name is not None))


def prompt_renderer(
    prompt: str, system: str | None, examples: Sequence[dict[str, str]] = ()
) -> Render:
    """Returns `render(fields)` for a role: its opening messages; a field that the workflow did not
    give is a KeyError that names it.

    A prompt need not use all that the workflow gives: one workflow may have several sets of
    prompts.

    Args:
        examples: Messages between the system's and the user's.
    """
    places = {*fields_of((prompt, system or ""))}

    def render(fields: Mapping[str, str]) -> list[dict[str, str]]:
        if not fields.keys() >= places:
            wrong = []
            for name in sorted(places - fields.keys()):
                # Which of the two is misspelt, nobody but the author knows.
                close = close_names(name, fields.keys() - places)
                wrong.append(
                    f"{{{name}}} was not given" + (f"; is it {close[0]!r}?" if close else "")
                )
            raise KeyError(
                f"the prompt has places for {sorted(places)}, the workflow gave {sorted(fields)}: "
                f"{', '.join(wrong)}"
            )
        messages = (
            [{"role": "system", "content": system.format(**fields)}] if system is not None else []
        )
        return [*messages, *examples, {"role": "user", "content": prompt.format(**fields)}]

    return render
