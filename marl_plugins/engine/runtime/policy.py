"""One policy of a run: its training processes and its engines, driven through upstream's trainer.

    start([policy])                 all policies of a run at the same time
    forward, update, sync, save     the steps of the training loop
    policy.kill()                   all its processes end

A frozen policy has engines only.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import ray
from ray.exceptions import ActorUnschedulableError, RayTaskError

from marl_plugins.core.failures import RunEnded
from marl_plugins.core.policy import Policy
from marl_plugins.core.process_backend import EngineKind, ProcessBackend, TrainingSpec
from marl_plugins.core.rows import Row
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.sequences import TokenSequence, TokenTree, sequences_of, tree_of
from marl_plugins.core.threads import in_daemon_thread
from marl_plugins.engine.processes.backend import OwnProcesses
from marl_plugins.engine.processes.deaths import DEATHS
from marl_plugins.engine.processes.engines import (
    EnginePool,
    RestartBudget,
    start_engine,
)
from marl_plugins.engine.processes.launch import not_started
from marl_plugins.engine.processes.placement import EnginePlace
from marl_plugins.engine.processes.upstream_trainer import UpstreamTrainer, ranks_of
from marl_plugins.engine.processes.watchdog import locate
from marl_plugins.engine.runtime.batching import BatchBuilder, check_steps, rank_batches
from marl_plugins.engine.runtime.experience import (
    NAMES,
    Experience,
    ForwardedExperience,
    PreparedExperience,
    completed,
    forwarded,
    sequences_apart,
    tree_batch,
)
from marl_plugins.engine.runtime.layout import Layout
from marl_plugins.engine.runtime.policy_engines import PolicyEngines

if TYPE_CHECKING:
    from types import SimpleNamespace

    from openrlhf.trainer.ray.launcher import RayActorGroup
    from ray import ObjectRef
    from transformers import PreTrainedTokenizerBase

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate["UpstreamPolicy", P], Coroutine[Any, Any, R]]


def while_active(method: Method[P, R]) -> Method[P, R]:
    """Returns a method of a policy that needs its training processes."""

    @functools.wraps(method)
    async def called(self: UpstreamPolicy, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async with self.processes.active():
            return await method(self, *args, **kwargs)

    return called


class UpstreamPolicy(PolicyEngines):
    """A policy with everything that belongs to it.

    Args:
        spec: What it is; a frozen one has engines only.
        args: Its flags.
        device: `cpu` or `cuda`.
        tokenizer: Its tokenizer.
        max_steps: Optimiser steps of the whole run.
        restarts: Shared by all policies of the run.
        silence: Seconds after which a process that has been asked and has answered nothing is
            ended.
        merge: Whether the rows of one conversation go through the model as one sequence, where its
            loss allows it.
        trees: Whether these sequences do as trees.
        backend: Who gives it its training processes; None: they are its own.
        extensions: What plugins add to these, as "module:Class".
        shared, kind, node: As of `PolicyEngines`.
    """

    def __init__(
        self,
        spec: Policy,
        args: SimpleNamespace,
        device: str,
        tokenizer: PreTrainedTokenizerBase,
        max_steps: int,
        restarts: RestartBudget,
        silence: float,
        merge: bool = True,
        trees: bool = False,
        backend: ProcessBackend | None = None,
        extensions: Sequence[str] = (),
        shared: EnginePool | None = None,
        kind: EngineKind | None = None,
        node: str = "",
    ):
        args = copy.deepcopy(args)
        self.batching = BatchBuilder(args, merge, trees)
        self._tried = not trees
        """Whether its model is known to see trees."""
        self.tokenizer = tokenizer
        training = None
        if spec.trainable:
            training = (backend or OwnProcesses()).processes_of(
                TrainingSpec(
                    policy=spec.name,
                    args=args,
                    device=device,
                    tokenizer=tokenizer,
                    max_steps=max_steps,
                    silence=silence,
                    extensions=tuple(extensions),
                    node=node,
                )
            )
        super().__init__(spec, args, restarts, silence, training, shared, kind, node)
        self.starting: list[ObjectRef] = []
        """What to wait for until everything is loaded."""
        self._shared: EnginePlace | None = None

    @property
    def longest(self) -> int:
        """Tokens of a sequence that it can be trained on, at most."""
        return self.batching.longest

    @property
    def trainer(self) -> UpstreamTrainer:
        """Upstream's trainer over the running training processes."""
        assert self.processes.trainer is not None, f"policy {self.name!r} is not started"
        return self.processes.trainer

    @property
    def group(self) -> RayActorGroup:
        """Upstream's group of the policy's training processes."""
        return self.trainer.actor_model_group

    @property
    def critic(self) -> RayActorGroup | None:
        """The critic's group; None without a critic."""
        return self.trainer.critic_model_group

    def launch(self) -> None:
        """Begins to start all processes; engines that share their devices with training processes
        are to sleep."""
        silence = self.engines.silence
        if self.trained and self.owns_engines and self.args.train.colocate_all:
            self._shared = self.processes.place()
        if self.training is not None:
            self.training.launch(self._shared and self._shared.group)
        if self.owns_engines:
            first = self._shared.first if self._shared else 0
            self.engines.engines = [
                start_engine(self.args, self._shared, first + n, silence, self.kind, self.node)
                for n in range(self.args.vllm.num_engines)
            ]
            self.engines.asleep = self.args.vllm.enable_sleep
            self.starting = (
                [e.sleep.remote() for e in self.engines.handles] if self.engines.asleep else []
            )

    def load(self) -> None:
        """Begins to load the models, once the engines that are to sleep do."""
        handles = self.engines.handles
        self.starting = self.training.load() if self.training is not None else []
        self.starting += [handle.identify.remote(self.name, self.version) for handle in handles]

    def kill(self) -> None:
        """Ends all processes at once, whatever they are doing."""
        if self.training is not None:
            self.training.end()
        self.engines.kill()
        if self._shared is not None and self.processes.lasting:
            ray.util.remove_placement_group(self._shared.group)
        self._shared = None

    @while_active
    async def forward(
        self, rows: Sequence[Row], known: Sequence[ForwardedExperience] = ()
    ) -> ForwardedExperience:
        """See `PolicyProcesses.forward`; in micro-batches of `rollout.micro_batch_size` sequences,
        or of so many tokens."""
        return await completed(rows, sequences_of(rows, self.batching.merge), known, self._forward)

    async def _forward(self, sequences: Sequence[TokenSequence]) -> ForwardedExperience:
        rows = [row for sequence in sequences for row in sequence.rows]
        batches = self.batching.forward_batches(sequences, ranks_of(self.group))
        trees = [tree for batch, _ in batches for tree in batch if len(tree.sequences) > 1]
        if trees and not await self._exact(trees[0]):
            batches = self.batching.forward_batches(sequences, ranks_of(self.group))
        experiences = await self._computed([batch for batch, _ in batches])

        def taken_apart() -> ForwardedExperience:
            done = [
                part
                for (batch, real), e in zip(batches, experiences, strict=True)
                if real
                for part in sequences_apart(batch, e)
            ]
            kl_coef, clip_range = self.trainer.kl_ctl.value, self.args.reward.clip_range
            return forwarded(self.name, rows, done, kl_coef, clip_range)

        experience = await in_daemon_thread(taken_apart)
        for name in ("log_probs", "kl", *(["values"] if self.critic else [])):
            if broken := experience.rows_not_finite(name):
                raise not_finite_error(
                    self.name, NAMES[name], rows[0].trajectory.step, f"rows {', '.join(broken[:5])}"
                )
        return experience

    async def _computed(self, batches: Sequence[Sequence[TokenTree]]) -> list[Experience]:
        maker = self.trainer.experience_maker

        made = in_daemon_thread(lambda: maker.make_experience([*map(tree_batch, batches)]))
        experiences: list[Experience]
        experiences = await self.processes.await_work("computed log-probs", made)
        return experiences

    async def _exact(self, tree: TokenTree) -> bool:
        """Compares, the first time, three sequences of a tree with what they are by themselves.
        Where a model gives other numbers, there are no trees from then on."""
        if self._tried:
            return True
        self._tried, three = True, tree.sequences[:3]
        ways = [tree_of([sequence]) for sequence in three], [tree_of(three)]
        experiences = await self._computed([*ways] * ranks_of(self.group))
        rows = [row for sequence in three for row in sequence.rows]
        apart, together = (
            forwarded(self.name, rows, sequences_apart(way, e)).tokens
            for way, e in zip(ways, experiences, strict=False)
        )
        # The first sequence is the same in both.
        differences = apart.differences(together, first=len(three[0].rows))
        # In bfloat16 single tokens of a right model are 0.4 nats off, as far as from float32, and
        # the mean is 0.05 to 0.11 (SmolLM2-135M); one that sees the wrong tokens is 2 to 4 off.
        exact = self.args.ds.param_dtype == "fp32"
        off = float(differences.max() if exact else differences.mean())
        self.batching.trees = off <= (1e-4 if exact else 0.25)
        if not self.batching.trees:
            print(
                f"warning: policy {self.name!r}: three sequences and the same as a tree differ by "
                f"{off:.2g}: its model does not see trees right, and is given sequences",
                file=sys.stderr,
            )
        return self.batching.trees

    @while_active
    async def update(self, prepared: PreparedExperience, steps: int, step: int) -> dict[str, float]:
        """Trains policy and critic on the rows: hand each rank its part, in whole accumulation
        windows, and lets upstream fit.

        A policy whose updates are frozen at first (`--critic.freezing_steps`) is handed no rows:
        upstream's processes would keep them for a later fit. The metrics are upstream's, with the
        optimiser steps taken and the weightless micro-batches; the critic's are called `critic_*`.
        Arguments as in `PolicyProcesses.update`.
        """
        groups = {
            "": None if step <= self.args.critic.freezing_steps else self.group,
            "critic_": self.critic,
        }
        layouts = {
            name: await self._hand_out(
                group, prepared if name else prepared.for_policy, steps, step
            )
            for name, group in groups.items()
            if group and prepared.rows
        }
        for call in prepared.calls if "" in layouts else ():
            await self.processes.extension(call.extension, call.method, *call.arguments)
        metrics = {
            "optimiser_steps": 0.0,
            "fill_rows": 0.0,
            "sequences": float(len(prepared.items)),
        }
        if layouts:
            status = await self.processes.fit(step)
            metrics |= {k: float(v) for k, v in status.items() if isinstance(v, int | float)}
            metrics |= prepared.metrics
        if self.batching.trees and "" in layouts:
            rows = sum(sum(s.starts) + len(s.trained) for s in prepared.for_policy.sequences)
            metrics["tokens_saved"] = rows * self.args.train.max_epochs / layouts[""].tokens
        metrics |= {f"{name}fill_rows": float(layout.fill) for name, layout in layouts.items()}
        check_steps(self.name, layouts, metrics, self.args.train.max_epochs)
        check_finite(self.name, metrics, prepared, step, self.args.ds.param_dtype)
        if self.critic:  # the policy's weights are checked when they are synced
            await self.processes.await_work(
                "checked the critic's weights", *self.critic.async_run_method("check_finite")
            )
        return metrics

    async def _hand_out(
        self, group: RayActorGroup, prepared: PreparedExperience, steps: int, step: int
    ) -> Layout:
        """Gives each rank of the policy's or the critic's processes its part of the sequences for
        the next fit, and returns the layout."""
        args, limit = self.args.train, self.batching.limit("train")
        seed = derive_seed(args.seed, "fit", step, self.name)
        batches = await in_daemon_thread(
            rank_batches, prepared, ranks_of(group), steps, limit, seed, args.max_epochs
        )
        await self.processes.await_work(
            f"was given its rows in step {step}",
            *group.async_run_method_batch("append", experience=batches.parts),
            *group.async_run_method_batch("lay_out", epochs=batches.epochs),
            *group.async_run_method("prepare_fit", batches.layout.accumulation, seed),
        )
        return batches.layout

    @while_active
    async def extension(
        self, name: str, method: str, *same: Any, each: Sequence[Any] | None = None
    ) -> list[Any]:
        """See `PolicyProcesses.extension`."""
        return await self.processes.extension(name, method, *same, each=each)

    @while_active
    async def save(self, tag: str, state: dict[str, Any]) -> None:
        """Saves a checkpoint of the policy and its critic under a tag."""
        await self.processes.save(tag, state)

    @while_active
    async def save_model(self, folder: Path | None = None, extension: str = "") -> None:
        """Saves the weights in Hugging Face format, or those that an extension keeps
        (`marl_weights`); with
        `--critic.save_value_network` the critic's too, where no folder is given."""
        await self.processes.save_model(str(folder / self.name) if folder else None, extension)

    @while_active
    async def further(self, extension: str) -> list[ObjectRef]:
        """Returns the weights that an extension keeps (`marl_weights`), in pieces."""
        return await self.processes.pieces(extension)


def check_finite(
    policy: str,
    metrics: Mapping[str, float],
    prepared: PreparedExperience,
    step: int,
    param_dtype: str,
) -> None:
    """Ends the run where an update's losses or gradients are not finite.

    Raises:
        RunEnded: One is not.
    """
    for name in (name for name in metrics if name.endswith(("_loss", "_grad_norm"))):
        overflow = (
            name.endswith("grad_norm") and param_dtype == "fp16"
        )  # loss scaling skips such steps
        if not math.isfinite(metrics[name]) and not overflow:
            which = f"{len(prepared.rows)} rows, the first {prepared.rows[0].name}"
            raise not_finite_error(policy, name, step, which)


def not_finite_error(policy: str, what: str, step: int, which: str) -> RunEnded:
    return RunEnded(
        f"policy {policy!r}, step {step}: {what} is not finite ({which}); nothing of this step was "
        "synced "
        "or saved. Lower the learning rate, or look at what these rows hold"
    )


def start(policies: Sequence[UpstreamPolicy], silence: float) -> None:
    """Starts all processes of some policies at the same time, and waits for them.

    Models are loaded for training once all engines sleep that are to: until then an engine has its
    device's memory to itself, as with upstream (train_ppo_ray.py:66-82 and 170).

    Args, raises: As of `wait_until_loaded`.
    """
    # Those that need one node's room take it before others are spread over what is left.
    for policy in sorted(policies, key=lambda policy: not policy.node):
        policy.launch()
        if policy.training is not None and not policy.training.lasting:
            # The next policy's engines may be on the same devices.
            _wait([policy], silence)
    _wait(policies, silence)
    for policy in policies:
        policy.load()
    wait_until_loaded(policies, silence)


def wait_until_loaded(policies: Sequence[UpstreamPolicy], silence: float) -> None:
    """Waits until the processes of some policies have loaded their models and checkpoints.

    The first error is raised while the other processes may still wait for the one that failed, in a
    collective operation.

    Args:
        silence: Maximum seconds in which no process becomes ready.

    Raises:
        ConfigurationError: A model or a checkpoint cannot be loaded.
        RunEnded: A process loads for ever.
    """
    _wait(policies, silence)
    for policy in policies:
        if policy.training is not None:
            policy.training.where = ray.get(
                [locate(handle) for handle in policy.training.handles()]
            )
        for engine in policy.engines.engines:
            engine.where = ray.get(locate(engine.handle))


def _wait(policies: Sequence[UpstreamPolicy], silence: float) -> None:
    """Waits for what processes are doing while they start."""
    owners = {reference: policy for policy in policies for reference in policy.starting}
    while owners:
        done, _ = ray.wait(list(owners), timeout=silence)
        if not done:
            names = ", ".join(sorted({repr(policy.name) for policy in owners.values()}))
            raise RunEnded(
                f"{len(owners)} processes of {names} were still loading after another {silence:g} "
                "s (limits.silence_seconds)"
            )
        (ready,) = done
        owner = owners.pop(ready)
        try:
            ray.get(ready)
        except (*DEATHS, RayTaskError, ActorUnschedulableError) as error:
            raise not_started(owner.name, owner.args.actor.model_name_or_path, error) from error
    for policy in policies:
        policy.starting = []
