"""A circuit breaker pauses a run that gets nothing done: a dead tool, verifier or engine must not use up its steps.

    breaker = CircuitBreaker()
    breaker.step(ledger, trajectories)                each training step
    breaker.evaluation(step, trajectories)            each evaluation
    breaker.check()                                   raises once three in a row had no result

The run is saved first: once the cause is fixed it can be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from marl_plugins.core.failures import RunPaused
from marl_plugins.core.ledger import Ledger, lost_trajectories
from marl_plugins.core.trajectory import Trajectory

LIMIT = 3
"""Number of consecutive steps and evaluations without a result after which the run is paused."""

Round = Literal["step", "evaluation"]


class CircuitBreaker:
    """Counts steps without a trained row, and evaluations of which most is lost, each in a row.

    A step and an evaluation do not depend on the same services, so a good one resets only the count of its own kind. Where both
    kinds fail for the same cause their counts are added.
    """

    def __init__(self) -> None:
        self.in_a_row: dict[Round, tuple[str, int]] = {}
        """By kind: the latest cause, and the number of rounds in a row."""
        self.reason: str | None = None
        """Why the run has to pause, once it has to."""

    def step(self, ledger: Ledger, trajectories: Sequence[Trajectory]) -> None:
        """Count a training step."""
        if ledger.trained.total():
            self.in_a_row.pop("step", None)
        elif ledger.lost.total() == ledger.trajectories > 0:
            self._count_lost("step", ledger.step, trajectories)
        else:
            self._count("step", ledger.step, "no row to train on", f"the cause, which the ledger shows: {ledger.record()}")

    def evaluation(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Count the evaluation after a step."""
        if 2 * sum(t.infrastructure_failure is not None for t in trajectories) > len(trajectories):
            self._count_lost("evaluation", step, trajectories)
        else:
            self.in_a_row.pop("evaluation", None)

    def check(self) -> None:
        """Pause the run where it has to.

        Raises:
            RunPaused: Too many rounds in a row had no result.
        """
        if self.reason is not None:
            raise RunPaused(self.reason)

    def _count_lost(self, kind: Round, step: int, trajectories: Sequence[Trajectory]) -> None:
        most = lost_trajectories(trajectories)[0]
        self._count(kind, step, f"trajectories lost to {most.kind}", f"the cause: {most.detail}")

    def _count(self, kind: Round, step: int, cause: str, detail: str) -> None:
        self.in_a_row[kind] = (cause, self.in_a_row.get(kind, ("", 0))[1] + 1)
        rounds = {k: number for k, (why, number) in self.in_a_row.items() if why == cause}
        if sum(rounds.values()) >= LIMIT:
            counts = " and ".join(f"{n} consecutive {k}{'s' if n > 1 else ''}" for k, n in rounds.items())
            self.reason = f"{cause} in {counts}, up to step {step}; fix {detail}"
