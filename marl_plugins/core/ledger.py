"""The ledger says what became of every action of a step: generated = trained + left out, by role
and reason."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_plugins.core.failures import RunPaused
from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Action, ToolResult, Trajectory

LONGEST_DETAIL_CHARS = 160
"""Characters of a reason that are shown."""


@dataclass(frozen=True)
class Loss:
    """Trajectories that one cause took from a step or an evaluation.

    Args:
        kind: The short word of the `InfrastructureFailure`.
        count: Number of trajectories, or of actions.
        detail: The reason as one line, the most frequent where there are several.
    """

    kind: str
    count: int
    detail: str


def lost_trajectories(trajectories: Iterable[Trajectory]) -> list[Loss]:
    """Returns the trajectories that are lost to infrastructure, by cause, the most frequent
    first."""
    return _by_cause(
        (t.infrastructure_failure, t.detail) for t in trajectories if t.infrastructure_failure
    )


def unscored_actions(trajectories: Iterable[Trajectory]) -> list[Loss]:
    """Returns the actions whose score is missing because infrastructure failed, by cause, the most
    frequent first."""
    kept = (t for t in trajectories if not t.infrastructure_failure)
    return _by_cause((a.unscored, a.explanation) for t in kept for a in t.actions if a.unscored)


def lost_calls(trajectories: Iterable[Trajectory]) -> dict[str, Loss | None]:
    """Returns by name of each tool that was called what it lost, where every call of it was lost to
    infrastructure; else None."""
    by_tool: dict[str, list[ToolResult]] = {}
    for trajectory in trajectories:
        for result in (
            *trajectory.tool_results,
            *(r for action in trajectory.actions for r in action.tool_results),
        ):
            if result.failure != "cancelled":
                by_tool.setdefault(result.tool, []).append(result)
    return {
        tool: _by_cause((tool, r.output) for r in results)[0]
        if all(r.failure for r in results)
        else None
        for tool, results in sorted(by_tool.items())
    }


def why_untrained(ledger: Ledger, trajectories: Sequence[Trajectory]) -> str:
    """Returns why no row of a step is trained: what was lost, what failed, and by role what was
    left out."""
    total = len(trajectories)
    reasons = [
        f"{loss.count} of {total} trajectories lost ({loss.kind}: {loss.detail})"
        for loss in lost_trajectories(trajectories)
    ]
    failed = _by_cause((t.agent_failure, t.detail) for t in trajectories if t.agent_failure)
    reasons += [
        f"{loss.count} of {total} failed by the agents' own doing ({loss.kind}: {loss.detail})"
        for loss in failed
    ]
    if not ledger.generated.total():
        reasons.append("no role has acted")
    for role, left_out in sorted(ledger.left_out.items()):
        others = [
            (why, n)
            for why, n in left_out.most_common()
            if why.removeprefix("infrastructure:") not in ledger.lost
        ]
        reasons += [f"{n} actions of {role} left out ({why})" for why, n in others]
    return "; ".join(reasons) or "there were no trajectories"


def _by_cause(causes: Iterable[tuple[str, str]]) -> list[Loss]:
    details: dict[str, Counter[str]] = {}
    for kind, detail in causes:
        line = " ".join(detail.split()) or "no reason given"
        details.setdefault(kind, Counter())[
            textwrap.shorten(line, LONGEST_DETAIL_CHARS, placeholder=" ...")
        ] += 1
    losses = []
    for kind, lines in details.items():
        detail, count = lines.most_common(1)[0]
        others = f" ({count}; {len(lines) - 1} other reasons)" if len(lines) > 1 else ""
        losses.append(Loss(kind, lines.total(), detail + others))
    return sorted(losses, key=lambda loss: (-loss.count, loss.kind))


@dataclass
class Ledger:
    """One step's account.

    `lost` counts trajectories by infrastructure failure, `failed` by agent failure; the rest counts
    actions by role.
    """

    step: int
    trajectories: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    generated: Counter[str] = field(default_factory=Counter)
    trained: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, Counter[str]] = field(default_factory=dict)
    auxiliary: list[Ledger] = field(default_factory=list)
    """The accounts of rows that parts of the step have added, of policies that play no role."""
    received: Ledger | None = None
    """The account of the trajectories that have entered by `marl_exchange`."""

    @classmethod
    def of(
        cls,
        step: int,
        trajectories: Iterable[Trajectory],
        rows: Iterable[Row],
        sampled: Callable[[Trajectory], Iterable[Action]] = lambda trajectory: trajectory.actions,
    ) -> Ledger:
        """Returns the account of a step, from what was generated and what was trained on.

        Args:
            sampled: The actions of a trajectory that were generated; default: those that it has.

        Raises:
            RunPaused: An action was neither trained on nor left out for a reason, or both; a
                bug in a plugin.
        """
        ledger = cls(step)
        chosen = {row.action for row in rows}
        for t in trajectories:
            ledger.trajectories += 1
            if t.infrastructure_failure:
                ledger.lost[t.infrastructure_failure] += 1
            if t.agent_failure:
                ledger.failed[t.agent_failure] += 1
            for a in sampled(t):
                ledger.generated[a.role] += 1
                if (a in chosen) == (a.left_out is not None):
                    raise RunPaused(
                        f"action {t.name}/{a.path} is "
                        + (
                            "trained on and left out"
                            if a.left_out
                            else "neither trained on nor left out"
                        )
                        + f" (reason {a.left_out!r}); a plugin that drops rows has to set "
                        "`action.left_out`"
                    )
                if a.left_out is None:
                    ledger.trained[a.role] += 1
                else:
                    ledger.left_out.setdefault(a.role, Counter())[a.left_out] += 1
        return ledger

    def rows_trained(self) -> int:
        """Returns how many rows are trained on, those that entered included; those that parts of
        the step have added where there are no others to train: a judge that is trained is no
        progress of agents that are not."""
        rows = self.trained.total() + (self.received.trained.total() if self.received else 0)
        lost = {f"infrastructure:{kind}" for kind in self.lost}
        if rows or any(reasons.keys() - lost - {"frozen"} for reasons in self.left_out.values()):
            return rows
        return sum(ledger.trained.total() for ledger in self.auxiliary)

    def record(self) -> dict[str, Any]:
        """Returns one line of `ledger.jsonl`."""
        return {
            "step": self.step,
            "trajectories": self.trajectories,
            "lost": dict(self.lost),
            "failed": dict(self.failed),
            "roles": {
                role: {
                    "generated": self.generated[role],
                    "trained": self.trained[role],
                    "left_out": dict(self.left_out.get(role, {})),
                }
                for role in sorted(self.generated)
            },
            **({"auxiliary": added} if (added := self._added()) else {}),
            **({"received": self.received.record()} if self.received else {}),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Ledger:
        """Reads back what `record` wrote.

        Raises:
            KeyError: A required field is missing.
        """
        ledger = cls(
            record["step"],
            record["trajectories"],
            Counter(record["lost"]),
            Counter(record["failed"]),
        )
        ledger._add_roles(record["roles"])
        if added := record.get("auxiliary"):
            ledger.auxiliary.append(cls(record["step"]))
            ledger.auxiliary[0]._add_roles(added)
        if received := record.get("received"):
            ledger.received = cls.from_record(received)
        return ledger

    def _add_roles(self, roles: Mapping[str, Mapping[str, Any]]) -> None:
        for role, counts in roles.items():
            self.generated[role], self.trained[role] = counts["generated"], counts["trained"]
            if counts["left_out"]:
                self.left_out[role] = Counter(counts["left_out"])

    def _added(self) -> dict[str, Any]:
        return {
            role: account
            for ledger in self.auxiliary
            for role, account in ledger.record()["roles"].items()
        }
