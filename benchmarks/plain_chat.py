"""What stands in for a chat format in benchmarks that have no model: it neither thinks nor spells
control tokens."""

from collections.abc import Iterable, Sequence


class PlainChat:
    def thought(self, ids: Sequence[int]) -> int:
        return 0

    def defused(self, shown: Iterable[tuple[str, str]]) -> int:
        return 0
