"""Protocols of what hooks are handed of a running policy: its engines, its processes, and its rows
on the way to an update.

These protocols are what a plugin may rely on; they import neither Ray nor upstream. The runtime
implements them on upstream's classes (engine/processes/engines.py, engine/runtime/policy.py,
engine/runtime/experience.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from marl_plugins.core.policy import Policy
from marl_plugins.core.roles import Call
from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Generation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Engine(Protocol):
    """One engine, as a router sees it."""

    @property
    def load(self) -> int:
        """Requests in flight."""

    @property
    def home(self) -> Engines | None:
        """The engines that it was started with, once it has left them (`Engines.lend`)."""


class Engines(Protocol):
    """The engines of one policy."""

    @property
    def policy(self) -> str:
        """The policy's name."""

    @property
    def engines(self) -> Sequence[Engine]:
        """The engines that are running, in a fixed order."""

    @property
    def in_flight(self) -> int:
        """Maximum number of requests at one engine (`--balance.in_flight`)."""

    @property
    def waiting(self) -> int:
        """Requests that wait for an engine with a free place."""

    @property
    def travelling(self) -> Collection[Engine]:
        """Engines of other policies, or of this one, that are on their way here."""

    @property
    def away(self) -> Collection[Engine]:
        """Engines of this policy that are lent to another one, or on their way to or from it."""

    @property
    def watchers(self) -> list[Callable[[], None]]:
        """Called when a request begins to wait, when an engine has nothing to do, and when one has
        come; add yours."""

    def lend(self, engine: Any, to: Any) -> asyncio.Task[None]:
        """Begins to give one of `engines` to those of another policy; what is returned is done once
        it has that one's weights.

        It is asked for nothing more here, and leaves when it has answered what it was asked. If it
        dies it is replaced.

        Raises:
            ValueError: The engines of the two policies were not started alike.
        """

    async def generate(self, call: Call, choose: Callable[[Sequence[Any]], Any]) -> Generation:
        """Answers a request with the engine that `choose` picks out of those of `engines` that have
        a free place; with another one if that one dies. While none has one the request waits; the
        oldest task's requests are the first to be answered.

        Raises:
            InfrastructureFailure: No engine is left and none may be started.
        """


class ForwardedRows(Protocol):
    """Rows of one policy with the tensors of their forward passes. Any number of such values may
    exist at a time."""

    @property
    def policy(self) -> str:
        """The policy's name."""

    @property
    def rows(self) -> Sequence[Row]:
        """The rows, in the order in which they were given to `forward`."""

    @property
    def drift(self) -> float:
        """Mean absolute difference of the trainer's and the engine's log-probs over all sampled
        tokens."""


class PreparedRows(ForwardedRows, Protocol):
    """The same with their advantages, which the estimator has made of the `ForwardedRows` of all
    policies together."""

    def reweighed(self, weights: Mapping[Row, float]) -> PreparedRows:
        """Returns the same rows with the advantages of some multiplied by a weight each, which is
        also written onto their actions.

        Raises:
            ValueError: The gradient of one has been taken already.
        """


class PolicyProcesses(Protocol):
    """A policy of the run with its training processes and engines."""

    @property
    def name(self) -> str:
        """The policy's name."""

    @property
    def spec(self) -> Policy:
        """The description of the policy; `spec.trainable` says whether it is updated."""

    @property
    def args(self) -> SimpleNamespace:
        """The policy's flags."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer."""

    @property
    def longest(self) -> int:
        """Tokens of a sequence that it can be trained on, at most."""

    @property
    def version(self) -> int:
        """The number of the last sync that was begun: the weights of the engines belong to it."""

    @property
    def engines(self) -> Engines:
        """The policy's engines."""

    async def forward(
        self, rows: Sequence[Row], known: Sequence[ForwardedRows] = ()
    ) -> ForwardedRows:
        """Computes the log-probs of policy and reference, and the critic's values, of the rows'
        tokens.

        Args:
            known: What was forwarded of the same version before: what went through the model as it
                would now is taken from there, whatever rewards its rows had then.

        Raises:
            RunEnded: One of them is not finite, or a process died.
        """

    async def update(self, prepared: PreparedRows, steps: int, step: int) -> dict[str, float]:
        """Trains on rows whose advantages are known, in at most `steps` optimiser steps, and
        returns upstream's metrics.

        Args:
            step: The training step, from 1; part of the fit's seed.

        Raises:
            RunEnded: A loss or gradient norm is not finite, or a process died.
        """

    async def sync(self, version: int) -> bool:
        """Brings the engines to the current weights, calls these `version`, and returns True when
        done."""

    async def extension(
        self, name: str, method: str, *same: object, each: Sequence[object] | None = None
    ) -> list[Any]:
        """Calls a method of an extension (`marl_extensions`) in every training process of the
        policy, and returns their answers, by rank.

        All ranks are asked at the same time. Ask one thing of a policy after the other: ranks that
        are asked in different orders would wait for each other in a collective operation.

        Args:
            name: Name of the extension's class.
            same: Arguments that every process gets.
            each: One more argument, the first, for each process, by rank.

        Raises:
            RunEnded: A process died, or answered nothing for too long.
        """


class Follower(PolicyProcesses, Protocol):
    """A policy with engines only, which hold weights of the policy that it follows
    (`spec.follows`)."""

    async def weights(self) -> bytes:
        """Returns the current weights of the policy that it follows, as safetensors."""

    async def hold(self, weights: bytes, version: int) -> bool:
        """Brings the engines to these weights, calls them `version`, and returns True when done."""
