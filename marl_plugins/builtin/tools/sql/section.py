"""The recipe's `tools: sql:`."""

from __future__ import annotations

from datetime import date
from typing import ClassVar

import pydantic

from marl_plugins.core.section import Section


class SqlToolConfig(Section):
    """The database of the `sql` tool, and limits of one query."""

    EXAMPLE: ClassVar[str] = "{database: shop.db}"

    database: str
    """SQLite file, which must not change while the run lasts."""
    tables: list[str] = []
    """Tables and views that agents may read. Default: all."""
    today: date | None = None
    """The day that `date('now')` gives, as in `2025-12-31`. Default: a query that asks for it is
    wrong."""
    rows: int = pydantic.Field(20, ge=1)
    """Most rows in an answer, which mentions further ones."""
    output_chars: int = pydantic.Field(2000, ge=100)
    """A longer answer keeps its head, and says so."""
    steps: int = pydantic.Field(2_000_000, ge=1000)
    """Most steps of SQLite's virtual machine per query; two million take about 0.2 seconds. In a
    query that searches texts (LIKE, GLOB, instr, replace, trim, json) each counts four."""
    value_bytes: int = pydantic.Field(2_000, ge=1000)
    """Longest text, blob and row that a query may read or make."""
    calls_per_answer: int = pydantic.Field(16, ge=1)
    """Most queries run per answer. The last output counts the others."""

    def files(self) -> dict[str, str]:
        return {"database": self.database}
