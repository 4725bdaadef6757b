"""Upstream's policy and reference actors with what several policies need. Imported first in every
training process."""

from __future__ import annotations

from marl_plugins.engine.hosts import cpu

cpu.install()  # before anything of upstream

with cpu.flash_attn_stand_in():
    import openrlhf.models  # noqa: F401

import contextlib  # noqa: E402
from collections.abc import Iterator, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from types import SimpleNamespace  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402
from unittest.mock import patch  # noqa: E402

import openrlhf.trainer.ray.ppo_actor as upstream_actor  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from openrlhf.trainer.ray.launcher import ReferenceModelActor as _UpstreamReference  # noqa: E402

import marl_plugins.engine.processes.weighing_trainer  # noqa: E402, F401  # upstream's trainer is replaced by it
from marl_plugins.engine.processes.extension import Extension, called, extension_class  # noqa: E402
from marl_plugins.engine.processes.master_port import MasterPort  # noqa: E402
from marl_plugins.engine.processes.optimiser_settings import keep_settings_when_loading  # noqa: E402
from marl_plugins.engine.processes.pieces import PIECE_BYTES, Piece, piece_of, portions  # noqa: E402
from marl_plugins.engine.processes.replay import MicroBatchBuffer  # noqa: E402
from marl_plugins.engine.processes.training_process import TrainingProcess  # noqa: E402
from marl_plugins.engine.processes.trees import see_trees  # noqa: E402

if TYPE_CHECKING:
    from openrlhf.utils.deepspeed import DeepspeedStrategy
    from ray.actor import ActorHandle

ON_CPU = cpu.device() == "cpu"

upstream_actor.NaiveReplayBuffer = (
    MicroBatchBuffer  # looked up there by the trainer (ppo_actor.py:91)
)


class PolicyActor(TrainingProcess, upstream_actor.PolicyModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """One training process of a policy."""

    reference: SimpleNamespace | None = None
    """A frozen model in the policy's process, with the two attributes that upstream's `forward`
    reads."""

    def init_model_from_pretrained(
        self,
        strategy: DeepspeedStrategy,
        pretrain: str,
        max_steps: int,
        vllm_engines: Sequence[ActorHandle] | None = None,
        with_reference: bool = False,
        extensions: Sequence[str] = (),
    ) -> None:
        """Loads the model, then makes the extensions that plugins name ("module:Class")."""
        keep_settings_when_loading(strategy)
        # upstream's average is in the weights' own precision: see marl_plugins/builtin/ema
        strategy.args.train.enable_ema = False
        # Without engines no NCCL group is set up.
        super().init_model_from_pretrained(strategy, pretrain, max_steps, None)
        self.vllm_engines = vllm_engines
        self.engine = self.actor.model
        see_trees(self.actor)
        if ON_CPU:
            cpu.make_adam_resumable(self.engine.basic_optimizer)
        if with_reference:
            self.reference = _reference(strategy, pretrain)
        self.trainer.extensions = [extension_class(name)(self.trainer) for name in extensions]
        self._restore_extensions()

    @property
    def extensions(self) -> Sequence[Extension]:
        """The extensions that plugins have added to this process."""
        extensions: Sequence[Extension] = self.trainer.extensions
        return extensions

    def extension(self, name: str, method: str, *arguments: Any) -> Any:
        """Calls a method of an extension, by the name of its class."""
        return called(self.extensions, name, method, arguments)

    def fit(self, kl_ctl: float = 0) -> dict[str, float]:
        """Fits as upstream does, in whole accumulation windows, then tells the extensions."""
        fit, status = super().fit, dict[str, float]()
        try:
            status = self.in_whole_windows(lambda: fit(kl_ctl))
        finally:
            for extension in self.extensions:
                extension.fitted(status)
        return status

    def save_checkpoint(self, tag: str, client_states: Any = None, *more: Any) -> None:
        """Saves upstream's checkpoint, and in its folder the state of the extensions of this
        rank."""
        super().save_checkpoint(tag, client_states, *more)
        states = {type(extension).__name__: extension.state() for extension in self.extensions}
        if any(state is not None for state in states.values()):
            torch.save(states, self._extension_file(tag))

    def _extension_file(self, tag: str) -> Path:
        return Path(
            self.strategy.args.ckpt.path,
            "_actor",
            tag,
            f"extensions_rank_{torch.distributed.get_rank()}.pt",
        )

    def _restore_extensions(self) -> None:
        """Gives the extensions the state that the loaded checkpoint has of them; without one they
        begin anew."""
        latest = Path(self.strategy.args.ckpt.path, "_actor", "latest")
        if not (self.strategy.args.ckpt.load_enable and latest.is_file()):
            return
        file = self._extension_file(latest.read_text(encoding="utf-8").strip())
        states = torch.load(file, weights_only=False) if file.is_file() else {}
        for extension in self.extensions:
            if (state := states.get(type(extension).__name__)) is not None:
                extension.restore(state)

    def broadcast_to_vllm(self) -> None:
        """Syncs weights as upstream's own loop asks for it, on CPU."""
        pieces = [ray.put(piece) for piece in self.pieces()]
        if pieces:
            ray.get([engine.load_state.remote(pieces, "", 0) for engine in self.vllm_engines or ()])
        torch.distributed.barrier()

    def save_model(self, folder: str | None = None, extension: str = "") -> None:
        """Saves the weights in Hugging Face format, in the policy's own folder or in another one.

        Args:
            extension: The one whose weights are saved in the model's place.
        """
        ckpt = self.strategy.args.ckpt
        there = patch.object(ckpt, "output_dir", folder or ckpt.output_dir)
        with there, self._weights_of(extension):
            super().save_model()

    def reference_forward(self, **kwargs: torch.Tensor | None) -> torch.Tensor:
        """Returns the reference model's log-probs, as upstream's `ReferenceModelActor.forward`."""
        forward: torch.Tensor = _UpstreamReference.__ray_metadata__.modified_class.forward(
            self.reference, **kwargs
        )
        return forward

    def _weights_of(self, extension: str) -> contextlib.AbstractContextManager[None]:
        """Puts an extension's weights in the model's place, if one is named."""
        if not extension:
            return contextlib.nullcontext()
        in_place: contextlib.AbstractContextManager[None] = self.extension(extension, "in_place")
        return in_place

    def pieces(self, extension: str = "", limit: int = PIECE_BYTES) -> Iterator[Piece]:
        """Yields the model's weights, or those that an extension keeps, in pieces of at most
        `limit` bytes on rank 0, and nothing on the others. Every rank is asked.

        Raises:
            FloatingPointError: A weight is not finite; the names of the tensors are given.
        """
        with self._weights_of(extension):
            self.check_finite()
            yield from self._pieces(limit)
        torch.cuda.empty_cache()  # an engine may wake on this device

    def _pieces(self, limit: int) -> Iterator[Piece]:
        import deepspeed

        sharded = self.strategy.stage == 3
        parameters = dict(self.engine.module.named_parameters())
        sizes = {
            name: (p.ds_numel if sharded else p.numel()) * p.element_size()
            for name, p in parameters.items()
        }
        for names in portions(sizes, limit):
            some = {name: parameters[name] for name in names}
            with deepspeed.zero.GatheredParameters([*some.values()], enabled=sharded):
                if torch.distributed.get_rank() == 0:
                    yield piece_of(some)


def _reference(strategy: DeepspeedStrategy, pretrain: str) -> SimpleNamespace:
    actor = upstream_actor.Actor(
        pretrain,
        attn_implementation=strategy.args.ds.attn_implementation,
        experts_implementation=strategy.args.ds.experts_implementation,
        param_dtype=strategy.args.ds.param_dtype,
        packing_samples=strategy.args.ds.packing_samples,
        temperature=strategy.args.rollout.temperature,
        use_liger_kernel=strategy.args.ds.use_liger_kernel,
    )
    see_trees(actor)
    model = actor.eval().to(torch.cuda.current_device())
    return SimpleNamespace(model=model, strategy=strategy)


class ReferenceActor(MasterPort, _UpstreamReference.__ray_metadata__.modified_class):  # type: ignore[misc]
    """Upstream's reference process; a subclass so that the host support is installed before
    upstream is imported."""

    def init_model_from_pretrained(self, strategy: DeepspeedStrategy, pretrain: str) -> None:
        super().init_model_from_pretrained(strategy, pretrain)
        see_trees(self.model)


RemotePolicyActor = ray.remote(num_gpus=1)(PolicyActor)
RemoteReferenceActor = ray.remote(num_gpus=1)(ReferenceActor)
