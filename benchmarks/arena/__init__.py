"""Ways of credit beside the exact policy gradient, on team games that are small enough to
enumerate:

    python -m benchmarks.arena [--quick] [--keep]       ten minutes on two cores; --quick: seconds
    python -m benchmarks.arena --recorded [--picture FILE]      tables and picture of what is
        recorded in benchmarks/recorded/arena.json

Every estimator and credit of this package takes part through its own functions, beside references:
what other papers do, coaches with stated faults, and what whoever knows the truth could do. All may
sample equally many answers for an estimate. For each way and game:

    angle      between the mean of its estimates and the exact gradient, with what noise would show
    scale      of the mean along the exact gradient; 1 where nothing is divided
    signal     squared length of that over the variance of an estimate, for 1,000 sampled answers
               and for 1,000 evaluated outcomes
    learning   tables of logits with Adam: steps to half of what there is to gain, and the share
               gained on the way

The exact gradient is held to finite differences. A way that says it is unbiased and is not ends the
command with exit code 1. What a coach's scores cost is not counted.

    games.py        the games, and what is exactly known of a policy in them
    rollouts.py     random or all possible rollouts
    package.py      this package's ways, by its own functions
    references.py   those of others
    ways.py         the list
    measure.py      estimates and learning
    show.py         tables and picture
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.arena import show
from benchmarks.recorded import recorded_at


def fight(names: list[str], repetitions: int, steps: int, seeds: int, processes: int = 2) -> Any:
    """Lets all ways meet on some games; what the record has of it."""
    from benchmarks.arena.measure import meet
    from benchmarks.arena.ways import ways

    began = time.monotonic()
    one = partial(meet, repetitions=repetitions, steps=steps, seeds=seeds)
    with ProcessPoolExecutor(processes) as pool:
        found: dict[str, Any] = dict(zip(names, pool.map(one, names), strict=True))
    results = {name: game.pop("ways") for name, game in found.items()}
    return {
        "what": "python -m benchmarks.arena: ways of credit beside the exact gradient, by game",
        "recorded_at": recorded_at(),
        "seconds": round(time.monotonic() - began),
        "repetitions": repetitions,
        "steps": steps,
        "seeds": seeds,
        "games": found,
        "ways": {
            way.name: {
                "kind": way.kind,
                "unbiased": way.unbiased,
                "games": {name: result[way.name] for name, result in results.items()},
            }
            for way in ways()
        },
    }


def rounded(value: Any) -> Any:
    """Returns a record with five digits of every number."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arena", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--games", nargs="+", metavar="GAME", help="some of the games")
    parser.add_argument("--repetitions", type=int, default=300, help="estimates of each way")
    parser.add_argument("--steps", type=int, default=40, help="of learning")
    parser.add_argument("--seeds", type=int, default=4, help="of learning")
    parser.add_argument("--quick", action="store_true", help="three games, few repetitions")
    parser.add_argument("--keep", action="store_true", help=f"write {show.RECORDED.name}")
    parser.add_argument("--recorded", action="store_true", help="show what is recorded")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.recorded:
        record = show.recorded()
    else:
        from benchmarks.arena.games import games

        known = [game.name for game in games()]
        names = options.games or known
        if unknown := set(names) - set(known):
            parser.error(f"--games: there is no {sorted(unknown)}; one of {known}")
        sizes = options.repetitions, options.steps, options.seeds
        if options.quick:
            names, sizes = ["vote", "graph", "pair"], (20, 3, 1)
        record = rounded(fight(names, *sizes, processes=1 if options.quick else 2))
    print(f"{record['recorded_at']}, {record['seconds']} s\n")
    tables = show.the_games, show.by_game, show.overview, show.predictions
    print("\n\n".join(table(record) for table in tables))
    if options.keep:
        show.RECORDED.write_text(json.dumps(record) + "\n")
    if options.picture:
        show.draw(record, options.picture)
    wrong = show.broken(record)
    print("\nsay unbiased and are not: " + ("; ".join(wrong) or "none"))
    if wrong:
        sys.exit(1)
