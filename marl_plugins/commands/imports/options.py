"""The options of MARTI and MAPPA, and what each becomes: the one table behind the import and
`docs/marti.md`.

An option becomes a flag of ours, perhaps with a converted value (FLAGS_OF), is read elsewhere in
the import (READ), or is left out for a reason (LEFT_OUT). Any other option is unknown, and an
error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from marl_plugins.engine.hosts.flags import FLAGS

ESTIMATORS = {
    "reinforce_plus_plus": "reinforce",
    **{
        name: name
        for name in ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo")
    },
}
GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")


class Option(NamedTuple):
    """The flag that an option becomes; `form` converts its value, None leaves it out."""

    flag: str
    form: Callable[[Any], Any] = lambda value: value
    note: str = ""


def _unless(unset: float) -> Callable[[Any], Any]:
    return lambda value: None if value == unset else value


def _when(true: Any) -> Callable[[Any], Any]:
    return lambda value: true if value else None


SAMPLES = "theirs counts an agent's samples, ours trajectories"

FLAGS_OF: dict[str, Option] = {
    "advantage_estimator": Option(
        "algo.advantage.estimator", ESTIMATORS.get, "reinforce_plus_plus is reinforce here"
    ),
    "num_episodes": Option("train.num_episodes"),
    "n_samples_per_prompt": Option("rollout.n_samples_per_prompt"),
    "rollout_batch_size": Option("rollout.batch_size"),
    "micro_rollout_batch_size": Option("rollout.micro_batch_size", note="rows per forward pass"),
    "train_batch_size": Option("train.batch_size", note=SAMPLES),
    "micro_train_batch_size": Option("train.micro_batch_size"),
    "max_epochs": Option("train.max_epochs"),
    "max_samples": Option("data.max_samples", int),
    "generate_max_len": Option("rollout.max_new_tokens"),
    "temperature": Option("rollout.temperature"),
    "top_p": Option("rollout.top_p"),
    "eval_temperature": Option("eval.temperature"),
    "n_eval_samples_per_prompt": Option("eval.n_samples_per_prompt"),
    "eval_n_samples_per_prompt": Option("eval.n_samples_per_prompt"),
    "eval_steps": Option("eval.steps"),
    "save_steps": Option("ckpt.save_steps"),
    "logging_steps": Option("logger.logging_steps"),
    "max_ckpt_num": Option("ckpt.max_num"),
    "save_hf_ckpt": Option("ckpt.save_hf"),
    "disable_ds_ckpt": Option("ckpt.disable_ds"),
    "seed": Option("train.seed"),
    "full_determinism": Option("train.full_determinism_enable"),
    "actor_learning_rate": Option("actor.adam.lr"),
    "adam_betas": Option("actor.adam.betas"),
    "l2": Option("actor.adam.weight_decay"),
    "lr_warmup_ratio": Option("actor.lr_warmup_ratio"),
    "lr_scheduler": Option("actor.lr_scheduler"),
    "max_norm": Option("actor.max_norm"),
    "eps_clip": Option("actor.eps_clip"),
    "eps_clip_low_high": Option("actor.eps_clip_low_high"),
    "dual_clip": Option("actor.dual_clip"),
    "policy_loss_type": Option("actor.policy_loss_type"),
    "entropy_loss_coef": Option("actor.entropy_coef"),
    "gradient_checkpointing": Option("actor.gradient_checkpointing_enable"),
    "gradient_checkpointing_use_reentrant": Option("actor.gradient_checkpointing_reentrant"),
    "init_kl_coef": Option("algo.kl.init_coef"),
    "kl_estimator": Option("algo.kl.estimator"),
    "use_kl_estimator_k3": Option("algo.kl.estimator", _when("k3")),
    "use_kl_loss": Option("algo.kl.use_loss"),
    "gamma": Option("algo.advantage.gamma"),
    "lambd": Option("algo.advantage.lambd"),
    "no_advantage_std_norm": Option("algo.advantage.no_std_norm"),
    "reward_clip_range": Option("reward.clip_range"),
    "overlong_buffer_len": Option("reward.overlong_buffer_len"),
    "overlong_penalty_factor": Option("reward.overlong_penalty_factor"),
    "actor_num_nodes": Option("actor.num_nodes"),
    "actor_num_gpus_per_node": Option("actor.num_gpus_per_node"),
    "ref_num_nodes": Option("ref.num_nodes"),
    "ref_num_gpus_per_node": Option("ref.num_gpus_per_node"),
    "ref_reward_offload": Option("ref.offload"),
    "colocate_actor_ref": Option("train.colocate_actor_ref"),
    "colocate_all_models": Option("train.colocate_all"),
    "vllm_num_engines": Option("vllm.num_engines"),
    "vllm_tensor_parallel_size": Option("vllm.tensor_parallel_size"),
    "vllm_gpu_memory_utilization": Option("vllm.gpu_memory_utilization"),
    "vllm_enable_sleep": Option("vllm.enable_sleep"),
    "vllm_sync_backend": Option("vllm.sync_backend"),
    "vllm_sync_with_ray": Option("vllm.sync_with_ray"),
    "enable_prefix_caching": Option("vllm.enable_prefix_caching"),
    "enforce_eager": Option("vllm.enforce_eager"),
    "deepspeed_enable_sleep": Option("ds.enable_sleep"),
    "zero_stage": Option("ds.zero_stage"),
    "zpg": Option("ds.zpg"),
    "adam_offload": Option("ds.adam_offload"),
    "overlap_comm": Option("ds.overlap_comm"),
    "grad_accum_dtype": Option("ds.grad_accum_dtype"),
    "attn_implementation": Option("ds.attn_implementation"),
    "flash_attn": Option("ds.attn_implementation", _when("flash_attention_2")),
    "use_liger_kernel": Option("ds.use_liger_kernel"),
    "bf16": Option("ds.param_dtype", _when("bf16")),
    "lora_rank": Option("ds.lora.rank", _unless(0), "with `plugins: [marl_plugins.adapters]`"),
    "lora_alpha": Option("ds.lora.alpha", note="where lora_rank is given"),
    "lora_dropout": Option("ds.lora.dropout", _unless(0)),
    "target_modules": Option("ds.lora.target_modules", note="where lora_rank is given"),
    "disable_fast_tokenizer": Option("data.disable_fast_tokenizer"),
    "critic_pretrain": Option("critic.model_name_or_path"),
    "critic_learning_rate": Option("critic.adam.lr"),
    "critic_num_nodes": Option("critic.num_nodes"),
    "critic_num_gpus_per_node": Option("critic.num_gpus_per_node"),
    "value_clip": Option("critic.value_clip"),
    "freezing_actor_steps": Option("critic.freezing_steps", _unless(-1)),
    "save_value_network": Option("critic.save_value_network"),
    "value_head_prefix": Option("ds.value_head_prefix"),
}

READ: dict[str, str] = {
    "agents": "`roles:`, one per agent",
    "default_agent": "settings of all agents",
    "shared_agents": "`mapping: shared`",
    "role": "the role's name",
    "pretrain": "`model:`, or a policy's where agents differ",
    "is_tuning": "`trainable: false` where it is false",
    "chat_template": "`prompts/ROLE.md`",
    "code_execution": "`tools: [python]`",
    "agent_workflow": "`workflow.py`",
    "workflow_func_path": "`workflow.py`; prompts are read from it where the configuration has "
    "none",
    "workflow_args": "turns, rounds, and the coach",
    "tools_config": "`tools:`",
    "prompt_max_len": "`data.max_len`, with generate_max_len added",
    "max_len": "`data.max_len`",
    "verify_task": "`grader.py`",
    "verify_task_eval": "`grader.py`",
    "prompt_data": "`data/train.jsonl`",
    "prompt_split": "which file of prompt_data is read",
    "eval_dataset": "`data/eval.jsonl`",
    "eval_split": "which file of eval_dataset is read",
    "extra_eval_tasks": "`data/eval.jsonl`",
    "extra_eval_dir": "where extra_eval_tasks are searched for",
    "input_key": "`prompt` in the data",
    "label_key": "`answer` in the data",
    "metadata_key": "metadata of the tasks",
}

_CREDIT = "credit models are not supported"
_PACKED = (
    "how sequences are packed is a choice of the machine: --ds.packing_samples, "
    "--train.dynamic_batch_enable"
)
_REWARD = "rewards come from the grader and the coach"
_LOG = "set the tracker on the command line (--logger.*); keys are never copied"
_OUTPUT = "where a run writes is set on the command line (--ckpt.output_dir, --ckpt.path)"
_PARTS = "data is read from the imported files"
_TEMPLATE = "roles use their model's own chat template"
_API = "models behind an API cannot play a role; a coach can be one (--coach.model)"
_IS = (
    "set --algo.advantage.is_correction_level, _mode and _threshold: the release here names them "
    "differently"
)
_RUN = "decided when a run starts"

LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(
        ("async_workflow", "parallel_loading", "pg_strategy", "eval_workers", "perf"),
        "always so, or irrelevant here",
    ),
    **dict.fromkeys(
        ("workflow_version", "agent_func_path", "evaluate_mcts_methods"),
        "specific to their program",
    ),
    **dict.fromkeys(("training_mode", "ptx_coef"), "training uses rewards only"),
    **dict.fromkeys(
        ("pretrain_data", "pretrain_data_probs", "pretrain_split", "output_key"),
        "training uses rewards only",
    ),
    **dict.fromkeys(
        ("reward_alloc",), "no counterpart; rewards can be shaped by a plugin with marl_credit"
    ),
    **dict.fromkeys(
        ("processor_func_path",), "their reward shaping; a plugin with marl_credit takes its place"
    ),
    **dict.fromkeys(
        ("filter_agents_data",),
        "not needed: missing micro-batches are weightless and nothing can deadlock",
    ),
    **dict.fromkeys(
        ("filter_samples_by_reward", "dynamic_filtering", "dynamic_filtering_reward_range"),
        "use a plugin with marl_select",
    ),
    **dict.fromkeys(("dynamic_filtering_for_agents",), "not needed: agents are trained without it"),
    **dict.fromkeys(
        ("normalize_reward",),
        "advantages are always normalised, over all roles and policies together",
    ),
    **dict.fromkeys(("mask_truncated_completions",), "truncated answers are scored and trained on"),
    **dict.fromkeys(
        ("token_level_loss",), "--actor.loss_agg_mode; its default is the mean over tokens"
    ),
    **dict.fromkeys(("clip_eps_high",), "set both bounds with --actor.eps_clip_low_high"),
    **dict.fromkeys(("lr_warmup_steps",), "--actor.lr_warmup_ratio"),
    **dict.fromkeys(
        ("eval_generate_max_len",), "evaluations use the --rollout.max_new_tokens of training"
    ),
    **dict.fromkeys(
        ("truncate_prompt",), "a context that is too long is the agents' failure, scored as such"
    ),
    **dict.fromkeys(
        (
            "is_reasoning_model",
            "enable_thinking",
            "add_think_token",
            "eos_token",
            "apply_chat_template",
        ),
        _TEMPLATE,
    ),
    **dict.fromkeys(("input_template", "add_prompt_suffix"), "prompts are the files in prompts/"),
    **dict.fromkeys(
        ("packing_samples", "max_packed_length", "use_dynamic_batch", "train_max_tokens_per_gpu"),
        _PACKED,
    ),
    **dict.fromkeys(
        (
            "rollout_max_tokens_per_gpu",
            "ring_attn_size",
            "ring_head_stride",
            "ds_tensor_parallel_size",
        ),
        _PACKED,
    ),
    "load_in_4bit": "engines would sample from other weights than training has",
    **dict.fromkeys(
        ("reward_pretrain", "remote_rm_url", "reward_num_nodes", "reward_num_gpus_per_node"),
        _REWARD,
    ),
    **dict.fromkeys(
        (
            "colocate_critic_reward",
            "allow_label_list",
            "separate_label_list",
            "verifier_score_coef",
        ),
        _REWARD,
    ),
    **dict.fromkeys(
        (
            "use_wandb",
            "wandb_org",
            "wandb_group",
            "wandb_project",
            "wandb_run_name",
            "use_tensorboard",
        ),
        _LOG,
    ),
    **dict.fromkeys(("use_weave", "weave_project"), _LOG),
    **dict.fromkeys(("save_path", "ckpt_path", "eval_save_path"), _OUTPUT),
    **dict.fromkeys(
        (
            "load_checkpoint",
            "eval_before_training",
            "eval_only",
            "async_train",
            "local_rank",
            "use_ms",
        ),
        _RUN,
    ),
    **dict.fromkeys(
        ("max_ckpt_mem", "use_ds_universal_ckpt"), "complete steps are kept or deleted together"
    ),
    **dict.fromkeys(("prompt_data_probs", "random_sample_train", "save_sampled_dataset"), _PARTS),
    **dict.fromkeys(("stratified_sampling", "stratify_key"), "write it into tasks.py"),
    **dict.fromkeys(("eval_aggregation",), "success is the mean over samples"),
    **dict.fromkeys(
        ("enable_ema", "ema_beta"),
        "the average is saved beside the weights here: --train.enable_ema",
    ),
    **dict.fromkeys(
        ("aux_loss_coef", "deepcompile", "kl_target", "kl_horizon"),
        "not supported with several policies",
    ),
    **dict.fromkeys(
        ("actor_init_on_gpu", "disable_trace_cache", "vllm_generate_batch_size"),
        "not in the release here",
    ),
    **dict.fromkeys(
        ("is_api_model", "api_key", "api_base_url", "api_model_name", "model_name"), _API
    ),
    **dict.fromkeys(
        (
            "enable_vllm_is_correction",
            "vllm_is_truncated_threshold",
            "vllm_is_level",
            "vllm_is_mode",
        ),
        _IS,
    ),
    **dict.fromkeys(("vllm_is_truncated_threshold_lower", "vllm_is_veto_threshold"), _IS),
    **dict.fromkeys(
        ("credit_pretrain", "credit_model", "credit_ref_num_nodes", "credit_ref_num_gpus_per_node"),
        _CREDIT,
    ),
    **dict.fromkeys(
        ("credit_num_nodes", "credit_num_gpus_per_node", "colocate_credit_ref", "credit_beta"),
        _CREDIT,
    ),
    **dict.fromkeys(
        ("credit_granularity", "credit_nll_loss", "credit_nll_loss_coef", "credit_grad_clip"),
        _CREDIT,
    ),
    **dict.fromkeys(
        ("credit_adam_betas", "credit_l2", "credit_score_type", "credit_learning_rate"), _CREDIT
    ),
    **dict.fromkeys(("credit_scheduler", "credit_lr_warmup_ratio", "credit_batch_norm"), _CREDIT),
    **dict.fromkeys(("warmup_steps_for_credit", "credit_score_coef"), _CREDIT),
}

COACH_FLAGS = {"coach_model": "coach.model", "coach_max_output_tokens": "coach.max_tokens"}

WORKFLOW_READ = {
    "coach_prompt_template": "`prompts/coach.md` and `prompts/coach_last.md`",
    "enable_ground_truth_eval": "`coach.ground_truth: none` where it is false",
    "num_rounds": "rounds of a debate",
    "contain_self": "whether an agent of a debate sees its own answer",
    "max_others": "how many answers an agent of a debate sees at most",
    "shuffle_responses": "whether their order in a debate is drawn from the task's id",
}

WORKFLOW_LEFT_OUT = {
    **dict.fromkeys(
        ("reward_process_weight", "reward_outcome_weight"), "read nowhere in their program either"
    ),
    **dict.fromkeys(("coach_type",), "only one kind of verdict exists"),
    **dict.fromkeys(("coach_thinking_budget",), "--coach.body, in the provider's words"),
    **dict.fromkeys(
        ("use_vertex_ai", "vertex_project", "vertex_location"),
        "--coach.base_url names an OpenAI-compatible endpoint",
    ),
    **dict.fromkeys(
        ("use_weave", "weave_project", "log_save_path", "save_path"),
        "records are written next to the run",
    ),
    **dict.fromkeys(("template_id", "prompt_version"), "prompts are the files in prompts/"),
    **dict.fromkeys(("task",), "verify_task says how answers are graded"),
}

TOOL_READ = {"type": "`tools: [python]` for sandbox_fusion", "timeout": "`tools.python.seconds`"}
TOOL_LEFT_OUT = dict.fromkeys(
    ("enable_rate_limiting", "rate_limit", "base_url", "schema_path"),
    "programs run on this machine, in processes of their own, one per core at a time",
)
TOOLS_READ = {"tools": "`tools:`", "max_turns": "`max_turns:` of roles with tools"}
TOOLS_LEFT_OUT = dict.fromkeys(
    ("num_workers", "enable_metrics", "enable_rate_limiting", "max_concurrent_calls", "rate_limit"),
    "trajectories run concurrently; `tools.python.concurrency` limits the programs",
)

SETTINGS = {**dict.fromkeys(FLAGS_OF), **dict.fromkeys(READ), **dict.fromkeys(LEFT_OUT)}
"""Every option that may be set at the top, in `default_agent` or for an agent."""


def only_with(flag: str) -> tuple[str, ...]:
    """Returns the estimators that a flag applies to; empty: all."""
    return FLAGS[flag].estimators if flag in FLAGS else ()


def table() -> str:
    """Returns the table of `docs/marti.md`."""
    lines = ["| theirs | here | note |", "|---|---|---|"]
    lines += [
        f"| `{name}` | `{option.flag}` | {option.note} |" for name, option in FLAGS_OF.items()
    ]
    lines += [f"| `{name}` | {where} |  |" for name, where in READ.items()]
    lines += [f"| `workflow_args.{name}` | `{flag}` |  |" for name, flag in COACH_FLAGS.items()]
    lines += [
        "| `workflow_args.ROLE_max_turns` | `max_turns:` of the role | only a tool's answer starts "
        "another turn |"
    ]
    lines += [f"| `workflow_args.{name}` | {where} |  |" for name, where in WORKFLOW_READ.items()]
    lines += [f"| `tools_config.{name}` | {where} |  |" for name, where in TOOLS_READ.items()]
    lines += [
        f"| `tools_config.tools.NAME.{name}` | {where} |  |" for name, where in TOOL_READ.items()
    ]
    reasons: dict[str, list[str]] = {}
    for prefix, left_out in (
        ("", LEFT_OUT),
        ("workflow_args.", WORKFLOW_LEFT_OUT),
        ("tools_config.", TOOLS_LEFT_OUT),
    ):
        for name, why in left_out.items():
            reasons.setdefault(why, []).append(f"`{prefix}{name}`")
    for name, why in TOOL_LEFT_OUT.items():
        reasons.setdefault(why, []).append(f"`tools_config.tools.NAME.{name}`")
    lines += [f"| {', '.join(names)} | left out | {why} |" for why, names in reasons.items()]
    return "\n".join(lines) + "\n"
