"""Corrected actions beside the rows of an update: a supervised term in the policy's loss.

    L = L_policy + c / M  sum over corrected actions and their M tokens of  -log pi(y_t | x, y_<t)

in every optimiser step that has corrected actions: x is the context that the action had, token for token, y the correction as the
tokenizer writes it, with the end of the turn, pi the policy at the temperature that it samples with; M counts the tokens of all
ranks. L_policy is upstream's own, computed as without corrections: these have micro-batches of their own, after those of the rows,
and are in none of its masks and token counts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

# Installs the host support, before upstream is imported below.
import marl_plugins.processes.policy_actor  # isort: skip  # noqa: F401
from openrlhf.trainer.ppo_utils.experience import Experience

from marl_plugins.core.layout import Layout
from marl_plugins.core.rows import Row
from marl_plugins.processes.policy_actor import CORRECTION


@dataclass(frozen=True)
class Corrected:
    """A corrected action as it goes through the model.

    Args:
        name: Of the row.
        ids: Context and correction.
        tokens: How many of them are the correction's.
    """

    name: str
    ids: list[int]
    tokens: int
    coef: float


@dataclass(frozen=True)
class Corrections:
    """The corrected actions among some rows.

    Args:
        fit: Those that are trained on.
        too_long: How many are not, because they do not fit.
    """

    fit: Sequence[Corrected]
    too_long: int


NO_CORRECTIONS = Corrections((), 0)


def corrected_in(rows: Sequence[Row], tokenizer: Any, longest: int) -> Corrections:
    """The corrected actions among rows.

    Args:
        longest: Tokens of a context with its correction, at most.
    """
    fit, too_long = [], 0
    actions = {id(row.action): row for row in rows if row.action.correction is not None}  # a row may be selected twice
    for row in actions.values():
        correction = row.action.correction
        assert correction is not None
        said = [*tokenizer.encode(correction.text, add_special_tokens=False), tokenizer.eos_token_id]
        ids = [*row.action.context_ids, *said]
        if len(ids) > longest:
            too_long += 1
        else:
            fit.append(Corrected(row.name, ids, len(said), correction.coef))
    return Corrections(fit, too_long)


def weights_of(corrected: Sequence[Corrected], layout: Layout) -> list[float]:
    """What each token of a corrected action weighs: its coefficient, divided by the M of its optimiser step."""
    weights = [0.0] * len(corrected)
    for step in range(layout.steps):
        window = slice(step * layout.accumulation, (step + 1) * layout.accumulation)
        mine = [
            share[i]
            for share, batches in zip(layout.ranks, layout.epochs[0], strict=True)
            for batch in batches[window]
            for i in batch
        ]
        tokens = sum(corrected[i].tokens for i in mine)
        for i in mine:
            weights[i] = corrected[i].coef / tokens
    return weights


def correction_experience(corrected: Corrected, weight: float, like: Experience) -> Experience:
    """A corrected action in the form of the rows' experiences: its advantages are the weights of its tokens, its mask is empty.

    Args:
        like: One of them.
    """
    item, length = copy.copy(like), len(corrected.ids)
    for f in fields(Experience):
        value = getattr(like, f.name)
        if isinstance(value, torch.Tensor):
            whole = f.name in ("sequences", "attention_mask")
            shape = (length - (not whole),) if Experience.is_step_tensor_field(f.name) else value.shape
            setattr(item, f.name, torch.zeros(shape, dtype=value.dtype))
    item.sequences = torch.tensor(corrected.ids)
    item.attention_mask = torch.ones_like(item.sequences)
    item.advantages[-corrected.tokens :] = weight
    item.prompts, item.labels = [corrected.name], [CORRECTION]
    item.info = {name: torch.zeros_like(value) for name, value in like.info.items()}
    return item
