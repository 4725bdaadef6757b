"""The groups of other peers that a step takes in; a repeated step takes in the same."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from marl_plugins import (
    Exchange,
    RefusedRecord,
    Run,
    RunPaused,
    Task,
    Trajectory,
    TrajectoryWords,
    all_or_none,
    derive_seed,
)
from marl_plugins.swarm.journal import Journal
from marl_plugins.swarm.peers import Swarm, noted, peer_of
from marl_plugins.swarm.record import carried_task, key_of, unpacked
from marl_plugins.swarm.store import RecordName, RecordStore

RANKED_PER_TAKEN = 8
"""Groups among which `--swarm.sampler reward` finds each that it takes."""


async def take(
    store: RecordStore, learner: str, run: Run, exchange: Exchange
) -> tuple[list[Trajectory], Mapping[str, float]]:
    """Returns the trajectories that a step takes in, and numbers of them: what the journal says of
    it, or else what is drawn now.

    Args:
        learner: The member of a population that takes them in; empty: the run does.

    Raises:
        RunPaused: The journal cannot be read or written; the step before is saved.
    """
    journal = Journal(Path(run.args.ckpt.path), run.state(Swarm).run, learner)
    try:
        recorded = journal.read(exchange.step)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunPaused(
            f"the journal of step {exchange.step} in {journal.folder} cannot be read: {error}"
        ) from error
    taking = TakenGroups(run, exchange, learner)
    if recorded is not None:
        records, metrics = recorded
        for path, content in records.items():
            await taking.take(path, content)
        return taking.trajectories, metrics
    try:
        names, unreachable = (
            await asyncio.to_thread(_candidates, store, learner, run, exchange.step),
            0.0,
        )
    except OSError:
        names, unreachable = [], 1.0
    await taking.draw(store, names)
    metrics = {
        "swarm/unreachable": unreachable,
        "swarm/offered": float(len(names)),
        **taking.metrics(),
    }
    try:
        journal.write(exchange.step, taking.contents, metrics)
    except OSError as error:
        raise RunPaused(f"the journal in {journal.folder} cannot be written: {error}") from error
    return taking.trajectories, metrics


def _candidates(store: RecordStore, learner: str, run: Run, step: int) -> list[RecordName]:
    """Returns the records of others that a step may take in, in the order in which they are tried:
    drawn by seed and step.

    Raises:
        OSError: The store cannot be read.
    """
    swarm, options = run.state(Swarm), run.args.swarm
    oldest = max(0, swarm.round - options.staleness)
    names = store.names(range(oldest, swarm.round + 1))
    swarm.seen = {
        path
        for path in swarm.seen
        if not path[:6].isdigit() or int(path.partition("/")[0]) >= oldest
    }
    own = [(options.peer, swarm.run), (peer_of(options.peer, learner), swarm.run)]
    names = [
        n for n in names if (n.peer, n.run) not in own and noted(n.path, learner) not in swarm.seen
    ]
    random.Random(
        derive_seed(run.args.train.seed, "swarm.take", step, *filter(None, [learner]))
    ).shuffle(names)
    return names


def differ(group: Sequence[Trajectory | TrajectoryWords], spread: float) -> bool:
    """Returns whether the outcomes of a group are further apart than `spread`."""
    outcomes = [t.outcome for t in group if t.outcome is not None]
    return bool(outcomes) and max(outcomes) - min(outcomes) > spread


class TakenGroups:
    """The groups of others that one step takes in, for the whole run or for a member of a
    population."""

    def __init__(self, run: Run, exchange: Exchange, learner: str):
        self._run, self._learner = run, learner
        self.contents: dict[str, str] = {}
        """The records that are taken, by name."""
        self.trajectories: list[Trajectory] = []
        self._swarm, self._options = run.state(Swarm), run.args.swarm
        self._exchange = exchange
        self._refused: Counter[str] = Counter()
        self._unlike = 0

    async def draw(self, store: RecordStore, names: Sequence[RecordName]) -> None:
        """Takes as many groups as are asked for, or all that there are which the sampler wants.

        Groups without advantage are no candidates (SAPO, section 5), the quota counts those that
        are taken, and `reward` takes the best of several times as many as it needs, of the step and
        of each peer.
        """
        count = self._options.external
        quota = self._options.quota or count
        ranked = RANKED_PER_TAKEN if self._options.sampler == "reward" else 1
        of_peer = Counter[str]()
        candidates: list[tuple[RecordName, str, list[Trajectory]]] = []
        for name in names:
            if len(candidates) == ranked * count:
                break
            if of_peer[name.peer] == ranked * quota:
                continue
            try:
                content = (await asyncio.to_thread(store.get, name)).decode("utf-8")
                if name.run == self._swarm.run and self._alike(unpacked(content.encode())):
                    continue  # by this run's own graders
                group = await self._read(name.path, content, name.origin)
            except FileNotFoundError:  # its peer has removed it
                continue
            except OSError:
                self._refused["unreachable"] += 1
                continue
            except (RefusedRecord, ValueError) as error:
                self._refused[getattr(error, "reason", "schema")] += 1
                self._swarm.seen.add(noted(name.path, self._learner))
                continue
            if self._alike(group):
                continue
            of_peer[name.peer] += 1
            candidates.append((name, content, group))
        if self._options.sampler == "reward":
            candidates.sort(key=lambda each: -fmean(t.outcome or 0.0 for t in each[2]))
        of_peer.clear()
        for name, content, group in candidates:
            if len(self.contents) < count and of_peer[name.peer] < quota:
                of_peer[name.peer] += 1
                self._add(name.path, content, group)

    def _alike(self, group: Sequence[Trajectory | TrajectoryWords]) -> bool:
        """Returns whether the sampler has no use for a group, because its outcomes are alike."""
        alike = self._options.sampler != "uniform" and not differ(group, self._options.spread)
        self._unlike += alike
        return alike

    async def take(self, path: str, content: str) -> None:
        """Takes a record that the journal has.

        Raises:
            RunPaused: It cannot be said again as it could when the step was first made.
        """
        folder, _, file = path.partition("/")
        try:
            name = RecordName.of(folder, file)
            if name is None:
                raise RefusedRecord("schema", "no name of a record")
            self._add(path, content, await self._read(path, content, name.origin))
        except (RefusedRecord, ValueError) as error:
            raise RunPaused(
                f"step {self._exchange.step} took in {path}, which is now refused: {error}"
            ) from error

    def metrics(self) -> Mapping[str, float]:
        """Returns what became of the records that were tried."""
        return {
            "swarm/taken": float(len(self.contents)),
            "swarm/unlike": float(self._unlike),
            "swarm/refused": float(self._refused.total()),
            **{
                f"swarm/refused/{reason}": float(count)
                for reason, count in sorted(self._refused.items())
            },
        }

    async def _read(self, path: str, content: str, origin: str) -> list[Trajectory]:
        group = unpacked(content.encode())
        if not path.endswith(f"-{key_of(group[0].task)}.json.gz"):
            raise RefusedRecord("schema", "its task is not the one of its name")
        records = [words.model_dump(mode="json", by_alias=True) for words in group]
        origin += f" to {self._learner}" if self._learner else ""
        task = (
            None
            if group[0].task in self._exchange.tasks
            else self._foreign_task(content.encode(), group[0])
        )
        return await all_or_none(
            [self._exchange.read(r, origin, self._learner or None, task) for r in records]
        )

    def _foreign_task(self, content: bytes, words: TrajectoryWords) -> Task | None:
        """Returns a task that this run does not have, as far as its peers are trusted
        (`--swarm.trust`)."""
        if self._options.trust == "labels":
            return carried_task(content, words)
        if self._options.trust == "generator":
            task_of = getattr(self._run.tasks_module, "task_of", None)
            try:
                made = task_of(words.task) if task_of else None
            except (ValueError, LookupError, TypeError):  # the name is a stranger's
                return None
            return made if isinstance(made, Task) else None
        return None

    def _add(self, path: str, content: str, group: Sequence[Trajectory]) -> None:
        self.contents[path] = content
        self.trajectories += group
        self._swarm.seen.add(noted(path, self._learner))
