"""The state that the coach keeps from one hook to the next; it belongs to the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from marl_plugins.coach.bias import BiasMonitor
from marl_plugins.coach.metrics import JudgedAction
from marl_plugins.coach.stages import Stages

if TYPE_CHECKING:
    from marl_plugins import Action, Run, Seen, Trajectory
    from marl_plugins.coach.model import Questions
    from marl_plugins.coach.training import JudgeAnswer
    from marl_plugins.coach.verdict import Verdict


class Coach(Protocol):
    """Judges an action; raises `InfrastructureFailure` where it has no verdict."""

    async def judge(self, action: Action, seen: Seen) -> Verdict: ...


class CoachState:
    """The coach of a run, and the verdicts and numbers of the current step."""

    def __init__(self) -> None:
        self.coach: Coach | None = None
        self.questions: Questions | None = None
        """How the first of its models is asked."""
        self.verdicts: dict[Action, JudgedAction] = {}
        """Of actions that have had no credit yet, those of rollouts that wait among them."""
        self.said: dict[Action, list[JudgeAnswer]] = {}
        """What policies that are trained have said of an action."""
        self.metrics: dict[str, float] = {}
        self.judged: list[tuple[Trajectory, JudgedAction]] = []
        """The step's verdicts, once it has its credit."""
        self.bias = BiasMonitor()
        self.length_bias = BiasMonitor(name="length_bias")
        self.stages = Stages()


def judged_in(
    run: Run, trajectories: Sequence[Trajectory]
) -> list[tuple[Trajectory, JudgedAction]]:
    """Takes the verdicts on the actions of trajectories, and returns those in trajectories that are
    not lost."""
    verdicts = run.state(CoachState).verdicts
    return [
        (t, judged)
        for t in trajectories
        for a in t.actions
        if (judged := verdicts.pop(a, None)) and not t.infrastructure_failure
    ]
