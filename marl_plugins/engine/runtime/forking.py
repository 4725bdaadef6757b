"""Says a recorded trajectory again, and forks it: the run's own workflow, tools and graders with
the recorded answers in place of the engines', up to one action, and live from there.

    original = Original(rollout, trajectory, task, roles)
    await said_again(original)                   None, or the first thing that is not as recorded
    await fork(original, path, number)           the action at `path` is sampled anew
    await fork(original, path, number, words)    it says these words

A request is known by its path, which is made of the role, of what it is shown and of the actions
that this comes from (`action_path`): whoever asks under a recorded path has the recorded context.
So nothing is said about branches, tools or turns here. Whatever else a workflow depends on (time,
chance, memory, who is first) shows as a path that is not recorded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.roles import Call, RoleSpec
from marl_plugins.core.scoring import ScoreAction, Seen
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory

if TYPE_CHECKING:
    from marl_plugins.engine.runtime.rollout import Rollout

CYCLES = 20
"""Of the event loop between two answers, where the last that is asked for comes first: until then
whoever has been answered has gone on."""
SHOWN_TOKENS = 12
"""Tokens that are shown of a context from where it differs."""


@dataclass(frozen=True)
class Original:
    """A trajectory as it can be said again.

    Args:
        rollout: Of the session in which it is said.
        task: The run's own, which has more than a record says.
        roles: Who plays what the trajectory has not recorded; what it has is played by the policy
            that has sampled it.

    Raises:
        ValueError: It was lost, or came from elsewhere.
    """

    rollout: Rollout
    trajectory: Trajectory
    task: Task
    roles: Mapping[str, RoleSpec]

    def __post_init__(self) -> None:
        if why := unforkable(self.trajectory):
            raise ValueError(f"trajectory {self.trajectory.name} {why}")

    @property
    def players(self) -> dict[str, RoleSpec]:
        """Returns every role as it is played."""
        others = {
            a.role: self.rollout.cast.played_by(a.role, a.policy)
            for a in self.trajectory.actions
            if self.roles[a.role].policy != a.policy
        }
        return {**self.roles, **others}

    async def said(self, speaker: Speaker, score_action: ScoreAction | None = None) -> Trajectory:
        """Runs the workflow with a speaker in place of the engines."""
        t = self.trajectory
        return await self.rollout.one(
            self.task, t.place, t.sample, t.step, score_action, self.players, None, speaker.answer
        )


def unforkable(trajectory: Trajectory) -> str:
    """Returns why a trajectory is no original of forks; empty where it is one."""
    if trajectory.infrastructure_failure:
        return f"was lost ({trajectory.infrastructure_failure})"
    if not trajectory.is_original:
        return "was not sampled as a whole by a step of this run"
    return ""


async def said_again(original: Original) -> str | None:
    """Returns the first thing that is not as recorded when a trajectory is said again, after one
    repetition; None where all of it is.

    It is said twice, with the answers of parallel branches in the order in which they are asked for
    and in the opposite one, so that a race shows, and what the first time changes for the second.
    """
    unlike: str | None = None
    for _ in range(2):
        for last_first in (False, True):
            speaker = Speaker(original, last_first=last_first)
            again = await original.said(speaker)
            unlike = speaker.unlike or next(differences(original.trajectory, again), None)
            if unlike:
                break
        else:
            return None
    return unlike


async def fork(
    original: Original,
    path: str,
    number: int,
    words: Generation | None = None,
    *,
    pairs: int = 0,
    score_action: ScoreAction | None = None,
) -> Trajectory:
    """See `Step.fork` (core/steps.py).

    Args:
        pairs: Forks whose numbers differ by this are a pair, whose difference varies less: their
            live answers have the same seeds, by the role and its how-manieth answer it is, in place
            of their paths. Where parallel branches ask one role after calls that took some time,
            their order, and so the seeds, may depend on timing. 0: there are no pairs.
        score_action: Scores the actions that are not said as recorded; None: they have no score.
    """
    if path not in {a.path for a in original.trajectory.actions}:
        raise ValueError(f"trajectory {original.trajectory.name} has no action {path!r}")
    for _ in range(2):
        speaker = Speaker(original, path, number, words, pairs)

        def score(
            action: Action, seen: Seen, speaker: Speaker = speaker
        ) -> Awaitable[float | None] | None:
            if score_action is None or action.path in speaker.repeated:
                return None
            return score_action(action, seen)

        trajectory = await original.said(speaker, score if score_action else None)
        trajectory.forked = (path, number)
        if not speaker.finish(trajectory):
            break
    return trajectory


class Speaker:
    """Answers a workflow's requests with the words of a trajectory.

    Args:
        target: Path of the action from which the engines answer; empty: they never do.
        number, words, pairs: See `fork`.
        last_first: Of the answers that are waited for, the one asked for last comes first, and the
            next one once that has had its effect.
    """

    def __init__(
        self,
        original: Original,
        target: str = "",
        number: int = 0,
        words: Generation | None = None,
        pairs: int = 0,
        last_first: bool = False,
    ):
        recorded = original.trajectory
        self.original, self.target, self.pairs = original, target, pairs
        self._waiting: list[asyncio.Future[None]] | None = [] if last_first else None
        self.recorded = {a.path: a for a in recorded.actions}
        self.given = {a.path: a.generation for a in recorded.actions}
        """What is answered without an engine, by path."""
        if target:
            for path in recorded.descendants(target):
                del self.given[path]
            if words is not None:
                self.given[target] = words
        self.repeated = {
            path for path, said in self.given.items() if said is self.recorded[path].generation
        }
        """The paths under which the original's own words are said."""
        self.asked: list[str] = []
        self.unlike = ""
        """The first request that the original does not have."""
        run_seed = original.rollout.run.args.train.seed
        of = (recorded.step, recorded.task.id, recorded.sample, target)
        pair = number % pairs if pairs else number
        self._key: tuple[int | str, ...] = (run_seed, "fork", pair, *of)
        self._live = Counter[str]()

    async def answer(self, call: Call) -> Generation:
        """Returns the recorded answer to a request, or an engine's if it may depend on the
        target.

        Raises:
            InfrastructureFailure: Something else is asked than the trajectory has.
        """
        self.asked.append(call.path)
        if self._waiting is not None:
            self._waiting.append(asyncio.get_running_loop().create_future())
            if len(self._waiting) == 1:
                self._release(CYCLES)
            await self._waiting[-1]
        action = self.recorded.get(call.path)
        as_recorded = action is not None and action.context_ids == call.context_ids
        if as_recorded and call.path in self.given:
            return self.given[call.path]
        if not self.target or self.target not in self.asked:
            self.unlike = self.unlike or self._difference(call)
            raise InfrastructureFailure("unlike", self.unlike)
        key = (call.role, self._live[call.role]) if self.pairs else (call.path,)
        self._live[call.role] += 1
        seed = derive_seed(*self._key, *key)
        return await self.original.rollout.generate(replace(call, seed=seed))

    def _release(self, cycles: int) -> None:
        """Answers what was asked for last, after some cycles, and then the others."""
        if cycles:
            asyncio.get_running_loop().call_soon(self._release, cycles - 1)
        elif self._waiting:
            asked = self._waiting.pop()
            if not asked.done():  # its branch was ended
                asked.set_result(None)
            if self._waiting:
                self._release(CYCLES)

    def _difference(self, call: Call) -> str:
        """Says what of a request is not as recorded."""
        mine = [a for p, a in self.recorded.items() if a.role == call.role and p not in self.asked]
        if not mine:
            return f"{call.path}: it is asked for, and the record has no further {call.role!r}"
        if same := [a for a in mine if a.context_ids == call.context_ids]:
            return f"{same[0].path}: its parents, or the branch that asks for it, differ"
        first, chat = mine[0], self.original.players[call.role].chat
        before, now = first.context_ids, call.context_ids
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False))
        at = sum(1 for _ in alike)
        texts = [chat.text(ids[at : at + SHOWN_TOKENS]) for ids in (before, now)]
        return (
            f"{first.path}: its context differs from token {at} on: {texts[0]!r} was shown, and "
            f"{texts[1]!r} is now"
        )

    def finish(self, fork: Trajectory) -> str:
        """Marks what a fork repeats, copies its scores, and loses the fork if it is none.

        Returns:
            Why it is none; empty where it is one.
        """
        unlike = self.unlike
        for action in fork.actions:
            action.replayed = action.path in self.given
            if action.path in self.repeated:
                before = self.recorded[action.path]
                action.score, action.unscored = before.score, before.unscored
                action.explanation = before.explanation
                action.notes = {**before.notes, **action.notes}
                if answers(before) != answers(action):
                    unlike = unlike or f"{action.path}: its tools have answered otherwise"
        fork.actions_scored |= self.original.trajectory.actions_scored
        kind = "unlike" if unlike else "" if self.target in self.asked else "unreached"
        if fork.infrastructure_failure not in (None, "unlike"):
            return ""  # lost to something else
        if kind:
            fork.lose(kind, unlike or f"nobody asked for {self.target}")
            fork.outcome, fork.outcomes = None, {}
        return kind


def differences(recorded: Trajectory, again: Trajectory) -> Iterator[str]:
    """Yields what is not as recorded, in the order of the graph."""
    if again.infrastructure_failure:
        yield f"it was lost ({again.infrastructure_failure}: {again.detail})"
    said = {a.path: a for a in again.actions}
    for before in recorded.actions:
        if before.path in said:
            yield from different(before.path, of_action(before), of_action(said[before.path]))
        else:
            yield f"{before.path}: nobody asks for it"
    yield from different("it as a whole", of_whole(recorded), of_whole(again))


def of_action(action: Action) -> dict[str, object]:
    """Returns what must be equal of two actions of one path."""
    return {
        "parents": sorted(action.parents),
        "context": (action.shown_ids, action.extends, action.turn, action.call),
        "words": (action.text, action.generation.ids, action.policy),
        "tools": answers(action),
    }


def of_whole(trajectory: Trajectory) -> dict[str, object]:
    """Returns what must be equal of two trajectories beside their actions."""
    t = trajectory
    return {
        "answer": (t.answer, t.returned, t.agent_failure),
        "outcome": (t.outcome, t.outcomes, t.outcome_parts),
        "tools": answers(t),
        "files": t.files,
    }


def answers(of: Action | Trajectory) -> list[tuple[str, str, str, bool]]:
    """Returns calls of tools with their answers."""
    return [(r.tool, r.call, r.output, r.ok) for r in of.tool_results]


def different(what: str, before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    """Yields which parts are not as recorded."""
    for name, part in before.items():
        if part != now[name]:
            yield f"{what}: its {name} differs: {part!r:.160} was recorded, {now[name]!r:.160} now"
