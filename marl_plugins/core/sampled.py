"""The trajectories of a step and their actions, as the rollout has sampled them, and what a plugin
has added, dropped or replaced of them since.

    sampled = SampledActions()
    sampled.arrived(trajectory)                     each trajectory when its rollout has ended
    sampled.check_credit("brevity.py", "marl_credit", trajectories, answer)     after each plugin
    sampled.check_selection("longest.py", rows, answer)

What an action has sampled cannot be changed (`SampledAction`), and neither can the tuple of a
trajectory's actions; that it is still the same tuple is all that is checked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Real
from typing import TypeVar

from marl_plugins.core.failures import RunPaused
from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Action, Generation, Trajectory

T = TypeVar("T", Trajectory, Row)


def unchangeable(generation: Generation, external: bool = False) -> Generation:
    """Returns what was sampled, its ids and log-probs as tuples, whatever a plugin has made them.

    Args:
        external: There are no log-probs.

    Raises:
        ValueError: There is not one log-prob for each id.
    """
    # of a tuple: the tuple itself
    ids, logprobs = tuple(generation.ids), tuple(generation.logprobs)
    if len(ids) != len(logprobs) and not (external and not logprobs):
        raise ValueError(
            f"{len(ids)} ids were sampled with {len(logprobs)} log-probs; expected one for each"
        )
    if ids is generation.ids and logprobs is generation.logprobs:
        return generation
    return replace(generation, ids=ids, logprobs=logprobs)


class SampledActions:
    """The actions of a step's trajectories."""

    def __init__(self) -> None:
        self._actions: dict[Trajectory, Sequence[Action]] = {}

    def arrived(self, trajectory: Trajectory) -> None:
        """Takes in a trajectory that has ended."""
        trajectory.actions = tuple(trajectory.actions)
        self._actions[trajectory] = trajectory.actions

    def __iter__(self) -> Iterator[Trajectory]:
        """The trajectories, as they arrived."""
        return iter(self._actions)

    def of(self, trajectory: Trajectory) -> Sequence[Action]:
        """Returns the actions of a trajectory that were sampled."""
        return self._actions[trajectory]

    def check(
        self, plugin: str, hook: str, trajectories: Iterable[Trajectory] | None = None
    ) -> None:
        """Checks that trajectories have the actions that were sampled.

        Args:
            plugin: Who had the trajectories last, in which `hook`.
            trajectories: Default: all that have arrived.

        Raises:
            RunPaused: One has others.
        """
        for trajectory in self._actions if trajectories is None else trajectories:
            if trajectory.actions is not self._actions[trajectory]:
                raise RunPaused(
                    f"plugin {plugin}: {hook} replaced the actions of trajectory "
                    f"{trajectory.name}; what was sampled is trained on as it was sampled"
                )

    def check_exchange(
        self,
        plugin: str,
        trajectories: Sequence[Trajectory],
        answer: object,
        read: Collection[Trajectory],
    ) -> None:
        """Checks that a plugin's exchange is of the trajectories that it was given and of those
        that it has read, each once.

        Args:
            read: Those that it has read; what it reads need not enter.

        Raises:
            RunPaused: It is not.
        """
        self.check(plugin, "marl_exchange")
        _members(f"plugin {plugin}: marl_exchange", answer, [*trajectories, *read], "trajectories")

    def check_credit(
        self, plugin: str, hook: str, trajectories: Sequence[Trajectory], answer: object
    ) -> None:
        """Checks that a plugin's credit is of the trajectories that it was given, all of them, each
        once, with their actions.

        Raises:
            RunPaused: It is not.
        """
        same = _members(f"plugin {plugin}: {hook}", answer, trajectories, "trajectories")
        if missing := [t for t in trajectories if t not in same]:
            count = f"{len(missing)} of {len(trajectories)} trajectories"
            raise RunPaused(
                f"plugin {plugin}: {hook} removed {count}, the first {missing[0].name}; return "
                "what it is given, and leave actions out by the reward None"
            )
        self.check(plugin, hook, trajectories)

    def check_selection(self, plugin: str, rows: Sequence[Row], answer: object) -> None:
        """Checks that a plugin's selection is of the rows that it was given, each once; that the
        others have a reason is checked where they are counted (`Ledger.of`).

        Raises:
            RunPaused: It is not.
        """
        hook = "marl_select"
        _members(f"plugin {plugin}: {hook}", answer, rows, "rows")
        self.check_rows(plugin, hook, rows)

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


def _members(who: str, answer: object, offered: Sequence[T], what: str) -> set[T]:
    """The members of a plugin's answer, which are some of those that it was given, each once.

    Raises:
        RunPaused: They are not, or the answer is no list.
    """
    if not isinstance(answer, list | tuple):
        raise RunPaused(f"{who} returned {type(answer).__name__}; expected the list of {what}")
    known, members = set(offered), set[T]()
    for each in answer:
        if not isinstance(each, Hashable) or each not in known:
            raise RunPaused(
                f"{who} returned {getattr(each, 'name', each)!r:.80} among the {what}; expected "
                "those that it is given, not others or copies"
            )
        if each in members:
            raise RunPaused(
                f"{who} returned {each.name} twice among the {what}; expected each once"
            )
        members.add(each)
    return members
