"""Evaluations during a run: of the newest weights, then of what extensions keep beside them
(`marl_weights`).

The latter are in the engines for so long, under the version that these hold; then engines get the
newest weights back. Nothing else runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from marl_plugins.core.concurrency import all_of
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.runtime.metrics import evaluation
from marl_plugins.engine.runtime.session import Session
from marl_plugins.engine.runtime.weight_sync import WeightSync


class Evaluator:
    """Plays the evaluation tasks.

    Args:
        further: The extensions that keep weights, by the name of these.
    """

    def __init__(
        self,
        session: Session,
        further: Mapping[str, str],
        weight_sync: WeightSync,
        display: Display,
    ):
        self.session, self.further, self.weight_sync, self.display = (
            session,
            further,
            weight_sync,
            display,
        )

    async def evaluate(self, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        """Returns metrics of all evaluations of a step, and the trajectories of that of the newest
        weights.

        Before the first step, extensions keep the weights themselves.
        """
        metrics, trajectories = await self._play(step)
        for name, extension in self.further.items() if step else ():
            others, _ = await self._play(step, name, extension)
            metrics |= {
                f"{name}/{key.removeprefix('eval/')}": value for key, value in others.items()
            }
        return metrics, trajectories

    async def _play(
        self, step: int, name: str = "", extension: str = ""
    ) -> tuple[dict[str, float], list[Trajectory]]:
        session, args = self.session, self.session.plan.run.args.eval
        trained = session.trained.values() if extension else ()
        # Before engines wake: they may share a device with training processes.
        further = await all_of(policy.further(extension) for policy in trained)
        await all_of(policy.wake() for policy in session.policies.values())
        pieces_by_policy = zip(trained, further, strict=True)
        await all_of(policy.give(pieces, policy.version) for policy, pieces in pieces_by_policy)
        metrics, trajectories = await evaluation(
            session.rollout, session.eval_tasks, args, self.display
        )
        await all_of(policy.sleep() for policy in session.policies.values())
        if extension:
            await self.weight_sync.again()
        self.display.evaluation(step, metrics, trajectories, name)
        return metrics, trajectories
