"""Our loop beside upstream's own trainer, with the same words on the same machine: `python -m benchmarks.upstream_loop [pairs]`.

One policy, one role, one turn: upstream's own flags alone run upstream's trainer, and with `--plugin marl_plugins.reinforce_pp`
ours, both with the CPU support of hosts/cpu.py. 64 prompts a step, at most 32 tokens, a reward function in Python. Runs of 2 and of
22 steps, in turn: their difference gives a step, the shorter run the start-up. About ten minutes for two pairs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHORT, LONG = 2, 22
PER_STEP = 64
PLUGIN = ["--plugin", "marl_plugins.reinforce_pp"]
REWARD = """\
import torch


def reward_func(queries, prompts, labels):
    rewards = torch.tensor([(len(query) % 7) / 6 for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
"""


def words(folder: Path, steps: int) -> list[str]:
    """Upstream's command line for a number of steps."""
    data = folder / f"{steps}.jsonl"
    lines = (json.dumps({"prompt": f"What is {n} + {n % 7}?", "label": str(n + n % 7)}) for n in range(PER_STEP * steps))
    data.write_text("\n".join(lines) + "\n")
    flags: dict[str, object] = {
        "actor.model_name_or_path": folder / "model",
        "data.prompt_dataset": data,
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.max_len": 128,
        "reward.remote_url": folder / "reward.py",
        "rollout.batch_size": PER_STEP,
        "rollout.n_samples_per_prompt": 1,
        "rollout.micro_batch_size": PER_STEP,
        "rollout.max_new_tokens": 32,
        "train.batch_size": PER_STEP,
        "train.micro_batch_size": PER_STEP,
        "train.num_episodes": 1,
        "train.max_epochs": 1,
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "algo.advantage.estimator": "reinforce",
        "algo.kl.init_coef": 0,
        "ds.zero_stage": 0,
        "ds.attn_implementation": "eager",
        "actor.adam.lr": 1e-4,
        "eval.steps": -1,
        "ckpt.save_steps": -1,
        "ckpt.output_dir": folder / "out",
        "ckpt.path": folder / "checkpoints",
    }
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def seconds(folder: Path, steps: int, plugin: list[str]) -> float:
    """How long a whole run takes."""
    command = [sys.executable, "-m", "marl_plugins", "train", *plugin, *words(folder, steps)]
    started = time.perf_counter()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "MARL_PLUGINS_DEVICE": "cpu"},
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-4000:]}")
    return time.perf_counter() - started


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    from marl_plugins.runtime.tiny_model import build

    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    steps: dict[str, list[float]] = {"ours": [], "upstream": []}
    starts: dict[str, list[float]] = {"ours": [], "upstream": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder / "model", seed=0, hidden=128, layers=2, heads=2, positions=512)
        (folder / "reward.py").write_text(REWARD)
        for _ in range(pairs):
            for loop, plugin in (("ours", PLUGIN), ("upstream", [])):
                short, long = (seconds(folder, count, plugin) for count in (SHORT, LONG))
                starts[loop].append(short)
                steps[loop].append((long - short) / (LONG - SHORT))
                print(f"{loop}: {SHORT} steps {short:.1f} s, {LONG} steps {long:.1f} s", flush=True)
    for what, found in (("a step", steps), (f"start-up, {SHORT} steps and the end", starts)):
        ratio = statistics.median(found["upstream"]) / statistics.median(found["ours"])
        print(f"{what}: ours {spread(found['ours'])} s, upstream {spread(found['upstream'])} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
