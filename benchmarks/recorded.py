"""Long benchmarks are made up of runs; what finished runs gave is kept beside the code, so that a
table can grow.

    python -m benchmarks.recorded keep NAME FOLDER     of the runs in a benchmark's --out FOLDER,
        those that are finished

A benchmark that is called with `--recorded` takes what is in benchmarks/recorded/NAME for runs that
its folder lacks, and makes the others. Kept of a run are its report, its seconds, the numbers of
its evaluations, and the outcomes of a population's members by step; not its weights or actions, so
that evaluations of the weights (`- ROLE` of benchmarks.learning) and what is measured of scores
(benchmarks.judge) are kept as they are. `recorded_at`
names the commit and the day.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).with_name("recorded")
KEPT = re.compile(r"eval/|policy/[^/]+/outcome$")


def restore(name: str, out: Path) -> list[str]:
    """Copy recorded runs into `out` where it has none of that name; the runs that were copied, with
    their commit and day."""
    copied = []
    for run in sorted(
        path for path in (HERE / name).glob("*") if not (out / path.name / "bench.json").exists()
    ):
        shutil.copytree(run, out / run.name, dirs_exist_ok=True)
        copied.append(f"{run.name} ({json.loads((run / 'bench.json').read_text())['recorded_at']})")
    return copied


def recorded_at() -> str:
    """The commit, the day and the machine's cores, as records have them."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE.parent,
    ).stdout.strip()
    return f"{commit}, {datetime.date.today().isoformat()}, {os.cpu_count()} cores"


def keep(name: str, out: Path) -> list[str]:
    """Record the finished runs of `out` that are not recorded yet; their names."""
    kept, when = [], recorded_at()
    for done in sorted(out.glob("*/bench.json")):
        target, found = HERE / name / done.parent.name, json.loads(done.read_text())
        if not (target / "bench.json").exists():
            target.mkdir(parents=True, exist_ok=True)
            (target / "bench.json").write_text(
                json.dumps(found | {"recorded_at": when}, indent=1) + "\n"
            )
            (target / "metrics.jsonl").write_text(
                "".join(evaluations(done.with_name("metrics.jsonl")))
            )
            kept.append(target.name)
        for extra in done.parent.glob("without-*.json"):
            numbers = {
                key: value
                for key, value in json.loads(extra.read_text()).items()
                if key != "models"
            }
            (target / extra.name).write_text(json.dumps(numbers) + "\n")
        if (quality := done.with_name("quality.json")).exists():
            shutil.copy(quality, target)
    return kept


def evaluations(metrics: Path) -> list[str]:
    """Lines of a run's metrics, of which only the numbers that are kept are left, and the steps
    that have some."""
    lines = []
    for line in map(json.loads, metrics.read_text().splitlines()):
        numbers = {key: value for key, value in line.items() if KEPT.match(key)}
        if numbers:
            lines.append(json.dumps({"step": line["step"], **numbers}) + "\n")
    return lines


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="take what benchmarks/recorded has, and make the rest",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recorded", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("command", choices=["keep"])
    parser.add_argument(
        "name", choices=["demo", "dsbench", "judge", "laptop", "learning", "swarm", "temperatures"]
    )
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    kept = keep(options.name, options.folder)
    print("\n".join(kept) or f"nothing new in {options.folder}")


if __name__ == "__main__":
    main()
