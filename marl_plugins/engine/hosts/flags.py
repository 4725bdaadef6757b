"""The table of what this project does with every flag of upstream: the one table behind the checks,
`--dry-run` and `docs/flags.md`.

    all       honoured; one value for the whole run
    policy    honoured, and may differ per policy: --policy.NAME.<flag>, or `policies: NAME: flags:`
              in a recipe
    replaced  this project does the same in another way, named in the note; refused when set
    refused   not supported with several policies yet, for the reason in the note; refused when set

A test compares the table with upstream's parser: it fails if a flag is missing from either.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from marl_plugins.engine.hosts.releases import concerns

Status = Literal["all", "policy", "replaced", "refused"]


class Flag(NamedTuple):
    """A flag's status and the reason. A flag for some `estimators` is refused with all others.

    `releases` are the versions of upstream that have it, empty for all. `plugin` is who honours it,
    empty where the loop does: without that plugin it is refused.
    """

    status: Status
    note: str = ""
    estimators: tuple[str, ...] = ()
    releases: str = ""
    plugin: str = ""


_FILTERING = "marl_plugins.builtin.filtering"
_EMA = "marl_plugins.builtin.ema"
_LORA = "with --plugin marl_plugins.adapters"
_VLM = "roles see text: see What was tried"
_REWARD_MODEL = "marl_plugins.builtin.reward_model"
_SEQUENCE = "on GPUs, with packing; ring_flash_attn has not been run here yet"
_REFERENCE = (
    "default: as many as the policy has; on CPU the reference lives in the policy's own processes"
)
_CRITIC = "default: as many as the policy has"

_PLAIN = """
actor.num_nodes=policy actor.num_gpus_per_node=policy actor.model_name_or_path=policy
ref.num_nodes=policy ref.num_gpus_per_node=policy ref.offload=policy train.colocate_actor_ref=policy
train.colocate_all=policy
vllm.num_engines=policy vllm.tensor_parallel_size=policy
vllm.enable_prefix_caching=policy vllm.enforce_eager=policy vllm.enable_sleep=policy
vllm.gpu_memory_utilization=policy
algo.advantage.is_correction_level=policy algo.advantage.is_correction_mode=policy
algo.advantage.is_correction_gating=policy algo.advantage.is_correction_threshold=policy
eval.steps=all ckpt.save_steps=all logger.logging_steps=all ckpt.max_num=all ckpt.load_enable=all
ckpt.save_hf=all
ds.zero_stage=policy actor.gradient_checkpointing_enable=policy
actor.gradient_checkpointing_reentrant=policy
ds.param_dtype=policy ds.zpg=policy ds.adam_offload=policy ds.attn_implementation=policy
ds.experts_implementation=policy ds.use_liger_kernel=policy ds.grad_accum_dtype=policy
ds.overlap_comm=policy
data.disable_fast_tokenizer=policy ds.enable_sleep=policy
train.num_episodes=all rollout.micro_batch_size=policy
train.max_epochs=policy data.max_len=policy rollout.max_new_tokens=policy data.max_samples=all
actor.eps_clip=policy actor.eps_clip_low_high=policy actor.dual_clip=policy
rollout.top_p=policy
rollout.temperature=policy train.seed=all train.full_determinism_enable=policy
algo.kl.init_coef=policy algo.kl.estimator=policy algo.kl.unbiased_gradient=policy
algo.kl.use_loss=policy actor.policy_loss_type=policy actor.loss_agg_mode=policy
actor.entropy_coef=policy reward.clip_range=policy
actor.optim=policy actor.muon.lr=policy actor.muon.momentum=policy actor.muon.ns_steps=policy
actor.muon.nesterov=policy
actor.muon.no_nesterov=policy actor.adam.lr=policy actor.adam.betas=policy actor.adam.eps=policy
actor.adam.weight_decay=policy actor.lr_scheduler=policy actor.lr_warmup_ratio=policy
actor.min_lr_ratio=policy
actor.max_norm=policy
reward.overlong_buffer_len=policy reward.overlong_penalty_factor=policy
reward.stop_properly_penalty_coef=policy
data.prompt_dataset=all eval.dataset=all eval.temperature=all eval.n_samples_per_prompt=all
data.input_key=all data.label_key=all logger.wandb.key=all logger.wandb.org=all
logger.wandb.group=all
logger.wandb.project=all logger.wandb.run_name=all logger.tensorboard_dir=all
"""
"""Flags without a note."""

_NOTED: dict[str, Flag] = {
    "rollout.batch_size": Flag("all", "tasks of a step"),
    "rollout.n_samples_per_prompt": Flag("all", "trajectories of each task of a step"),
    "train.batch_size": Flag(
        "all",
        "trajectories per optimiser step, however many actions they have: a step makes "
        "K = rollout.batch_size x rollout.n_samples_per_prompt / train.batch_size optimiser steps",
    ),
    "train.micro_batch_size": Flag("policy", "rows per forward pass"),
    "ref.num_gpus_per_node": Flag("policy", _REFERENCE),
    "ref.num_nodes": Flag("policy", _REFERENCE),
    "ref.offload": Flag("policy", "on CPU there is nothing to offload from"),
    "ckpt.path": Flag(
        "all",
        "a folder per policy, and the manifest; with a recipe OUTPUT_DIR/checkpoints by default",
    ),
    "ckpt.output_dir": Flag(
        "all",
        "a folder per policy for its weights, and the records; with a recipe runs/NAME by default",
    ),
    "algo.advantage.estimator": Flag("all", "default here: reinforce (REINFORCE++)"),
    "algo.advantage.gamma": Flag("all", "per sampled token", ("reinforce", "gae")),
    "algo.advantage.no_std_norm": Flag("all", "", ("reinforce", "reinforce_baseline", "gae")),
    "algo.advantage.lambd": Flag("all", "per sampled token", ("gae",)),
    "critic.model_name_or_path": Flag("policy", "default: the policy's own model", ("gae",)),
    "critic.freezing_steps": Flag(
        "policy",
        "the first N steps, as its help says; upstream counts from 0 and freezes one more",
        ("gae",),
    ),
    "critic.save_value_network": Flag(
        "policy", "saved next to the policy's folder, as `NAME_critic`", ("gae",)
    ),
    "critic.value_clip": Flag("policy", "", ("gae",)),
    "critic.num_nodes": Flag("policy", _CRITIC, ("gae",)),
    "critic.num_gpus_per_node": Flag("policy", _CRITIC, ("gae",)),
    "ds.value_head_prefix": Flag("policy", "", ("gae",)),
    "reward.remote_url": Flag(
        "all", "only a .py file: its reward_func(queries, prompts, labels) scores outcomes"
    ),
    "train.agent_func_path": Flag("replaced", "by the recipe's workflow"),
    "data.apply_chat_template": Flag(
        "replaced", "roles always use their model's own chat template"
    ),
    "data.input_template": Flag("replaced", "by the roles' prompt files"),
    "data.prompt_probs": Flag("all", "of several sets in --data.prompt_dataset"),
    "data.prompt_split": Flag("all", "of data sets; a file has none"),
    "eval.split": Flag("all", "without a default: what is not said is refused"),
    "vllm.sync_backend": Flag("replaced", "by Ray's store, through which weights go"),
    "vllm.sync_with_ray": Flag("replaced", "by Ray's store, through which weights go"),
    "data.dataloader_num_workers": Flag("replaced", "tasks are read once at start"),
    "ckpt.max_mem": Flag(
        "replaced", "by --ckpt.max_num: complete steps are kept or deleted together"
    ),
    "ckpt.best_metric_key": Flag(
        "all",
        "default here: none. The best step of all policies together, by an average over the "
        "evaluations; empty: eval/outcome",
    ),
    "ckpt.disable_ds": Flag(
        "all",
        "no step is saved, only the final weights and the best ones; the run cannot be resumed",
    ),
    "ds.use_universal_ckpt": Flag(
        "refused", "upstream saves nothing that it could load: see What was tried"
    ),
    "rollout.vllm_generate_batch_size": Flag(
        "refused", "all trajectories of a step run concurrently"
    ),
    "algo.kl.target": Flag(
        "refused",
        "upstream's adaptive KL controller does not work there either (ppo_trainer.py:258)",
    ),
    "algo.kl.horizon": Flag("refused", "belongs to --algo.kl.target"),
    "train.colocate_critic_reward": Flag(
        "refused", "the reward model serves all policies, whose critics have devices of their own"
    ),
    "reward.model_name_or_path": Flag(
        "all",
        "scores the outcome, or with --reward_model.roles actions: coach.md, A reward model",
        plugin=_REWARD_MODEL,
    ),
    "reward.num_nodes": Flag("all", "devices of its own", plugin=_REWARD_MODEL),
    "reward.num_gpus_per_node": Flag("all", "default here: 1", plugin=_REWARD_MODEL),
    "reward.offload": Flag("all", "on CPU there is nothing to offload from", plugin=_REWARD_MODEL),
    "reward.normalize_enable": Flag(
        "all", "by `mean` and `std` of the model's config.json", plugin=_REWARD_MODEL
    ),
    "train.async_enable": Flag(
        "all",
        "makes the next rollout during an update; the queue alone decides which weights sample it",
    ),
    "train.async_queue_size": Flag(
        "all", "the most rollouts that wait, and the lag of every row but the first ones"
    ),
    "train.partial_rollout_enable": Flag(
        "all",
        "engines pause within answers, take new weights and go on; a run cannot be repeated",
    ),
    "train.enable_ema": Flag(
        "all",
        "in float32, by optimiser steps; saved and evaluated in addition to the weights",
        plugin=_EMA,
    ),
    "train.ema_beta": Flag("policy", "between 0 and 1", plugin=_EMA),
    "ds.packing_samples": Flag(
        "policy", "on CPU with attention eager or sdpa, which keep packed rows apart"
    ),
    "train.dynamic_batch_enable": Flag(
        "policy", "micro-batches by tokens; K optimiser steps all the same. Switches packing on"
    ),
    "rollout.max_tokens_per_gpu": Flag("policy", "default: --train.max_tokens_per_gpu"),
    "train.max_tokens_per_gpu": Flag("policy", "with --train.dynamic_batch_enable"),
    "ds.load_in_4bit": Flag("refused", "engines would sample from other weights than training has"),
    "ds.lora.rank": Flag("policy", f"above 0 the policy is an adapter of its model, {_LORA}"),
    "ds.lora.alpha": Flag("policy", _LORA),
    "ds.lora.target_modules": Flag("policy", _LORA),
    "ds.lora.dropout": Flag("policy", f"{_LORA}, which takes 0 only"),
    "ds.deepcompile": Flag("refused", "not tried with accumulation that changes from step to step"),
    "ds.ring_attn_size": Flag("policy", _SEQUENCE),
    "ds.ring_attn_head_stride": Flag("policy", _SEQUENCE),
    "ds.tensor_parallel_size": Flag(
        "refused", "DeepSpeed tensor parallelism has not been tried; vLLM's is honoured"
    ),
    "algo.dynamic_filtering_enable": Flag(
        "all",
        "by the mean outcome of a task's samples; a run has as many steps as without it",
        plugin=_FILTERING,
    ),
    "algo.dynamic_filtering_range": Flag("all", "neither bound is within", plugin=_FILTERING),
    "data.image_key": Flag("refused", _VLM),
    "data.max_images_per_prompt": Flag("refused", _VLM),
    "actor.freeze_visual_encoder": Flag("refused", _VLM),
    "local_rank": Flag("refused", "set by the launcher of single-policy jobs"),
    "actor.aux_loss_coef": Flag(
        "refused", "the router's loss has no mask, so weightless sequences would weigh in it"
    ),
    "use_ms": Flag(
        "refused",
        "models are loaded in other processes than it patches; name a folder: see What was tried",
    ),
}
_RELEASES = {
    ">=0.11.2": "actor.loss_agg_mode algo.advantage.is_correction_level "
    "algo.advantage.is_correction_mode "
    "algo.advantage.is_correction_gating",
    ">=0.11.1": "algo.kl.unbiased_gradient",
    "<0.11.2": "algo.advantage.is_correction_enable algo.advantage.is_correction_type",
}
"""Flags of some releases only."""


def _build_table() -> dict[str, Flag]:
    flags: dict[str, Flag] = {}
    for entry in _PLAIN.split():
        name, _, status = entry.partition("=")
        flags[name] = Flag("policy" if status == "policy" else "all")
    flags |= _NOTED
    for releases, names in _RELEASES.items():
        for name in names.split():
            flags[name] = flags.get(name, Flag("policy"))._replace(releases=releases)
    optimiser = (
        "optim",
        "muon",
        "adam",
        "lr_scheduler",
        "lr_warmup_ratio",
        "min_lr_ratio",
        "max_norm",
    )
    for name in [name.removeprefix("actor.") for name in flags if name.startswith("actor.")]:
        if name.partition(".")[0] in optimiser:
            flags[f"critic.{name}"] = Flag("policy", "", ("gae",))
    return flags


FLAGS = _build_table()


def flags_of(version: str) -> set[str]:
    """Returns the flags of the table that a release of upstream has."""
    return {name for name, flag in FLAGS.items() if concerns(flag.releases, version)}
