"""How two recipes of Sandbox-RL's tasks learn by how much their agents cooperate and compete: its
grid of the two factors, with language models.

    python -m benchmarks.temperatures {spread,trading} --out FOLDER [--seeds 0 1 2] [--steps 20]
        [--factors 0 0.25 0.5 0.75 1] [--presets]

A cell is a run of `spread/tiny.yaml` or `trading/tiny.yaml` with `--cooperation.preset X,Y`, for X
and Y of 0, 0.25, 0.5, 0.75 and 1, or of `--factors`: `--cooperation.factor` is X,
`--cooperation.tau` 1 / Y, `--competence.eta` Y times its decay. In `spread` those who correct are
one team. `--presets` runs the paper's methods by name in place of the grid. The number of a cell is
the gain of the held-out outcome in points, as in `benchmarks.learning`; beside the table, the mean
of each row and column with its 95 % t-interval over runs. Two runs at a time take five minutes and
more on two cores, so that the grid of a seed takes an hour and more; finished runs in FOLDER are
not repeated. The runs of a seed have to begin alike, so they belong on one machine, which trains
its own warm start; a table of others is refused.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.demo import points, train
from benchmarks.learning import curve
from benchmarks.recorded import add_flag, restore
from marl_plugins.cooperation import PRESETS
from marl_plugins.core.recipe.shipped import recipes_root

FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0)
PLUGINS = ("--plugin", "marl_plugins.cooperation", "--plugin", "marl_plugins.competence")
CORRECT = "+".join(f"correct{number}" for number in range(1, 5))
TEAMS = {"spread": ("--cooperation.teams", CORRECT), "trading": ()}


def gains(name: str, preset: str, seeds: Sequence[int], steps: int, out: Path) -> list[float]:
    """The gain of the held-out outcome of each seed.

    Raises:
        SystemExit: A run in `out` of the same recipe and seed begins elsewhere.
    """
    recipe = str(recipes_root() / name / "tiny.yaml")
    words = ["--recipe", recipe, *PLUGINS, *TEAMS[name], "--cooperation.preset", preset]
    words += ["--max_steps", str(steps), "--eval.steps", str(max(1, steps // 4))]
    gained = []
    for seed in seeds:
        run = f"{name}-{preset}-{seed}"
        train(f"{name}-{preset}", words, seed, out)
        first, *later = curve(out / run, "eval/outcome").values()
        for other in out.glob(f"{name}-*-{seed}/bench.json"):
            begun = next(iter(curve(other.parent, "eval/outcome").values()))
            if begun != first:
                raise SystemExit(
                    f"{run} begins at {first}, {other.parent.name} at {begun}: another warm start, "
                    "as of another machine; make the cells of a seed on one, without --recorded"
                )
        gained.append(statistics.fmean(later[-3:]) - first)
    return gained


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.temperatures", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("recipe", choices=list(TEAMS))
    parser.add_argument("--out", type=Path, default=Path("runs/bench-temperatures"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS)
    parser.add_argument("--presets", action="store_true", help="the paper's methods, not the grid")
    add_flag(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for run in restore("temperatures", options.out) if options.recorded else ():
        print(f"recorded: {run}", file=sys.stderr)

    def cell(preset: str) -> list[float]:
        return gains(options.recipe, preset, options.seeds, options.steps, options.out)

    if options.presets:
        print("| method | gain in points |\n|---|---|")
        for preset in PRESETS:
            print(f"| {preset} | {points(cell(preset))} |", flush=True)
        return
    factors = options.factors
    print(f"| competition \\ cooperation | {' | '.join(map(str, factors))} | row |")
    print(f"|---|{'---|' * (len(factors) + 1)}")
    columns: list[list[list[float]]] = [[] for _ in factors]
    for competition in factors:
        row = [cell(f"{cooperation},{competition}") for cooperation in factors]
        for column, values in zip(columns, row, strict=True):
            column.append(values)
        cells = " | ".join(f"{100 * statistics.fmean(values):+.1f}" for values in row)
        print(f"| {competition} | {cells} | {mean_of(row)} |", flush=True)
    print(f"| column | {' | '.join(map(mean_of, columns))} |  |")


def mean_of(cells: Sequence[Sequence[float]]) -> str:
    """The mean over the runs of cells, with its interval over these."""
    return points([value for cell in cells for value in cell])


if __name__ == "__main__":
    main()
