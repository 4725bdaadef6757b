"""The groups of other peers that a step takes in; a repeated step takes in the same."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from marl_plugins import (
    Exchange,
    RefusedRecord,
    Run,
    RunEnded,
    RunPaused,
    Task,
    Trajectory,
    TrajectoryWords,
    all_or_none,
    derive_seed,
)
from marl_plugins.swarm.journal import Journal
from marl_plugins.swarm.peers import Swarm, noted, peer_of
from marl_plugins.swarm.record import Record, key_of, unpacked
from marl_plugins.swarm.store import RecordName, RecordStore

TRIED_PER_TAKEN = 8
"""Groups among which `--swarm.sampler reward` finds each that it takes; and refused records, for
each that is asked for, after which a step looks no further."""


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
    unreachable = 0.0
    try:
        names = await asyncio.to_thread(_candidates, store, learner, run, exchange.step)
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
        if (ckpt := run.args.ckpt).save_steps > 0:
            journal.forget(exchange.step - ckpt.save_steps * max(ckpt.max_num, 1))
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
    own = options.peer, peer_of(options.peer, learner)  # of an earlier run of this name, too
    names = [n for n in names if n.peer not in own and noted(n.path, learner) not in swarm.seen]
    random.Random(
        derive_seed(run.args.train.seed, "swarm.take", step, *filter(None, [learner]))
    ).shuffle(names)
    return names


def differ(group: Sequence[Trajectory | TrajectoryWords], spread: float) -> bool:
    """Returns whether the outcomes of a group are further apart than `spread`, or cannot be
    compared."""
    outcomes = [t.outcome for t in group if t.outcome is not None]
    return len(outcomes) < 2 or max(outcomes) - min(outcomes) > spread


def _fetched(store: RecordStore, name: RecordName) -> tuple[str, Record]:
    """Returns the content of a record, and what it holds."""
    content = store.get(name)
    return content.decode("utf-8"), unpacked(content)


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

        Groups without advantage are no candidates (SAPO, section 5). What their sender's graders
        say spares reading them, what this run's say decides.
        """
        count = self._options.external
        quota = self._options.quota or count
        by_reward = self._options.sampler == "reward"
        tried = TRIED_PER_TAKEN if by_reward else 1
        found: defaultdict[str, list[tuple[str, str, list[Trajectory]]]] = defaultdict(list)
        for name in names:
            of_peer = found[name.peer]
            enough = sum(map(len, found.values())) == tried * count
            if enough or self._refused.total() == TRIED_PER_TAKEN * count:
                break
            if len(of_peer) == tried * quota:
                continue
            group: list[Trajectory] = []
            try:
                content, record = await asyncio.to_thread(_fetched, store, name)
                if not self._alike(record.group):
                    group = await self._read(name.path, record, name.origin)
            except FileNotFoundError:  # its peer has removed it
                continue
            except OSError:
                self._refused["unreachable"] += 1
                continue
            except (RefusedRecord, ValueError) as error:
                self._refused[getattr(error, "reason", "schema")] += 1
            if group and not self._alike(group):
                of_peer.append((name.path, content, group))
            else:
                self._swarm.seen.add(noted(name.path, self._learner))

        def worth(candidate: tuple[str, str, list[Trajectory]]) -> float:
            return fmean(t.outcome or 0.0 for t in candidate[2]) if by_reward else 0.0

        best = [c for each in found.values() for c in sorted(each, key=worth, reverse=True)[:quota]]
        for path, content, group in sorted(best, key=worth, reverse=True)[:count]:
            self._add(path, content, group)

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
        try:
            name = RecordName.of(path)
            if name is None:
                raise RefusedRecord("schema", "no name of a record")
            record = unpacked(content.encode())
            self._add(path, content, await self._read(path, record, name.origin))
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

    async def _read(self, path: str, record: Record, origin: str) -> list[Trajectory]:
        words = record.group[0]
        if not path.endswith(f"-{key_of(words.task)}.json.gz"):
            raise RefusedRecord("schema", "its task is not the one of its name")
        origin += f" to {self._learner}" if self._learner else ""
        foreign = words.task not in self._exchange.tasks
        try:
            task = self._foreign_task(record) if foreign else None
            return await all_or_none(
                [self._exchange.read(w, origin, self._learner or None, task) for w in record.group]
            )
        except (RefusedRecord, RunEnded):
            raise
        except Exception as error:
            if not foreign:
                raise
            # A stranger's name or label, which the generator, workflow or grader does not expect.
            raise RefusedRecord("task", f"{type(error).__name__}: {error}") from error

    def _foreign_task(self, record: Record) -> Task | None:
        """Returns a task that this run does not have, as far as its peers are trusted
        (`--swarm.trust`)."""
        if self._options.trust == "labels":
            return record.task
        if self._options.trust == "tasks":
            return None
        tasks: Any = self._run.tasks_module
        made = tasks.task_of(record.group[0].task)
        return made if isinstance(made, Task) else None

    def _add(self, path: str, content: str, group: Sequence[Trajectory]) -> None:
        self.contents[path] = content
        self.trajectories += group
        self._swarm.seen.add(noted(path, self._learner))
