"""Notes what the rollout of a step has sampled, before any plugin has seen it, and what a plugin
has changed of it since.

    sampled = SampledActions()
    sampled.arrived(trajectory)                                      each trajectory when its
        rollout has ended
    sampled.check_credit("brevity.py", "marl_credit", given, answer)     after each plugin
    sampled.check_selection("longest.py", given, answer)

Only rewards, terms, notes and reasons may change. Ids and log-probs are tuples, which nobody can
change in place: noted are the tuples themselves, so that a check compares references and takes a
microsecond an action, whatever its length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from operator import attrgetter
from typing import Any, TypeVar

from marl_plugins.core.failures import RunPaused
from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Action, Generation, Trajectory

T = TypeVar("T")

FIELDS = {
    "path": "path",
    "role": "role",
    "policy": "policy",
    "turn": "turn",
    "text": "text",
    "before": "turn before",
    "extends": "context",
    "parents": "parents",
    "derived": "derived parents",
    "shown_ids": "context's ids",
    "generation.ids": "sampled ids",
    "generation.logprobs": "log-probs",
    "generation.finish": "end",
    "generation.policy": "sampling policy",
    "generation.version": "version",
    "generation.changes": "changes of version",
}
"""What of an action nobody may change, and what a message calls it."""
_values = attrgetter(*FIELDS)
OF_TRAJECTORY = (
    "task",
    "sample",
    "origin",
    "step",
    "place",
    "agent_failure",
    "infrastructure_failure",
)
_facts = attrgetter(*OF_TRAJECTORY)


def noted(action: Action) -> tuple[Any, ...]:
    """Returns what of an action nobody may change; None for each where it has lost some of it."""
    try:
        values: tuple[Any, ...] = _values(action)
    except AttributeError:
        return (None,) * len(FIELDS)
    return values


def unchangeable(generation: Generation) -> Generation:
    """Returns what was sampled, its ids and log-probs as tuples, whatever a plugin has made them.

    Raises:
        ValueError: There is not one log-prob for each id.
    """
    ids, logprobs = (
        tuple(generation.ids),
        tuple(generation.logprobs),
    )  # of a tuple: the tuple itself
    if len(ids) != len(logprobs):
        raise ValueError(
            f"{len(ids)} ids were sampled with {len(logprobs)} log-probs; expected one for each"
        )
    if ids is generation.ids and logprobs is generation.logprobs:
        return generation
    return replace(generation, ids=ids, logprobs=logprobs)


class SampledActions:
    """The actions of a step's trajectories as they were sampled."""

    def __init__(self) -> None:
        self._actions: dict[Trajectory, dict[Action, tuple[Any, ...]]] = {}
        self._facts: dict[Trajectory, tuple[Any, ...]] = {}

    def arrived(self, trajectory: Trajectory) -> None:
        """Takes in a trajectory that has ended.

        Raises:
            RunPaused: What scored it has changed what was sampled.
        """
        self._actions[trajectory] = trajectory.sampled or {a: noted(a) for a in trajectory.actions}
        self._facts[trajectory] = _facts(trajectory)
        if changed := self._changed(trajectory):
            raise RunPaused(
                f"what scores actions or outcomes, or a tool, {changed}; they may write scores and "
                "notes only"
            )

    def __iter__(self) -> Iterator[Trajectory]:
        """The trajectories, as they arrived."""
        return iter(self._actions)

    def of(self, trajectory: Trajectory) -> Iterable[Action]:
        """Returns the actions of a trajectory that were sampled."""
        return self._actions[trajectory].keys()

    def check(
        self, plugin: str, hook: str, trajectories: Iterable[Trajectory] | None = None
    ) -> None:
        """Checks that nothing has been changed of what was sampled.

        Args:
            plugin: Who had the trajectories last, in which `hook`.
            trajectories: Default: all that have arrived.

        Raises:
            RunPaused: Something has, with the first trajectory of which it was.
        """
        for trajectory in self._actions if trajectories is None else trajectories:
            if changed := self._changed(trajectory):
                raise RunPaused(
                    f"plugin {plugin}: {hook} {changed}; what was sampled is trained on as it was "
                    "sampled"
                )

    def check_exchange(
        self, plugin: str, given: Sequence[Trajectory], answer: object, read: Collection[Trajectory]
    ) -> None:
        """Checks that a plugin's exchange is of the trajectories that it was given and of those
        that it has read, each once.

        Args:
            read: Those that it has read; what it reads need not enter.

        Raises:
            RunPaused: It is not.
        """
        self.check(plugin, "marl_exchange")
        _members(
            f"plugin {plugin}: marl_exchange", answer, [*given, *read], "trajectories", _name_of
        )

    def check_credit(
        self, plugin: str, hook: str, given: Sequence[Trajectory], answer: object
    ) -> None:
        """Checks that a plugin's credit is of the trajectories that it was given, all of them, each
        once, with their actions.

        Raises:
            RunPaused: It is not.
        """
        same = _members(f"plugin {plugin}: {hook}", answer, given, "trajectories", _name_of)
        if missing := [t for t in given if t not in same]:
            count = f"{len(missing)} of {len(given)} trajectories"
            raise RunPaused(
                f"plugin {plugin}: {hook} removed {count}, the first {_name_of(missing[0])}; "
                "return what it is given, and leave "
                "actions out by the reward None"
            )
        self.check(plugin, hook, given)

    def check_selection(self, plugin: str, given: Sequence[Row], answer: object) -> None:
        """Checks that a plugin's selection is of the rows that it was given, each once, with a
        reason for each that is not in it.

        Raises:
            RunPaused: It is not.
        """
        hook = "marl_select"
        kept = _members(f"plugin {plugin}: {hook}", answer, given, "rows", lambda row: row.name)
        self.check_rows(plugin, hook, given)
        for row in given:
            if (row in kept) == (row.action.left_out is not None):
                how = "kept and left out" if row in kept else "neither kept nor left out"
                raise RunPaused(
                    f"plugin {plugin}: {hook}: row {row.name} is {how} (reason "
                    f"{row.action.left_out!r}); set "
                    "`row.action.left_out` on the rows that are dropped, and on no other"
                )

    def check_rows(self, plugin: str, hook: str, rows: Iterable[Row]) -> None:
        """Checks that rows are of actions that were sampled, and each has a finite reward.

        Raises:
            RunPaused: They are not.
        """
        for row in rows:
            if row.action not in self._actions.get(row.trajectory, ()):
                raise RunPaused(
                    f"plugin {plugin}: {hook}: row {row.name} is of an action that was not sampled "
                    "in this step"
                )
            if not (isinstance(row.reward, Real) and math.isfinite(row.reward)):
                raise RunPaused(
                    f"plugin {plugin}: {hook} gave row {row.name} the reward {row.reward!r:.80}"
                )
        self.check(plugin, hook, dict.fromkeys(row.trajectory for row in rows))

    def _changed(self, trajectory: Trajectory) -> str:
        """Returns what is not as it was sampled, as the middle of a sentence; empty where all
        is."""
        sampled, name = self._actions[trajectory], _name_of(trajectory)
        actions = trajectory.actions
        same = len(actions) == len(sampled) and list(map(noted, actions)) == list(
            map(sampled.get, actions)
        )
        if (
            same
            and _facts(trajectory) == self._facts[trajectory]
            and len(set(actions)) == len(actions)
        ):
            return ""
        return _difference(trajectory, sampled, self._facts[trajectory], name)


def _difference(
    trajectory: Trajectory,
    sampled: Mapping[Action, tuple[Any, ...]],
    facts: tuple[Any, ...],
    name: str,
) -> str:
    counts = Counter(trajectory.actions)
    for action, number in counts.items():
        if action not in sampled:
            return f"added the action {action.path!r} to trajectory {name}"
        if number > 1:
            return f"added the action {action.path!r} to trajectory {name} once more"
        now = noted(action)
        wrong = [
            what
            for what, old, new in zip(FIELDS.values(), sampled[action], now, strict=True)
            if old != new
        ]
        if wrong:
            return f"changed {', '.join(wrong)} of action {name}/{sampled[action][0]}"
    if missing := [action for action in sampled if action not in counts]:
        return (
            f"removed the action {sampled[missing[0]][0]!r} ({len(missing)} in all) from "
            f"trajectory {name}"
        )
    different = [
        f
        for f, old, new in zip(OF_TRAJECTORY, facts, _facts(trajectory), strict=True)
        if old != new
    ]
    return f"changed {', '.join(different)} of trajectory {name}"


def _members(
    who: str, answer: object, given: Sequence[T], what: str, name: Callable[[T], str]
) -> set[T]:
    """The members of a plugin's answer, which are some of those that it was given, each once.

    Raises:
        RunPaused: They are not, or the answer is no list.
    """
    if not isinstance(answer, list | tuple):
        raise RunPaused(f"{who} returned {type(answer).__name__}; expected the list of {what}")
    known, found = set(given), set[T]()
    for each in answer:
        if not isinstance(each, type(given[0]) if given else ()):
            raise RunPaused(
                f"{who} returned {each!r:.80} among the {what}; expected those that it is given"
            )
        if each not in known:
            raise RunPaused(
                f"{who} added {name(each)} to the {what}; expected those that it is given, not "
                "others or copies"
            )
        if each in found:
            raise RunPaused(
                f"{who} returned {name(each)} twice among the {what}; expected each once"
            )
        found.add(each)
    return found


def _name_of(trajectory: Trajectory) -> str:
    return trajectory.name
