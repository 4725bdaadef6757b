"""One policy of a run: its training processes, its reference, its engines, driven through upstream's trainer classes."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Sequence
from typing import Any

import torch

# Installs the host support, before upstream is imported below.
import marl_plugins.runtime.policy_actor  # isort: skip  # noqa: F401
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, split_experience_batch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from openrlhf.trainer.ppo_utils.replay_buffer import remove_padding_in_sequences
from ray.exceptions import RayActorError, RayTaskError

from marl_plugins.core.estimators import Batch, Estimator
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.grid import Grid, plan_grid
from marl_plugins.core.rows import Row
from marl_plugins.core.seeds import derive_seed
from marl_plugins.run import Policy
from marl_plugins.runtime.engines import EnginePool


class ExperienceMaker(RemoteExperienceMaker):  # type: ignore[misc]
    """Upstream's maker of experiences, for any number of batches."""

    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        """Log-probs, KL and values of the batches, in place.

        The dispatch list is padded to a multiple of the ranks and the extra is discarded: upstream gives the last ranks
        fewer batches or none (launcher.py:354-365), and a collective in the forward would then wait for ever.
        """
        ranks = [ranks_of(group) for group in (self.actor_model_group, self.critic_model_group) if group is not None]
        extra = -len(samples_list) % math.lcm(*ranks)
        padded = samples_list + [copy.copy(samples_list[-1]) for _ in range(extra)]
        for sample in padded[len(samples_list) :]:
            sample.info = dict(sample.info)
        made: list[Experience] = super().make_experience(padded)
        return made[: len(samples_list)]


class ReferenceInPolicy:
    """Upstream's view of a reference group, where the reference model lives in the policy's own processes."""

    def __init__(self, group: Any):
        self.group = group

    def async_run_method_batch(self, method_name: str, **arguments: Any) -> Any:
        assert method_name == "forward"
        return self.group.async_run_method_batch("reference_forward", **arguments)

    def async_run_method(self, method_name: str, *args: Any, **arguments: Any) -> Any:
        return self.group.async_run_method(method_name, *args, **arguments)


class PolicyTrainer(BasePPOTrainer):  # type: ignore[misc]
    """Upstream's trainer of one policy: KL controller, experience maker, update and broadcast are its own."""

    def __init__(self, strategy: Any, group: Any, reference: Any, engines: list[Any], tokenizer: Any, critic: Any = None):
        super().__init__(strategy, group, critic, None, reference, engines, tokenizer)
        self.experience_maker = ExperienceMaker(group, critic, None, reference, self.kl_ctl, strategy, tokenizer)


def ranks_of(group: Any) -> int:
    """Data-parallel ranks of a group of training processes."""
    return len(group._actor_handlers) // int(group.duplicate_actors)


def row_experience(row: Row) -> Experience:
    """One row as upstream has it: (1, T) ids and mask, (1, T-1) action mask and sampled log-probs, (1,) the rest."""
    context, generation = row.action.context_ids, row.action.generation
    ids = torch.tensor([*context, *generation.ids], dtype=torch.long)[None]
    shown, sampled = len(context), len(generation.ids)
    mask = torch.zeros_like(ids)
    mask[:, shown:] = 1
    logprobs = torch.zeros(ids.shape, dtype=torch.float32)
    logprobs[:, shown:] = torch.tensor(generation.logprobs, dtype=torch.float32)
    reward = torch.tensor([row.reward], dtype=torch.float32)
    return Experience(
        sequences=ids,
        attention_mask=torch.ones_like(ids),
        action_mask=mask[:, 1:],
        rollout_log_probs=logprobs[:, 1:],
        prompts=[row.name],
        labels=[""],
        images=[None],
        mm_train_inputs=[None],
        rewards=reward,
        scores=reward.clone(),
        response_length=torch.tensor([sampled]),
        truncated=torch.tensor([generation.finish == "length"]),
        total_length=torch.tensor([float(shown + sampled)]),
        info={"reward": reward.clone()},
    )


class PolicyHost:
    """A policy with everything that belongs to it.

    Args:
        policy: What it is.
        args: Its flags.
        trainer: Upstream's trainer; None for a frozen policy, which has engines only.
        engines: Its engines.
        device: `cpu` or `cuda`.
    """

    def __init__(self, policy: Policy, args: Any, trainer: PolicyTrainer | None, engines: EnginePool, device: str):
        self.policy = policy
        self.args = args
        self.trainer = trainer
        self.engines = engines
        self.device = device
        self.version = 0
        self.run_seed: int = args.train.seed
        self.step = 0
        self.experiences: list[Experience] = []
        self.batches: list[list[Row]] = []
        self.items: dict[int, Experience] = {}
        engines.restore = self.restore_engine

    @property
    def group(self) -> Any:
        assert self.trainer is not None, f"policy {self.policy.name!r} is frozen"
        return self.trainer.actor_model_group

    @property
    def critic(self) -> Any:
        """The critic's processes; None without one."""
        assert self.trainer is not None
        return self.trainer.critic_model_group

    async def make_experience(self, rows: Sequence[Row]) -> None:
        """Log-probs of the policy and its reference, and the critic's values, in micro-batches of `rollout.micro_batch_size`."""
        assert self.trainer is not None
        size = self.args.rollout.micro_batch_size
        self.batches = [list(rows[i : i + size]) for i in range(0, len(rows), size)]
        maker = self.trainer.experience_maker
        samples = maker.split_rollout_samples([row_experience(row) for row in rows])
        self.experiences = await self.remote(asyncio.to_thread(maker.make_experience, samples))
        for batch, experience in zip(self.batches, self.experiences, strict=True):
            for name in ("action_log_probs", "kl", *(["values"] if self.critic else [])):
                finite = torch.isfinite(getattr(experience, name)).all(-1)
                if not finite.all():
                    broken = [row.name for row, good in zip(batch, finite.tolist(), strict=True) if not good]
                    self.not_finite(name, f"rows {', '.join(broken[:5])}")
        apply_length_penalties(self.experiences, self.args)

    def estimate(self, estimator: Estimator) -> list[Batch]:
        """Returns and advantages per token of the rows in hand, from the KL penalty at every token and the reward at the last."""
        assert self.trainer is not None
        batches: list[Batch] = []
        for rows, e in zip(self.batches, self.experiences, strict=True):
            rewards = compute_reward(
                e.rewards.float(),
                self.trainer.kl_ctl.value,
                e.kl,
                action_mask=e.action_mask,
                reward_clip_range=self.args.reward.clip_range,
            )
            e.advantages, e.returns = estimator.estimate(rewards, e.action_mask, e.values)
            e.info["return"] = (rewards * e.action_mask).sum(-1)
            batches.append((rows, e.advantages, e.action_mask))
        return batches

    def finish_advantages(self, estimator: Estimator, statistics: Any) -> None:
        """Write the advantages, and keep each row's experience for the update."""
        self.items = {}
        for rows, e in zip(self.batches, self.experiences, strict=True):
            e.advantages = estimator.apply(rows, e.advantages, statistics)
            e.kl = None
            means = (e.advantages * e.action_mask).sum(-1) / e.action_mask.sum(-1)
            for row, mean, item in zip(rows, means.tolist(), split_experience_batch(e), strict=True):
                row.action.advantage = mean
                self.items[id(row)] = item
        remove_padding_in_sequences(list(self.items.values()))
        self.experiences, self.batches = [], []

    def drift(self) -> float:
        """Mean absolute difference of the log-probs of trainer and engine over all sampled tokens in hand."""
        total = tokens = 0.0
        for e in self.experiences:
            mask = e.action_mask
            total += ((e.action_log_probs - e.rollout_log_probs).abs() * mask).sum().item()
            tokens += mask.sum().item()
        return total / tokens if tokens else 0.0

    async def update(self, rows: Sequence[Row], steps: int) -> dict[str, float]:
        """Train policy and critic on the rows: fill the grid, hand each rank its part, and let upstream fit.

        A policy that is frozen (`--critic.freezing_steps`) is handed no rows: upstream's would keep them for a later fit.

        Args:
            steps: Optimiser steps per epoch, K; fewer when there are too few rows.

        Returns:
            Upstream's metrics of the fit, the optimiser steps taken and the rows filled in; the critic's as `critic_*`.
        """
        assert self.trainer is not None
        frozen = self.step <= self.args.critic.freezing_steps
        groups = {"": None if frozen else self.group, "critic_": self.critic}
        grids = {name: await self.hand_out(group, rows, steps) for name, group in groups.items() if group and rows}
        status = await self.remote(asyncio.to_thread(self.trainer.ppo_train, self.step)) if grids else {}
        self.items = {}
        metrics = {"optimiser_steps": 0.0, "fill_rows": 0.0}
        metrics |= {k: float(v) for k, v in status.items() if isinstance(v, int | float)}
        for name, grid in grids.items():
            metrics[f"{name}fill_rows"] = float(grid.fill)
            taken, due = metrics[f"{name}optimiser_steps"], grid.steps * self.args.train.max_epochs
            if taken != due or metrics[f"{name}rows_per_rank"] != grid.rows_per_rank:
                who = f"policy {self.policy.name!r}" + (", its critic," if name else "")
                raise AssertionError(f"{who} took {taken:g} optimiser steps instead of {due}")
        for name in ("policy_loss", "actor_grad_norm", "critic_loss", "critic_grad_norm"):
            overflow = name.endswith("grad_norm") and self.args.ds.param_dtype == "fp16"  # loss scaling skips such steps
            if not math.isfinite(metrics.get(name, 0.0)) and not overflow:
                self.not_finite(name, f"{len(rows)} rows, the first {rows[0].name}")
        if self.critic:  # the policy's weights are looked at when they are synced
            await self.remote(*self.critic.async_run_method("check_finite"))
        if "kl" in metrics:
            self.trainer.kl_ctl.update(metrics["kl"], len(rows))
        return metrics

    async def hand_out(self, group: Any, rows: Sequence[Row], steps: int) -> Grid:
        """Give each rank of the policy's or the critic's processes its part of the rows for the next fit."""
        grid = plan_grid(len(rows), ranks_of(group), self.args.train.micro_batch_size, steps)
        assert grid is not None, "there are rows"
        items = [self.items[id(row)] for row in rows]
        filler = weightless(min(items, key=lambda item: len(item.sequences)))
        parts = [make_experience_batch([copy.copy(i) for i in part]) for part in grid.per_rank(items, filler)]
        await self.remote(*group.async_run_method_batch("append", experience=parts))
        seed = derive_seed(self.run_seed, "fit", self.step, self.policy.name)
        await self.remote(*group.async_run_method("prepare_fit", grid.accumulation, seed))
        return grid

    async def save(self, tag: str, state: dict[str, Any]) -> None:
        """A checkpoint of the policy and its critic under a tag."""
        work = self.group.async_run_method("save_checkpoint", tag, state)
        if self.critic:
            work += self.critic.async_run_method("save_checkpoint", tag)
        await self.remote(*work)

    async def save_model(self) -> None:
        """The weights in Hugging Face format; the critic's too with `--critic.save_value_network`, else upstream skips it."""
        await self.remote(*self.group.async_save_model(), *(self.critic.async_save_model() if self.critic else []))

    async def sync(self, version: int) -> bool:
        """Bring the engines to the policy's current weights and call them `version`."""
        assert self.trainer is not None
        self.version = version
        if self.device == "cpu":
            blob = self.group.async_run_method("state")[0]
            await self.remote(self.engines.on_all(lambda h: h.load_state.remote(blob, self.policy.name, version)))
        else:
            await self.remote(*self.group.async_run_method("check_finite"))
            await self.remote(asyncio.to_thread(self.trainer.broadcast_to_vllm))
            await self.remote(self.engines.on_all(lambda h: h.identify.remote(self.policy.name, version)))
        return True

    async def wake(self) -> None:
        """Before a rollout: wake the engines that share their devices with the training processes."""
        if self.args.vllm.enable_sleep:
            await self.engines.on_all(lambda handle: handle.wake_up.remote())

    async def sleep(self) -> None:
        """After a rollout: give the devices to the training processes, as upstream does (samples_generator.py:100-113)."""
        if self.args.vllm.enable_sleep:
            await self.engines.on_all(lambda handle: handle.sleep.remote())

    async def restore_engine(self, handle: Any) -> None:
        """Give a new engine the policy's current weights; a frozen policy's engine has loaded them itself."""
        if self.trainer is None:
            await handle.identify.remote(self.policy.name, self.version)
        else:
            blob = self.group.async_run_method("state")[0]
            try:
                await handle.load_state.remote(blob, self.policy.name, self.version)
            except RayActorError as error:
                if error.actor_id == handle._actor_id.hex():
                    raise  # the new engine has died too
                raise self.process_died(error) from error

    async def remote(self, *work: Any) -> Any:
        """Await work of the policy's processes; a process that died ends the run in a state that can be resumed."""
        try:
            results = await asyncio.gather(*work)
        except RayActorError as error:
            raise self.process_died(error) from error
        return results[0] if len(results) == 1 else results

    def process_died(self, error: RayActorError) -> RunEnded:
        reason = str(error).splitlines()[0]
        return RunEnded(f"a training process of policy {self.policy.name!r} died at step {self.step}: {reason}")

    def not_finite(self, what: str, which: str) -> None:
        raise RunEnded(
            f"policy {self.policy.name!r}, step {self.step}: {what} is not finite ({which}); nothing of this step was synced "
            "or saved. Lower the learning rate, or look at what these rows hold"
        )


def advantages(hosts: Sequence[PolicyHost], estimator: Estimator) -> None:
    """Advantages of the rows that the policies have in hand, baselines and statistics taken over all of them together."""
    batches = [batch for host in hosts for batch in zip(host.batches, host.experiences, strict=True)]
    rewards = torch.cat([e.rewards.float() for _, e in batches])
    shaped = estimator.shape([row for rows, _ in batches for row in rows], rewards)
    for (_, e), mine in zip(batches, torch.split(shaped, [len(rows) for rows, _ in batches]), strict=True):
        e.rewards = mine
    statistics = estimator.statistics([batch for host in hosts for batch in host.estimate(estimator)])
    for host in hosts:
        host.finish_advantages(estimator, statistics)


def weightless(item: Experience) -> Experience:
    """A copy of a row that weighs nothing: no token of it is in any mask."""
    blank = copy.copy(item)
    blank.action_mask = torch.zeros_like(item.action_mask)
    blank.advantages = torch.zeros_like(item.advantages)
    blank.returns = torch.zeros_like(item.returns)
    return blank


def raised_by(error: RayTaskError) -> Exception:
    """What a remote method raised, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error
