"""Our loop beside upstream's own trainer, on the same machine with the same flags:
`python -m benchmarks.upstream_loop [rounds] [--model smollm2] [--trees] [--steps N] [--prompts N]
[--samples N]`.

One policy, one role, one turn: upstream's own flags alone run upstream's trainer, and with
`--plugin marl_plugins.builtin.reinforce_pp` ours, both with the CPU support of engine/hosts/cpu.py.
64 prompts a step in the model's chat template (ours has no other), at most 32 tokens, a reward
function in Python; 14 steps in turn. A run's later step is the mean time between the lines that its
steps print, because Ray hands on upstream's lines ten times a second; the start-up ends with the
first step's. About two minutes for two rounds of the tiny model. With `--trees` there is a third
one, ours with `--sequences trees`, and all have `sdpa` as attention.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OURS, OUR_STEP = ["--plugin", "marl_plugins.builtin.reinforce_pp"], re.compile(r"^ *(\d+)/\d+ ")
LOOPS = {
    "ours": (OURS, OUR_STEP),
    "upstream": (["--data.apply_chat_template"], re.compile(r"Global step (\d+):")),
    "ours, trees": ([*OURS, "--sequences", "trees"], OUR_STEP),
}
"""The words that each takes besides the common ones, and the line that it prints after a step."""
REWARD = """\
import torch


def reward_func(queries, prompts, labels):
    rewards = torch.tensor([(len(query) % 7) / 6 for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
"""


def words(folder: Path, steps: int, prompts: int = 64, samples: int = 1, **more: Any) -> list[str]:
    """Upstream's command line for a number of steps of so many prompts, with other values of some
    flags."""
    rows = prompts * samples
    data = folder / f"{steps}.jsonl"
    lines = (
        json.dumps({"prompt": f"What is {n} + {n % 7}?", "label": str(n + n % 7)})
        for n in range(prompts * steps)
    )
    data.write_text("\n".join(lines) + "\n")
    flags: dict[str, object] = {
        "actor.model_name_or_path": folder / "model",
        "data.prompt_dataset": data,
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.max_len": 128,
        "reward.remote_url": folder / "reward.py",
        "rollout.batch_size": prompts,
        "rollout.n_samples_per_prompt": samples,
        "rollout.micro_batch_size": rows,
        "rollout.max_new_tokens": 32,
        "train.batch_size": rows,
        "train.micro_batch_size": rows,
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
    } | more
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def finished(folder: Path, loop: str, options: argparse.Namespace) -> list[float]:
    """Seconds from the start to the end of each step."""
    more, line_of_a_step = LOOPS[loop]
    attention = {"ds.attn_implementation": "sdpa"} if options.trees else {}
    flags = words(folder, options.steps, options.prompts, options.samples, **attention)
    command = [sys.executable, "-u", "-m", "marl_plugins", "train", *more, *flags]
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
    if run.returncode or sorted(ends) != list(range(1, options.steps + 1)):
        sys.exit(
            f"{' '.join(command)}\nended with {run.returncode}, steps "
            f"{sorted(ends)}:\n{''.join(said[-60:])}"
        )
    return [ends[step] for step in sorted(ends)]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    from marl_plugins.core.recipe.kept_models import place_of
    from marl_plugins.engine.runtime.tiny_model import resolve

    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream_loop")
    parser.add_argument("rounds", type=int, nargs="?", default=2)
    parser.add_argument("--model", default="tiny", help="tiny, smollm2, or a folder")
    parser.add_argument("--trees", action="store_true", help="also ours on trees of prefixes")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--prompts", type=int, default=64, help="of a step")
    parser.add_argument("--samples", type=int, default=1, help="of a prompt")
    options = parser.parse_args()
    loops = [*LOOPS][: 3 if options.trees else 2]
    steps: dict[str, list[float]] = {loop: [] for loop in loops}
    starts: dict[str, list[float]] = {loop: [] for loop in loops}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").symlink_to(resolve(place_of(options.model)))
        (folder / "reward.py").write_text(REWARD)
        for _ in range(options.rounds):
            for loop in loops:
                ends = finished(folder, loop, options)
                starts[loop].append(ends[0])
                steps[loop].append((ends[-1] - ends[0]) / (len(ends) - 1))
    for what, found in (("a step", steps), ("to the end of the first step", starts)):
        for loop in [loop for loop in loops if loop != "upstream"]:
            ratio = statistics.median(found["upstream"]) / statistics.median(found[loop])
            print(
                f"{what}: {loop} {spread(found[loop])} s, upstream {spread(found['upstream'])} s, "
                f"ratio {ratio:.2f}"
            )


if __name__ == "__main__":
    main()
