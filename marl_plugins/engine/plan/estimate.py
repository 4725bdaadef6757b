"""Estimates what a run on GPUs takes, as far as the sizes of its models say: memory of a device,
time of a step. Arithmetic, no measurement.

Memory, with P parameters of two bytes on n training processes: weights 2P (/ n with ZeRO 3),
gradients 2P (/ n from ZeRO 2 on), Adam 12P (/ n from ZeRO 1 on; with `--ds.adam_offload` 20P in the
host's memory), a reference 2P, a critic 16P. Engines have 2P / tensor-parallel size, and as
KV cache what `--vllm.gpu_memory_utilization` leaves.

Time, with every answer and task as long as it may be and the turns of a conversation as one
sequence; as trees, a prompt is computed once for the samples of a task, and what all tasks begin
with once in a tree, of which each device has one or more: a token of training takes 6P operations,
2P more for each forward pass (old log-probs, reference, gradient checkpointing); a token of
generation reads 2P bytes and takes 2P operations for each trajectory that an engine has (Kaplan et
al. 2020, section 2.1). Roles follow each other in generation, policies train at the same time, and
the members of a population share a role's trajectories.

Not counted: activations and logits, attention's part that grows with the square of the length, KV
cache that is read, prompts in generation, and in training where their tokenizer is not on this
machine, tools, coach, starting and weight sync.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marl_plugins.core.process_backend import OBJECT_STORE_BYTES
from marl_plugins.core.recipe import tiny
from marl_plugins.core.run import Run
from marl_plugins.engine.hosts.devices import critic_gpus, shares_with_reference, training_gpus
from marl_plugins.engine.plan.lengths import answers_shown
from marl_plugins.engine.plan.plan import Plan

OPERATIONS_PER_SECOND, BYTES_PER_SECOND = 990e12 / 3, 3.35e12 / 2
"""A second on an H100: a third of its bfloat16 peak, half of its memory's bandwidth."""
STORE_BYTES_PER_SECOND = 2.3e9
"""A policy's weights from the device to Ray's store, from there to an engine, and to its device;
2.2e9 on an H200 (docs/gpu_results.md, `ways`)."""
ASSUMES = (
    "H100 at a third of its peak and half of its bandwidth; every answer as long as it may be; "
    "bfloat16 and Adam; without activations, logits, KV cache, tools and coach"
)
SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s?([bm])(?![a-z])", re.IGNORECASE)


def estimate(plan: Plan) -> dict[str, Any]:
    """Returns memory by policy, seconds of a step and hours of the run; empty on a machine without
    GPUs and for models of unknown size."""
    run = plan.run
    sizes = {p.name: parameters(p.model) for p in run.policies if not p.served}
    if run.device != "cuda" or None in sizes.values():
        return {}
    known = {name: size for name, size in sizes.items() if size}
    trajectories = (
        min(run.args.rollout.batch_size, plan.counted.get("train", 10**9))
        * run.args.rollout.n_samples_per_prompt
    )
    generate, train = generating(run, known, trajectories), training(plan, known, trajectories)
    silence = run.recipe.limits.silence_seconds
    unseen = [role for role, lengths in plan.lengths.items() if not lengths.shown]
    estimates: dict[str, Any] = {
        "assumes": ASSUMES + f"; without prompts of {', '.join(unseen)}" * bool(unseen),
        "parameters": {name: f"{size / 1e9:.3g} B" for name, size in known.items()},
        "memory": {
            p.name: memory(run.policy_args[p.name], known[p.name], p.trainable)
            for p in run.policies
            if p.name in known
            and (run.processes is None or run.processes.engines_of(run, p.name) == p.name)
        },
        "sync": sync(run),
        "step": f"at most {generate:.0f} s to generate, {train:.0f} s to train"
        + f"; an update may be ended: raise limits.silence_seconds ({silence:g} s)"
        * (train > silence),
    }
    if steps := plan.counted.get("steps"):
        every, samples = run.args.eval.steps, run.args.eval.n_samples_per_prompt
        known_tasks = plan.tasks("eval") if "eval" in plan.counted else []
        tasks = sum(task.samples or samples for task in known_tasks)
        evaluations = 1 + math.ceil(steps / every) if every > 0 and tasks else 0
        seconds = steps * (generate + train)
        seconds += evaluations * generating(run, known, tasks)
        estimates["run"] = (
            f"at most {seconds / 3600:.1f} h: {steps} steps and {evaluations} evaluations"
        )
    return estimates


def parameters(model: str) -> float | None:
    """Returns the number of parameters of a model: of a folder by its weights, else by the largest
    number in its name (`Qwen3-4B`, and not the tokens of `Qwen2.5-7B-Instruct-1M`); None where
    neither says."""
    folder = Path(model)
    if tiny.is_tiny(model):
        return None
    if folder.is_dir():
        stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        return stored / _bytes_each(folder) if stored else None
    sizes = SIZE.findall(folder.name.replace("-", " ").replace("_", " "))
    return max(
        (float(number) * {"b": 1e9, "m": 1e6}[unit.lower()] for number, unit in sizes), default=None
    )


def _bytes_each(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return 4 if config.get("dtype", config.get("torch_dtype")) == "float32" else 2


def memory(args: SimpleNamespace, size: float, trained: bool) -> str:
    """Estimates what a policy needs of each of its devices, and of the host."""
    engine = (
        f"{gb(2 * size / args.vllm.tensor_parallel_size)} of weights in each engine's "
        "devices, and the KV cache"
    )
    if not trained:
        return engine
    on_device, on_host = training_memory(args, size)
    text = (
        f"{gb(sum(on_device.values()))} a device to train "
        f"({', '.join(f'{n} {gb(v)}' for n, v in on_device.items())})"
    )
    if host := sum(on_host.values()):
        text += f", {gb(host * training_gpus(args))} of the host's"
    return f"{text}; {engine}{_together(args)}"


def sync(run: Run) -> str:
    """Estimates what a weight sync takes; policies are synced at the same time."""
    sizes = weight_bytes(run)
    counts = Counter(gb(size) for size in sizes.values())
    through = " and ".join(f"{count} x {size}" for size, count in counts.items())
    seconds = max(sizes.values(), default=0.0) / STORE_BYTES_PER_SECOND
    return f"{through or 'adapters'} through Ray's store, about {seconds:.1f} s"


def weight_bytes(run: Run) -> dict[str, float]:
    """Returns the bytes of the weights that engines are given, by policy, where the model's size is
    known; an adapter's are few."""
    sizes: dict[str, float] = {}
    for policy in run.policies:
        args = run.policy_args[policy.name]
        model = args.actor.model_name_or_path
        size = tiny.parameters(model) if tiny.is_tiny(model) else parameters(model)
        if size and (policy.trainable or policy.follows) and not args.ds.lora.rank:
            sizes[policy.name] = size * (4 if args.ds.param_dtype == "fp32" else 2)
    return sizes


def store_bytes(run: Run) -> int:
    """Returns the bytes that Ray's object store needs."""
    of_backend = run.processes.object_store_bytes(run) if run.processes else 0
    return OBJECT_STORE_BYTES + int(sum(weight_bytes(run).values())) + of_backend


def training_memory(
    args: SimpleNamespace, size: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns bytes that training takes of each device, and of the host for each device, by what
    they are for.

    A critic on the same devices counts as large as the policy. Of adapters their model counts
    alone, for all of them.
    """
    ranks, stage = training_gpus(args), args.ds.zero_stage
    weights = 2 * size / (ranks if stage == 3 else 1)
    gradients = 2 * size / (ranks if stage >= 2 else 1)
    if args.ds.lora.rank:
        return {"weights": weights}, {}
    # in float32 weights and two moments; on the host (stage_1_and_2.py of 0.19.6) gradients, too,
    # and two buffers of 2 bytes
    adam = 20 if args.ds.adam_offload else 12
    parts = {
        "weights": weights,
        "gradients": gradients,
        "Adam": adam * size / (ranks if stage >= 1 else 1),
    }
    if shares_with_reference(args):
        parts["reference"] = weights
    if args.train.colocate_all and critic_gpus(args):
        parts |= {"critic": weights + gradients, "critic's Adam": parts["Adam"]}
    away = {"Adam", "critic's Adam"} if args.ds.adam_offload else set()
    away |= {"reference"} if args.ref.offload else set()
    return {n: v for n, v in parts.items() if n not in away}, {
        n: v for n, v in parts.items() if n in away
    }


def _together(args: SimpleNamespace) -> str:
    """Returns whether training and engines need their memory at the same time."""
    if not args.train.colocate_all:
        return ", on devices of their own"
    return (
        "; they take turns"
        if args.vllm.enable_sleep
        else "; both at the same time (--vllm.enable_sleep lets them take turns)"
    )


def gb(count: float) -> str:
    return f"{count / 1e9:.3g} GB"


def generating(run: Run, sizes: Mapping[str, float], trajectories: int) -> float:
    """Returns the seconds in which all trajectories are generated, role after role."""
    seconds = 0.0
    for role in run.recipe.mapped_roles:
        members = run.recipe.policies_of(role)
        each = trajectories / len(members)
        ours = [_token(run, policy, sizes[policy], each) for policy in members if policy in sizes]
        slowest = max(ours, default=0.0)
        seconds += run.role(role).max_turns * run.longest_answer(role) * slowest
    return seconds


def _token(run: Run, policy: str, size: float, trajectories: float) -> float:
    """Returns the seconds in which a policy's engines generate one more token of each of their
    trajectories."""
    vllm = run.policy_args[policy].vllm
    operations = 2 * size * trajectories / vllm.num_engines
    return float(
        (2 * size / BYTES_PER_SECOND + operations / OPERATIONS_PER_SECOND)
        / vllm.tensor_parallel_size
    )


def training(plan: Plan, sizes: Mapping[str, float], trajectories: int) -> float:
    """Returns the seconds in which the policy with the most to train is done; adapters of one model
    take turns."""
    run = plan.run
    seconds: dict[str, float] = {}
    for name in (p.name for p in run.policies if p.trainable and p.name in sizes):
        owner = name if run.processes is None else run.processes.engines_of(run, name)
        seconds[owner] = seconds.get(owner, 0.0) + _training(plan, name, sizes[name], trajectories)
    return max(seconds.values(), default=0.0)


def _training(plan: Plan, policy: str, size: float, trajectories: int) -> float:
    args = plan.run.policy_args[policy]
    forward = (
        1
        + (args.algo.kl.init_coef > 0)
        + bool(args.actor.gradient_checkpointing_enable) * args.train.max_epochs
    )
    tokens = sum(
        _tokens(plan, policy, role, trajectories) for role in plan.run.recipe.roles_of(policy)
    )
    operations = (6 * args.train.max_epochs + 2 * forward) * size * tokens
    return float(operations / (OPERATIONS_PER_SECOND * training_gpus(args)))


def _tokens(plan: Plan, policy: str, role: str, trajectories: int) -> float:
    """Returns the tokens of a role's rows that go through a policy's model in a step."""
    run, args = plan.run, plan.run.policy_args[policy]
    lengths, answers = plan.lengths[role], answers_shown(run, role)
    rows = trajectories / len(run.recipe.policies_of(role))
    longest = lengths.shown + answers + run.role(role).max_turns * run.longest_answer(role)
    tokens: float = rows * min(args.data.max_len, longest)
    if plan.options.sequences != "trees":
        return tokens
    steps = trajectories / args.train.batch_size
    of_tree = (
        args.train.max_tokens_per_gpu
        if args.train.dynamic_batch_enable
        else args.train.micro_batch_size * args.data.max_len
    )
    trees = min(rows, steps * max(training_gpus(args), math.ceil(tokens / steps / of_tree)))
    apart = rows if answers else rows / args.rollout.n_samples_per_prompt
    of_task = lengths.shown - lengths.alike
    return float(tokens - (rows - trees) * lengths.alike - (rows - apart) * of_task)
