"""Stages of the training, and what the coach asks for in each (MAPPA, appendix E.4): first that it
works at all, then that it is done well.

A stage changes the points of a rubric's criteria and tells models what counts. It lasts until a
step, or until the mean outcome of training, smoothed as other metrics are, has reached a bound;
where the outcome falls `MARGIN` below the bound again, the stage comes back. The stage of a step
follows from the steps before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marl_plugins import Problem, at, meant

if TYPE_CHECKING:
    from marl_plugins.coach.rubric import Criterion
    from marl_plugins.coach.section import CoachStageConfig

ALPHA = 1 / 3
"""Of the smoothed outcome, as of the metrics of roles (`Behaviour`)."""
MARGIN = 0.05
"""Of the outcome, so that a bound that is just reached is not crossed back and forth."""


class Stages:
    """The stages of a run, and where it is."""

    def __init__(self, stages: Sequence[CoachStageConfig] = ()):
        self.stages = stages
        self.index = 0
        self.outcome: float | None = None
        """Smoothed."""

    @property
    def weights(self) -> Mapping[str, float]:
        """Returns the factors of the points of criteria in this stage."""
        return self.stages[self.index].weights if self.stages else {}

    @property
    def ask(self) -> str:
        """Returns what models are told in this stage."""
        return self.stages[self.index].ask if self.stages else ""

    def observe(self, step: int, outcome: float | None) -> None:
        """Takes in a finished step, and settles the stage of the next one.

        Args:
            outcome: The step's mean; None where it has none.
        """
        if outcome is not None:
            before = outcome if self.outcome is None else self.outcome
            self.outcome = before + ALPHA * (outcome - before)
        over = [self._is_over(number, stage, step + 1) for number, stage in enumerate(self.stages)]
        self.index = over.index(False) if False in over else 0

    def _is_over(self, number: int, stage: CoachStageConfig, step: int) -> bool:
        if stage.until_step is not None:
            return step > stage.until_step
        if stage.until_outcome is None:
            return False
        margin = MARGIN if number < self.index else 0.0  # it was over already
        return self.outcome is not None and self.outcome >= stage.until_outcome - margin

    def record(self) -> dict[str, Any]:
        return {"index": self.index, "outcome": self.outcome}

    def restore(self, record: Mapping[str, Any]) -> None:
        """Takes a saved stage back; the last one where there are fewer stages than there were."""
        self.index = min(record["index"], max(0, len(self.stages) - 1))
        self.outcome = record["outcome"]


def check_stages(
    stages: Sequence[CoachStageConfig],
    rubrics: Sequence[Mapping[str, Sequence[Criterion]]],
    models: bool,
) -> Iterator[Problem]:
    """Returns what is wrong with the stages, each beginning with its key.

    Args:
        rubrics: Of the coach and its members, by role.
        models: Whether a model is among these.
    """
    known = sorted(
        {
            criterion.name
            for rubric in rubrics
            for criteria in rubric.values()
            for criterion in criteria
        }
    )
    for number, stage in enumerate(stages):
        where, last = f"coach.stages.{number}", number == len(stages) - 1
        ends = [
            name for name in ("until_outcome", "until_step") if getattr(stage, name) is not None
        ]
        if len(ends) != (0 if last else 1):
            expected = (
                "no end, because none follows it" if last else "one of until_outcome and until_step"
            )
            yield Problem(
                "coach.stage_end", at(key=where), " and ".join(ends) or "neither", expected
            )
        if stage.ask and not models:
            yield Problem(
                "coach.stage_ask",
                where=at(key=f"{where}.ask"),
                got="no model reads it, because every coach is a rubric",
                fix="give `weights`",
            )
        yield from [
            Problem(
                "coach.no_criterion",
                where=at(key=f"{where}.weights.{name}"),
                got=f"no rubric has a criterion {name!r}",
                fix=meant(name, known),
            )
            for name in stage.weights
            if name not in known
        ]
        yield from [
            Problem(
                "coach.no_criterion_left",
                where=at(key=f"{where}.weights"),
                got=f"they leave role {role!r} no criterion that applies without the label",
                fix="give one a weight above 0",
            )
            for rubric in rubrics
            for role, criteria in rubric.items()
            if not any(stage.weights.get(c.name, 1.0) > 0 and not c.needs_label for c in criteria)
        ]
