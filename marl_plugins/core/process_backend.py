"""A process back-end gives policies their training processes (`marl_processes`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    """

    policy: str
    args: SimpleNamespace
    device: str
    tokenizer: PreTrainedTokenizerBase
    max_steps: int
    silence: float
    extensions: tuple[str, ...] = ()


class ProcessBackend(ABC):
    """Gives every trained policy its training processes, and takes them back.

    `run` is the `Run` of marl_plugins.core.run. `problems`, `devices` and `object_store_bytes`
    answer while the run is planned, and import neither Ray nor torch. The others are called in the
    run.
    """

    lasting = True
    """Whether a policy has the same processes for the whole run, so that what they hold between two
    updates stays."""
    adapters = False
    """Whether a policy may be an adapter of its model (`--ds.lora.rank` above 0)."""

    def problems(self, run: Any) -> Sequence[Any]:
        """Returns what is wrong with giving the policies of this run their processes, as in
        `marl_configure`."""
        return []

    @abstractmethod
    def devices(self, run: Any) -> Mapping[str, int]:
        """Returns the devices that training processes need, by policy, or together under a name
        that is shown."""

    def engines_of(self, run: Any, policy: str) -> str:
        """Returns the policy whose engines answer for this one: itself, unless several share one
        pool."""
        return policy

    def engine_kind(self, run: Any, policy: str) -> Any:
        """Returns what a policy's engines are started as (`EngineKind` of
        marl_plugins.engine.processes.engines); None: as always."""
        return None

    def object_store_bytes(self, run: Any) -> int:
        """Returns the bytes of Ray's object store that are needed for what the back-end keeps
        there."""
        return 0

    def check_cluster(self, run: Any) -> None:  # noqa: B027
        """Checks the cluster, once Ray has been reached.

        Raises:
            ConfigurationError: It lacks what the back-end needs.
        """

    def open(self, run: Any) -> None:  # noqa: B027
        """Begins to start what policies share. Called before any policy has processes."""

    @abstractmethod
    def processes_of(self, spec: TrainingSpec) -> Any:
        """Returns the `TrainingProcesses` (marl_plugins.engine.processes.launch, or a subclass) of
        a policy; nothing is started yet."""

    def metrics(self) -> dict[str, float]:
        """Returns the numbers of the step that ends."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Ends what `open` started, at once. The policies' processes have been ended by then."""
