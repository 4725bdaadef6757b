"""A judge that is trained while it judges, on real engines:
`python -m benchmarks.judge [demo | dsbench] --out FOLDER [--seeds 0 1 2] [--steps N]`.

    1. recipes/mathchat/tiny.yaml, or recipes/dsbench/tiny.yaml, with its rubric, a few steps: what
       a coach says of each action
    2. `openrlhf export --table verdicts`: supervised data, under the short prompts below
    3. the demo's coder, which can copy, learns to answer like that: the judge
    4. the recipe again with that policy as its coach, which is shown no label, four samples of
       each of eight tasks a step:

    frozen     learning rate 0 for the judge, whose answers are sampled as in the next two
    trained    --coach.train_every 1, on outcomes
    effect     --coach.train_every 1 --coach.learn effect
    outcome    no judge: every action is rewarded with the outcome

Scores are measured against outcomes in every step before the judge is trained on it, and no task
comes twice: the trajectories are held out. Calibration error: the mean over the roles of the mean
distance of score and share of successes, in ten bins of equal size, over the last ten steps; beside
it Brier's score, the area under the ROC curve, and success of the agents on held-out problems
before and at the end. Means over seeds with each of them, and the agents' last success against that
of the first arm. Finished runs in FOLDER are not repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.demo import MATHCHAT, points, train
from benchmarks.dsbench import DSBENCH, cell
from benchmarks.learning import curve
from benchmarks.recorded import add_flag, restore
from benchmarks.trained_judge import measured
from marl_plugins.core.demonstrations import WarmStartConfig
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.engine.runtime import warm_start

ARMS: dict[str, list[str]] = {
    "frozen": ["--policy.judge.actor.adam.lr", "0"],
    "trained": [],
    "effect": ["--coach.learn", "effect"],
    "outcome": [],
}
RECIPE = """\
extends: tiny.yaml
policies:
  judge: {{model: "{model}", flags: {{data.max_len: 512, actor.adam.lr: 6e-4}}}}
flags:
  coach.rubric: null
  coach.policy: judge
  coach.train_every: 1
  coach.prompt: judge.md
  coach.ground_truth: none
  coach.max_tokens: 24
"""


@dataclass(frozen=True)
class System:
    """What is judged.

    Args:
        folder: Of its recipe.
        shown: What the judge is shown of an action.
        lessons: Supervised steps of the judge.
        steps: Of training.
    """

    folder: Path
    shown: str
    lessons: int
    steps: int


SYSTEMS = {
    "demo": System(
        MATHCHAT,
        shown="{task}\n{before}\n{role}: {action}\n{tools}",
        lessons=1000,
        steps=25,
    ),
    "dsbench": System(DSBENCH, shown="{messages}\n{role}: {action}", lessons=400, steps=20),
}
BLUR = 1.5
"""Standard deviation, in points of ten."""
BATCH = 32
"""Verdicts in a supervised step."""
LAST = 10
"""Steps over which scores are measured."""


def shown_and_said(line: str, rng: random.Random, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Ids of a verdict's question and of its line with the score, with a mask over the latter.

    The nonce is drawn anew, and the score is blurred, so that the judge has more to say than the
    rubric's few numbers.
    """
    row = json.loads(line)
    question, said = row["prompt"][0]["content"], row["completion"][0]["content"].splitlines()[-1]
    nonce, fresh = said.split()[1].rstrip(":"), f"{rng.getrandbits(32):08x}"
    score = min(10, max(0, round(10 * row["score"] + rng.gauss(0, BLUR))))
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": question.replace(nonce, fresh)}],
        add_generation_prompt=True,
        return_dict=False,
    )
    ids = [
        *tokenizer.encode(f"SCORE {fresh}: {score}", add_special_tokens=False),
        tokenizer.eos_token_id,
    ]
    return [*shown, *ids], [0] * len(shown) + [1] * len(ids)


def teach(folder: Path, data: Path, target: Path, lessons: int) -> None:
    """A model that goes on learning, from a data set of verdicts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rng = random.Random(0)
    lines = data.read_text().splitlines()
    drawn = [
        line
        for _ in range(1 + lessons * BATCH // len(lines))
        for line in rng.sample(lines, len(lines))
    ]
    rows = [shown_and_said(line, rng, tokenizer) for line in drawn[: lessons * BATCH]]
    config = WarmStartConfig(demonstrations=str(data), steps=lessons, batch_size=BATCH)
    warm_start.train(str(folder), target, rows, config, done=lambda: None)


def recipe(name: str, out: Path, model: str) -> str:
    """A copy of a system's recipe, with a policy that judges."""
    system, copy = SYSTEMS[name], out / f"{name}-recipe"
    shutil.copytree(system.folder, copy, dirs_exist_ok=True)
    (copy / "judge.md").write_text(f"{system.shown}\n{{fence}}\n{{form}}\n")
    (copy / "judged.yaml").write_text(RECIPE.format(model=model))
    return str(copy / "judged.yaml")


def judge(name: str, out: Path) -> str:
    """A model that has learned from the verdicts of a system's rubric."""
    target = out / f"{name}-judge"
    if not target.exists():
        rubric, data = judged_by_rubric(name, out), out / f"{name}-verdicts.jsonl"
        # The demo's coder: a judge has to copy a word of the question.
        copies = judged_by_rubric("demo", out) / "coder"
        if not data.exists():
            words = [
                *("export", str(rubric), "--table", "verdicts", "--to", str(data)),
                *("--recipe", recipe(name, out, str(copies)), "--train.seed", "100"),
            ]
            subprocess.run([sys.executable, "-m", "marl_plugins", *words], check=True)
        teach(copies, data, target, SYSTEMS[name].lessons)
    return str(target)


def judged_by_rubric(name: str, out: Path) -> Path:
    """The folder of a run whose actions its recipe's rubric has judged."""
    words = ["--recipe", str(SYSTEMS[name].folder / "tiny.yaml"), "--max_steps", "8"]
    words += ["--eval.steps", "-1", "--coach.ground_truth", "none"]
    train(f"{name}-rubric", words, 100, out)
    return out / f"{name}-rubric-100"


def quality(folder: Path, steps: tuple[int, int]) -> list[float]:
    """Calibration error, Brier's score and area under the ROC curve of the scores of some steps,
    and the share of missing ones; kept beside the run, because recorded runs have no actions."""
    kept = folder / "quality.json"
    if not kept.exists():
        kept.write_text(json.dumps(measured_scores(folder, steps)) + "\n")
    found: list[float] = json.loads(kept.read_text())
    return found


def measured_scores(folder: Path, steps: tuple[int, int]) -> list[float]:
    by_role, missing = defaultdict(list), []
    for trajectory in RunReader(folder).trajectories(Filter(steps)):
        for action in trajectory.actions:
            missing.append(action.score is None)
            if action.score is not None and trajectory.outcome is not None:
                by_role[action.role].append((action.score, trajectory.outcome))
    each = []
    for said in by_role.values():
        scores, outcomes = map(torch.tensor, zip(*said, strict=True))
        each.append(measured(scores[:, None], outcomes))
    return [*map(statistics.fmean, zip(*each, strict=True)), statistics.fmean(missing)]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.judge", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("system", choices=list(SYSTEMS), nargs="?", default="demo")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-judge"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--steps", type=int, help="of training")
    add_flag(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for run in restore("judge", options.out) if options.recorded else ():
        print(f"recorded: {run}", file=sys.stderr)
    system = SYSTEMS[options.system]
    steps = options.steps or system.steps
    names = {arm: f"{options.system}-{arm}" for arm in options.arms}
    wanted = [
        options.out / f"{names[arm]}-{seed}" / "bench.json"
        for arm in options.arms
        for seed in options.seeds
    ]
    model = "" if all(map(Path.exists, wanted)) else judge(options.system, options.out)
    judged = recipe(options.system, options.out, model)
    words = ["--max_steps", str(steps), "--eval.steps", str(steps)]
    words += ["--rollout.batch_size", "8", "--rollout.n_samples_per_prompt", "4"]
    words += ["--train.batch_size", "32"]
    last = (steps - LAST + 1, steps)
    print(
        "| arm | seeds | calibration error | Brier | area under ROC | no verdict | agents before | "
        f"after | over {options.arms[0]}, points |"
    )
    print("|---" * 9 + "|")
    ends: dict[str, list[float]] = {}
    for arm in options.arms:
        flags, columns = ARMS[arm], []
        chosen = str(system.folder / "tiny_outcome.yaml") if arm == "outcome" else judged
        for seed in options.seeds:
            train(names[arm], ["--recipe", chosen, *words, *flags], seed, options.out)
            folder = options.out / f"{names[arm]}-{seed}"
            success = list(curve(folder, "eval/outcome").values())
            said = [] if arm == "outcome" else quality(folder, last)
            columns.append([*said, success[0], success[-1]])
        each = [list(column) for column in zip(*columns, strict=True)]
        ends[arm] = each[-1]
        cells = [""] * (6 - len(each)) + [cell(column) for column in each]
        against = ends[options.arms[0]]
        over = points([a - b for a, b in zip(ends[arm], against, strict=True)])
        print(f"| {arm} | {len(columns)} | {' | '.join(cells)} | {over} |", flush=True)


if __name__ == "__main__":
    main()
