"""Rows between rollout and training, a table per policy: which columns are there, who has claimed them, what became of them.

    incomplete --put--> ready --claim--> claimed --commit--> committed
                          ^------release-----'        evict: incomplete or ready --> evicted

A claim lasts until the weights that it helped to train are there: `commit(version)` makes the claimed rows committed and the
table's version `version`. Until then a consumer that has died gives its rows back (`release`). Rows of other versions than the
table's are never given out; those that are left behind by a commit are evicted. At any time

    put = incomplete + ready + claimed + committed + evicted

A table belongs to the controller's process and knows neither threads nor files. Large values belong into it as references.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from marl_plugins.core.failures import nearest

if TYPE_CHECKING:
    import pandas
    import pyarrow


class StoreError(Exception):
    """A table was asked for what would lose, double or mix up rows; says which policy, row and column, and the fix."""


class Key(NamedTuple):
    """Which row of a step: the task's place in it, the sample, the action's path. They sort by age, the oldest task first."""

    place: int
    sample: int
    path: str


_NAMES = ("policy", *Key._fields, "version", "state", "consumer")
"""What an exported row has beside its columns."""


@dataclass(slots=True)
class StoredRow:
    """A row of a table, for reading.

    Args:
        version: Of the weights that it was sampled from.
        values: By column, those that are there.
        consumer: Who has claimed it; empty for nobody.
    """

    key: Key
    version: int
    values: dict[str, Any]
    state: str = "incomplete"
    consumer: str = ""


@dataclass(slots=True)
class _Group:
    """The rows of one task."""

    keys: set[Key] = field(default_factory=set)
    ready: set[Key] = field(default_factory=set)
    closed: bool = False

    @property
    def whole(self) -> bool:
        return self.closed and len(self.ready) == len(self.keys) > 0


class Table:
    """The rows of one policy.

    Args:
        policy: Its name.
        columns: What a row needs in order to be ready; any names.
        version: Of the policy's weights.

    Raises:
        StoreError: A column has the name of one that every row has.
    """

    def __init__(self, policy: str, columns: Iterable[str], version: int = 0):
        self.policy = policy
        self.columns = tuple(columns)
        if taken := sorted(set(self.columns) & set(_NAMES)):
            raise StoreError(f"policy {policy!r}: columns {', '.join(taken)} exist for every row; give them other names")
        self.version = version
        self.counts: Counter[str] = Counter()
        """Rows by state, and all that were ever `put`."""
        self._rows: dict[Key, StoredRow] = {}
        self._groups: dict[tuple[int, int], _Group] = defaultdict(_Group)
        """By version and place."""
        self._claims: dict[str, set[Key]] = defaultdict(set)
        self._some: list[tuple[int, int]] = []
        """A heap of the groups with ready rows; those that have none any more stay in it until it is their turn."""
        self._whole: list[tuple[int, int]] = []
        """The same of groups that are closed and ready as a whole."""

    def __len__(self) -> int:
        """Rows that are in the table."""
        return len(self._rows)

    def __iter__(self) -> Iterator[StoredRow]:
        return iter(self._rows.values())

    def put(self, key: Key, version: int, **values: Any) -> None:
        """Add columns to a row, which is made by the first of them; what is there already and what is refused change nothing.

        Raises:
            StoreError: An unknown column, another value for a column that is there, another version than the row's, a version that
                has been committed already, or a new row of a task that was closed.
        """
        for column in values:
            if column not in self.columns:
                known = nearest(column, self.columns)
                raise StoreError(f"{self._name(key)} has no column {column!r}{known}; name it when the table is made")
        row = self._rows.get(key)
        if row is None or row.version != version:
            row = self._new(key, version, row)
        for column, value in values.items():
            if column in row.values and not equal(row.values[column], value):
                raise StoreError(
                    f"{self._name(key)}: column {column!r} is there already, with another value; a column is put once: "
                    "evict the row first, or name another column"
                )
        row.values = values | row.values
        if row.state == "incomplete" and len(row.values) == len(self.columns):
            self._make_ready(row)

    def _new(self, key: Key, version: int, old: StoredRow | None) -> StoredRow:
        if old is not None:
            raise StoreError(
                f"{self._name(key)} is of version {old.version} and was put at version {version}; commit or evict it first"
            )
        if version < self.version:
            raise StoreError(
                f"{self._name(key)} was put at version {version}, and version {self.version} has been committed; rows of "
                "earlier weights are not trained on: sample it again"
            )
        group = self._groups[version, key.place]
        if group.closed:
            raise StoreError(f"{self._name(key)} is new, and its task was closed; close a task after its last row was put")
        group.keys.add(key)
        row = self._rows[key] = StoredRow(key, version, {})
        self.counts["put"] += 1
        self.counts["incomplete"] += 1
        return row

    def close(self, place: int, version: int) -> None:
        """Say that no further rows of a task will be put: it can be claimed as a whole once all of them are ready."""
        group = self._groups[version, place]
        group.closed = True
        if group.whole:
            heapq.heappush(self._whole, (version, place))

    def ready(self, where: Callable[[StoredRow], bool] = lambda row: True) -> list[StoredRow]:
        """The rows that could be claimed now, the oldest task's first."""
        rows = (row for row in self._rows.values() if row.state == "ready" and row.version == self.version)
        return sorted(filter(where, rows), key=lambda row: row.key)

    def claim(self, consumer: str, limit: int, version: int, whole: bool = False) -> list[StoredRow]:
        """Ready rows for a consumer and nobody else, the oldest task's first, until the next commit.

        Args:
            limit: At most so many rows.
            version: That the consumer is about to train.
            whole: Whole tasks only, those that were closed and of which every row is ready and nobody has claimed one.

        Raises:
            StoreError: The table is at another version, or a whole task has more than `limit` rows.
        """
        if version != self.version:
            raise StoreError(
                f"policy {self.policy!r}: {consumer!r} claimed rows of version {version}, and the table is at version "
                f"{self.version}; claim at the version of the weights that are trained, and commit the version after an update"
            )
        found: list[StoredRow] = []
        heap = self._whole if whole else self._some
        while heap and len(found) < limit and heap[0][0] <= version:
            group = self._groups.get(heap[0])
            if group is None or not (group.whole if whole else group.ready):
                heapq.heappop(heap)
                continue
            keys = sorted(group.ready)
            if whole and len(found) + len(keys) > limit:
                if not found:
                    raise StoreError(
                        f"policy {self.policy!r}: task {heap[0][1]} of the step has {len(keys)} rows, and {consumer!r} claims "
                        f"whole tasks of at most {limit} rows; raise the limit"
                    )
                break
            found += [self._claim(group, key, consumer) for key in keys[: limit - len(found)]]
        return found

    def _claim(self, group: _Group, key: Key, consumer: str) -> StoredRow:
        row = self._rows[key]
        group.ready.remove(key)
        self._claims[consumer].add(key)
        row.consumer = consumer
        self._change(row, "claimed")
        return row

    def release(self, consumer: str) -> int:
        """Give back what a consumer has claimed and not trained to the end, because it has died or gives up; the number of rows."""
        keys = self._claims.pop(consumer, set())
        for key in keys:
            self._rows[key].consumer = ""
            self._make_ready(self._rows[key])
        return len(keys)

    def commit(self, version: int) -> int:
        """The policy has been trained on all that was claimed, and its weights are `version` from now on; the number of those rows.

        Rows of earlier versions that nobody has claimed are evicted.

        Raises:
            StoreError: The version is not a later one.
        """
        if version <= self.version:
            raise StoreError(
                f"policy {self.policy!r}: version {version} was committed, and the table is at version {self.version} already; "
                "commit once, after the update (release and evict the rows of a step that trained nothing)"
            )
        self.version = version
        committed = [key for keys in self._claims.values() for key in keys]
        self._claims.clear()
        for key in committed:
            self._remove(self._rows[key], "committed")
        self.evict(lambda row: row.version < version)
        for place in [place for place in self._groups if place[0] < version]:
            del self._groups[place]
        return len(committed)

    def evict(self, where: Callable[[StoredRow], bool]) -> int:
        """Remove rows that nobody has claimed; their number. What remains of a task may be whole then."""
        rows = [row for row in self._rows.values() if row.state != "claimed" and where(row)]
        for row in rows:
            self._remove(row, "evicted")
        return len(rows)

    def _make_ready(self, row: StoredRow) -> None:
        place = row.version, row.key.place
        group = self._groups[place]
        if not group.ready:
            heapq.heappush(self._some, place)
        group.ready.add(row.key)
        if group.whole:
            heapq.heappush(self._whole, place)
        self._change(row, "ready")

    def _remove(self, row: StoredRow, state: str) -> None:
        place = row.version, row.key.place
        group = self._groups[place]
        group.keys.remove(row.key)
        group.ready.discard(row.key)
        if group.whole:
            heapq.heappush(self._whole, place)
        elif not group.keys:  # the task may come again at this version, where a step has trained nothing
            del self._groups[place]
        del self._rows[row.key]
        self._change(row, state)

    def _change(self, row: StoredRow, state: str) -> None:
        self.counts[row.state] -= 1
        self.counts[state] += 1
        row.state = state

    def _name(self, key: Key) -> str:
        return f"policy {self.policy!r}, row {key.place}/{key.sample}/{key.path}"


def equal(one: Any, other: Any) -> bool:
    """Whether two values of a column are the same: of one type, and equal, element by element where they have any; nan is nan."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if hasattr(one, "shape"):
        same = (one == other) | ((one != one) & (other != other)) if one.shape == other.shape else None
        return same is not None and one.dtype == other.dtype and bool(same.all())
    return bool(one == other or (one != one and other != other))


def records_of(table: Table) -> list[dict[str, Any]]:
    """The rows that are in a table, the oldest first, each as one flat dictionary; None for what is not there yet."""
    return [
        {
            "policy": table.policy,
            **row.key._asdict(),
            "version": row.version,
            "state": row.state,
            "consumer": row.consumer,
            **{column: _plain(row.values.get(column)) for column in table.columns},
        }
        for row in sorted(table, key=lambda row: (row.version, row.key))
    ]


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def to_arrow(tables: Sequence[Table]) -> pyarrow.Table:
    """All rows of some tables as one Arrow table; a column that a policy does not have is null there.

    Needs the extra `tables`.
    """
    import pyarrow

    names, records = _exported(tables)
    return pyarrow.table({name: [record.get(name) for record in records] for name in names})


def to_pandas(tables: Sequence[Table]) -> pandas.DataFrame:
    """The same as a pandas frame."""
    import pandas

    names, records = _exported(tables)
    return pandas.DataFrame(records, columns=names)


def _exported(tables: Sequence[Table]) -> tuple[list[str], list[dict[str, Any]]]:
    columns = dict.fromkeys(column for table in tables for column in table.columns)
    return [*_NAMES, *columns], [record for table in tables for record in records_of(table)]
