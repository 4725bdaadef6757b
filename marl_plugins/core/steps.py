"""A training step as plugins see it, and a plugin's part of one.

part = marl_step(run, step)      for every step, before its rollout begins
part.source()                    the samples of one task after the other, in place of the step's own
                                 rollout
part.arrived(trajectory)         each trajectory as it finishes, its actions and its outcome scored
part.completed(trajectories)     all samples of a task, once the last one has arrived; may add tasks
                                 to the step
part.during_rollout()            runs while the rollout runs, and is awaited at its end
part.rows(rows)                  the rows of the step, credited and selected
part.prepared(prepared)          the rows of every policy with their advantages, on their way to the
                                 updates
part.metrics()                   numbers of the step
part.record(), restore(record)   what belongs to a rollout that waits, in a saved step
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from marl_plugins.core.estimators import Estimator
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.processes import Engines, PolicyProcesses
from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Generation, Task, Trajectory


class Step(Protocol):
    """One training step."""

    @property
    def number(self) -> int:
        """The training step, from 1."""

    @property
    def optimiser_steps(self) -> int:
        """K, the optimiser steps of its updates."""

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks of the step, in its order; a trajectory's `place` is an index of them. Parts
        may add some while the rollout runs (`StepPart.completed`)."""

    async def trajectory(self, task: Task, place: int, sample: int) -> Trajectory:
        """Runs the workflow on a task, scored, as the rollout of this step does (for
        `StepPart.source`).

        Args:
            place: A number of the task in this rollout; of a population it decides who plays.
        """

    async def fork(
        self, trajectory: Trajectory, path: str, number: int, words: Generation | None = None
    ) -> Trajectory:
        """Lets the workflow say a trajectory again up to one of its actions, and go on live from
        there with the engines' weights of now (for `StepPart.source`).

        What did not see the action says its recorded words again, in parallel branches too; the
        action itself and all that depends on it is new. Tools are really called, for the same task,
        sample and step as the original's. Actions that say given words are `replayed`: they have
        the scores of the original's, nobody is asked for them again, and they are left out of
        training. Live answers have seeds of their own, from (run seed, step, task, sample, `path`,
        `number`, path of the answer), which do not depend on timing.

        Args:
            trajectory: Of this run, of `Step.trajectory` or from its records.
            path: Of the action from which it goes on.
            number: Of the fork, among those of this action: another number, other answers.
            words: What the action says, such as `action.generation` for its recorded words, or
                what another fork has said there; None: it is sampled anew.

        Returns:
            The fork, scored, with `Trajectory.forked`. Where the original cannot be said again it
            is lost, after one repetition, as `unlike`: the workflow, or a tool, does not depend on
            words alone. It is lost as `unreached` where nobody asks for the action.

        Raises:
            ValueError: There is no such action, or the original was lost or came from elsewhere.
        """

    @property
    def policies(self) -> Mapping[str, PolicyProcesses]:
        """All policies of the run by name, those included that are not trained."""

    @property
    def pools(self) -> Mapping[str, Engines]:
        """The engines of every policy, by its name."""

    @property
    def estimator(self) -> Estimator:
        """The run's advantage estimator."""

    @property
    def trajectories(self) -> Sequence[Trajectory]:
        """The trajectories that have arrived; from the rollout's end on all of them, in the order
        of tasks and samples."""

    @property
    def ended(self) -> asyncio.Event:
        """Set once the last trajectory has arrived."""

    @property
    def forwarded(self) -> list[Any]:
        """Forward passes of rows of the step that parts have made during the rollout
        (`PolicyProcesses.forward`); append yours.

        What of it is trained on is not computed again.
        """

    async def credited(self, trajectories: Sequence[Trajectory]) -> Sequence[Row] | None:
        """Returns the rows of whole tasks, credited and selected as at the step's end.

        For a run in which no plugin needs the whole step (`Run.need_step` is empty). None as long
        as the run has not shown whether actions are scored.
        """


class StepPart:
    """A plugin's part of one training step. Override what is needed; what is raised here ends the
    step."""

    def source(self) -> AsyncGenerator[Sequence[Trajectory], None] | None:
        """Returns what yields all samples of one task after the other, in place of the step's own
        rollout; None: it stays.

        One part of a step may. The tasks of the step are those that it yields, none twice; what it
        yields is made by `Step.trajectory` and `Step.fork` of this step.
        """
        return None

    def arrived(self, trajectory: Trajectory) -> None:
        """See a trajectory that has finished, before credit.

        Trajectories are read and not changed, and what is made of them must not depend on the order
        in which they arrive: timing is no part of a run.
        """

    def completed(self, trajectories: Sequence[Trajectory]) -> Sequence[Task]:
        """Returns tasks that the step rolls out in addition, now that all samples of one task have
        arrived.

        Which tasks a step has in the end must not depend on which arrives first: give the n-th one
        that is added the same task, whatever it is added for.

        Args:
            trajectories: In the order of the samples.
        """
        return ()

    async def during_rollout(self) -> None:
        """Works while the rollout runs; awaited at the rollout's end, before credit. What ends the
        rollout early cancels it."""

    async def rows(self, rows: Sequence[Row]) -> None:
        """See the rows of the step, credited and selected, before their forward passes. Rows are
        not changed here."""

    async def prepared(self, prepared: Sequence[Any]) -> Sequence[Any]:
        """Returns the `PreparedRows` (marl_plugins.engine.runtime.experience) that the policies are
        updated with, changed or not.

        A part may add one of a policy that plays no role. A policy has one of them at most.
        """
        return prepared

    def ledger(self) -> Ledger | None:
        """Returns the account of the rows that the part has added in `prepared`; None where it adds
        none."""
        return None

    def metrics(self) -> Mapping[str, float]:
        """Returns the numbers of the step."""
        return {}

    def record(self) -> object:
        """Returns what the part keeps of the rollout in addition to the trajectories, as JSON
        values; None: nothing.

        For saved steps: with `--train.async_enable` a rollout may wait to be trained then.
        """
        return None

    def restore(self, record: Any) -> None:
        """Takes back what `record` returned, once the step's trajectories have arrived again."""
