"""Our loop beside upstream's own trainer, on the same machine with the same flags:
`python -m benchmarks.upstream_loop [pairs]`.

One policy, one role, one turn: upstream's own flags alone run upstream's trainer, and with
`--plugin marl_plugins.reinforce_pp` ours, both with the CPU support of engine/hosts/cpu.py. 64
prompts a step in the model's chat template (ours has no other), at most 32 tokens, a reward
function in Python; 14 steps in turn. A step is the time between the lines that two of them print;
the start-up ends with the first step's. About two minutes for two pairs.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 14
PER_STEP = 64
LOOPS = {
    "ours": (["--plugin", "marl_plugins.reinforce_pp"], re.compile(r"^ *(\d+)/\d+ ")),
    "upstream": (["--data.apply_chat_template"], re.compile(r"Global step (\d+):")),
}
"""The words that each takes besides the common ones, and the line that it prints after a step."""
REWARD = """\
import torch


def reward_func(queries, prompts, labels):
    rewards = torch.tensor([(len(query) % 7) / 6 for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
"""


def words(folder: Path, steps: int, **others: object) -> list[str]:
    """Upstream's command line for a number of steps, with other values of some flags."""
    data = folder / f"{steps}.jsonl"
    lines = (
        json.dumps({"prompt": f"What is {n} + {n % 7}?", "label": str(n + n % 7)})
        for n in range(PER_STEP * steps)
    )
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
    } | others
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def finished(folder: Path, loop: str) -> list[float]:
    """Seconds from the start to the end of each step."""
    more, line_of_a_step = LOOPS[loop]
    command = [sys.executable, "-u", "-m", "marl_plugins", "train", *more, *words(folder, STEPS)]
    env = {**os.environ, "MARL_PLUGINS_DEVICE": "cpu", "PYTHONUNBUFFERED": "1"}
    started, ends, said = time.perf_counter(), dict[int, float](), list[str]()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            said.append(line)
            if found := line_of_a_step.search(line):
                ends.setdefault(int(found[1]), time.perf_counter() - started)
    if run.returncode or sorted(ends) != list(range(1, STEPS + 1)):
        sys.exit(
            f"{' '.join(command)}\nended with {run.returncode}, steps "
            f"{sorted(ends)}:\n{''.join(said[-60:])}"
        )
    return [ends[step] for step in sorted(ends)]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    from marl_plugins.engine.runtime.tiny_model import build

    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    steps: dict[str, list[float]] = {loop: [] for loop in LOOPS}
    starts: dict[str, list[float]] = {loop: [] for loop in LOOPS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder / "model", seed=0, hidden=128, layers=2, heads=2, positions=512)
        (folder / "reward.py").write_text(REWARD)
        for _ in range(pairs):
            for loop in LOOPS:
                ends = finished(folder, loop)
                starts[loop].append(ends[0])
                steps[loop] += [later - earlier for earlier, later in itertools.pairwise(ends)]
    for what, found in (("a step", steps), ("to the end of the first step", starts)):
        ratio = statistics.median(found["upstream"]) / statistics.median(found["ours"])
        print(
            f"{what}: ours {spread(found['ours'])} s, upstream {spread(found['upstream'])} s, "
            f"ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
