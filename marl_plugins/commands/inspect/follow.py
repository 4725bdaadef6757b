"""Follows what a run in progress adds to its trajectories: new lines, once their ends are there;
all of them again after a resumption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_plugins.commands.inspect.index import Entry, RunIndex, entry_of, placed
from marl_plugins.commands.inspect.query import Query
from marl_plugins.engine.records.read import FileTail


class RunFollower:
    """Keeps an index up to date with a run in progress.

    Args:
        index: Its entries are replaced by what the files hold now.
    """

    def __init__(self, index: RunIndex, query: Query):
        self.index = index
        self._tails = [FileTail(path, _entry) for path in index.files]
        self.index.entries.clear()
        self.update(query)

    def update(self, query: Query) -> bool:
        """Adds what is new and asked for, and returns whether anything has changed.

        Raises:
            ConfigurationError: A line is damaged, or a file cannot be read.
        """
        changed = False
        for number, tail in enumerate(self._tails):
            again, added = tail.read()
            if again:
                self.index.entries[:] = [
                    entry for entry in self.index.entries if entry.file != number
                ]
            for record in added:
                entry = placed(record, number)
                if self._is_wanted(entry, query):
                    self.index.entries.append(entry)
            changed = changed or again or bool(added)
        return changed

    def _is_wanted(self, entry: Entry, query: Query) -> bool:
        included = query.wanted.has_step(entry.step) and query.wanted.has_trajectory(entry)
        return included and (query.find is None or self.index.contains(entry, query.find))


def _entry(value: Mapping[str, Any]) -> Entry:
    return entry_of(dict(value))
