"""The back-end that gives adapters of one model the same training processes and engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from marl_plugins import OwnProcesses
from marl_plugins.adapters.bases import base_of, bases_of
from marl_plugins.adapters.checks import check_adapters

# inside: works in the training processes
from marl_plugins.core.process_backend import EngineKind, TrainingSpec

if TYPE_CHECKING:
    from marl_plugins import Problem, Run, TrainingProcesses
    from marl_plugins.adapters.processes import SharedProcesses


class SharedBases(OwnProcesses):
    """One group of training processes and one pool of engines for each model with adapters; other
    policies have their own."""

    adapters = True

    def __init__(self) -> None:
        self.shared: dict[str, SharedProcesses] = {}
        """By adapter, the training processes of its model, once they are open."""

    def problems(self, run: Run) -> list[Problem]:
        return check_adapters(run)

    def devices(self, run: Run) -> Mapping[str, int]:
        needed = dict(super().devices(run))
        for base in bases_of(run):
            if trained := [name for name in base.adapters if name in needed]:
                needed[f"adapters of {base.model}"] = base.ranks(run)
            for name in trained:
                del needed[name]
        return needed

    def engines_of(self, run: Run, policy: str) -> str:
        base = base_of(run, policy)
        return base.owner if base else policy

    def engine_kind(self, run: Run, policy: str) -> EngineKind | None:
        base = base_of(run, policy)
        if base is None:
            return None
        from marl_plugins.adapters.engine import RemoteAdapterEngine

        saved = {p.name: p.adapter for p in run.policies if p.name in base.adapters and p.adapter}
        return EngineKind(
            RemoteAdapterEngine,
            {"adapters": base.slots, "rank": base.engine_rank(run), "saved": saved},
        )

    def open(self, run: Run) -> None:
        from marl_plugins.adapters.processes import SharedProcesses

        for base in bases_of(run):
            self.shared |= dict.fromkeys(base.adapters, SharedProcesses())

    def processes_of(self, spec: TrainingSpec) -> TrainingProcesses:
        from marl_plugins.adapters.processes import AdapterProcesses

        shared = self.shared.get(spec.policy)
        return AdapterProcesses(shared, spec) if shared else super().processes_of(spec)

    def close(self) -> None:
        self.shared = {}
