"""Corrected actions as they go through the model, in micro-batches of their own
(`ExtraSequences`)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from marl_plugins.builtin.corrections.worker import CORRECTION_LABEL, CorrectionsLoss
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.rows import Row
from marl_plugins.engine.runtime.experience import Experience, ExtensionCall
from marl_plugins.engine.runtime.layout import Layout


@dataclass(frozen=True)
class CorrectedAction:
    """A corrected action in tokens.

    Args:
        name: Of the row.
        ids: Context and correction.
        tokens: How many of them are the correction's.
        coef: Its weight in the loss.
    """

    name: str
    ids: list[int]
    tokens: int
    coef: float


def corrected_actions(
    rows: Sequence[Row], chat: ChatFormat, longest: int
) -> tuple[list[CorrectedAction], int]:
    """Returns the corrected actions among rows that can be trained on, and the number of those that
    are too long.

    Args:
        longest: Tokens of a context with its correction, at most.
    """
    fit, too_long = [], 0
    actions = {
        row.action: row for row in rows if row.action.correction is not None
    }  # a row may be selected twice
    for action, row in actions.items():
        assert action.correction is not None
        # What looks like a special token stays text, as in everything that others have said.
        text = chat.foreign.hide(action.correction.text, "assistant")
        answer_ids = [*chat.foreign.encode(text), *chat.end_of_turn]
        ids = [*action.context_ids, *answer_ids]
        if len(ids) > longest:
            too_long += 1
        else:
            fit.append(CorrectedAction(row.name, ids, len(answer_ids), action.correction.coef))
    return fit, too_long


@dataclass(frozen=True)
class CorrectedActions:
    """The corrected actions of one policy in one step, at least one."""

    actions: Sequence[CorrectedAction]

    @property
    def lengths(self) -> list[int]:
        """See `ExtraSequences.lengths`."""
        return [len(action.ids) for action in self.actions]

    def placed(
        self, layout: Layout, epochs: int, like: Experience
    ) -> tuple[list[Experience], tuple[ExtensionCall, ...]]:
        """See `ExtraSequences.placed`; the loss is told what all tokens weigh together."""
        weights = token_weights(self.actions, layout)
        items = [
            correction_experience(a, weight, like)
            for a, weight in zip(self.actions, weights, strict=True)
        ]
        total = epochs * sum(
            weight * a.tokens for a, weight in zip(self.actions, weights, strict=True)
        )
        return items, (ExtensionCall(CorrectionsLoss.__name__, "expect", (total,)),)


def token_weights(actions: Sequence[CorrectedAction], layout: Layout) -> list[float]:
    """Returns the weight of each token of a corrected action: its coefficient, divided by the M of
    its optimiser step."""
    weights = [0.0] * len(actions)
    for step in range(layout.steps):
        window = slice(step * layout.accumulation, (step + 1) * layout.accumulation)
        mine = [
            share[i]
            for share, batches in zip(layout.ranks, layout.epochs[0], strict=True)
            for batch in batches[window]
            for i in batch
        ]
        tokens = sum(actions[i].tokens for i in mine)
        for i in mine:
            weights[i] = actions[i].coef / tokens
    return weights


def correction_experience(action: CorrectedAction, weight: float, like: Experience) -> Experience:
    """Returns a corrected action in the form of the rows' experiences: its advantages are the
    weights of its tokens, its mask is empty.

    Args:
        like: One of them.
    """
    item, length = copy.copy(like), len(action.ids)
    for f in fields(Experience):
        value = getattr(like, f.name)
        if isinstance(value, torch.Tensor):
            whole = f.name in ("sequences", "attention_mask")
            shape = (
                (length - (not whole),) if Experience.is_step_tensor_field(f.name) else value.shape
            )
            setattr(item, f.name, torch.zeros(shape, dtype=value.dtype))
    item.sequences = torch.tensor(action.ids)
    item.attention_mask = torch.ones_like(item.sequences)
    item.advantages[-action.tokens :] = weight
    item.prompts, item.labels = [action.name], [CORRECTION_LABEL]
    item.info = dict.fromkeys(like.info, 0.0)
    return item
