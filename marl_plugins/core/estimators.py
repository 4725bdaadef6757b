"""What an advantage estimator is: returns per token, statistics over rows, and how they are applied.

Three steps instead of one, so that the runtime can take statistics over all policies and ranks together, and so that a
streaming runtime can see from `scope` and `affine` whether it may start before the batch is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from marl_plugins.core.credit import Scope
from marl_plugins.core.rows import Row

if TYPE_CHECKING:
    from torch import Tensor

GroupBy = Literal["task", "task+role", "task+role+turn"]
"""Which rows of a task's samples are compared with each other. Rows of one group must have seen comparable inputs."""

Batch = tuple[Sequence[Row], "Tensor", "Tensor"]
"""Rows, their returns (rows, tokens) and their mask (rows, tokens)."""


class Estimator(Protocol):
    """An advantage estimator.

    Attributes:
        scope: How far its statistics reach: a row alone, a group of samples, the whole batch.
        affine: Whether the advantage is an affine function of the return, given the statistics.
        return_scope: Which rewards an action's return sums.
        group_by: With scope `group`, what makes a group; else None.
    """

    @property
    def scope(self) -> Literal["action", "group", "batch"]: ...
    @property
    def affine(self) -> bool: ...
    @property
    def return_scope(self) -> Scope: ...
    @property
    def group_by(self) -> GroupBy | None: ...

    def returns(self, rewards: Tensor, mask: Tensor) -> Tensor:
        """Token rewards (rows, tokens), the KL penalty included, to returns (rows, tokens)."""
        ...

    def statistics(self, batches: Sequence[Batch]) -> Any:
        """Statistics over all rows of the step, of all policies together."""
        ...

    def apply(self, rows: Sequence[Row], returns: Tensor, statistics: Any) -> Tensor:
        """Returns (rows, tokens) to advantages (rows, tokens); values outside the mask do not matter."""
        ...


def group_key(row: Row, group_by: GroupBy) -> str:
    """The group that a row belongs to."""
    parts = [row.trajectory.task.id]
    if "role" in group_by:
        parts.append(row.action.role)
    if "turn" in group_by:
        parts.append(str(row.action.turn))
    return "/".join(parts)


def check_estimator(estimator: Estimator, samples: int, roles: int) -> list[str]:
    """What speaks against using an estimator with so many samples per task and so many roles."""
    name = type(estimator).__name__
    if estimator.scope != "group":
        return [f"{name} has group_by={estimator.group_by!r} and scope {estimator.scope!r}"] if estimator.group_by else []
    if estimator.group_by is None:
        return [f"{name} compares groups and does not say which: set group_by to task, task+role or task+role+turn"]
    problems = []
    if samples < 2:
        problems.append(
            f"{name} compares the samples of a task, of which there is one: --rollout.n_samples_per_prompt {samples}; "
            "at least 2 are needed, or every advantage is 0"
        )
    if estimator.group_by == "task" and roles > 1:
        problems.append(f"{name} groups by task, but {roles} roles saw different inputs; use task+role or task+role+turn")
    return problems
