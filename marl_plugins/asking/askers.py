"""The askers of a run's coach, for all who ask its models: they share its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from marl_plugins.core.failures import RunPaused

if TYPE_CHECKING:
    from marl_plugins.asking.asker import Asker
    from marl_plugins.core.trajectory import Action


class PolicyAskers(dict[str, "Asker"]):
    """What asks the models of external policies, `run.state(PolicyAskers)`, by policy."""


class Askers:
    """The clients of a run's coach, `run.state(Askers)`; none where no model judges."""

    def __init__(self) -> None:
        self.by_member: dict[str, Asker] = {}
        """By the member of the coach; a single coach is the member ""."""
        self.most_missing = 1.0
        """Share of a step's judgements that may be missing (`--coach.max_missing`)."""

    @property
    def first(self) -> Asker | None:
        """The client of the coach's model; of several the first."""
        return next(iter(self.by_member.values()), None)

    def leave_out_if_too_many_are_missing(
        self, judged: Sequence[Action], missing: Sequence[Action]
    ) -> bool:
        """Leaves a whole step out where too many of a model's judgements are missing, and returns
        whether it did.

        Raises:
            RunPaused: They are missing because the budget is spent.
        """
        spent = next((spent for asker in self.by_member.values() if (spent := asker.spent())), None)
        # of several the others may have answered
        if spent and (missing or len(self.by_member) > 1):
            raise RunPaused(f"the coach's budget is spent: {spent}; raise it to continue")
        if len(missing) <= self.most_missing * len(judged):
            return False
        for action in judged:
            action.reward = None
            action.terms = {}
            action.unscored = action.unscored or "coach_step_left_out"
        return True
