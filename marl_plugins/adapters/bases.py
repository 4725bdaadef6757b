"""A base is a model with all that share it: adapters, the policies that follow one of them, frozen
policies of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

# inside: works in the training processes
from marl_plugins.core.recipe.tiny import is_tiny
from marl_plugins.engine.hosts.devices import training_gpus

if TYPE_CHECKING:
    from marl_plugins import Policy, Run

ENGINE_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The largest ranks that vLLM's engines can be started for (vllm/config/lora.py); they take
adapters of a lower rank too."""


@dataclass(frozen=True)
class Base:
    """A model with everything that has it in common, in the order of the run's policies.

    Args:
        model: Its name.
        adapters: The policies that are adapters of it, trained or saved.
        following: Policies that follow one of these: adapters in the engines, which nobody trains.
        frozen: Policies that are the model itself.
    """

    model: str
    adapters: tuple[str, ...]
    following: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        """The policy whose engines answer for all."""
        return self.adapters[0]

    @property
    def policies(self) -> tuple[str, ...]:
        return (*self.adapters, *self.following, *self.frozen)

    @property
    def slots(self) -> dict[str, int]:
        """The numbers of the adapters in an engine, from 1."""
        return {
            name: number for number, name in enumerate((*self.adapters, *self.following), start=1)
        }

    def ranks(self, run: Run) -> int:
        """Returns the number of training processes."""
        return training_gpus(run.policy_args[self.owner])

    def engine_rank(self, run: Run) -> int:
        """Returns the rank that the engines are started for: the next one that they know."""
        largest = max(run.policy_args[name].ds.lora.rank for name in self.adapters)
        return next((rank for rank in ENGINE_RANKS if rank >= largest), ENGINE_RANKS[-1])


def bases_of(run: Run) -> list[Base]:
    """Returns the models that adapters share; none where no policy is an adapter."""
    adapters = [p for p in run.policies if is_adapter(run, p)]
    bases = []
    for model in dict.fromkeys(p.model for p in adapters):
        names = [p.name for p in adapters if p.model == model]
        following = [p.name for p in run.policies if p.follows in names and p not in adapters]
        frozen = [
            p.name for p in run.policies if p.model == model and _asks_the_model(run, p, names[0])
        ]
        bases.append(Base(model, tuple(names), tuple(following), tuple(frozen)))
    return bases


def base_of(run: Run, policy: str) -> Base | None:
    """Returns the model that a policy shares with adapters, if it does."""
    return next((base for base in bases_of(run) if policy in base.policies), None)


def is_adapter(run: Run, policy: Policy) -> bool:
    """Returns whether a policy is trained as an adapter, or a saved one."""
    trained = policy.trainable and run.policy_args[policy.name].ds.lora.rank > 0
    return trained or bool(policy.adapter)


def _asks_the_model(run: Run, policy: Policy, owner: str) -> bool:
    """Returns whether a policy that is not trained is answered by the engines of adapters: one with
    engines of its own kind is not.

    Nor is a tiny model that plays no role: it is not trained on the demonstrations, which adapters'
    model is.
    """
    if policy.trainable or policy.follows or policy.adapter:
        return False
    same = _engine_flags(run.policy_args[policy.name]) == _engine_flags(run.policy_args[owner])
    return same and (bool(run.recipe.roles_of(policy.name)) or not is_tiny(policy.model))


def _engine_flags(args: SimpleNamespace) -> Sequence[object]:
    return [vars(args.vllm), args.data.max_len]
