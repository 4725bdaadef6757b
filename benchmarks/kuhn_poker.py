"""What self-play learns, over seeds, beside a control:

    python -m benchmarks.kuhn_poker --out FOLDER [--seeds 42 1 2] [--arms ARM ...]         (five
        minutes a run on two cores)

    separate   recipes/kuhn_poker/tiny.yaml: two policies, 64 steps of 192 games
    pool       pool.yaml: one policy in both seats, in half of the games against its earlier
               versions
    frozen     tiny.yaml with learning rate 0 (a few steps: nothing changes)
    one, two, four, earlier, still
               the same game by recipes/games: one policy in both seats, populations of two and of
               four, and two with earlier versions (one.yaml, tiny.yaml, four.yaml, pool.yaml); 66
               steps of 192 games; `still` is `two` with learning rate 0, in 8 steps; run if they
               are named

Exploitability is that of the policies that played a step, from the probabilities of their own
moves: "warm start" is the first, "trained" the last one. Their ratio is to be a quarter or less,
for each seed; beside it, the ratio of the mean over the last ten steps. Means over seeds with
minimum and maximum. All runs start from the same warm start. Finished runs in FOLDER are not
repeated.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.demo import train
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.records.read import RunReader

KUHN = recipes_root() / "kuhn_poker"
TINY = ["--recipe", str(KUHN / "tiny.yaml")]
STILL = ["--actor.adam.lr", "0", "--max_steps", "8"]
ARMS: dict[str, list[str]] = {
    "separate": TINY,
    "pool": ["--recipe", str(KUHN / "pool.yaml")],
    "frozen": [*TINY, *STILL],
}
LAST = 10
GAMES = recipes_root() / "games"
POPULATIONS = {
    "one": "one.yaml",
    "two": "tiny.yaml",
    "four": "four.yaml",
    "earlier": "pool.yaml",
    "still": "tiny.yaml",
}
"""Of recipes/games."""


def words(arm: str) -> list[str]:
    return ARMS.get(arm) or [
        "--recipe",
        str(GAMES / POPULATIONS[arm]),
        *(STILL if arm == "still" else []),
    ]


def curve(folder: Path) -> list[float]:
    """Exploitability by step."""
    names = ("kuhn/exploitability", "games/kuhn_poker/exploitability")
    return [line[name] for line in RunReader(folder).metrics() for name in names if name in line]


def spread(values: Sequence[float]) -> str:
    """Mean with minimum and maximum."""
    return f"{statistics.fmean(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def row(arm: str, seeds: Sequence[int], out: Path) -> str:
    """One arm's line of the table."""
    seconds = [train(arm, words(arm), seed, out)["seconds"] for seed in seeds]
    curves = [curve(out / f"{arm}-{seed}") for seed in seeds]
    start, trained = [c[0] for c in curves], [c[-1] for c in curves]
    late = [statistics.fmean(c[-LAST:]) / c[0] for c in curves]
    ratios = [after / before for before, after in zip(start, trained, strict=True)]
    each = ", ".join(f"{seed}: {ratio:.3f}" for seed, ratio in zip(seeds, ratios, strict=True))
    return (
        f"| {arm} | {spread(start)} | {spread(trained)} | {spread(ratios)} | {each} | "
        f"{spread(late)} | "
        f"{statistics.fmean(seconds):.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kuhn_poker", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench-kuhn"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *POPULATIONS], default=[*ARMS])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print(
        f"| arm | warm start | trained | ratio | by seed | ratio of the last {LAST} steps | "
        "seconds |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for arm in options.arms:
        print(row(arm, options.seeds, options.out), flush=True)


if __name__ == "__main__":
    main()
