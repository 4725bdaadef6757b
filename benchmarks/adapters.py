"""Three policies of one model: with weights of their own, and as adapters of one base
(`marl_plugins.adapters`), in turn:

    python -m benchmarks.adapters [--runs 3] [--models tiny tiny:hidden=384,layers=6,heads=6]

For each model: seconds from `openrlhf train` to the first finished update, seconds of a later step
beyond generation, and the peak of the summed memory of all processes (proportional set size). KL is
on: policies have references of their own, adapters their base. Of each the median over runs with
    its range, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from benchmarks.startup import one_run

POLICIES = ("solver", "coder", "verifier")
ADAPTERS = ("--plugin", "marl_plugins.adapters", "--ds.lora.rank", "8", "--ds.lora.alpha", "16")
ROWS = ("first update, s", "later step beyond generation, s", "peak memory, GiB")


def flags(model: str) -> list[str]:
    """The same model for every policy; the recipe gives each another one."""
    by_policy = [
        word
        for policy in POLICIES
        for word in (f"--policy.{policy}.actor.model_name_or_path", model)
    ]
    return ["--actor.model_name_or_path", model, *by_policy]


def measured(model: str, runs: int) -> list[str]:
    """The lines of a model."""
    arms: dict[str, list[tuple[float, float, float]]] = {"policies": [], "adapters": []}
    for _ in range(runs):
        for arm, found in arms.items():
            first, beyond, peak = one_run([*flags(model), *(ADAPTERS if arm == "adapters" else ())])
            found.append((first, statistics.median(beyond), peak))
    lines = []
    for row, policies, adapters in zip(
        ROWS, zip(*arms["policies"], strict=True), zip(*arms["adapters"], strict=True), strict=True
    ):
        ratio = statistics.median(adapters) / statistics.median(policies)
        lines.append(f"| {model} | {row} | {spread(policies)} | {spread(adapters)} | {ratio:.2f} |")
    return lines


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.adapters", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=3, help="of each model and arm, in turn")
    parser.add_argument(
        "--models",
        nargs="+",
        default=["tiny", "tiny:hidden=384,layers=6,heads=6"],
        help="names of random models",
    )
    options = parser.parse_args()
    print(
        "| model | | three policies | three adapters | ratio |\n|---|---|---|---|---|", flush=True
    )
    for model in options.models:
        print(*measured(model, options.runs), sep="\n", flush=True)


if __name__ == "__main__":
    main()
