"""Upstream's policy and reference actors with what several policies need. Imported first in every training process."""

from __future__ import annotations

from marl_plugins.hosts import cpu

cpu.install()  # before anything of upstream

with cpu.flash_attn_stand_in():
    import openrlhf.models  # noqa: F401

from collections.abc import Callable, Sequence  # noqa: E402
from typing import Any  # noqa: E402

import openrlhf.trainer.ray.ppo_actor as upstream_actor  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from openrlhf.trainer.ray.launcher import ReferenceModelActor as _UpstreamReference  # noqa: E402

from marl_plugins.hosts.prebuild import load_operators  # noqa: E402
from marl_plugins.processes import flat_sync  # noqa: E402
from marl_plugins.processes.gradients import Carried, Gradients, MicroBatch  # noqa: E402
from marl_plugins.processes.optimiser_settings import keep_settings_when_loading  # noqa: E402
from marl_plugins.processes.replay import LaidOutBuffer  # noqa: E402
from marl_plugins.processes.training_state import TrainingState, get_state, set_state, touch  # noqa: E402

ON_CPU = cpu.device() == "cpu"

EMPTY = 1e-30
"""Weight of a micro-batch without a single row in upstream's weighted means, whose denominators must not be 0."""
CORRECTION = "marl_plugins: correction"
"""The label of corrected actions among the rows (processes/corrections.py), which have none."""


class WeighingTrainer(upstream_actor.ActorPPOTrainer):  # type: ignore[misc]
    """Upstream's trainer, whose metrics count rows, of which a sequence has several, or none where it is weightless.

    Two of upstream's divisions meet an empty mask when a micro-batch holds nothing but a weightless sequence: `masked_mean` in
    the policy loss's metrics (models/utils.py:199-202, NaN) and the weighted means in `ppo_train` (ppo_actor.py:204-216, 0/0).
    The loss itself is fine there: a sum over no token, divided by the window's count. Where sequences are filtered
    (`--algo.advantage.is_correction_level seq`) one without tokens counts as filtered (models/loss.py:241-244).

    What was learned from beside the rollout is carried by the first micro-batch of rows (gradients.py).

    A micro-batch of corrected actions has a step of its own; its metrics have the names of the micro-batches before it, because
    all ranks reduce theirs together, and weigh nothing.
    """

    last: dict[str, Any]
    """The names and weights of the metrics of the last micro-batch of rows."""
    corrections_loss: float = 0.0
    """Sum of the supervised term over this fit's micro-batches; its mean over the ranks is that of all of them."""
    carried: Carried | None = None
    actor_loss_fn: Any

    def training_step(self, experience: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if CORRECTION in experience.labels:
            return self._corrections_step(experience, *args, **kwargs)
        ones = [1.0] * len(experience.action_mask)  # in upstream's own loop
        rows = torch.tensor([float(count) for count in experience.info.pop("rows", ones)])
        status = self._step_of_rows(experience, *args, **kwargs)
        tokens, total = status["num_action_tokens"], float(rows.sum())
        for name, weight in status["weights"].items():
            value = status["metrics"][name]
            if weight == "token" and not tokens:
                status["metrics"][name] = 0.0
            elif name == "is_filter_ratio" and self.args.algo.advantage.is_correction_level == "seq":
                status["metrics"][name] = without_fill(value, total, len(rows) - total) if total else 0.0
            elif weight == "sample" and isinstance(value, torch.Tensor):
                status["metrics"][name] = (value.float().cpu() * rows).sum() / total if total else 0.0
        status["num_action_tokens"], status["num_samples"] = tokens or EMPTY, total or EMPTY
        self.last = {"metrics": dict.fromkeys(status["metrics"], 0.0), "weights": status["weights"]}
        return status

    def broadcast_to_vllm(self) -> None:
        """Upstream's weight sync, or with `marl_plugins.flat_sync` that in large pieces."""
        if hasattr(self.args, "flat_sync"):
            flat_sync.send(self, self.args.flat_sync.mb * 10**6)
        else:
            super().broadcast_to_vllm()

    def _step_of_rows(self, experience: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Upstream's own, with what is carried."""
        own: Any = self.actor_loss_fn
        if self.carried is not None:
            kl_ctl, step, info = args
            args, self.actor_loss_fn = (kl_ctl, step, self.carried.counted(info)), self.carried.in_loss(own)
        try:
            status: dict[str, Any] = super().training_step(experience, *args, **kwargs)
        finally:
            self.actor_loss_fn = own
        return status

    def _corrections_step(
        self, experience: Any, kl_ctl: float, step: int, loss_batch_info: dict[str, Any]
    ) -> dict[str, Any]:
        """Cross-entropy on corrected actions, whose advantages are the weights of their tokens.

        The loss is scaled as upstream's (utils/loss_utils.py:57-77): DeepSpeed divides by the accumulation and the ranks.
        """
        self.actor.train()
        weights = experience.advantages
        log_probs = self.actor(
            experience.sequences,
            weights != 0,
            attention_mask=experience.attention_mask,
            ring_attn_group=self.strategy.ring_attn_group,
        )
        loss = -(log_probs * weights).sum()
        ranks = loss_batch_info["dp_size"]
        self.corrections_loss += loss.item() * ranks
        self.strategy.backward(loss * (self.strategy.accumulated_gradient * ranks), self.actor, self.actor_optim)
        self.strategy.optimizer_step(self.actor_optim, self.actor, self.actor_scheduler, name="actor")
        metrics = self.last["metrics"] | {
            "actor_lr": self.actor_scheduler.get_last_lr()[0],
            "actor_grad_norm": self.strategy.get_grad_norm(self.actor),
        }
        return {"metrics": metrics, "weights": self.last["weights"], "num_samples": EMPTY, "num_action_tokens": EMPTY}


def without_fill(share: Any, rows: float, fill: float) -> Any:
    """The share of filtered sequences among the real rows, from that among all: weightless ones are always filtered."""
    return (share * (rows + fill) - fill) / rows


upstream_actor.ActorPPOTrainer = WeighingTrainer  # looked up there by `init_model_from_pretrained` (ppo_actor.py:582)
upstream_actor.NaiveReplayBuffer = LaidOutBuffer  # and there by the trainer (ppo_actor.py:91)


class TrainingProcess:
    """What the training processes of policies and critics share: fits of whole accumulation windows, finite weights, and a state
    with which another process goes on."""

    engine: Any
    """DeepSpeed's engine of the model that is trained."""
    strategy: Any
    trainer: Any
    _world_size: int
    _master_addr: str
    _master_port: int

    def lay_out(self, epochs: Any) -> None:
        """Before each `fit`: this rank's micro-batches, as indices of its sequences (core/layout.py)."""
        self.trainer.replay_buffer.lay_out(epochs)

    def prepare_fit(self, accumulation: int, seed: int) -> None:
        """Before each `fit`: how many micro-batches make an optimiser step this time, and a seed of its own.

        `micro_steps = 0` makes the accumulation windows begin with the first micro-batch, whatever the fit before left over.
        """
        self.engine.set_train_batch_size(self.strategy.micro_train_batch_size * accumulation * self._world_size)
        self.engine.micro_steps = 0
        self.strategy.accumulated_gradient = accumulation
        torch.manual_seed(seed)

    def in_whole_windows(self, fit: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A fit, asserted to have ended at the end of an accumulation window, so that no gradient is carried over."""
        before, batches = self.engine.global_steps, len(self.trainer.replay_buffer)
        status = fit()
        carried = self.engine.micro_steps % self.engine.gradient_accumulation_steps()
        if carried:
            raise RuntimeError(
                f"{carried} of {self.engine.gradient_accumulation_steps()} micro-batches carried over the fit's end"
            )
        return {**status, "optimiser_steps": self.engine.global_steps - before, "micro_batches": batches}

    def check_finite(self) -> None:
        """Before weights are synced or saved.

        Raises:
            FloatingPointError: A weight is not finite; names the tensors.
        """
        parts = {n: getattr(p, "ds_tensor", p) for n, p in self.engine.module.named_parameters()}  # ZeRO-3 shards
        broken = [name for name, value in parts.items() if not torch.isfinite(value).all()]
        if broken:
            raise FloatingPointError(f"weights that are not finite: {', '.join(broken[:5])}")

    def warm_up(self, memory: int, states: Sequence[Any]) -> None:
        """Load DeepSpeed's operators, which takes seconds, and touch so many bytes; this process belongs to no policy yet.

        Args:
            memory: Bytes.
            states: References to states, of which this process may be given one.
        """
        for _ in load_operators():
            pass
        if ON_CPU:
            cpu.touch_memory(memory)
            for state in ray.get(list(states)):
                touch(state)

    def assign(self, ranks: int, rank: int, address: str | None, port: int | None) -> tuple[str, int]:
        """Become a rank of a policy; the address and port at which its ranks meet, which rank 0 draws now."""
        super().__init__(ranks, rank, address, port)  # type: ignore[call-arg]
        return self._master_addr, self._master_port

    def get_state(self) -> tuple[int, TrainingState]:
        """The whole state, and before it its size: two values, so that one can wait without fetching the other."""
        state = get_state(self.engine, self.strategy)
        return state.nbytes, state

    def set_state(self, state: TrainingState) -> None:
        """After the model has been loaded: go on where another process was asked for its state."""
        set_state(self.engine, self.strategy, state)


class PolicyActor(TrainingProcess, upstream_actor.PolicyModelActor.__ray_metadata__.modified_class):  # type: ignore[misc]
    """One training process of a policy."""

    reference: Any = None

    def init_model_from_pretrained(
        self, strategy: Any, pretrain: str, max_steps: int, vllm_engines: Any = None, with_reference: bool = False
    ) -> None:
        keep_settings_when_loading(strategy)
        # Without engines no NCCL group is set up; on CPU the weights go as one object instead.
        super().init_model_from_pretrained(strategy, pretrain, max_steps, None if ON_CPU else vllm_engines)
        self.vllm_engines = vllm_engines
        self.engine = self.actor.model
        if ON_CPU:
            cpu.make_adam_resumable(self.engine.basic_optimizer)
        if with_reference:
            self.reference = _reference(strategy, pretrain)

    gradients: Gradients | None = None
    """Of the rows that were learned from beside this step's rollout."""

    def begin_gradients(self, version: int, late: bool) -> None:
        """Forget what is accumulated and begin anew; see `Gradients`."""
        self.gradients = Gradients(self.trainer, version, late)

    def accumulate(self, batches: Sequence[MicroBatch], *args: Any) -> list[bool]:
        """Take the gradients of some micro-batches; which of their sequences are in the accumulators now. See `Gradients.add`."""
        assert self.gradients is not None, "begin_gradients comes first"
        return [good for batch in batches for good in self.gradients.add(batch, *args)]

    def carry(self, statistics: dict[str, tuple[float, float]], tokens: float, sequences: int, version: int) -> None:
        """Before a fit, after `prepare_fit`: what its first micro-batch takes along; see `Carried`."""
        assert self.gradients is not None, "begin_gradients comes first"
        accumulation = self.strategy.accumulated_gradient
        self.trainer.carried = Carried(self.gradients.sums, statistics, tokens, sequences, version, accumulation)

    with_corrections = False
    """Whether the next fit has corrected actions, on whatever rank."""

    def expect_corrections(self) -> None:
        """Before a fit with corrected actions."""
        self.with_corrections, self.trainer.corrections_loss = True, 0.0

    def fit(self, kl_ctl: float = 0) -> dict[str, Any]:
        """Upstream's fit; with corrected actions also their loss, summed over micro-batches and ranks."""
        fit = super().fit
        try:
            status = self.in_whole_windows(lambda: fit(kl_ctl))
        finally:
            self.gradients = self.trainer.carried = None
        if self.with_corrections:
            self.with_corrections = False
            status["corrections_loss"] = self.strategy.all_reduce(self.trainer.corrections_loss, op="mean")
        return status

    def broadcast_to_vllm(self) -> None:
        """Weight sync as upstream's own loop asks for it; on CPU the whole state in one transfer."""
        if not ON_CPU:
            super().broadcast_to_vllm()
            return
        state = self.state()
        if state is not None:
            blob = ray.put(state)
            ray.get([engine.load_state.remote(blob, "", 0) for engine in self.vllm_engines])
        torch.distributed.barrier()

    def save_model(self, folder: str | None = None) -> None:
        """The weights in Hugging Face format, in the policy's own folder or in another one."""
        ckpt = self.strategy.args.ckpt
        own, ckpt.output_dir = ckpt.output_dir, folder or ckpt.output_dir
        try:
            super().save_model()
        finally:
            ckpt.output_dir = own

    def reference_forward(self, **kwargs: Any) -> torch.Tensor:
        """The reference model's log-probs, as upstream's `ReferenceModelActor.forward`."""
        forward: torch.Tensor = _UpstreamReference.__ray_metadata__.modified_class.forward(self.reference, **kwargs)
        return forward

    def state(self) -> bytes | None:
        """The whole state as safetensors bytes on rank 0, None on the others.

        Raises:
            FloatingPointError: A weight is not finite; the names of the tensors are given.
        """
        if torch.distributed.get_rank() != 0:
            return None
        import safetensors.torch

        self.check_finite()
        state = {name: p.detach().contiguous().cpu() for name, p in self.engine.module.named_parameters()}
        blob: bytes = safetensors.torch.save(state)
        return blob


class _Reference:
    """A frozen model in the policy's process, with the two attributes that upstream's `forward` reads."""

    def __init__(self, model: Any, strategy: Any):
        self.model, self.strategy = model, strategy


def _reference(strategy: Any, pretrain: str) -> _Reference:
    actor = upstream_actor.Actor(
        pretrain,
        attn_implementation=strategy.args.ds.attn_implementation,
        experts_implementation=strategy.args.ds.experts_implementation,
        param_dtype=strategy.args.ds.param_dtype,
        temperature=strategy.args.rollout.temperature,
    )
    return _Reference(actor.eval(), strategy)


class ReferenceActor(_UpstreamReference.__ray_metadata__.modified_class):  # type: ignore[misc]
    """Upstream's reference process; a subclass so that the host support is installed before upstream is imported."""


RemotePolicyActor = ray.remote(num_gpus=1)(PolicyActor)
RemoteReferenceActor = ray.remote(num_gpus=1)(ReferenceActor)
