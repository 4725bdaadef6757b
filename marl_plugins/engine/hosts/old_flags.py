"""Flags of OpenRLHF 0.10.1 and older under their names of today, for people whose command line was
written then.

Release 0.10.2 gave every flag a dotted name (`--pretrain` became `--actor.model_name_or_path`). The
old names are refused by upstream and here; this table says what to write instead, in errors and in
`docs/from_openrlhf.md`. A test compares it with upstream's parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from marl_plugins.engine.hosts.flags import FLAGS

_NAMES = """
pretrain=actor.model_name_or_path critic_pretrain=critic.model_name_or_path
reward_pretrain=reward.model_name_or_path
remote_rm_url=reward.remote_url agent_func_path=train.agent_func_path
prompt_data=data.prompt_dataset prompt_data_probs=data.prompt_probs prompt_split=data.prompt_split
input_key=data.input_key
label_key=data.label_key input_template=data.input_template
apply_chat_template=data.apply_chat_template
max_samples=data.max_samples max_len=data.max_len prompt_max_len=data.max_len
disable_fast_tokenizer=data.disable_fast_tokenizer
dataloader_num_workers=data.dataloader_num_workers image_key=data.image_key
max_images_per_prompt=data.max_images_per_prompt
generate_max_len=rollout.max_new_tokens max_new_tokens=rollout.max_new_tokens
rollout_batch_size=rollout.batch_size
micro_rollout_batch_size=rollout.micro_batch_size n_samples_per_prompt=rollout.n_samples_per_prompt
temperature=rollout.temperature top_p=rollout.top_p
vllm_generate_batch_size=rollout.vllm_generate_batch_size
rollout_max_tokens_per_gpu=rollout.max_tokens_per_gpu
train_batch_size=train.batch_size micro_train_batch_size=train.micro_batch_size
num_episodes=train.num_episodes
max_epochs=train.max_epochs seed=train.seed full_determinism=train.full_determinism_enable
colocate_all_models=train.colocate_all colocate_actor_ref=train.colocate_actor_ref
colocate_critic_reward=train.colocate_critic_reward async_train=train.async_enable
async_queue_size=train.async_queue_size
partial_rollout=train.partial_rollout_enable use_dynamic_batch=train.dynamic_batch_enable
train_max_tokens_per_gpu=train.max_tokens_per_gpu enable_ema=train.enable_ema
ema_beta=train.ema_beta
actor_learning_rate=actor.adam.lr critic_learning_rate=critic.adam.lr adam_betas=actor.adam.betas
l2=actor.adam.weight_decay
lr_scheduler=actor.lr_scheduler lr_warmup_ratio=actor.lr_warmup_ratio max_norm=actor.max_norm
eps_clip=actor.eps_clip
eps_clip_low_high=actor.eps_clip_low_high dual_clip=actor.dual_clip
policy_loss_type=actor.policy_loss_type
entropy_loss_coef=actor.entropy_coef aux_loss_coef=actor.aux_loss_coef
gradient_checkpointing=actor.gradient_checkpointing_enable
gradient_checkpointing_use_reentrant=actor.gradient_checkpointing_reentrant
freeze_visual_encoder=actor.freeze_visual_encoder
value_clip=critic.value_clip freezing_actor_steps=critic.freezing_steps
save_value_network=critic.save_value_network
advantage_estimator=algo.advantage.estimator gamma=algo.advantage.gamma lambd=algo.advantage.lambd
no_advantage_std_norm=algo.advantage.no_std_norm
init_kl_coef=algo.kl.init_coef kl_estimator=algo.kl.estimator use_kl_loss=algo.kl.use_loss
kl_target=algo.kl.target
kl_horizon=algo.kl.horizon use_kl_estimator_k3=algo.kl.estimator
dynamic_filtering=algo.dynamic_filtering_enable
dynamic_filtering_reward_range=algo.dynamic_filtering_range
enable_vllm_is_correction=algo.advantage.is_correction_level
vllm_is_correction_type=algo.advantage.is_correction_mode
vllm_is_truncated_threshold=algo.advantage.is_correction_threshold
use_icepop=algo.advantage.is_correction_mode
normalize_reward=reward.normalize_enable reward_clip_range=reward.clip_range
overlong_buffer_len=reward.overlong_buffer_len
overlong_penalty_factor=reward.overlong_penalty_factor
stop_properly_penalty_coef=reward.stop_properly_penalty_coef
actor_num_nodes=actor.num_nodes actor_num_gpus_per_node=actor.num_gpus_per_node
critic_num_nodes=critic.num_nodes
critic_num_gpus_per_node=critic.num_gpus_per_node ref_num_nodes=ref.num_nodes
ref_num_gpus_per_node=ref.num_gpus_per_node
reward_num_nodes=reward.num_nodes reward_num_gpus_per_node=reward.num_gpus_per_node
ref_reward_offload=ref.offload
vllm_num_engines=vllm.num_engines vllm_tensor_parallel_size=vllm.tensor_parallel_size
vllm_sync_backend=vllm.sync_backend
vllm_sync_with_ray=vllm.sync_with_ray enable_prefix_caching=vllm.enable_prefix_caching
enforce_eager=vllm.enforce_eager
vllm_enable_sleep=vllm.enable_sleep vllm_gpu_memory_utilization=vllm.gpu_memory_utilization
zero_stage=ds.zero_stage zpg=ds.zpg adam_offload=ds.adam_offload param_dtype=ds.param_dtype
bf16=ds.param_dtype
attn_implementation=ds.attn_implementation flash_attn=ds.attn_implementation
use_liger_kernel=ds.use_liger_kernel
grad_accum_dtype=ds.grad_accum_dtype overlap_comm=ds.overlap_comm
deepspeed_enable_sleep=ds.enable_sleep
ds_tensor_parallel_size=ds.tensor_parallel_size packing_samples=ds.packing_samples
load_in_4bit=ds.load_in_4bit
lora_rank=ds.lora.rank lora_alpha=ds.lora.alpha lora_dropout=ds.lora.dropout
target_modules=ds.lora.target_modules
ring_attn_size=ds.ring_attn_size ring_head_stride=ds.ring_attn_head_stride
value_head_prefix=ds.value_head_prefix
deepcompile=ds.deepcompile use_ds_universal_ckpt=ds.use_universal_ckpt
universal_ckpt=ds.use_universal_ckpt
save_path=ckpt.output_dir ckpt_path=ckpt.path save_steps=ckpt.save_steps save_hf_ckpt=ckpt.save_hf
disable_ds_ckpt=ckpt.disable_ds max_ckpt_num=ckpt.max_num max_ckpt_mem=ckpt.max_mem
load_checkpoint=ckpt.load_enable
best_metric_key=ckpt.best_metric_key
eval_dataset=eval.dataset eval_split=eval.split eval_steps=eval.steps
eval_temperature=eval.temperature
eval_n_samples_per_prompt=eval.n_samples_per_prompt
logging_steps=logger.logging_steps use_wandb=logger.wandb.key wandb_org=logger.wandb.org
wandb_group=logger.wandb.group
wandb_project=logger.wandb.project wandb_run_name=logger.wandb.run_name
use_tensorboard=logger.tensorboard_dir
"""
_IS = (
    "with --algo.advantage.is_correction_level: tis is clip by token, icepop is mask by token, "
    "seq-mask-tis is mask by seq"
)
_NOTES: Mapping[str, str] = MappingProxyType(
    {
        "prompt_max_len": "prompt and answers together: the sum of the two old limits",
        "use_kl_estimator_k3": "with the value k3",
        "enable_vllm_is_correction": "with the value token or seq",
        "vllm_is_correction_type": _IS,
        "use_icepop": _IS,
        "bf16": "with the value bf16, which is the default",
        "flash_attn": "with the value flash_attention_2, which is the default on GPUs",
        "adam_betas": "the critic's is --critic.adam.betas",
        "l2": "the critic's is --critic.adam.weight_decay",
        "lr_scheduler": "the critic's is --critic.lr_scheduler",
        "lr_warmup_ratio": "the critic's is --critic.lr_warmup_ratio",
        "max_norm": "the critic's is --critic.max_norm",
        "ref_reward_offload": "the reward model's is --reward.offload",
    }
)
GONE: Mapping[str, str] = MappingProxyType(
    {
        "actor_init_on_gpu": "upstream no longer has it",
        "disable_trace_cache": "upstream no longer has it",
        "perf": "upstream no longer has it",
        "torch_compile": "upstream no longer has it",
        **dict.fromkeys(
            ("ptx_coef", "pretrain_data", "pretrain_data_probs", "pretrain_split"),
            "upstream no longer mixes pre-training data in",
        ),
    }
)
"""Old flags without a successor, and why."""
RENAMED: Mapping[str, str] = MappingProxyType(dict(entry.split("=") for entry in _NAMES.split()))
"""Old name to the name of today."""
OTHER_VALUES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "algo.advantage.estimator": {
            "grpo": "GRPO is group_norm (--groups.by says what forms a group), or dr_grpo, which "
            "does not divide by the deviation",
            "ppo": "PPO's estimator is gae, with a critic per policy",
            **dict.fromkeys(("reinforce++", "reinforce_plus_plus"), "REINFORCE++ is reinforce"),
            "reinforce++_baseline": "REINFORCE++ with a baseline is reinforce_baseline",
        }
    }
)
"""Values by the names that papers and other programs use, by flag, and what they are here."""


def successor(name: str) -> str | None:
    """Returns what to write for an old flag, as the fix; None if the name is no old flag."""
    if name in GONE:
        return f"{GONE[name]}: remove it"
    if name not in RENAMED:
        return None
    note = f" ({_NOTES[name]})" if name in _NOTES else ""
    return f"since OpenRLHF 0.10.2 it is --{RENAMED[name]}{note}"


def table() -> str:
    """Returns the table as Markdown, for `docs/from_openrlhf.md`."""
    lines = ["| 0.10.1 and older | now | with several policies | note |", "|---|---|---|---|"]
    lines += [
        f"| `--{old}` | `--{new}` | {FLAGS[new].status} | {_NOTES.get(old, '')} |"
        for old, new in sorted(RENAMED.items())
    ]
    lines += [f"| `--{old}` |  |  | {why} |" for old, why in sorted(GONE.items())]
    return "\n".join(lines)
