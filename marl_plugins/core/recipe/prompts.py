"""A role's prompt files as chat messages."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping

from marl_plugins.core.problems import close_names

Render = Callable[[Mapping[str, str]], list[dict[str, str]]]


def followup_renderer(followup: str | None) -> Render | None:
    """Returns `render(fields)` for calls that continue a conversation; None: they are shown the
    opening's user message."""
    return None if followup is None else prompt_renderer(followup, None)


def prompt_renderer(prompt: str, system: str | None) -> Render:
    """Returns `render(fields)` for a role: its opening messages; a field that the workflow did not
    give is a KeyError that names it.

    A prompt need not use all that the workflow gives: one workflow may have several sets of
    prompts.
    """
    formatter = string.Formatter()
    places = {
        name
        for text in (prompt, system or "")
        for _, name, _, _ in formatter.parse(text)
        if name is not None
    }

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
        return [*messages, {"role": "user", "content": prompt.format(**fields)}]

    return render
