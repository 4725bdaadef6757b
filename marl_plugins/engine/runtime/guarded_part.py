"""A plugin's part of a training step, held to what a part may do."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from marl_plugins.core.failures import RunEnded, RunPaused
from marl_plugins.core.rows import Row
from marl_plugins.core.run import max_lag
from marl_plugins.core.sampled import SampledActions
from marl_plugins.core.steps import StepPart
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.engine.hook_faults import HookFaults, guarded
from marl_plugins.engine.runtime.crediting import check_versions
from marl_plugins.engine.runtime.experience import PreparedExperience

if TYPE_CHECKING:
    from marl_plugins.engine.runtime.session import Session

HOOK = "marl_step"


class GuardedPart(StepPart):
    """A plugin's part: what it raises pauses the run, as `HookFaults` says, and so does what it
    changes of what was sampled and selected.

    Args:
        plugin: As the run calls it.
        number: The training step.
        sampled: What the step's rollout has sampled.
    """

    def __init__(
        self, plugin: str, part: StepPart, number: int, session: Session, sampled: SampledActions
    ):
        self.plugin = plugin
        self.part = part
        self.number = number
        self.session = session
        self.sampled = sampled
        self._faults = HookFaults(plugin, HOOK)
        for name in ("completed", "ledger", "record", "restore"):
            setattr(self, name, guarded(plugin, HOOK, getattr(part, name), wraps=False))

    def source(self) -> AsyncGenerator[Sequence[Trajectory], None] | None:
        with self._faults:
            source = self.part.source()
        return None if source is None else self._groups(source)

    async def _groups(
        self, source: AsyncGenerator[Sequence[Trajectory], None]
    ) -> AsyncGenerator[Sequence[Trajectory], None]:
        async with aclosing(source):
            while True:
                with self._faults:
                    group = await anext(source, None)
                if group is None:
                    return
                yield group

    def arrived(self, trajectory: Trajectory) -> None:
        with self._faults:
            self.part.arrived(trajectory)
        self.sampled.check(self.plugin, HOOK, [trajectory])

    async def during_rollout(self) -> None:
        with self._faults:
            await self.part.during_rollout()
        self.sampled.check(self.plugin, HOOK)

    async def rows(self, rows: Sequence[Row]) -> None:
        with self._faults:
            await self.part.rows(list(rows))
        self.sampled.check_rows(self.plugin, HOOK, rows)
        self.sampled.check(self.plugin, HOOK)

    async def prepared(
        self, prepared: Sequence[PreparedExperience]
    ) -> Sequence[PreparedExperience]:
        """Returns what policies are to be updated with.

        Raises:
            RunPaused: It is not made of the rows that were given.
            RunEnded: A policy has two, or one of another version's rows.
        """
        before = {p.policy: Counter(p.rows) for p in prepared}
        with self._faults:
            prepared = await self.part.prepared(list(prepared))
        who = f"plugin {self.plugin}: {HOOK}"
        if not isinstance(prepared, list | tuple) or not all(
            isinstance(p, PreparedExperience) for p in prepared
        ):
            raise RunPaused(
                f"{who}: prepared of its part returned {prepared!r:.80}; expected a list of "
                "PreparedRows"
            )
        now = {p.policy: Counter(p.rows) for p in prepared}
        for policy, rows_before in before.items():
            rows_now = now.get(policy, Counter[Row]())
            for verb, difference in (
                ("removed", rows_before - rows_now),
                ("added", rows_now - rows_before),
            ):
                if difference:
                    raise RunPaused(
                        f"{who} {verb} {difference.total()} rows of policy {policy!r}, the first "
                        f"{next(iter(difference)).name}; what was sampled and selected is trained "
                        "on as it is"
                    )
        self.sampled.check(self.plugin, HOOK)
        policies = [p.policy for p in prepared]
        if twice := next((name for name in policies if policies.count(name) > 1), None):
            raise RunEnded(
                f"plugin {self.plugin}: its part of step {self.number} gave rows of policy "
                f"{twice!r}, which is updated with rows of its role already; a part adds rows of "
                "policies that play no role"
            )
        rows = [row for p in prepared for row in p.rows]
        check_versions(rows, self.session.trained, max_lag(self.session.plan.run))
        return prepared

    def metrics(self) -> Mapping[str, float]:
        with self._faults:
            return dict(self.part.metrics())
