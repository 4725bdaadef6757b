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
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import comb
from typing import Any

from marl_plugins.commands.inspect.index import Entry, RunIndex
from marl_plugins.commands.inspect.page_writer import Side, write_comparison
from marl_plugins.commands.inspect.text import one_line
from marl_plugins.commands.query import Query
from marl_plugins.commands.tables import print_table
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


def sign_test(gained: int, lost: int) -> float:
    """Returns the two-sided exact p-value of a split of changes that are coins where nothing
    differs (McNemar's exact test)."""
    changes = gained + lost
    tail: int = sum(comb(changes, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / (1 << changes))


def compare(options: argparse.Namespace, query: Query) -> int:
    """Compares the runs that the command line names, and returns the exit code.

    Raises:
        ConfigurationError: Records cannot be read, or the runs share no task with an outcome.
    """
    if options.full or options.follow:
        got = "of two runs there is a table, --json or --html"
        raise ConfigurationError(
            Problem("viewer.two_runs", at(flag=("full", "follow")), got, fix="name one run")
        )
    sources = [options.source, options.other]
    runs = [RunReader(source) for source in sources]
    split = query.wanted.split
    sides = paired(runs, query)
    if not sides[0].entries:
        fix = "" if split == "eval" else "compare their evaluations with --evaluations"
        where = at(file=map(str, sources))
        got = "the runs share no task with an outcome"
        raise ConfigurationError(Problem("viewer.unpaired", where, got, fix=fix))
    if options.html:
        print(write_comparison(*sides, options.html))
        return 0
    values = values_of(runs, sides)
    if options.json:
        print(json.dumps(values))
    else:
        print_comparison(values, split)
    return 0


def paired(runs: Sequence[RunReader], query: Query) -> tuple[Side, Side]:
    """Returns the trajectories with an outcome that two runs share, in the same order."""
    a, b = (RunIndex(run, query) for run in runs)
    mine, theirs = (_by_key(index.entries) for index in (a, b))
    shared = [key for key in mine if key in theirs]
    return Side(a, [mine[key] for key in shared]), Side(b, [theirs[key] for key in shared])


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


def differing(runs: Sequence[RunReader]) -> list[list[str]]:
    """Returns the flags, files and versions that the last starts of two runs do not share; what is
    not recorded is left out."""
    starts = [_last_start(run) for run in runs]
    names = sorted({name for start in starts for name in start})
    rows = [[name, *(start.get(name, "-") for start in starts)] for name in names]
    return [row for row in rows if row[1] != row[2]]


def _last_start(run: RunReader) -> dict[str, str]:
    try:
        entry = json_value((run.folder / COMMAND_FILE).read_bytes())[-1]
        flags = {f"--{words[0].lstrip('-')}": " ".join(words[1:]) for words in entry["repeat"]}
        files = {f"file {name}": value[:12] for name, value in entry.get("files", {}).items()}
        versions = {f"version of {name}": str(value) for name, value in entry["versions"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # not every folder of records has one
    return flags | files | versions


def values_of(runs: Sequence[RunReader], sides: tuple[Side, Side]) -> dict[str, Any]:
    """Compares the outcomes of two runs; JSON values.

    `gained` and `lost` are the pairs whose outcome rose or fell from A to B, each with the first
    role on the graph that said something else, empty where nothing differs. `types` counts, for
    each type of task, the pairs that rose, fell and stayed; `unpaired` those with an outcome that
    only one of the runs has. For `p_value` each of `tasks` counts once, by the sum of its changes:
    its samples and evaluations are no coins of their own.
    """
    a, b = sides
    gained, lost, types = list[dict[str, Any]](), list[dict[str, Any]](), dict[str, list[int]]()
    by_task: defaultdict[str, float] = defaultdict(float)
    for before, after in zip(a.entries, b.entries, strict=True):
        kind = str(before.metadata.type or "")
        counts = types.setdefault(kind, [0, 0, 0])
        change = (after.outcome or 0.0) - (before.outcome or 0.0)
        by_task[before.task_id] += change
        if abs(change) <= SAME_OUTCOME:
            counts[2] += 1
            continue
        pair = {
            **dict(zip(("step", "task", "sample"), before.key, strict=True)),
            "type": kind,
            "a": before.outcome,
            "b": after.outcome,
            "role": first_difference(a.index.open(before), b.index.open(after)),
        }
        (gained if change > 0 else lost).append(pair)
        counts[0 if change > 0 else 1] += 1
    pairs, changes = len(a.entries), by_task.values()
    return {
        "runs": [run.folder.absolute().name for run in runs],
        "pairs": pairs,
        "unpaired": [len(_by_key(side.index.entries)) - pairs for side in sides],
        "gained": gained,
        "lost": lost,
        "same": pairs - len(gained) - len(lost),
        "tasks": len(by_task),
        "p_value": sign_test(
            sum(change > SAME_OUTCOME for change in changes),
            sum(change < -SAME_OUTCOME for change in changes),
        ),
        "types": dict(sorted(types.items())),
        "differing": differing(runs),
    }


def print_comparison(values: Mapping[str, Any], split: str) -> None:
    """Prints a comparison as tables."""
    a, b = map(one_line, values["runs"])
    only_a, only_b = values["unpaired"]
    gained, lost = values["gained"], values["lost"]
    what = "training, the same tasks only if seeds and data agree"
    if split == "eval":
        what = "evaluations"
    print(
        f"A: {a}\nB: {b}\n{values['pairs']:,} pairs of {what}; only in A {only_a:,}, only in B "
        f"{only_b:,}"
    )
    print(
        f"B is better on {len(gained)}, worse on {len(lost)}, the same on {values['same']}; over "
        f"{values['tasks']:,} tasks exact p {values['p_value']:.3g}"
    )
    if len(values["types"]) > 1:
        rows = [[kind or "-", *map(str, counts)] for kind, counts in values["types"].items()]
        print_table("by type of task", ["type", "better", "worse", "same"], rows)
    changed = sorted([*gained, *lost], key=lambda pair: -abs(pair["b"] - pair["a"]))
    if changed:
        roles = Counter(pair["role"] or "nothing said differs" for pair in changed)
        print_table(
            "first role that said something else, where the outcome changed",
            ["role", "pairs"],
            [[role, str(count)] for role, count in roles.items()],
        )
        shown = [
            {**pair, "a": f"{pair['a']:.3f}", "b": f"{pair['b']:.3f}"}
            for pair in changed[:SHOWN_PAIRS]
        ]
        columns = ("step", "task", "sample", "a", "b", "role")
        rows = [[one_line(str(pair[name])) for name in columns] for pair in shown]
        print_table("changed", ["step", "task", "sample", "A", "B", "first role"], rows)
    if values["differing"]:
        rows = [[one_line(cell) for cell in row] for row in values["differing"]]
        print_table("started differently", ["what", "A", "B"], rows)
