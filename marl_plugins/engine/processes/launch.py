"""The training processes of a policy: launched, loaded, asked, saved, ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorUnschedulableError, OutOfMemoryError, RayActorError, RayTaskError
from ray.util.placement_group import remove_placement_group

from marl_plugins.core.failures import ConfigurationError, RunEnded, raised_by
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.process_backend import TrainingSpec
from marl_plugins.core.threads import in_daemon_thread
from marl_plugins.engine.hosts.devices import critic_gpus, ranks_of_one_sequence, training_gpus
from marl_plugins.engine.processes.critic_actor import RemoteCriticActor
from marl_plugins.engine.processes.deaths import DEATHS, Death
from marl_plugins.engine.processes.nodes import living_nodes
from marl_plugins.engine.processes.placement import EnginePlace, bundles
from marl_plugins.engine.processes.policy_actor import RemotePolicyActor, RemoteReferenceActor
from marl_plugins.engine.processes.upstream_trainer import ReferenceInPolicy, UpstreamTrainer
from marl_plugins.engine.processes.watchdog import ProcessPlace, Watchdog

from openrlhf.trainer.ray.launcher import RayActorGroup  # isort: skip  # after the host support, installed above
from openrlhf.utils import get_strategy  # isort: skip

if TYPE_CHECKING:
    from types import SimpleNamespace

    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from ray import ObjectRef, ObjectRefGenerator
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup


class TrainingProcesses:
    """The training processes of one policy, with its critic's and its reference's, under upstream's
    trainer.

    Args:
        spec: Their parameters.
    """

    lasting = True
    """Whether they are there for the whole run."""

    def __init__(self, spec: TrainingSpec):
        self.policy, self.extensions, self.node = spec.policy, spec.extensions, spec.node
        self.args = spec.args
        self.on_cpu = spec.device == "cpu"
        self.tokenizer = spec.tokenizer
        self.max_steps, self.silence = spec.max_steps, spec.silence
        self.watchdog = Watchdog(self._end_silent)
        self.where: list[ProcessPlace] = []
        """Where the processes run."""
        self.silent: list[str] = []
        """The processes and their states when the watchdog ended them."""
        self.groups: dict[str, RayActorGroup] = {}
        """Upstream's actor groups: `policy`, and `critic` and `reference` where they have processes
        of their own."""
        self.trainer: UpstreamTrainer | None = None
        self._placements: list[PlacementGroup] = []  # of these processes alone

    def place(self) -> EnginePlace:
        """Reserves the devices that these processes share with the policy's engines."""
        return EnginePlace(bundles(training_gpus(self.args), self.silence, self.node))

    def launch(self, shared: PlacementGroup | None) -> None:
        """Begins to start the processes; nothing is loaded yet.

        Args:
            shared: The placement group that they share with the policy's engines, if they do.
        """
        args = self.args
        same = ranks_of_one_sequence(args)

        def reserve(count: int) -> PlacementGroup:
            # Upstream would make them, and wait for them without a limit (launcher.py:244-252).
            self._placements.append(bundles(count, self.silence, self.node))
            return self._placements[-1]

        def group(
            size: SimpleNamespace, kind: type, placement: PlacementGroup | None
        ) -> RayActorGroup:
            count, share = size.num_nodes * size.num_gpus_per_node, 0.2 if placement else 1
            place = placement or (reserve(count) if count > 1 or self.node else None)
            return RayActorGroup(size.num_nodes, size.num_gpus_per_node, kind, place, share, same)

        with_reference = args.train.colocate_actor_ref and not self.on_cpu
        together = shared or (reserve(training_gpus(args)) if with_reference else None)
        self.groups["policy"] = group(args.actor, RemotePolicyActor, together)
        if args.algo.kl.init_coef > 0 and not self.on_cpu:
            self.groups["reference"] = group(args.ref, RemoteReferenceActor, together)
        if critic_gpus(args):
            self.groups["critic"] = group(args.critic, RemoteCriticActor, shared)

    def load(self) -> list[ObjectRef]:
        """Begins to load the models, and returns what to wait for until they are loaded."""
        group, reference = self.groups["policy"], self.groups.get("reference")
        reference = (
            ReferenceInPolicy(group) if reference is None and self.with_reference else reference
        )
        strategy, critic = _strategy(self.args, training_gpus(self.args)), self.groups.get("critic")
        self.trainer = UpstreamTrainer(strategy, group, reference, self.tokenizer, critic)
        return self.load_models(self.args)

    @property
    def with_reference(self) -> bool:
        """Returns whether the reference model lives in the policy's processes."""
        return bool(self.on_cpu and self.args.algo.kl.init_coef > 0)

    def load_models(self, args: SimpleNamespace) -> list[ObjectRef]:
        """Begins to load the models in the processes that are there, and returns what to wait
        for."""
        model, strategy = args.actor.model_name_or_path, _strategy(args, training_gpus(args))
        loading: list[ObjectRef] = self.groups["policy"].async_init_model_from_pretrained(
            strategy, model, self.max_steps, None, self.with_reference, self.extensions
        )
        if "reference" in self.groups:
            ranks = args.ref.num_nodes * args.ref.num_gpus_per_node
            loading += self.groups["reference"].async_init_model_from_pretrained(
                _strategy(args, ranks), model
            )
        if "critic" in self.groups:
            loading += self.groups["critic"].async_init_model_from_pretrained(
                _strategy(args, critic_gpus(args)), args.critic.model_name_or_path, self.max_steps
            )
        return loading

    async def vacate(self) -> None:
        """Gives up the devices that engines are about to wake on, where these processes come and
        go."""

    @contextlib.asynccontextmanager
    async def active(self) -> AsyncIterator[None]:
        """Does nothing: these processes are there for the whole run."""
        yield

    def handles(self) -> Iterator[ActorHandle]:
        """Yields Ray's handles of all processes."""
        for group in self.groups.values():
            yield from group._actor_handlers

    def _end_silent(self) -> None:
        self.silent = [str(process) for process in self.where]
        self._kill()
        for process in self.where:
            process.kill()

    def _kill(self) -> None:
        for handle in self.handles():
            with contextlib.suppress(RayActorError):
                ray.kill(handle)

    def end(self) -> None:
        """Ends all processes at once, whatever they are doing, and gives their devices back."""
        self._kill()
        for placement in self._placements:
            remove_placement_group(placement)
        self.groups, self.trainer, self._placements = {}, None, []

    async def save(self, tag: str, state: dict[str, Any]) -> None:
        """Saves a checkpoint of the policy and its critic under a tag."""
        work = self.groups["policy"].async_run_method("save_checkpoint", tag, state)
        if "critic" in self.groups:
            work += self.groups["critic"].async_run_method("save_checkpoint", tag)
        await self.await_work("was saved", *work)

    async def save_model(self, folder: str | None = None, extension: str = "") -> None:
        """Saves the weights in Hugging Face format; the critic's too with
        `--critic.save_value_network`, else upstream skips it.

        Args:
            folder: Only the policy's, or those that its `extension` keeps, and there instead of in
                its own folder.
        """
        critic = (
            self.groups["critic"].async_save_model()
            if "critic" in self.groups and folder is None
            else []
        )
        saving = self.groups["policy"].async_run_method("save_model", folder, extension)
        await self.await_work("saved its weights", *saving, *critic)

    async def extension(
        self, name: str, method: str, *same: Any, each: Sequence[Any] | None = None
    ) -> list[Any]:
        """See `PolicyProcesses.extension`."""
        handles = self.groups["policy"]._actor_handlers
        first = [()] * len(handles) if each is None else [(one,) for one in each]
        asked = [
            h.extension.remote(name, method, *mine, *same)
            for h, mine in zip(handles, first, strict=True)
        ]
        answers: list[Any] = await self.await_work(
            f"was in {name}.{method}", asyncio.gather(*asked)
        )
        return answers

    async def fit(self, step: int) -> dict[str, float]:
        """Does upstream's fit of policy and critic on what they have been handed out, and returns
        its metrics."""
        assert self.trainer is not None
        fit = in_daemon_thread(self.trainer.ppo_train, step)
        status: dict[str, float] = await self.await_work(f"was updated in step {step}", fit)
        return status

    async def weights(self) -> list[ObjectRef]:
        """Returns references to all weights of the policy's model, in pieces (pieces.py), once all
        of them are in Ray's store; they outlive these processes."""
        return await self.pieces()

    async def pieces(self, extension: str = "") -> list[ObjectRef]:
        """Returns what `weights` does of the processes that are there, or of the weights that an
        extension keeps."""
        streams = self.groups["policy"].async_run_method("pieces", extension)
        streamed = asyncio.gather(*[all_streamed(stream) for stream in streams])
        by_rank: list[list[ObjectRef]] = await self.await_work("gave its weights", streamed)
        return by_rank[0]

    async def await_work(self, doing: str, *work: Any) -> Any:
        """Awaits work of the processes; one that died ends the run in a state that can be resumed.

        Args:
            doing: What the policy does meanwhile, for the message.

        Raises:
            RunEnded: A process died or answered nothing for too long, or found weights that are not
                finite.
        """
        try:
            with self.watchdog.asked(self.silence):
                results = await asyncio.gather(*work)
        except (*DEATHS, RayTaskError) as error:
            if isinstance(error, DEATHS):
                raise run_ended_by(self, doing, error) from error
            cause = raised_by(error)
            if isinstance(cause, RunEnded):
                raise RunEnded(str(cause)) from error
            if isinstance(cause, FloatingPointError):
                raise RunEnded(
                    f"policy {self.policy!r}, while it {doing}: {cause}; they were neither synced "
                    "nor saved"
                ) from error
            raise
        return results[0] if len(results) == 1 else results

    def check_nodes(self) -> None:
        """Asks Ray whether the nodes of the processes are there: nobody awaits these in a rollout.

        Raises:
            RunEnded: One is gone.
        """
        living = living_nodes()
        for process in self.where:
            if process.node not in living:
                raise RunEnded(
                    f"a training process of policy {self.policy!r} (process {process.pid} on "
                    f"{process.host}) died with its node"
                )


async def all_streamed(stream: ObjectRefGenerator) -> list[ObjectRef]:
    """Returns all that a process streams.

    Raises:
        RayTaskError: It has failed; what it streamed before is of no use.
    """
    pieces = [piece async for piece in stream]
    await stream.completed()
    return pieces


class GroupOfOthers(RayActorGroup):  # type: ignore[misc]
    """Upstream's group of processes that it has not started; whoever has gives it their handles.

    Args:
        size: `args.actor` or `args.critic`.
    """

    def __init__(self, size: SimpleNamespace, args: SimpleNamespace):
        same = ranks_of_one_sequence(args)
        super().__init__(size.num_nodes, size.num_gpus_per_node, None, duplicate_actors=same)

    def _initiate_actors(self, pg: Any, num_gpus_per_actor: float) -> None:
        self._actor_handlers: list[Any] = []


def run_ended_by(processes: TrainingProcesses, doing: str, error: Death | RayTaskError) -> RunEnded:
    """Returns what ends the run when a training process has died."""
    if processes.silent:
        return RunEnded(
            f"the training processes of policy {processes.policy!r} answered nothing for "
            f"{processes.silence:g} s "
            f"(limits.silence_seconds) while the policy {doing}, and were ended: "
            f"{', '.join(processes.silent)}"
        )
    reason = str(raised_by(error)).splitlines()[0]
    known = zip(processes.handles(), processes.where, strict=False)
    places = {h._actor_id.hex(): f" (process {p.pid} on {p.host})" for h, p in known}
    place = places.get(getattr(error, "actor_id", None) or "", "")
    return RunEnded(
        f"a training process of policy {processes.policy!r}{place} died while the policy {doing}: "
        f"{reason}"
    )


def not_started(
    policy: str, model: str, error: RayTaskError | Death | ActorUnschedulableError
) -> ConfigurationError | RunEnded:
    """Returns what is wrong where a process of a policy has failed while it was loading its model,
    or was killed then."""
    if isinstance(error, ActorUnschedulableError):
        reason = " ".join(str(error).split())
        return RunEnded(
            f"policy {policy!r}: Ray could not start a process: {reason} (--debug keeps Ray's logs)"
        )
    cause = raised_by(error)
    if isinstance(cause, ConfigurationError):
        return ConfigurationError([problem.within(policy=policy) for problem in cause.problems])
    lines = str(error).strip().splitlines()
    reason = lines[0 if isinstance(error, OutOfMemoryError) else -1].strip()
    if isinstance(error, DEATHS) and not getattr(error, "actor_init_failed", False):
        return RunEnded(
            f"policy {policy!r}: a process died while it was starting: {reason} Something has "
            "killed it, for example because "
            "memory ran out; the same command starts again"
        )
    return ConfigurationError(
        Problem(
            "models.start",
            at(policy=policy),
            f"model {model!r} could not be started: {reason} (--debug shows all of it)",
        )
    )


def _strategy(args: SimpleNamespace, ranks: int) -> DeepspeedStrategy:
    """Upstream's DeepSpeed strategy for a number of ranks.

    DeepSpeed counts rows; --train.batch_size counts trajectories. One micro-batch per rank, until
    each fit says how many.
    """
    strategy = get_strategy(args)
    # Upstream multiplies by the ranks that share a sequence (deepspeed.py:111-117 and 456).
    strategy.train_batch_size = args.train.micro_batch_size * ranks // ranks_of_one_sequence(args)
    return strategy
