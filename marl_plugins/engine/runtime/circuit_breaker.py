"""A circuit breaker pauses a run that gets nothing done: a dead tool, verifier or engine must not
use up its steps.

    breaker = CircuitBreaker(most)                    --max_idle_steps
    breaker.step(ledger, trajectories)                each training step
    breaker.evaluation(step, trajectories)            each evaluation
    breaker.check()                                   raises once `most` in a row had no result
    breaker.end()                                     raises where no step had one

Idle is a step in which no row is trained, an evaluation of which most is lost, and, of a tool, a
step in which it is called and
loses every call: behind a router the trajectories of the other branches go on being trained. The
run is saved first: once the cause is fixed it can be resumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_plugins.core.failures import RunPaused
from marl_plugins.core.ledger import Ledger, lost_calls, lost_trajectories, why_untrained
from marl_plugins.core.trajectory import Trajectory


class CircuitBreaker:
    """Counts idle steps, idle evaluations, and each tool's idle steps in a row.

    They do not depend on the same services, so a good one resets only the count of its own kind.
    Where steps and evaluations are idle for the same cause their counts are added.

    Args:
        most: Number in a row after which the run is paused; 0: never.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.in_a_row: dict[str, tuple[str, int]] = {}
        """By kind (`step`, `evaluation`): the latest cause, and the number of rounds in a row."""
        self.calls: dict[str, int] = {}
        """By tool: the number of steps in a row in which every call of it was lost."""
        self.reason: str | None = None
        """Why the run has to pause, once it has to."""
        self.untrained = ""
        """Why none of the steps so far has trained a row; empty where one has."""
        self._steps = 0

    def step(self, ledger: Ledger, trajectories: Sequence[Trajectory]) -> None:
        """Counts a training step."""
        self._steps += 1
        trained = ledger.rows_trained() > 0
        why = "" if trained else why_untrained(ledger, trajectories)
        self.untrained = why if self._steps == 1 or self.untrained else ""
        if trained:
            self.in_a_row.pop("step", None)
        elif ledger.lost.total() == ledger.trajectories > 0:
            self._count_lost("step", ledger.step, trajectories)
        else:
            self._count("step", ledger.step, "no row to train on", f"the cause: {why}")
        for tool, loss in lost_calls(trajectories).items():
            self.calls[tool] = self.calls.get(tool, 0) + 1 if loss else 0
            if loss and 0 < self.most <= self.calls[tool]:
                steps = _times(self.calls[tool], "step")
                self.reason = (
                    f"tool {tool!r} lost every call in {steps}, up to step "
                    f"{ledger.step}; fix the cause: {loss.detail}"
                )

    def evaluation(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Counts the evaluation after a step."""
        if 2 * sum(t.infrastructure_failure is not None for t in trajectories) > len(trajectories):
            self._count_lost("evaluation", step, trajectories)
        else:
            self.in_a_row.pop("evaluation", None)

    def check(self) -> None:
        """Pauses the run where it has to.

        Raises:
            RunPaused: Too many rounds in a row had no result.
        """
        if self.reason is not None:
            raise RunPaused(self.reason)

    def end(self) -> None:
        """Says that a run which is at its end has trained nothing.

        Raises:
            RunPaused: None of its steps has trained a row.
        """
        if self.most and self.untrained:
            raise RunPaused(
                f"no row was trained in any of {self._steps} steps; fix the cause: {self.untrained}"
            )

    def _count_lost(self, kind: str, step: int, trajectories: Sequence[Trajectory]) -> None:
        most = lost_trajectories(trajectories)[0]
        self._count(kind, step, f"trajectories lost to {most.kind}", f"the cause: {most.detail}")

    def _count(self, kind: str, step: int, cause: str, detail: str) -> None:
        self.in_a_row[kind] = (cause, self.in_a_row.get(kind, ("", 0))[1] + 1)
        rounds = {k: number for k, (why, number) in self.in_a_row.items() if why == cause}
        if 0 < self.most <= sum(rounds.values()):
            counts = " and ".join(_times(number, k) for k, number in rounds.items())
            self.reason = f"{cause} in {counts}, up to step {step}; fix {detail}"


def _times(number: int, kind: str) -> str:
    return f"{number} consecutive {kind}{'s' if number > 1 else ''}"
