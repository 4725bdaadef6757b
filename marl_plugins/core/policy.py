"""A policy: a trainable model with weights of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServedModel:
    """The model of an external policy, which somebody else serves.

    Args:
        address: Of an OpenAI-compatible endpoint.
        name: The model's there.
        key_env: Environment variable that holds the key.
    """

    address: str
    name: str
    key_env: str


@dataclass(frozen=True)
class Policy:
    """The description of a policy; its processes are `PolicyProcesses` (core/processes.py).

    Args:
        name: Also the name of its folders and metrics.
        model: Folder, hub name or `tiny`.
        trainable: Whether it is updated.
        flags: Upstream flags that differ for this policy, by name.
        follows: The trained policy whose weights it holds, its newest or earlier ones; it is not
            trained itself.
        train_every: It is updated in every N-th step alone; its engines keep their weights in
            between.
        template: What its chat template is given beside the messages.
        excluded_by: The flag that excludes this policy of the recipe from the run; reported, and
            nothing of it is started.
        adapter: Folder of a saved adapter (PEFT's) with which its engines answer, beside `model`;
            in runs of engines only.
        served: Its model, where somebody else serves it: it answers in words, and `model` is
            `WORDS`.
    """

    name: str
    model: str
    trainable: bool = True
    flags: Mapping[str, Any] = field(default_factory=dict)
    excluded_by: str = ""
    follows: str = ""
    train_every: int = 1
    template: Mapping[str, Any] = field(default_factory=dict)
    adapter: str = ""
    served: ServedModel | None = None

    @property
    def shown_model(self) -> str:
        """The model as people know it."""
        return self.served.name if self.served else self.model

    def is_due(self, step: int) -> bool:
        """Returns whether the policy is updated in a step, counted from 1."""
        return self.trainable and step % self.train_every == 0
