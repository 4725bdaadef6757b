"""Corrected actions as a supervised term of the policy's loss. Built in; it does nothing where no
action has a correction.

    L = L_policy + c / M  sum over corrected actions and their M tokens of  -log pi(y_t | x, y_<t)

in every optimiser step that has corrected actions: x is the context that the action had, token for
token, y the correction as the tokenizer writes it, with the end of the turn, pi the policy at the
temperature that it samples with; M counts the tokens of all ranks. L_policy is upstream's own,
computed as without corrections: these have micro-batches of their own, after those of the rows, and
are in none of its masks and token counts. A plugin corrects an action by
`action.correction = Correction(text, coef)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_plugins import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from marl_plugins.core.steps import Step, StepPart


@hookimpl
def marl_extensions() -> Sequence[str]:
    return [f"{__name__}.worker:CorrectionsLoss"]


@hookimpl
def marl_step(step: Step) -> StepPart:
    from marl_plugins.builtin.corrections.part import CorrectionsPart

    return CorrectionsPart(step)
