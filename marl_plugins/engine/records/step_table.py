"""The table of steps: one row per step, in columns that fit the console, and the header again every
20 rows.

docs/metrics.md says what the columns mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from marl_plugins.engine.records.behaviour import alarms

WIDTH_CHARS = 100
"""Characters that the table may take."""
HEADER_EVERY = 20
MOST_ROLES = 6
"""Maximum number of roles whose rewards have a column each; with more roles there is one column for
the mean."""
LONGEST_ROLE_CHARS = 7
"""Characters of a role's name."""
EXPENDABLE = ("sync", "update", "gen", "out", "drift", "tok/s", "KL")
"""Columns that are left out where the table would be too wide, the first of them first."""


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Args:
        metric: The name of its number in `metrics.jsonl`.
    """

    title: str
    metric: str
    width: int
    form: Callable[[float], str]


class StepTable:
    """The lines of a run's table.

    Args:
        roles: In the order of the recipe.
        steps: Number of steps of the whole run.
    """

    def __init__(self, roles: Sequence[str], steps: int):
        self.steps, self.roles = steps, list(roles)
        self.rows = 0
        self.receives = False
        """Whether a step has had rows of others (`marl_exchange`): they have a column from then
        on."""
        self.columns = self._columns()

    def _columns(self) -> list[Column]:
        rewards = [
            Column(
                abbreviated(role),
                f"role/{role}/reward",
                max(6, len(abbreviated(role))),
                "{:.3f}".format,
            )
            for role in self.roles
        ]
        if not 0 < len(rewards) <= MOST_ROLES:
            rewards = [Column("reward", "reward/mean", 6, "{:.3f}".format)]
        received = [Column("in", "rows/received", 4, "{:.0f}".format)] if self.receives else []
        return fitting(
            [
                Column(
                    "step",
                    "step",
                    max(4, 2 * len(str(self.steps)) + 1),
                    f"{{:.0f}}/{self.steps}".format,
                ),
                Column("outcome", "outcome/mean", 7, "{:.3f}".format),
                *rewards,
                Column("rows", "rows/trained", 5, "{:.0f}".format),
                *received,
                Column("out", "rows/left_out", 4, "{:.0f}".format),
                Column("lost", "trajectories/lost", 4, "{:.0f}".format),
                Column("|grad|", "grad_norm/max", 6, short),
                Column("KL", "kl/mean", 7, short),
                Column("drift", "drift/max", 6, short),
                Column("gen", "seconds/rollout", 6, duration),
                Column("update", "seconds/update", 6, duration),
                Column("sync", "seconds/sync", 6, duration),
                Column("tok/s", "tokens_per_second", 6, "{:.0f}".format),
                Column("left", "left", 6, duration),
            ]
        )

    def lines(self, metrics: Mapping[str, float], left: float | None) -> list[str]:
        """Returns a step's row, after the header where it is due.

        Args:
            left: Seconds until the end of the run, as far as they can be estimated.
        """
        values = {**metrics, **({} if left is None else {"left": left})}
        if "rows/received" in metrics and not self.receives:
            self.receives, self.rows = True, 0
            self.columns = self._columns()
        header = (
            [" ".join(c.title.rjust(c.width) for c in self.columns)]
            if self.rows % HEADER_EVERY == 0
            else []
        )
        self.rows += 1
        cells = {
            c.title: c.form(values[c.metric]) if c.metric in values else "-" for c in self.columns
        }
        if alarms(metrics):
            cells["outcome"] += "!"
        return [*header, " ".join(cells[c.title].rjust(c.width) for c in self.columns)]


def fitting(columns: Sequence[Column]) -> list[Column]:
    """Returns the columns without those that have to go for the others to fit."""
    left = list(columns)
    for title in EXPENDABLE:
        if sum(c.width + 1 for c in left) - 1 <= WIDTH_CHARS:
            break
        left = [c for c in left if c.title != title]
    return left


def abbreviated(role: str) -> str:
    """Returns a role's name, or its beginning and end: `reviewer_2` as `revi~_2`."""
    return role if len(role) <= LONGEST_ROLE_CHARS else f"{role[:4]}~{role[-2:]}"


def short(value: float) -> str:
    """Writes two digits in at most seven characters: `0.012`, `3.4e-5`, `120`."""
    if abs(value) >= 10:
        return f"{value:.0f}"
    text = f"{value:.2g}" if value == 0 or abs(value) >= 0.01 else f"{value:.1e}"
    return text.replace("e-0", "e-")


def duration(seconds: float) -> str:
    """Writes seconds: `0.8s`, `73.0s`, `12m`, `3h05m`."""
    minutes = round(seconds / 60)
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    return f"{minutes}m" if minutes < 100 else f"{minutes // 60}h{minutes % 60:02d}m"
