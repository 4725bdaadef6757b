"""Two runs side by side: `openrlhf inspect RUN_A RUN_B`.

Held-out tasks are paired by evaluation (the step) and id, training's by step, task and sample,
which are the same tasks only where
the seeds agree. Of each pair: whether the outcome rose or fell; where it changed, the first role on
the graph that said something else. Whether more rose than fell is tested exactly (McNemar: each
change is a coin under the hypothesis of no difference).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any

from marl_plugins.commands.inspect.index import Entry, RunIndex
from marl_plugins.commands.inspect.page_writer import Side, write_comparison
from marl_plugins.commands.inspect.query import Query
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import json_value
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.engine.plan.resume import COMMAND_FILE
from marl_plugins.engine.records.read import RunReader

SAME_OUTCOME = 1e-9
"""Outcomes that differ by no more are the same."""
SHOWN_PAIRS = 20
"""Changed pairs that are listed in the terminal."""


@dataclass(frozen=True)
class Pair:
    """A task that both runs have an outcome for.

    Args:
        change: B's outcome minus A's.
        role: The first role on the graph that said something else; empty where the outcome is the
            same or nothing differs.
    """

    step: int
    task: str
    sample: int
    kind: str
    before: float
    after: float
    role: str = ""

    @property
    def change(self) -> float:
        return self.after - self.before if abs(self.after - self.before) > SAME_OUTCOME else 0.0


@dataclass(frozen=True)
class RunComparison:
    """A comparison of what became of the tasks that two runs share.

    Args:
        unpaired: Number of trajectories with an outcome that only one of the runs has: of A, of B.
        differing: What was started differently, as (name, A's, B's).
        sides: The entries of the pairs, in their order.
    """

    names: tuple[str, str]
    pairs: Sequence[Pair]
    unpaired: tuple[int, int]
    differing: Sequence[tuple[str, str, str]]
    sides: tuple[Side, Side]

    @property
    def gained(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.change > 0]

    @property
    def lost(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.change < 0]

    @property
    def p_value(self) -> float:
        return sign_test(len(self.gained), len(self.lost))


def sign_test(gained: int, lost: int) -> float:
    """Returns the two-sided exact p-value of a split of changes that are coins where nothing
    differs (McNemar's exact test)."""
    changes = gained + lost
    tail: int = sum(comb(changes, k) for k in range(min(gained, lost) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**changes)))


def compare(options: argparse.Namespace, query: Query) -> int:
    """Compares the runs that the command line names, and returns the exit code.

    Raises:
        ConfigurationError: Records cannot be read, or the runs share no task with an outcome.
    """
    if options.full or options.follow or options.to:
        got = "of two runs there is a table, --json or --html"
        raise ConfigurationError(
            Problem("viewer.two_runs", at(flag=("full", "follow", "to")), got, fix="name one run")
        )
    runs = [RunReader(source) for source in options.source]
    split = query.wanted.split
    comparison = comparison_of(runs, query)
    if not comparison.pairs:
        fix = "" if split == "eval" else "compare their evaluations with --evaluations"
        raise ConfigurationError(
            Problem(
                "viewer.unpaired",
                at(file=[str(source) for source in options.source]),
                "the runs share no task with an outcome",
                fix=fix,
            )
        )
    if options.html:
        print(write_comparison(*comparison.sides, options.html))
    elif options.json:
        print(json.dumps(values_of(comparison)))
    else:
        print_comparison(comparison, split)
    return 0


def comparison_of(runs: Sequence[RunReader], query: Query) -> RunComparison:
    """Pairs the trajectories of two runs."""
    a, b = (RunIndex(run, query.wanted, query.find) for run in runs)
    mine, theirs = (_by_key(index.entries) for index in (a, b))
    pairs = []
    for key, entry in mine.items():
        if (other := theirs.get(key)) is None:
            continue
        assert entry.outcome is not None and other.outcome is not None
        changed = abs(other.outcome - entry.outcome) > SAME_OUTCOME
        role = first_difference(a.open(entry), b.open(other)) if changed else ""
        pairs.append(Pair(*key, str(entry.metadata.type or ""), entry.outcome, other.outcome, role))
    shared = len(pairs)
    sides = (
        Side(a, [mine[p.step, p.task, p.sample] for p in pairs]),
        Side(b, [theirs[p.step, p.task, p.sample] for p in pairs]),
    )
    names = runs[0].folder.absolute().name, runs[1].folder.absolute().name
    return RunComparison(
        names, pairs, (len(mine) - shared, len(theirs) - shared), differing(runs), sides
    )


def _by_key(entries: Iterable[Entry]) -> dict[tuple[int, str, int], Entry]:
    return {entry.key: entry for entry in entries if entry.outcome is not None}


def first_difference(a: Trajectory, b: Trajectory) -> str:
    """Returns the role of the first action, in the order of the dependency graph, whose text has no
    equal in the other."""
    texts: Mapping[str, Counter[str]] = defaultdict(Counter)
    for action in b.actions:
        texts[action.role][action.text] += 1
    for action in a.actions:
        if not texts[action.role][action.text]:
            return action.role
        texts[action.role][action.text] -= 1
    return next((role for role, left in texts.items() if left.total()), "")


def differing(runs: Sequence[RunReader]) -> list[tuple[str, str, str]]:
    """Returns the flags, files and versions that the last starts of two runs do not share; what is
    not recorded is left out."""
    starts = [_last_start(run) for run in runs]
    names = sorted({name for start in starts for name in start})
    rows = [(name, *(start.get(name, "-") for start in starts)) for name in names]
    return [(name, a, b) for name, a, b in rows if a != b]


def _last_start(run: RunReader) -> dict[str, str]:
    try:
        entry = json_value((run.folder / COMMAND_FILE).read_bytes())[-1]
        flags = {f"--{words[0].lstrip('-')}": " ".join(words[1:]) for words in entry["repeat"]}
        files = {f"file {name}": value[:12] for name, value in entry.get("files", {}).items()}
        versions = {f"version of {name}": str(value) for name, value in entry["versions"].items()}
    except (
        OSError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
    ):  # not every folder of records has one
        return {}
    return flags | files | versions


def values_of(found: RunComparison) -> dict[str, Any]:
    """Makes JSON values of a comparison."""
    return {
        "runs": list(found.names),
        "pairs": len(found.pairs),
        "unpaired": list(found.unpaired),
        "gained": [_pair(pair) for pair in found.gained],
        "lost": [_pair(pair) for pair in found.lost],
        "same": len(found.pairs) - len(found.gained) - len(found.lost),
        "p_value": found.p_value,
        "types": {kind: list(counts) for kind, counts in by_type(found.pairs).items()},
        "differing": [list(row) for row in found.differing],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    shown = {"step": pair.step, "task": pair.task, "sample": pair.sample, "type": pair.kind}
    return shown | {"a": pair.before, "b": pair.after, "role": pair.role}


def by_type(pairs: Iterable[Pair]) -> dict[str, tuple[int, int, int]]:
    """Returns how many pairs of each type of task rose, fell and stayed."""
    counts: dict[str, list[int]] = {}
    for pair in pairs:
        place = 0 if pair.change > 0 else 1 if pair.change < 0 else 2
        counts.setdefault(pair.kind, [0, 0, 0])[place] += 1
    return {kind: (rose, fell, stayed) for kind, (rose, fell, stayed) in sorted(counts.items())}


def print_comparison(found: RunComparison, split: str) -> None:
    """Prints a comparison as tables."""
    from rich.console import Console
    from rich.table import Table

    from marl_plugins.commands.inspect.text import one_line

    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 120)

    def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        made = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
        for name in header:
            made.add_column(name, overflow="fold")
        for row in rows:
            made.add_row(*(one_line(cell).replace("[", r"\[") for cell in row))
        console.print(made)

    a, b = map(one_line, found.names)
    what = (
        "evaluations"
        if split == "eval"
        else "training, the same tasks only if seeds and data agree"
    )
    same = len(found.pairs) - len(found.gained) - len(found.lost)
    print(
        f"A: {a}\nB: {b}\n{len(found.pairs):,} pairs of {what}; only in A {found.unpaired[0]:,}, "
        f"only in B {found.unpaired[1]:,}"
    )
    print(
        f"B is better on {len(found.gained)}, worse on {len(found.lost)}, the same on {same}; "
        f"exact p {found.p_value:.3g}"
    )
    kinds = by_type(found.pairs)
    if len(kinds) > 1:
        rows = [[kind or "-", *map(str, counts)] for kind, counts in kinds.items()]
        table("by type of task", ["type", "better", "worse", "same"], rows)
    roles = Counter(pair.role or "nothing said differs" for pair in (*found.gained, *found.lost))
    if roles:
        table(
            "first role that said something else, where the outcome changed",
            ["role", "pairs"],
            [[r, str(n)] for r, n in roles.items()],
        )
    changed = sorted((*found.gained, *found.lost), key=lambda pair: -abs(pair.change))[:SHOWN_PAIRS]
    if changed:
        cells = [
            [str(p.step), p.task, str(p.sample), f"{p.before:.3f}", f"{p.after:.3f}", p.role]
            for p in changed
        ]
        table("changed", ["step", "task", "sample", "A", "B", "first role"], cells)
    if found.differing:
        table("started differently", ["what", "A", "B"], found.differing)
