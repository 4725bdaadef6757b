"""Extensions are what plugins add to the training processes of a policy.

A plugin names classes (`marl_extensions(run)` returns "module:Class"). Each training process of
each trained policy makes one object of every class when its model is loaded. The controller calls
their methods by name (`PolicyProcesses.extension`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from marl_plugins.core.loading import load

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

TrainingStep = Callable[["Experience", float, int, dict[str, Any]], dict[str, Any]]
"""`step(experience, kl_coef, number, counts)` trains on one micro-batch and returns its metrics
(upstream ppo_actor.py:259)."""


class Extension:
    """One plugin's part of one training process. Override what is needed.

    Args:
        trainer: Upstream's `ActorPPOTrainer` in this process; `trainer.args` are the flags of its
            policy, those of plugins included, and `trainer.strategy` is upstream's DeepSpeed
            strategy.
    """

    def __init__(self, trainer: ActorPPOTrainer):
        self.trainer = trainer

    def training_step(
        self,
        following: TrainingStep,
        experience: Experience,
        kl_coef: float,
        number: int,
        counts: dict[str, Any],
    ) -> dict[str, Any]:
        """Trains on one micro-batch; `following` is the rest of the chain, at its end upstream's
        own step.

        Every rank has the same number of micro-batches, so a collective operation here must happen
        in all of them.

        Args:
            counts: Upstream's `loss_batch_info`: `batch_num_tokens` and `global_batch_size` are
                divided by the accumulation steps.
        """
        return following(experience, kl_coef, number, counts)

    def stepped(self) -> None:
        """Takes note of an optimiser step, whose weights are there; every rank is told."""

    def fitted(self, status: dict[str, float]) -> None:
        """Adds metrics (floats) after a fit, and forgets what belonged to it; also called after a
        fit that failed, with no status."""

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts weights that the extension keeps (`marl_weights`) in the place of the model's, which
        come back at the end. A
        collective operation: all ranks are asked at the same time."""
        yield

    def state(self) -> Any:
        """Returns what a checkpoint has to keep (what `torch.save` takes); None: nothing. Every
        rank is asked."""
        return None

    def restore(self, state: Any) -> None:
        """Takes back what `state` returned, after the model has been loaded from a checkpoint."""


def extension_class(name: str) -> type[Extension]:
    """Returns the class that "module:Class" names; the module is a dotted name, or the path of a
    `.py` file.

    Raises:
        TypeError: It is no subclass of `Extension`.
        ConfigurationError: The module cannot be imported.
    """
    module, _, attribute = name.rpartition(":")
    candidate = getattr(load(module), attribute, None)
    if not (isinstance(candidate, type) and issubclass(candidate, Extension)):
        raise TypeError(
            f"marl_extensions names {name!r}: expected a subclass of "
            "marl_plugins.engine.processes.extension.Extension"
        )
    return candidate


def chained_step(extensions: Sequence[Extension], last: TrainingStep) -> TrainingStep:
    """Makes the training step through all extensions, the first one outermost."""
    step = last
    for extension in reversed(extensions):
        step = functools.partial(extension.training_step, step)
    return step


def called(
    extensions: Sequence[Extension], name: str, method: str, arguments: Sequence[Any]
) -> Any:
    """Calls a method of the extension with this class name.

    Raises:
        LookupError: The process has no such extension, or several.
    """
    matching = [extension for extension in extensions if type(extension).__name__ == name]
    if len(matching) != 1:
        known = ", ".join(type(extension).__name__ for extension in extensions) or "none"
        raise LookupError(
            f"a training process has {len(matching)} extensions called {name!r}; it has: {known}"
        )
    return getattr(matching[0], method)(*arguments)
