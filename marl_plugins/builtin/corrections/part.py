"""The corrected actions of a step, added to what their policies are updated with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from marl_plugins.builtin.corrections.extra import CorrectedActions, corrected_actions
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.steps import Step, StepPart
from marl_plugins.engine.runtime.experience import PreparedExperience


class CorrectionsPart(StepPart):
    """Adds corrected actions to the updates of their policies."""

    def __init__(self, step: Step):
        self.policies = step.policies

    async def prepared(
        self, prepared: Sequence[PreparedExperience]
    ) -> Sequence[PreparedExperience]:
        return [self._with_corrections(p) for p in prepared]

    def _with_corrections(self, p: PreparedExperience) -> PreparedExperience:
        if all(row.action.correction is None for row in p.rows):
            return p
        policy = self.policies[p.policy]
        chat = ChatFormat(policy.tokenizer, policy.name, arguments=policy.spec.template)
        fit, too_long = corrected_actions(p.rows, chat, policy.longest)
        metrics = {"corrections": float(len(fit)), "corrections_too_long": float(too_long)}
        return replace(
            p, extra=CorrectedActions(fit) if fit else None, metrics={**p.metrics, **metrics}
        )
