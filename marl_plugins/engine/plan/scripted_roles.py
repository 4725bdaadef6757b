"""Roles whose answers are chosen texts: a workflow runs with them without any model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from marl_plugins.core.calls import TAGGED, parse_call
from marl_plugins.core.recipe.prompts import followup_renderer
from marl_plugins.core.roles import RoleSpec, Sampling
from marl_plugins.core.run import Run
from marl_plugins.core.tools import FunctionCall

NO_LIMIT_TOKENS = 10**9
"""Size of a context that is never full."""


class ScriptedChat:
    """A chat format (core.conversation.ChatFormat) in which prompts have no tokens, and the only id
    of an answer is its number.

    Args:
        texts: The answers, by number; more may be added.
    """

    tools: tuple[Any, ...] = ()

    def __init__(self, texts: Iterable[str] = ()):
        self.texts = list(texts)

    def opening(self, messages: Any) -> tuple[int, ...]:
        return ()

    def keeps(self, conversation: Any, following: Any) -> bool:
        return True

    def continuation(self, sampled: Any, following: Any) -> tuple[int, ...]:
        return ()

    def said(self, ids: tuple[int, ...]) -> str:
        return self.text(ids)

    said_again = said

    def thought(self, ids: Any) -> int:
        return 0

    defused = thought

    def text(self, ids: tuple[int, ...]) -> str:
        return self.texts[ids[0]]


def scripted_role(run: Run, name: str, chat: ScriptedChat) -> RoleSpec:
    """Returns a role of the recipe that renders its prompts as in a run, and answers from a
    script."""
    format: Any = chat
    config = run.recipe.roles[name]
    return RoleSpec(
        name,
        run.recipe.policies_of(name)[0],
        run.opening(name),
        format,
        Sampling(1.0, 1.0, 1, NO_LIMIT_TOKENS),
        render_next=followup_renderer(run.followup(name)),
        finder=(lambda tools: tagged_calls) if config.calls and not config.tools else None,
    )


def tagged_calls(answer: str) -> list[FunctionCall]:
    """Returns the calls that a script writes between tags, whatever the format of the role's
    model."""
    calls = [parse_call(str.__str__(text).strip()) for text in TAGGED.findall(str.__str__(answer))]
    return [call for call in calls if call is not None]
