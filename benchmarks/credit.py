"""How credit is assigned and normalised, and how soon the demo's task is learned:

    python -m benchmarks.credit --out FOLDER [--seeds 3] [--arms ARM ...]         (six minutes a run
        on two cores)

    coach        recipes/mathchat/tiny.yaml: the rubric coach's score rewards each action; one mean
                 and deviation for all of them
    outcome      tiny_outcome.yaml: every action is rewarded with the outcome
    backprop     contributions to the outcome beside the coach's scores
                 (marl_plugins.reward_backprop, rules)
    policy       the coach's rewards, normalised by policy (here also by role) in place of all
                 together
    group        the coach's rewards, GRPO's groups: four samples of 32 tasks, compared by role and
                 turn
    descendants  an action is credited with the coach's rewards of all that depends on it,
    normalised by role
    own          an action is credited with the coach's rewards of what the same agent does after it
                 (MAPPA, equation 3)

Every arm trains on 128 trajectories a step for 40 steps, from the same warm start. Success is the
whole system's on 400 held-out problems, evaluated every ten steps; the steps to 0.65 lie on the
straight line between two evaluations (a run that does not get there counts as 40). Differences are
paired by seed, with 95 % t-intervals. Finished runs in FOLDER are not repeated; those of
benchmarks.demo, which are longer, count up to their fortieth step.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from pathlib import Path

from benchmarks.demo import ARMS as DEMO
from benchmarks.demo import COACH, points, train
from benchmarks.recorded import add_flag, restore
from marl_plugins.engine.records.read import RunReader

STEPS = 40
ARMS: dict[str, list[str]] = {
    "coach": DEMO["coach"],
    "outcome": DEMO["outcome"],
    "backprop": [*COACH, "--plugin", "marl_plugins.reward_backprop"],
    "policy": [*COACH, "--reinforce_pp.normalise", "policy"],
    "group": [
        *(*COACH, "--algo.advantage.estimator", "group_norm", "--groups.by", "task+role+turn"),
        *("--rollout.batch_size", "32", "--rollout.n_samples_per_prompt", "4"),
    ],
    "descendants": [
        *COACH,
        "--reinforce_pp.scope",
        "trajectory",
        "--reinforce_pp.normalise",
        "role",
    ],
    "own": [*COACH, "--reinforce_pp.scope", "policy"],
}


def successes(folder: Path) -> dict[int, float]:
    """Held-out success by the step after which it was evaluated, up to `STEPS`."""
    metrics = RunReader(folder).metrics()
    return {
        int(m["step"]): m["eval/outcome"]
        for m in metrics
        if "eval/outcome" in m and m["step"] <= STEPS
    }


def steps_to(curve: dict[int, float], success: float) -> float:
    """Where the line through the evaluations first reaches this success; the last step where it
    does not."""
    evaluations = sorted(curve.items())
    for (step, low), (following, high) in itertools.pairwise(evaluations):
        if high >= success:
            return (
                step + (following - step) * max(0.0, success - low) / (high - low)
                if high > low
                else following
            )
    return evaluations[-1][0]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.credit", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench-credit"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=[*ARMS],
        default=[*ARMS],
        help="the first is what the others are compared with",
    )
    add_flag(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for run in restore("demo", options.out) if options.recorded else ():
        print(f"recorded: {run}", file=sys.stderr)
    first: list[float] = []
    print(
        f"| arm | seeds | step 0 | 10 | 20 | 30 | {STEPS} | steps to 0.65 | {STEPS}: points beside "
        f"{options.arms[0]} |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for arm in options.arms:
        for seed in range(options.seeds):
            train(arm, [*ARMS[arm], "--max_steps", str(STEPS)], seed, options.out)
        curves = [successes(options.out / f"{arm}-{seed}") for seed in range(options.seeds)]
        steps = [steps_to(curve, 0.65) for curve in curves]
        last = [curve[STEPS] for curve in curves]
        first = first or last
        beside = (
            points([a - b for a, b in zip(last, first, strict=True)])
            if arm != options.arms[0]
            else ""
        )
        means = " | ".join(
            f"{statistics.fmean(curve[step] for curve in curves):.3f}" for step in sorted(curves[0])
        )
        print(
            f"| {arm} | {len(curves)} | {means} | {statistics.fmean(steps):.1f} "
            f"({min(steps):.1f}-{max(steps):.1f}) | {beside} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
