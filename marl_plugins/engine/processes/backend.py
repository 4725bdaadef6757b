"""The built-in back-end: every trained policy has training processes and devices of its own for the
whole run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from marl_plugins.core.process_backend import ProcessBackend, TrainingSpec
from marl_plugins.engine.hosts.devices import critic_gpus, reference_gpus, training_gpus

if TYPE_CHECKING:
    from marl_plugins.core.run import Run
    from marl_plugins.engine.processes.launch import TrainingProcesses


class OwnProcesses(ProcessBackend):
    """Each policy's processes begin and end with the run."""

    def devices(self, run: Run) -> Mapping[str, int]:
        needed = {}
        for policy in (p for p in run.policies if p.trainable):
            args = run.policy_args[policy.name]
            alone = (
                training_gpus(args)
                + critic_gpus(args)
                + (0 if run.device == "cpu" else reference_gpus(args))
            )
            needed[policy.name] = training_gpus(args) if args.train.colocate_all else alone
        return needed

    def processes_of(self, spec: TrainingSpec) -> TrainingProcesses:
        from marl_plugins.engine.processes.launch import TrainingProcesses

        return TrainingProcesses(spec)
