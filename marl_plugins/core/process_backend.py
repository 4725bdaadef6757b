"""A process back-end gives policies their training processes (`marl_processes`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from marl_plugins.core.run import PlannedProcesses, Run

if TYPE_CHECKING:
    from ray.actor import ActorClass
    from transformers import PreTrainedTokenizerBase

OBJECT_STORE_BYTES = 2**30
"""Size of Ray's object store without what a back-end keeps there."""


@dataclass(frozen=True)
class TrainingSpec:
    """The parameters of a policy's training processes.

    Args:
        policy: The policy's name.
        args: Its flags.
        device: `cpu` or `cuda`; on CPU the reference model lives in the policy's processes.
        tokenizer: The policy's tokenizer.
        max_steps: Optimiser steps of the whole run, for the learning-rate schedule.
        silence: Seconds after which processes that have been asked and have answered nothing are
            ended.
        extensions: What plugins add to the policy's processes, as "module:Class".
        node: Ray's id of the node that they are to be on; empty: any.
    """

    policy: str
    args: SimpleNamespace
    device: str
    tokenizer: PreTrainedTokenizerBase
    max_steps: int
    silence: float
    extensions: tuple[str, ...] = ()
    node: str = ""


@dataclass(frozen=True)
class EngineKind:
    """A Ray actor class that engines are started as, with arguments of vLLM's that upstream does
    not pass on, or passes differently."""

    actor: ActorClass
    arguments: Mapping[str, object] = field(default_factory=dict)

    def options(self, **options: object) -> SimpleNamespace:
        """Answers as the actor class does, to upstream's
        `RolloutRayActor.options(...).remote(...)`."""
        chosen = self.actor.options(**options)
        return SimpleNamespace(
            remote=lambda **arguments: chosen.remote(**{**arguments, **self.arguments})
        )


class ProcessBackend(PlannedProcesses):
    """Gives every trained policy its training processes, and takes them back.

    What `PlannedProcesses` has is asked while the run is planned, and imports neither Ray nor
    torch, except `check_cluster`. The rest is called in the run.
    """

    def engine_kind(self, run: Run, policy: str) -> EngineKind | None:
        """Returns what a policy's engines are started as; None: as always."""
        return None

    def open(self, run: Run) -> None:
        """Begins to start what policies share. Called before any policy has processes."""

    @abstractmethod
    def processes_of(self, spec: TrainingSpec) -> Any:
        """Returns the `TrainingProcesses` (marl_plugins.engine.processes.launch, or a subclass) of
        a policy; nothing is started yet."""

    def metrics(self) -> dict[str, float]:
        """Returns the numbers of the step that ends."""
        return {}

    def close(self) -> None:
        """Ends what `open` started, at once. The policies' processes have been ended by then."""
