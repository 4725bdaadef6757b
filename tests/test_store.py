"""The store of rows between rollout and training: nothing lost, nothing given out twice, nothing of another version."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from marl_plugins.core.store import Key, StoreError, Table, equal, to_arrow, to_pandas

COLUMNS = ("ids", "reward", "mine")
KEYS = st.builds(Key, st.integers(0, 2), st.integers(0, 1), st.sampled_from(["a.1", "b.10", "b.2"]))
CONSUMERS = st.sampled_from("xyz")


class Interleaved(RuleBasedStateMachine):
    """Puts, claims, deaths and commits in any order, beside a model that looks at every row each time."""

    @initialize(version=st.integers(0, 3))
    def begin(self, version):
        self.table = Table("p", COLUMNS, version)
        self.rows = {}
        """Of each row that is there: version, columns, state, consumer."""
        self.closed = set()
        self.put = self.committed = self.evicted = 0

    def there(self, key):
        return self.rows.get(key)

    @rule(key=KEYS, ahead=st.integers(-1, 1), column=st.sampled_from(COLUMNS), value=st.integers(0, 1))
    def put_one(self, key, ahead, column, value):
        version, row = self.table.version + ahead, self.there(key)
        task = (version, key.place)
        refused = (
            row["version"] != version or row["values"].get(column, value) != value
            if row
            else version < self.table.version or task in self.closed
        )
        if refused:
            with pytest.raises(StoreError, match=f"policy 'p', row {key.place}/{key.sample}/{key.path}"):
                self.table.put(key, version, **{column: value})
            return
        self.table.put(key, version, **{column: value})
        if row is None:
            row = self.rows[key] = {"version": version, "values": {}, "state": "incomplete", "consumer": ""}
            self.put += 1
        row["values"][column] = value
        if row["state"] == "incomplete" and len(row["values"]) == len(COLUMNS):
            row["state"] = "ready"

    @rule(key=KEYS, ahead=st.integers(0, 1))
    def put_all(self, key, ahead):
        for column in COLUMNS:
            self.put_one(key, ahead, column, 0)

    @rule(place=st.integers(0, 2), ahead=st.integers(0, 1))
    def close(self, place, ahead):
        self.table.close(place, self.table.version + ahead)
        self.closed.add((self.table.version + ahead, place))

    def of_task(self, version, place):
        return sorted(key for key, row in self.rows.items() if (row["version"], key.place) == (version, place))

    def claimable(self, limit, whole):
        """The keys that a claim has to give; None where it has to be refused."""
        version, found = self.table.version, []
        for place in range(3):
            mine = self.of_task(version, place)
            ready = [key for key in mine if self.rows[key]["state"] == "ready"]
            if not whole:
                found += ready
            elif mine and mine == ready and (version, place) in self.closed:
                if len(found) + len(mine) > limit:
                    return found or None
                found += mine
        return found[:limit]

    @rule(consumer=CONSUMERS, limit=st.integers(1, 7), whole=st.booleans())
    def claim(self, consumer, limit, whole):
        expected = self.claimable(limit, whole)
        if expected is None:
            with pytest.raises(StoreError, match=f"whole tasks of at most {limit} rows; raise the limit"):
                self.table.claim(consumer, limit, self.table.version, whole)
            return
        got = self.table.claim(consumer, limit, self.table.version, whole)
        assert [row.key for row in got] == expected
        for row in got:
            assert row.values == self.rows[row.key]["values"] and row.values.keys() == set(COLUMNS)
            self.rows[row.key] |= {"state": "claimed", "consumer": consumer}

    @rule(consumer=CONSUMERS, wrong=st.sampled_from([-1, 1]))
    def claim_at_another_version(self, consumer, wrong):
        with pytest.raises(StoreError, match=f"policy 'p': '{consumer}' claimed rows of version"):
            self.table.claim(consumer, 1, self.table.version + wrong)

    @rule(consumer=CONSUMERS)
    def die(self, consumer):
        mine = [row for row in self.rows.values() if row["consumer"] == consumer]
        assert self.table.release(consumer) == len(mine)
        for row in mine:
            row |= {"state": "ready", "consumer": ""}

    @rule(ahead=st.integers(0, 2))
    def commit(self, ahead):
        version = self.table.version + ahead
        if ahead == 0:
            with pytest.raises(StoreError, match="the table is at version"):
                self.table.commit(version)
            return
        claimed = [key for key, row in self.rows.items() if row["state"] == "claimed"]
        assert self.table.commit(version) == len(claimed)
        late = [key for key, row in self.rows.items() if row["version"] < version and key not in claimed]
        self.committed += len(claimed)
        self.evicted += len(late)
        for key in (*claimed, *late):
            del self.rows[key]
        self.closed = {task for task in self.closed if task[0] >= version}

    @rule(place=st.integers(0, 2))
    def evict(self, place):
        gone = [key for key, row in self.rows.items() if key.place == place and row["state"] != "claimed"]
        assert self.table.evict(lambda row: row.key.place == place) == len(gone)
        versions = {self.rows.pop(key)["version"] for key in gone}
        self.evicted += len(gone)
        self.closed -= {(version, place) for version in versions if not self.of_task(version, place)}

    @invariant()
    def nothing_is_lost_or_invented(self):
        table = self.table
        states = [row["state"] for row in self.rows.values()]
        expected = {state: states.count(state) for state in ("incomplete", "ready", "claimed")}
        expected |= {"put": self.put, "committed": self.committed, "evicted": self.evicted}
        assert {state: table.counts[state] for state in expected} == expected and len(table) == len(states)
        assert self.put == len(states) + self.committed + self.evicted
        assert {row.key: row.consumer for row in table} == {key: row["consumer"] for key, row in self.rows.items()}
        ready = sorted(k for k, row in self.rows.items() if (row["state"], row["version"]) == ("ready", table.version))
        assert [row.key for row in table.ready()] == ready


Interleaved.TestCase.settings = settings(max_examples=60, stateful_step_count=50)
TestInterleaved = Interleaved.TestCase


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_consumers_that_die_again_and_again_train_every_row_once(seed, count, limit, whole):
    """Reference: the rows themselves. Each consumer claims, and half of the time dies before its commit."""
    draw = random.Random(seed)
    table, trained, version = Table("p", ["reward"], 0), [], 0
    keys = [Key(n // 4, n % 4, "a.1") for n in range(count)]
    for key in draw.sample(keys, count):
        table.put(key, 0, reward=float(key.place))
    for place in range(count):
        table.close(place, 0)
    claimed = []
    while len(claimed) < count:
        got = table.claim(f"c{version}", max(limit, 4), 0, whole)
        assert got and not {row.key for row in got} & {key for key, _ in claimed}
        if draw.random() < 0.5:
            assert table.release(f"c{version}") == len(got)
        else:
            claimed += [(row.key, row.values["reward"]) for row in got]
        version += 1
    assert table.claim("late", 9, 0) == []
    assert table.commit(1) == count and len(table) == 0
    trained += claimed
    assert sorted(trained) == [(key, float(key.place)) for key in keys]


def test_a_table_says_what_is_wrong_and_how_to_mend_it():
    table, key = Table("solver", ["ids", "reward"], 3), Key(2, 1, "a.7")
    table.put(key, 3, ids=(1, 2))
    refused = {
        "policy 'solver', row 2/1/a.7: column 'ids' is there already, with another value": lambda: table.put(
            key, 3, ids=(1, 3)
        ),
        "has no column 'rewards'; did you mean 'reward'": lambda: table.put(key, 3, rewards=1.0),
        "is of version 3 and was put at version 4; commit or evict": lambda: table.put(key, 4, reward=1.0),
        "was put at version 2, and version 3 has been committed": lambda: table.put(Key(0, 0, "a"), 2, reward=1.0),
        "'trainer' claimed rows of version 4, and the table is at version 3": lambda: table.claim("trainer", 1, 4),
        "version 3 was committed, and the table is at version 3 already": lambda: table.commit(3),
        "columns state exist for every row": lambda: Table("solver", ["state"]),
    }
    for message, work in refused.items():
        with pytest.raises(StoreError) as error:
            work()
        assert message in str(error.value)
    table.close(0, 3)
    with pytest.raises(StoreError, match="its task was closed; close a task after its last row was put"):
        table.put(Key(0, 0, "a"), 3, reward=1.0)


def test_a_step_that_trained_nothing_begins_anew_at_the_same_version():
    table, key = Table("p", ["reward"]), Key(0, 0, "a.1")
    for reward in (1.0, 2.0):
        table.put(key, 0, reward=reward)
        table.close(0, 0)
        assert [row.values["reward"] for row in table.claim("c", 9, 0, whole=True)] == [reward]
        table.release("c")
        assert table.evict(lambda row: True) == 1


def test_a_put_that_is_refused_changes_nothing():
    table, key = Table("p", ["ids", "reward"]), Key(0, 0, "a.1")
    with pytest.raises(StoreError, match="no column 'rewrad'"):
        table.put(key, 0, ids=1, rewrad=0.5)
    assert not len(table) and not table.counts["put"]
    table.put(key, 0, ids=1)
    with pytest.raises(StoreError, match="'ids' is there already"):
        table.put(key, 0, reward=0.5, ids=2)
    assert [(row.values, row.state) for row in table] == [({"ids": 1}, "incomplete")]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (math.nan, float("nan"), True),
        (1, 1.0, False),
        ((1, 2), (1, 2), True),
        ((1, 2), (1, 3), False),
        ((1, 2), (1,), False),
        ([math.nan], [float("nan")], True),
        ([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 2.0])], True),
        ([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 3.0])], False),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan]), True),
        (torch.tensor([1.0]), torch.tensor([2.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
    ],
)
def test_values_are_compared_by_type_and_content(one, other, same):
    assert equal(one, other) is same


def exported():
    solver, judge = Table("solver", ["ids", "reward"], 1), Table("judge", ["score"])
    solver.put(Key(1, 0, "s.1"), 1, ids=torch.tensor([5, 6]), reward=0.5)
    solver.put(Key(0, 2, "s.2"), 2, ids=torch.tensor([7]))
    judge.put(Key(0, 0, "j.1"), 0, score=1.0)
    solver.claim("trainer", 1, 1)
    return [solver, judge]


FLAT = [
    {"policy": "solver", "place": 1, "sample": 0, "path": "s.1", "version": 1, "state": "claimed", "consumer": "trainer"},
    {"policy": "solver", "place": 0, "sample": 2, "path": "s.2", "version": 2, "state": "incomplete", "consumer": ""},
    {"policy": "judge", "place": 0, "sample": 0, "path": "j.1", "version": 0, "state": "ready", "consumer": ""},
]
VALUES = [
    {"ids": [5, 6], "reward": 0.5, "score": None},
    {"ids": [7], "reward": None, "score": None},
    {"ids": None, "reward": None, "score": 1.0},
]


def test_all_tables_go_into_one_arrow_table():
    assert to_arrow(exported()).to_pylist() == [a | b for a, b in zip(FLAT, VALUES, strict=True)]
    assert to_arrow([]).num_rows == 0 and to_arrow([Table("p", ["x"])]).column_names == [*FLAT[0], "x"]


def test_and_into_one_pandas_frame():
    frame = to_pandas(exported())
    assert list(frame.columns) == [*FLAT[0], *VALUES[0]]
    found = [{k: None if v is None or v != v else v for k, v in r.items()} for r in frame.to_dict("records")]
    assert found == [a | b for a, b in zip(FLAT, VALUES, strict=True)]
