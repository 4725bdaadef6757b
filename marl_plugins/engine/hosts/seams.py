"""Every place of upstream that this project depends on: dotted name, expected signature, why.
Checked without importing it.

Signatures are those of OpenRLHF 0.11.2; where an earlier release differs, the row says which
releases it is for. `openrlhf doctor` compares the table with the installed release,
`openrlhf compat` with any other; both name each seam that is gone or changed.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.texts import syntax_tree
from marl_plugins.engine.hosts.releases import WINDOWED, concerns


class Seam(NamedTuple):
    """A function, method, class or module attribute of upstream.

    `form` is its name, of a function with the names of its parameters (annotations and defaults are
    ignored); `releases` the versions that the row applies to, empty for all.
    """

    module: str
    form: str
    why: str
    releases: str = ""


SEAMS = (
    Seam(
        "trainer.ray.vllm_engine",
        "create_vllm_engines(num_engines, tensor_parallel_size, pretrain, seed, "
        "full_determinism, enable_prefix_caching, enforce_eager, max_model_len, shared_pg, "
        "gpu_memory_utilization, vllm_enable_sleep, logprobs_mode, agent_func_path, "
        "remote_rm_url, max_images_per_prompt)",
        "engines are started through it, one at a time",
    ),
    Seam(
        "trainer.ray.vllm_engine",
        "RolloutRayActor",
        "looked up in its module by create_vllm_engines; subclassed",
    ),
    Seam(
        "trainer.ray.vllm_engine",
        "RolloutRayActor.__init__(self, bundle_indices, agent_func_path, remote_rm_url, "
        "mm_pad_token_ids)",
        "the subclass adds engine arguments on CPU",
    ),
    Seam(
        "trainer.ray.vllm_engine",
        "RolloutRayActor.pause_generation(self)",
        "before weights change in the middle of answers",
    ),
    Seam(
        "trainer.ray.vllm_engine",
        "RolloutRayActor.resume_generation(self)",
        "after it; the subclass notes the versions",
    ),
    Seam(
        "trainer.ray.vllm_engine",
        "placement_group",
        "looked up in its module; kept, to free a dead engine's devices",
    ),
    Seam(
        "trainer.ray.vllm_engine",
        "batch_vllm_engine_call(engines, method_name, rank_0_only)",
        "looked up in its module; not called at the start, so that engines of several "
        "policies start together",
    ),
    Seam(
        "trainer.ray.ppo_actor",
        "PolicyModelActor",
        "subclassed",
    ),
    Seam(
        "trainer.ray.launcher",
        "RewardModelActor.init_model_from_pretrained(self, strategy, pretrain)",
        "a reward model's processes; RewardModelActor is subclassed",
    ),
    Seam(
        "trainer.ray.launcher",
        "RewardModelActor.forward(self, sequences, attention_mask, packed_seq_lens, pad_sequence)",
        "rewards of sequences, one by one",
    ),
    Seam(
        "trainer.ray.ppo_actor",
        "PolicyModelActor.init_model_from_pretrained(self, strategy, pretrain, max_steps, "
        "vllm_engines)",
        "vllm_engines=None leaves the NCCL group out on CPU",
    ),
    Seam(
        "trainer.ray.ppo_actor",
        "PolicyModelActor.fit(self, kl_ctl)",
        "the update; wrapped to assert that nothing is carried over",
    ),
    Seam(
        "trainer.ray.ppo_actor",
        "PolicyModelActor.append(self, experience)",
        "hands a rank its rows",
    ),
    Seam(
        "trainer.ray.ppo_actor",
        "PolicyModelActor.save_checkpoint(self, tag, client_states, metric_value, metric_key)",
        "DeepSpeed's checkpoint of one policy",
    ),
    Seam(
        "trainer.ray.ppo_actor",
        "PolicyModelActor.save_model(self)",
        "Hugging Face weights of one policy",
    ),
    Seam(
        "trainer.ray.ppo_actor",
        "PolicyModelActor.broadcast_to_vllm(self)",
        "what upstream's own loop asks for; replaced on CPU",
    ),
    Seam(
        "trainer.ray.ppo_actor",
        "ActorPPOTrainer",
        "looked up in its module by PolicyModelActor; subclassed",
    ),
    Seam(
        "trainer.ray.ppo_actor",
        "ActorPPOTrainer.training_step(self, experience, kl_ctl, step, loss_batch_info)",
        "its metrics leave weightless rows out",
        WINDOWED,
    ),
    Seam(
        "trainer.ray.ppo_actor",
        "NaiveReplayBuffer",
        "looked up in its module by ActorPPOTrainer; subclassed",
    ),
    Seam(
        "trainer.ray.ppo_critic",
        "NaiveReplayBuffer",
        "looked up in its module by CriticPPOTrainer; subclassed",
    ),
    Seam(
        "trainer.ray.ppo_critic",
        "CriticModelActor",
        "subclassed",
    ),
    Seam(
        "trainer.ray.ppo_critic",
        "CriticModelActor.init_model_from_pretrained(self, strategy, pretrain, max_steps)",
        "one critic per policy",
    ),
    Seam(
        "trainer.ray.ppo_critic",
        "CriticModelActor.fit(self)",
        "the critic's update; wrapped to assert that nothing is carried over",
    ),
    Seam(
        "trainer.ray.ppo_critic",
        "CriticModelActor.append(self, experience)",
        "hands a critic's rank its rows",
    ),
    Seam(
        "trainer.ray.ppo_critic",
        "CriticModelActor.save_checkpoint(self, tag, metric_value, metric_key)",
        "DeepSpeed's checkpoint of one critic",
    ),
    Seam(
        "trainer.ray.ppo_critic",
        "CriticModelActor.save_model(self)",
        "--critic.save_value_network",
    ),
    Seam(
        "trainer.ray.ppo_critic",
        "CriticPPOTrainer",
        "looked up in its module by CriticModelActor; subclassed",
    ),
    Seam(
        "trainer.ray.ppo_critic",
        "CriticPPOTrainer.training_step(self, experience, step, loss_batch_info)",
        "its metrics leave weightless rows out",
        WINDOWED,
    ),
    Seam(
        "models.actor",
        "AutoModelForCausalLM",
        "looked up there by Actor; adapters of a model share its weights",
    ),
    Seam(
        "trainer.ray.launcher",
        "BaseDistributedActor.__init__(self, world_size, rank, master_addr, master_port)",
        "a process that adapters share is one",
    ),
    Seam(
        "trainer.ray.launcher",
        "BaseDistributedActor._get_free_port()",
        "replaced; the port is kept until torch listens on it",
    ),
    Seam(
        "trainer.ray.launcher",
        "ReferenceModelActor",
        "subclassed",
    ),
    Seam(
        "trainer.ray.launcher",
        "ReferenceModelActor.init_model_from_pretrained(self, strategy, pretrain)",
        "its model is told to see trees",
    ),
    Seam(
        "trainer.ray.launcher",
        "ReferenceModelActor.forward(self, sequences, action_mask, attention_mask, "
        "return_output, packed_seq_lens, mm_train_inputs_list)",
        "the reference in the policy's process answers as it does",
    ),
    Seam(
        "trainer.ray.launcher",
        "RayActorGroup.__init__(self, num_nodes, num_gpus_per_node, ray_actor_type, pg, "
        "num_gpus_per_actor, duplicate_actors, resources, num_resources_per_node)",
        "one group of training processes per policy",
    ),
    Seam(
        "trainer.ray.launcher",
        "RayActorGroup.async_run_method(self, method_name)",
        "calls on all ranks",
    ),
    Seam(
        "trainer.ray.launcher",
        "RayActorGroup.async_run_method_batch(self, method_name)",
        "calls with a part per rank",
    ),
    Seam(
        "trainer.ppo_trainer",
        "BasePPOTrainer.__init__(self, strategy, actor_model_group, critic_model_group, "
        "reward_model_group, reference_model_group, vllm_engines, tokenizer)",
        "subclassed, one per policy",
    ),
    Seam(
        "trainer.ppo_trainer",
        "BasePPOTrainer.ppo_train(self, global_steps)",
        "runs the fit on all ranks, with sleep where asked",
    ),
    Seam(
        "trainer.ppo_utils.experience_maker",
        "RemoteExperienceMaker.__init__(self, actor_model_group, critic_model_group, "
        "reward_model_group, initial_model_group, kl_controller, strategy, tokenizer)",
        "subclassed, one per policy",
    ),
    Seam(
        "trainer.ppo_utils.experience_maker",
        "RemoteExperienceMaker.make_experience(self, samples_list)",
        "log-probs and KL; its dispatch list is padded to the ranks",
    ),
    Seam(
        "trainer.ppo_utils.experience",
        "Experience",
        "rows in upstream's form",
    ),
    Seam(
        "trainer.ppo_utils.experience",
        "make_experience_batch(items, packing_samples)",
        "sequences of one forward pass, and those of a rank, as one batch",
    ),
    Seam(
        "trainer.ppo_utils.replay_buffer",
        "NaiveReplayBuffer.append(self, experience)",
        "a rank's sequences",
    ),
    Seam(
        "trainer.ppo_utils.replay_buffer",
        "NaiveReplayBuffer.collate_fn(self, batch)",
        "a micro-batch",
    ),
    Seam(
        "trainer.ppo_utils.length_penalty",
        "apply_length_penalties(experiences, args)",
        "--reward.overlong_* and related flags, on actions' own rewards",
    ),
    Seam(
        "models.utils",
        "compute_reward(r, kl_coef, kl, action_mask, reward_clip_range)",
        "KL penalty and reward per token",
    ),
    Seam(
        "models.ring_attn_utils",
        "unpad_input",
        "imports flash_attn at module level; on CPU its functions are those of "
        "engine/hosts/unpadding.py",
    ),
    Seam(
        "utils.deepspeed",
        "DeepspeedStrategy",
        "accumulated_gradient is set before each fit",
    ),
    Seam(
        "utils.deepspeed.deepspeed",
        "DeepspeedStrategy.load_ckpt",
        "wrapped, so that a resumed run's learning rate is its flag's",
    ),
    Seam(
        "utils.utils",
        "get_strategy(args)",
        "one strategy per policy, from a copy of the flags",
    ),
    Seam(
        "utils.logging_utils",
        "TensorboardLogger.log_train(self, global_step, logs_dict)",
        "tracker",
    ),
    Seam(
        "utils.logging_utils",
        "WandbLogger.log_train(self, global_step, logs_dict)",
        "tracker",
    ),
    Seam(
        "utils.config",
        "hierarchize(args)",
        "nested flags",
    ),
)


def check_seams(root: Path, seams: Sequence[Seam]) -> list[str]:
    """Returns the seams of a table that a package folder lacks or that differ there."""
    problems = []
    read: dict[Path, dict[str, str] | None] = {}
    for seam in seams:
        path = _file(root, seam.module)
        if path is None:
            problems.append(f"openrlhf.{seam.module} is gone ({seam.form}: {seam.why})")
            continue
        if path not in read:
            try:
                read[path] = _forms(path)
            except ConfigurationError as error:
                read[path] = None
                problems += map(str, error.problems)
        forms = read[path]
        if forms is None:
            continue
        name, called, _ = seam.form.partition("(")
        if name not in forms:
            problems.append(f"openrlhf.{seam.module}.{name} is gone ({seam.why})")
        elif called and forms[name] != seam.form:
            problems.append(
                f"openrlhf.{seam.module} has {forms[name]}, expected {seam.form} ({seam.why})"
            )
    return problems


def seams_of(version: str) -> list[Seam]:
    """Returns the rows of the table that apply to a release."""
    return [seam for seam in SEAMS if concerns(seam.releases, version)]


def _file(root: Path, module: str) -> Path | None:
    base = root.joinpath(*module.split("."))
    places = base.with_suffix(".py"), base / "__init__.py"
    return next((path for path in places if path.is_file()), None)


def _forms(path: Path) -> dict[str, str]:
    """What a module defines or imports by name, methods as `Class.method`; functions with the names
    of their parameters."""
    forms: dict[str, str] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                forms[prefix + node.name] = f"{prefix}{node.name}({', '.join(names)})"
            elif isinstance(node, ast.ClassDef):
                forms[prefix + node.name] = ""
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Import | ast.ImportFrom):
                forms.update({prefix + (alias.asname or alias.name): "" for alias in node.names})

    visit(syntax_tree(path).body, "")
    return forms
