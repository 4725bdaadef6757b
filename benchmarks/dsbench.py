"""Does a coach help where success is rare? recipes/dsbench/tiny.yaml beside its controls:
`make bench-dsbench` (hours), or

    python -m benchmarks.dsbench --out FOLDER [--seeds 0 1 2] [--arms ARM ...] [--steps 80]

    strict    a coach that knows the right word of every decision
    outcome   the same rollouts and budget, every action rewarded with the outcome
    symptom   a coach that sees only whether an action's own program ran
    traced    the same coach, with failures traced back by the files of the workspace
    frozen    learning rate 0 (two evaluations: nothing changes between)

More controls, which only run where they are named: the strict coach's scores summed over what comes
later and normalised by role (to_go), each trajectory's mean for all of its actions (shared), the
next action's (shifted), the same for all (constant: one step, because every advantage is 0); strict
with a policy for each of the three roles (own), and there its scores summed over what the same
agent does later, as MAPPA's equation 3 has it (own_to_go); strict and outcome at three quarters of
the learning rate (slow_strict, slow_outcome). And the other end of the map
(benchmarks/coach_map.py), in a copy of the recipe with fewer slips (5 % succeed at the start) and
128 trajectories a step: easy_strict, easy_outcome. Four samples of each task, rewarded with the
outcome: tasks as they come (uniform), by their success so far (curriculum), and where all four have
the same outcome the next task instead (filtered).

Success of the whole system on held-out tasks, sampled at the training temperature, before and after
every twenty steps: means over seeds, and the difference to `outcome` at step 40 paired by seed,
with its 95 % t-interval in percentage points; that of curriculum and filtered is to `uniform`, that
of own_to_go to `own`. All
arms of a seed start from one warm start. Finished runs in FOLDER are not repeated.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from pathlib import Path

from benchmarks.demo import points, train
from benchmarks.recorded import add_flag, restore
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.records.read import RunReader

DSBENCH = recipes_root() / "dsbench"
TINY = ["--recipe", str(DSBENCH / "tiny.yaml")]
SYMPTOM = [*TINY, "--coach.rubric", str(DSBENCH / "symptom_rubric.py")]
ONE_STEP = ["--eval.steps", "1", "--max_steps", "1"]
ARMS: dict[str, list[str]] = {
    "strict": TINY,
    "outcome": ["--recipe", str(DSBENCH / "tiny_outcome.yaml")],
    "symptom": SYMPTOM,
    "traced": [*SYMPTOM, "--plugin", str(DSBENCH / "traced.py")],
    "frozen": [*TINY, "--actor.adam.lr", "0", *ONE_STEP],
}
CONTROL = [*TINY, "--plugin", str(Path(__file__).with_name("controls.py")), "--controls.scores"]
EASY = {"easy_strict": "tiny.yaml", "easy_outcome": "tiny_outcome.yaml"}
"""Arms of a copy of the recipe."""
NAMED: dict[str, list[str]] = {
    "to_go": [*TINY, "--reinforce_pp.scope", "trajectory", "--reinforce_pp.normalise", "role"],
    "own": [*TINY, "--mapping", "separate"],
    "own_to_go": [*TINY, "--mapping", "separate", "--reinforce_pp.scope", "policy"],
    **{name: [*CONTROL, name] for name in ("shared", "shifted")},
    "constant": [*CONTROL, "constant", *ONE_STEP],
    **{
        f"slow_{name}": [*ARMS[name], "--actor.adam.lr", "1.5e-4"] for name in ("strict", "outcome")
    },
}
FOUR = [
    "--recipe",
    str(DSBENCH / "tiny_outcome.yaml"),
    "--rollout.batch_size",
    "8",
    "--rollout.n_samples_per_prompt",
    "4",
]
NAMED |= {
    "uniform": FOUR,
    "curriculum": [*FOUR, "--plugin", "marl_plugins.curriculum"],
    "filtered": [*FOUR, "--algo.dynamic_filtering_enable"],
}
OVER = {"curriculum": "uniform", "filtered": "uniform", "own_to_go": "own"}
"""The arm that an arm is compared with, where it is not `outcome`."""
EVERY = 20
COMPARED = 40


def curve(folder: Path) -> dict[int, float]:
    """Held-out success by step."""
    found = {}
    for metrics in RunReader(folder).metrics():
        if "eval/outcome" in metrics:
            found[int(metrics["step"])] = float(metrics["eval/outcome"])
    return found


def easy(file: str, out: Path) -> list[str]:
    """Flags of a copy of the recipe in which ten right words in a row have 0.74 ** 10 = 5 %."""
    copy = out / "recipe-easy"
    if not copy.exists():
        shutil.copytree(DSBENCH, copy)
        demonstrations = copy / "demonstrations.py"
        demonstrations.write_text(
            demonstrations.read_text().replace("SLIPS = 0.43", "SLIPS = 0.26")
        )
    sizes = [
        "--rollout.batch_size",
        "64",
        "--rollout.n_samples_per_prompt",
        "2",
        "--train.batch_size",
        "128",
    ]
    return ["--recipe", str(copy / file), *sizes]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dsbench", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench-dsbench"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *NAMED, *EASY], default=list(ARMS))
    parser.add_argument("--steps", type=int, default=80)
    add_flag(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for run in restore("dsbench", options.out) if options.recorded else ():
        print(f"recorded: {run}", file=sys.stderr)
    shown = list(range(0, options.steps + 1, EVERY))
    print(
        f"| arm | seeds | {' | '.join(f'step {s}' for s in shown)} | seconds | over outcome or "
        f"uniform at {COMPARED} |",
        flush=True,
    )
    print("|---" * (len(shown) + 4) + "|", flush=True)
    arms = (
        ARMS
        | NAMED
        | {arm: easy(file, options.out) for arm, file in EASY.items() if arm in options.arms}
    )
    limit = ["--max_steps", str(options.steps)]
    curves: dict[tuple[str, int], dict[int, float]] = {}
    seconds: dict[str, list[float]] = {arm: [] for arm in options.arms}
    for seed in options.seeds:  # by seed, so that a part of the table is a comparison already
        for arm in options.arms:
            flags = arms[arm] if "--max_steps" in arms[arm] else [*arms[arm], *limit]
            seconds[arm].append(train(arm, flags, seed, options.out)["seconds"])
            curves[arm, seed] = curve(options.out / f"{arm}-{seed}")
    for arm in options.arms:
        of_arm = [curves[arm, seed] for seed in options.seeds]
        means = [cell([c[step] for c in of_arm if step in c]) for step in shown]
        over = ""
        base = OVER.get(arm, "outcome")
        if (
            arm not in ("outcome", "uniform", "frozen", "constant")
            and base in options.arms
            and options.steps >= COMPARED
        ):
            others = [curves[base, seed] for seed in options.seeds]
            over = points(
                [c[COMPARED] - other[COMPARED] for c, other in zip(of_arm, others, strict=True)]
            )
        took = f"{statistics.median(seconds[arm]):.0f}"
        print(f"| {arm} | {len(of_arm)} | {' | '.join(means)} | {took} | {over} |", flush=True)


def cell(values: list[float]) -> str:
    """Mean over seeds and each seed's value; empty where nothing was evaluated."""
    each = ", ".join(f"{value:.2f}" for value in values)
    return f"{statistics.fmean(values):.3f} ({each})" if values else ""


if __name__ == "__main__":
    main()
