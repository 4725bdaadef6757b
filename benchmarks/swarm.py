"""How much of others' experience helps: SAPO's arms with eight peers, beside frozen controls.

    python -m benchmarks.swarm --out FOLDER [--seeds 0 1 2] [--arms ARM ...] [--recorded]
        (four minutes a run on two cores, those of `stream` 23)

`recipes/swarm/population.yaml`: eight adapters of one tiny model, which begin alike. In every arm a
member trains on eight groups of eight samples a step, in eight optimiser steps, for 48 steps; arms
differ in how many of the groups are its own.

    8/0, 6/2, 4/4, 2/6   own groups / groups of other members, of those whose outcomes differ (SAPO,
                         arXiv 2509.08721)
    uniform              4/4, any group of others
    alone, capability    8/0 and 4/4 with `--swarm.weight capability` (HACPO, arXiv 2603.02604) and
                         the estimator that it asks for, `reinforce`; the second is compared with
                         the first
    stronger             4/4, where half of the members begin as a model that has been trained alone
                         for 128 steps; the numbers are those of the other half, and compared with
                         the same four members of 8/0
    rare 8/0, rare 4/4   from a start at which a quarter of the answers is right, the second
                         compared with the first; only if they are named
    stream ARM           8/0, 6/2, 4/4 and 2/6 in the paper's regime: one answer in sixty is right
                         at the start, questions hardly come again, 500 rounds of one optimiser
                         step (`recipes/swarm/stream.yaml`); compared with stream 8/0, and only if
                         they are named
    frozen ARM           learning rate 0, eight steps: what the arm's choice of groups does to the
                         numbers by itself

`own` is the mean outcome of a member's own samples over all steps, `held out` the mean success on
256 held-out tasks, of which each member answers an eighth, over the evaluations after the first
(every four steps). Both are also given as the ratio to the arm of comparison, paired by seed, with
a 95 % t-interval. `fall` is the oscillation: by how much held-out success lies below its best so
far, the mean over evaluations, in points. `differs from` is the first step from which the mean of
held-out success up to there differs from that of the arm of comparison with 95 % certainty.
Finished runs in FOLDER are not repeated. Those of `stream` can be interrupted: the same command
goes on at the last of every 25 steps, with an empty store. `--stream_steps` makes them shorter, in
another FOLDER.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from benchmarks.demo import train
from benchmarks.learning import ALONE
from benchmarks.recorded import add_flag, restore
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.records.intervals import t_quantile
from marl_plugins.engine.records.read import RunReader

SWARM = recipes_root() / "swarm"
STEPS, FROZEN_STEPS, STREAM_STEPS = 48, 8, 500
RARE_SLIPS = 0.9
MEMBERS = [f"a{n}" for n in range(1, 9)]
CAPABILITY = ("--swarm.weight", "capability", "--algo.advantage.estimator", "reinforce")


def split(own: int, *flags: str, updates: int = 8) -> list[str]:
    """Flags of an arm in which a member has so many groups of its own, of eight, and is updated in
    so many optimiser steps: those of all members are counted by the trajectories that are made."""
    words = ["--rollout.batch_size", str(8 * own), "--swarm.external", str(8 - own), *flags]
    return [*words, "--train.batch_size", str(8 * 8 * own // updates)]


ARMS = {
    "8/0": split(8),
    "6/2": split(6),
    "4/4": split(4),
    "2/6": split(2),
    "uniform": split(4, "--swarm.sampler", "uniform"),
    "alone": split(8, *CAPABILITY),
    "capability": split(4, *CAPABILITY),
    "stronger": split(4),
    "rare 8/0": split(8),
    "rare 4/4": split(4),
    **{f"stream {own}/{8 - own}": split(own, updates=1) for own in (8, 6, 4, 2)},
}
COMPARED = {
    "capability": "alone",
    **{arm: f"{arm.partition(' ')[0]} 8/0" for arm in ARMS if " " in arm},
}
"""The arm with which one is compared; the others with 8/0."""


def recipe_of(arm: str, out: Path) -> Path:
    """Return the recipe of an arm: the shipped one, or one in a changed copy of its folder."""
    name = arm.partition(" ")[0]
    if name == "stream":
        return SWARM / "stream.yaml"
    if name not in ("stronger", "rare"):
        return SWARM / "population.yaml"
    if name == "stronger":
        train("strong", ["--recipe", str(SWARM / "tiny.yaml"), *ALONE], 0, out)
    copy = out / f"recipe-{name}"
    if not copy.exists():
        shutil.copytree(SWARM, copy)
        if name == "stronger":
            model = (out / "strong-0" / "solver").resolve()
            policies = "".join(f"  {member}: {{model: {model}}}\n" for member in MEMBERS[4:])
            (copy / "stronger.yaml").write_text(f"extends: population.yaml\npolicies:\n{policies}")
        else:
            demonstrations = copy / "demonstrations.py"
            text = re.sub(
                r"^SLIPS = .*$", f"SLIPS = {RARE_SLIPS}", demonstrations.read_text(), flags=re.M
            )
            demonstrations.write_text(text)
    return copy / ("stronger.yaml" if name == "stronger" else "population.yaml")


def run(
    arm: str, seed: int, out: Path, frozen: bool = False, stream_steps: int = STREAM_STEPS
) -> RunReader:
    """Return an arm's run, made where it is not there."""
    stream = arm.startswith("stream")
    steps = FROZEN_STEPS if frozen else stream_steps if stream else STEPS
    words = ["--recipe", str(recipe_of(arm, out)), *ARMS[arm], "--max_steps", str(steps)]
    if stream:
        words += ["--ckpt.load_enable", "--ckpt.save_steps", "25"]
    else:
        words += ["--train.num_episodes", "8", "--eval.steps", "4"]
    name = f"{'frozen-' * frozen}{arm.replace('/', '-').replace(' ', '-')}"
    train(name, [*words, *(["--actor.adam.lr", "0"] if frozen else [])], seed, out)
    return RunReader(out / f"{name}-{seed}")


def curves(reader: RunReader, members: Sequence[str]) -> tuple[list[float], dict[int, float]]:
    """Own outcome by step, and held-out success by the step of its evaluation: means over
    members."""
    metrics = list(reader.metrics())
    steps, evaluations = (
        [m for m in metrics if f"{kind}/{members[0]}/outcome" in m]
        for kind in ("policy", "eval/policy")
    )
    own = [statistics.fmean(m[f"policy/{name}/outcome"] for name in members) for m in steps]
    held = {
        int(m["step"]): statistics.fmean(m[f"eval/policy/{name}/outcome"] for name in members)
        for m in evaluations
    }
    return own, held


def interval(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Mean with its 95 % t-interval over seeds."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return form.format(mean)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{form.format(mean)} [{form.format(mean - half)}, {form.format(mean + half)}]"


def fall(held: Sequence[float]) -> float:
    """By how much success lies below its best so far, the mean over evaluations, in points."""
    return 100 * statistics.fmean(
        best - now for best, now in zip(accumulate(held, max), held, strict=True)
    )


def differs_from(
    steps: Sequence[int], curves: Sequence[Sequence[float]], others: Sequence[Sequence[float]]
) -> str:
    """The first step from which means up to there differ with certainty; a dash if there is
    none."""
    first = "-"
    for n, step in reversed([*enumerate(steps, 1)]):
        gaps = [
            statistics.fmean(a[:n]) - statistics.fmean(b[:n])
            for a, b in zip(curves, others, strict=True)
        ]
        half = (
            t_quantile(len(gaps) - 1) * statistics.stdev(gaps) / len(gaps) ** 0.5
            if len(gaps) > 1
            else float("inf")
        )
        if abs(statistics.fmean(gaps)) <= half:
            return first
        first = str(step)
    return first


def row(arm: str, seeds: Sequence[int], out: Path, frozen: bool, stream_steps: int) -> str:
    """One arm's line of the table."""
    members = MEMBERS[:4] if arm == "stronger" else MEMBERS
    runs, others = (
        [curves(run(each, seed, out, frozen, stream_steps), members) for seed in seeds]
        for each in (arm, COMPARED.get(arm, "8/0"))
    )
    held, of_others = ([[*held.values()] for _, held in found] for found in (runs, others))
    own = [statistics.fmean(own) for own, _ in runs]
    ratio = interval(
        [mean / statistics.fmean(other) for mean, (other, _) in zip(own, others, strict=True)]
    )
    held_ratio = interval(
        [
            statistics.fmean(a[1:]) / statistics.fmean(b[1:])
            for a, b in zip(held, of_others, strict=True)
        ]
    )
    start, end = (statistics.fmean(h[n] for h in held) for n in (0, -1))
    falls = interval([fall(h) for h in held], "{:.1f}")
    first = differs_from([*runs[0][1]][1:], [h[1:] for h in held], [h[1:] for h in of_others])
    name = f"frozen {arm}" if frozen else arm
    numbers = f"{statistics.fmean(own):.3f} | {ratio} | {start:.3f} | {end:.3f} | {held_ratio}"
    return f"| {name} | {len(seeds)} | {numbers} | {falls} | {first} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.swarm", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench-swarm"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--frozen_seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--stream_steps", type=int, default=STREAM_STEPS)
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=list(ARMS),
        default=[arm for arm in ARMS if " " not in arm],
    )
    add_flag(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in restore("swarm", options.out) if options.recorded else ():
        print(f"recorded: {name}", file=sys.stderr)
    print(
        "| arm | seeds | own | ratio | held out: start | end | ratio | fall | differs from |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for frozen, seeds in ((False, options.seeds), (True, options.frozen_seeds)):
        for arm in options.arms if seeds else ():
            print(row(arm, seeds, options.out, frozen, options.stream_steps), flush=True)


if __name__ == "__main__":
    main()
