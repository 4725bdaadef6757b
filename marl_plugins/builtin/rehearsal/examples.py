"""The tasks of a run on which it is rehearsed, and the demonstrations of the first of them."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from marl_plugins.core.demonstrations import Demonstration
from marl_plugins.core.failures import nearest, place_of
from marl_plugins.core.problems import Problem
from marl_plugins.core.recipe.tiny import is_tiny
from marl_plugins.core.run import Run
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.plan.script import WORDS, Script
from marl_plugins.engine.plan.user_code_thread import (
    Failure,
    UserCodeTimeout,
    called,
    where_of,
)

REHEARSED_TASKS = 4
"""Tasks on which a workflow is run."""
MOST_SAID = 12
"""Demonstrations of a role that are said."""
LOOKED_AT = 10_000
"""Tasks among which others of another kind are looked for."""


def different(tasks: Iterable[Task]) -> list[Task]:
    """Returns the first task, and the first few whose label or metadata have another form: other
    keys, other types of values."""
    by_kind: dict[object, Task] = {}
    for task in islice(tasks, LOOKED_AT):
        kind = (
            type(task.label),
            task.metadata.get("type"),
            *task.metadata,
            *map(type, task.metadata.values()),
        )
        by_kind.setdefault(repr(kind), task)
        if len(by_kind) == REHEARSED_TASKS:
            break
    return list(by_kind.values())


def copies_of_label(tasks: Sequence[Task]) -> list[str]:
    """Returns the keys of the metadata whose value is the label, in every task."""
    if not tasks or tasks[0].label is None or isinstance(tasks[0].label, bool):
        return []
    same = [key for key, value in tasks[0].metadata.items() if value == tasks[0].label]
    return [
        key for key in same if all(t.metadata.get(key) == t.label for t in islice(tasks, LOOKED_AT))
    ]


def drawn(run: Run, tasks: Sequence[Task]) -> tuple[list[object], list[Failure]]:
    """Returns what the recipe demonstrates of some tasks, and what that raises.

    Raises:
        UserCodeTimeout: It does not end.
    """
    module = run.demonstrations_module
    if module is None:
        return [], []
    rng = random.Random(0)
    lists, failures = called(
        lambda: [d for task in tasks for d in module.demonstrate(copy.deepcopy(task), rng)],
        place_of(module.demonstrate),
    )
    return [item for items in lists for item in items], failures


def demonstrated(run: Run, tasks: Sequence[Task]) -> list[Script]:
    """Returns scripts in which each role says what it says in the recipe's demonstrations of some
    tasks, in turn; none where they cannot be drawn."""
    try:
        items, _ = drawn(run, tasks)
    except UserCodeTimeout:  # said by `wrong_demonstrations`
        return []
    distinct: dict[str, dict[tuple[str, ...], None]] = {}
    for item in items:
        if isinstance(item, Demonstration):
            distinct.setdefault(item.role, {})[tuple(map(str, item.said))] = None
    answers = {role: list(lines) for role, lines in distinct.items()}
    return [
        replace(
            WORDS, lines={role: lines[n % len(lines)] for role, lines in answers.items()}
        ).named()
        for n in range(min(MOST_SAID, max(map(len, answers.values()), default=0)))
    ]


def wrong_demonstrations(run: Run, task: Task | None) -> list[Problem]:
    """Returns what is wrong with the demonstrations of a task, where `tiny` models are to learn
    from them."""
    module = run.demonstrations_module
    if module is None or task is None or not any(is_tiny(policy.model) for policy in run.policies):
        return []
    place = place_of(module.demonstrate)
    try:
        items, failures = drawn(run, [task])
    except UserCodeTimeout as stuck:
        return [stuck.problem("demonstrate", place)]
    fix = "demonstrate what these tasks hold, or give the recipe `warm_start: null`"
    problems = [
        Problem("rehearsal.demonstration", where_of(f.place), f.said, fix=fix) for f in failures
    ]
    problems += [
        Problem("rehearsal.demonstration", where_of(place), f"demonstrate{problem}")
        for item in items
        if (problem := _problem(run, item))
    ]
    return list(dict.fromkeys(problems))


def _problem(run: Run, item: object) -> str | None:
    """Returns what is wrong with one of the values that `demonstrate` yielded, as the end of a
    sentence."""
    if not isinstance(item, Demonstration):
        return f" yields {item!r:.80}, expected a Demonstration of marl_plugins.core.demonstrations"
    if item.role not in run.recipe.roles:
        return f": there is no role {item.role!r}{nearest(item.role, run.recipe.roles)}"
    try:
        run.opening(item.role)(item.fields)
    except KeyError as error:
        return f": role {item.role!r}: {error.args[0].replace('the workflow', 'the demonstration')}"
    return None
