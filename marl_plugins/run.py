"""The checked plan of a run: what plugins and the runtime read."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from marl_plugins.core.recipe import PolicyConfig, Recipe, RoleConfig
from marl_plugins.core.trajectory import Task
from marl_plugins.hosts import upstream_cli
from marl_plugins.manager import Plugins, load_file

if TYPE_CHECKING:
    from marl_plugins.runtime.questions import Questions


@dataclass(frozen=True)
class Policy:
    """A model with weights of its own.

    Args:
        name: Also the name of its folders and metrics.
        model: Folder, hub name or `tiny`.
        base, adapter: For adapters on one base; unused until adapters are supported.
        trainable: Whether it is updated.
        flags: Upstream flags that differ for this policy, by name.
    """

    name: str
    model: str
    base: str | None = None
    adapter: str | None = None
    trainable: bool = True
    flags: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Run:
    """Everything a plugin may know of the run it takes part in.

    Args:
        recipe: The checked recipe.
        folder: The recipe's folder; its files are relative to it.
        plugins: The active plugins.
        args: All flags for the whole run, nested as upstream has them (`args.actor.adam.lr`), the plugins' included.
        policies: In the order of their first role; then those that play none.
        policy_args: The same for each policy, with its own flags applied.
        device: `cpu` or `cuda`.
        given: Flags that were given by name, on the command line or in the recipe.
        on_command_line: The ones among them that were given on the command line, for all policies.
        warnings: What upstream's validation had to say.
        idle: Policies of the recipe that this run does without, and the flag for which it does; others without a role are
            errors.
        questions: Set once the engines run, for `ask`.
    """

    recipe: Recipe
    folder: Path
    plugins: Plugins
    args: SimpleNamespace
    policies: list[Policy]
    policy_args: dict[str, SimpleNamespace]
    device: str
    given: frozenset[str]
    on_command_line: frozenset[str] = frozenset()
    warnings: list[str] = field(default_factory=list)
    max_steps: int | None = None
    logical_gpus: int | None = None
    idle: dict[str, str] = field(default_factory=dict)
    questions: Questions | None = None
    _tasks: dict[str, list[Task]] = field(default_factory=dict)

    def role(self, name: str) -> RoleConfig:
        return self.recipe.roles[name]

    async def ask(self, policy: str, messages: Sequence[Mapping[str, str]], *, max_tokens: int) -> str:
        """What a policy of the run answers to chat messages, by its own engines and chat template: for plugins.

        Greedily, and through `marl_generate` as every request goes, with an empty `call.role`. From any hook that is awaited;
        a trained policy in a rollout or an evaluation only, because its engines may sleep at other times
        (`--vllm.enable_sleep`). A frozen policy's never do.

        Args:
            messages: Each with `role` and `content`.
            max_tokens: At most so many new tokens, and what `--data.max_len` leaves.

        Raises:
            InfrastructureFailure: No engine is left, or the messages leave no room for an answer.
            RuntimeError: No engine runs yet.
        """
        if self.questions is None:
            raise RuntimeError("run.ask: the engines do not run yet; ask from a hook that is awaited")
        return await self.questions.ask(policy, messages, max_tokens)

    @property
    def output(self) -> Path:
        """Folder of the records and of the final weights."""
        return Path(self.args.ckpt.output_dir)

    @property
    def optimiser_steps(self) -> int:
        """K of a full batch: trajectories of a step over trajectories per optimiser step (design: the trajectory is the unit)."""
        return int(self.trajectories // self.args.train.batch_size)

    @property
    def trajectories(self) -> int:
        """Trajectories of a full training step."""
        return int(self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt)

    @property
    def trained_roles(self) -> dict[str, RoleConfig]:
        """The roles whose policy is updated."""
        trained = {p.name for p in self.policies if p.trainable}
        mapping = self.recipe.mapping
        mapped = [r for r in self.recipe.roles if isinstance(mapping, str) or r in mapping]  # else said elsewhere
        return {r: self.recipe.roles[r] for r in mapped if self.recipe.policy_of(r) in trained}

    @property
    def estimator(self) -> str | None:
        """`--algo.advantage.estimator`, which names a built-in one; None where a plugin brings its own."""
        return None if self.plugins.claims("marl_estimator") else self.args.algo.advantage.estimator

    def belongs_elsewhere(self, flag: str, estimators: Iterable[str]) -> list[str]:
        """The problem with a plugin's flag that was given, where the run's estimator is none of those that it belongs to."""
        if flag not in self.given or self.estimator in (estimators := list(estimators)):
            return []
        return [
            f"--{flag} belongs to --algo.advantage.estimator {' or '.join(estimators)}; the run has "
            f"{self.estimator or 'a plugin of its own'}: take one of the two out"
        ]

    @cached_property
    def workflow_module(self) -> ModuleType:
        return self._module(self.recipe.workflow, "workflow")

    @cached_property
    def grader_module(self) -> ModuleType | None:
        return self._module(self.recipe.grader, "grader") if self.recipe.grader else None

    @cached_property
    def tasks_module(self) -> ModuleType | None:
        return self._module(self.recipe.tasks, "tasks") if self.recipe.tasks else None

    @cached_property
    def demonstrations_module(self) -> ModuleType | None:
        warm = self.recipe.warm_start
        return self._module(warm.demonstrations, "demonstrations") if warm else None

    def _module(self, file: str, kind: str) -> ModuleType:
        """Recipe code is loaded by path under a stable module name; only the package's own types cross processes."""
        return load_file(self.folder / file, f"marl_recipe_{self.recipe.name}_{kind}")

    def tasks(self, split: str) -> list[Task]:
        """The tasks of `train` or `eval`, read once."""
        if split not in self._tasks:
            self._tasks[split] = list(self.plugins.planned("marl_tasks", run=self, split=split) or [])
        return self._tasks[split]

    def fingerprint(self) -> dict[str, Any]:
        """What a resumed run has to have in common with the one it continues."""
        return {
            "roles": {r: self.recipe.policy_of(r) for r in self.recipe.roles},
            "policies": {
                p.name: {
                    "model": p.model,
                    "trainable": p.trainable,
                    "ranks": training_gpus(self.policy_args[p.name]),
                    "zero_stage": self.policy_args[p.name].ds.zero_stage,
                    "epochs": self.policy_args[p.name].train.max_epochs,
                    **({"critic": critic} if (critic := critic_gpus(self.policy_args[p.name])) else {}),
                }
                for p in self.policies
            },
            "warm_start": self.recipe.warm_start.model_dump() if self.recipe.warm_start else None,
            "seed": self.args.train.seed,
            "rollout.batch_size": self.args.rollout.batch_size,
            "rollout.n_samples_per_prompt": self.args.rollout.n_samples_per_prompt,
            "train.batch_size": self.args.train.batch_size,
            "train.num_episodes": self.args.train.num_episodes,
            "plugins": self.plugins.versions(),
            "tasks": [len(self.tasks("train")), digest([[t.id, t.prompt] for t in self.tasks("train")])],
        }


def digest(value: Any) -> str:
    """A short digest of JSON values."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


def policies_of(run: Run) -> list[Policy]:
    """The recipe's policies: one per name in the mapping, in the order of the roles."""
    mapping = run.recipe.mapping
    mapped = [role for role in run.recipe.roles if isinstance(mapping, str) or role in mapping]  # else said elsewhere
    return [recipe_policy(run, name) for name in dict.fromkeys(map(run.recipe.policy_of, mapped))]


def recipe_policy(run: Run, name: str) -> Policy:
    """The policy that the recipe describes under a name, with the model it is to have."""
    config = run.recipe.policies.get(name, PolicyConfig())
    given = run.args.actor.model_name_or_path
    model = config.model or run.recipe.model
    if given and ("actor.model_name_or_path" in run.on_command_line or not model):
        model = given
    elif model and model.startswith("."):
        model = str(run.folder / model)  # a recipe's paths are relative to it
    return Policy(name, model or "", trainable=config.trainable, flags=config.flags)


def engines_only(args: SimpleNamespace) -> None:
    """Flags of a policy that is not trained: its engines have their devices to themselves, and need not sleep for anybody."""
    args.train.colocate_all = args.vllm.enable_sleep = False


def optimiser_steps(run: Run, tasks: int) -> list[int]:
    """Optimiser steps (K per epoch) of each batch of an episode with so many tasks.

    The last batch may be smaller; where it holds fewer trajectories than one optimiser step it is left out.
    """
    size, samples = run.args.rollout.batch_size, run.args.rollout.n_samples_per_prompt
    sizes = [min(size, tasks - start) for start in range(0, tasks, size)]
    return [k for k in (n * samples // run.args.train.batch_size for n in sizes) if k]


def engine_gpus(args: SimpleNamespace) -> int:
    """Devices that a policy's engines take."""
    return int(args.vllm.num_engines * args.vllm.tensor_parallel_size)


def training_gpus(args: SimpleNamespace) -> int:
    return int(args.actor.num_nodes * args.actor.num_gpus_per_node)


def critic_gpus(args: SimpleNamespace) -> int:
    """Devices that a policy's critic takes; 0 without one, which is upstream's rule (train_ppo_ray.py:119)."""
    return int(args.critic.num_nodes * args.critic.num_gpus_per_node) if args.critic.model_name_or_path else 0


def needed_devices(run: Run) -> dict[str, int]:
    """Devices by policy: training processes, critic, engines, and, on GPUs, reference processes of their own."""
    needed = {}
    for policy in run.policies:
        a = run.policy_args[policy.name]
        engines = engine_gpus(a)
        if not policy.trainable:
            needed[policy.name] = engines
        elif a.train.colocate_all:
            needed[policy.name] = training_gpus(a)
        else:
            reference = 0
            if a.algo.kl.init_coef > 0 and not a.train.colocate_actor_ref and run.device != "cpu":
                reference = int(a.ref.num_nodes * a.ref.num_gpus_per_node)
            needed[policy.name] = training_gpus(a) + critic_gpus(a) + engines + reference
    return needed


def describe(run: Run) -> dict[str, Any]:
    """The resolved plan as JSON values, for `--dry-run`."""
    return {
        "recipe": run.recipe.name,
        "device": run.device,
        "openrlhf": upstream_cli.upstream_version(),
        "plugins": run.plugins.versions(),
        "roles": {
            name: {
                "policy": run.recipe.policy_of(name),
                "prompt": str(run.folder / role.prompt),
                "tools": role.tools,
                "max_turns": role.max_turns,
            }
            for name, role in run.recipe.roles.items()
        },
        "policies": {
            p.name: {
                "model": p.model,
                "trainable": p.trainable,
                "engines": run.policy_args[p.name].vllm.num_engines,
                "ranks": training_gpus(run.policy_args[p.name]) if p.trainable else 0,
                "zero_stage": run.policy_args[p.name].ds.zero_stage,
                "learning_rate": run.policy_args[p.name].actor.adam.lr,
                "kl": run.policy_args[p.name].algo.kl.init_coef,
                "critic": run.policy_args[p.name].critic.model_name_or_path if p.trainable else None,
                "flags": dict(p.flags),
            }
            for p in run.policies
        },
        "devices": needed_devices(run),
        "devices_together": sum(needed_devices(run).values()),
        "tasks": _counted(run),
        "step": {
            "tasks": run.args.rollout.batch_size,
            "trajectories": run.trajectories,
            "optimiser_steps": run.optimiser_steps,
            "trajectories_per_optimiser_step": run.args.train.batch_size,
        },
        "rewards": _reward_range(run),
        "output": str(run.output),
        "checkpoints": run.args.ckpt.path,
        "flags": {
            name: "***" if name in SECRETS else flag_value(run.args, name)
            for name in sorted(run.given)
            if not name.startswith("policy.")
        },
        "warnings": run.warnings,
    }


def _counted(run: Run) -> dict[str, int]:
    """Tasks of each split, and training steps, as far as tasks have been read: those of a hub are left to a real start."""
    counts: dict[str, int] = {split: len(run._tasks[split]) for split in ("train", "eval") if split in run._tasks}
    if "train" in counts:
        steps = len(optimiser_steps(run, counts["train"])) * run.args.train.num_episodes
        counts["steps"] = steps if run.max_steps is None else min(steps, run.max_steps)
    return counts


SECRETS = ("logger.wandb.key",)
"""Flags that are never written down."""
PENALTIES = ("reward.overlong_buffer_len", "reward.stop_properly_penalty_coef")
"""Flags of upstream's that change rewards after credit."""


def _reward_range(run: Run) -> str:
    """What rewards look like after credit."""
    changed = [name for name in run.plugins.names if run.plugins.implements(name, "marl_credit")]
    changed += [f"--{name}" for name in PENALTIES if name in run.given]
    return f"scores in [0, 1], changed by {', '.join(changed)}" if changed else "[0, 1], the scores"


def flag_value(args: SimpleNamespace, name: str) -> Any:
    value: Any = args
    for part in name.split("."):
        value = getattr(value, part, None)
    return copy.copy(value)
