"""`openrlhf trace RUN`: what a run asked of its engines and tools, and when, as JSON Lines (core/trace.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.options import step_range
from marl_plugins.core.trace import trace_of
from marl_plugins.hosts.upstream_cli import Parser

FILE = "trajectories.jsonl"


def main(words: Sequence[str]) -> int:
    """Print the trace of a run.

    Raises:
        ConfigurationError: There are no records, or they cannot be read.
    """
    parser = Parser(
        prog="openrlhf trace",
        description="What a run asked of its engines and tools, and when: one JSON object per action, by step. Times are seconds "
        "since the step's rollout began. See openrlhf docs metrics.",
        epilog="Example: openrlhf trace runs/demo --steps 10:20 > trace.jsonl",
    )
    parser.add_argument("source", type=Path, metavar="RUN", help=f"a run's output folder, or a file such as its {FILE}")
    parser.add_argument(
        "--steps", type=step_range, default=(0, None), metavar="A:B", help="steps A to B only, both included"
    )
    options = parser.parse_args(list(words))
    file = options.source / FILE if options.source.is_dir() else options.source
    empty = True
    for action in trace_of(file, options.steps):
        print(action.model_dump_json())
        empty = False
    if empty:
        why = "; expected the trajectories or evaluations of a run" if options.steps == (0, None) else " of these steps"
        raise ConfigurationError(f"{file}: holds no actions{why}")
    return 0
