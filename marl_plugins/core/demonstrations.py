"""Turns what a role should have said into training rows, rendered by the role's own prompt and chat
template.

Demonstration -> ids with a mask over what the role said, end-of-turn tokens included
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pydantic

from marl_plugins.core.roles import RoleSpec
from marl_plugins.core.section import Section
from marl_plugins.core.trajectory import ToolResult


class WarmStartConfig(Section):
    """Supervised training of `tiny` models before the run: a fixed number of steps, cached."""

    EXAMPLE: ClassVar[str] = "{demonstrations: demonstrations.py, steps: 100}"

    demonstrations: str
    """File with `demonstrate(task, rng)`."""
    steps: int = pydantic.Field(ge=1)
    batch_size: int = pydantic.Field(64, ge=1)
    """Demonstrations per step."""
    learning_rate: float = pydantic.Field(2e-3, gt=0)
    seed: int = 0

    def files(self) -> dict[str, str]:
        return {"demonstrations": self.demonstrations}


@dataclass(frozen=True)
class Demonstration:
    """One conversation of one role.

    Args:
        role: Who speaks.
        fields: What the workflow would give it.
        said: Its answers, one per turn.
        shown: What its tools answered in between; one fewer than `said`.
    """

    role: str
    fields: Mapping[str, str]
    said: Sequence[str]
    shown: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.said, str):
            raise ValueError(f"said is a list of answers, got the text {self.said!r:.80}")
        if len(self.shown) != len(self.said) - 1:
            raise ValueError(
                f"a demonstration of role {self.role!r} has {len(self.said)} answers and "
                f"{len(self.shown)} tool results in between; there must be one fewer"
            )


def encode(demonstration: Demonstration, role: RoleSpec) -> tuple[list[int], list[int]]:
    """Returns the ids of the whole conversation, exactly as a rollout would show and sample them,
    and 1 where the role spoke.

    Raises:
        KeyError: The fields do not fit the role's prompt.
    """
    chat = role.chat
    ids = list(chat.opening(role.render(demonstration.fields)))
    mask = [0] * len(ids)
    answer_ids: list[int] = []
    for turn, text in enumerate(demonstration.said):
        if turn:
            between = chat.continuation(
                answer_ids,
                role.answers([ToolResult("", "", demonstration.shown[turn - 1], ok=True)]),
            )
            ids += between
            mask += [0] * len(between)
        answer_ids = [*chat.foreign.encode(text), *chat.end_of_turn]
        ids += answer_ids
        mask += [1] * len(answer_ids)
    return ids, mask
