"""Training processes that wait without a policy, become a rank of one, and hand their state on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

# inside: works in the training processes
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.processes.policy_actor import (
    ON_CPU,
    PolicyActor,
)  # first: it installs the host support

import ray  # isort: skip

from marl_plugins.engine.hosts.prebuild import load_operators
from marl_plugins.engine.processes.critic_actor import CriticActor
from marl_plugins.engine.processes.training_process import TrainingProcess
from marl_plugins.process_groups.training_state import Part, get_state, set_state, touch


class StandbyProcess(TrainingProcess):
    """The methods that a training process needs in order to stand by and to take over."""

    extensions: Sequence[Any] = ()
    _master_addr: str
    _master_port: int

    def warm_up(self, memory: int, states: Sequence[Any]) -> None:
        """Loads DeepSpeed's operators, which takes seconds, and touches memory; this process
        belongs to no policy yet.

        Args:
            memory: Bytes to touch.
            states: References to parts of states, some of which this process may be given.
        """
        for _ in load_operators():
            pass
        if ON_CPU:
            cpu.touch_memory(memory)
        for part in ray.get(list(states)):
            touch(part)

    def assign(
        self, ranks: int, rank: int, address: str | None, port: int | None
    ) -> tuple[str, int]:
        """Becomes a rank of a policy, and returns the address and port at which its ranks meet,
        which rank 0 draws now."""
        super().__init__(ranks, rank, address, port)  # type: ignore[call-arg]
        return self._master_addr, self._master_port

    def get_state(self) -> Iterator[Part]:
        """Yields the whole state in parts."""
        of_extensions = [extension.state() for extension in self.extensions]
        yield from get_state(self.engine, self.strategy, of_extensions)

    def set_state(self, *state: Part) -> None:
        """Continues where another process was asked for its state, of which these are all parts;
        called after the model has been loaded."""
        of_extensions = set_state(self.engine, self.strategy, state)
        for extension, own in zip(self.extensions, of_extensions, strict=True):
            if own is not None:
                extension.restore(own)


class StandbyPolicyActor(StandbyProcess, PolicyActor):
    """A training process of whichever policy it is assigned to."""

    @property
    def extensions(self) -> Sequence[Any]:  # type: ignore[override]
        return self.trainer.extensions if hasattr(self, "trainer") else ()


class StandbyCriticActor(StandbyProcess, CriticActor):
    """A training process of the critic of whichever policy it is assigned to."""


RemotePolicyActor = ray.remote(num_gpus=1)(StandbyPolicyActor)
RemoteCriticActor = ray.remote(num_gpus=1)(StandbyCriticActor)
