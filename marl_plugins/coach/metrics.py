"""A step's verdicts in numbers: by role and by the tasks' `type`, and how far they agree with the
verifier."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl_plugins.coach.verdict import JointVerdict

if TYPE_CHECKING:
    from marl_plugins import Action, Trajectory
    from marl_plugins.coach.verdict import Verdict


@dataclass(frozen=True)
class JudgedAction:
    """An action that the coach was asked about.

    Args:
        verdict: None for a missing one.
        last: Whether it is the last role's last action.
    """

    action: Action
    verdict: Verdict | None
    last: bool


def measure(step: Sequence[tuple[Trajectory, JudgedAction]]) -> dict[str, float]:
    """Returns the metrics of a step's verdicts."""
    metrics: dict[str, float] = {}
    by_role: dict[str, list[float]] = defaultdict(list)
    by_type: dict[str, list[float]] = defaultdict(list)
    by_criterion: dict[str, list[float]] = defaultdict(list)
    missing: dict[str, int] = defaultdict(int)
    for trajectory, judged in step:
        role, verdict = judged.action.role, judged.verdict
        if verdict is None:
            missing[role] += 1
            continue
        by_role[role].append(verdict.share)
        for criterion, points in verdict.criteria.items():
            by_criterion[f"role/{role}/criterion/{criterion}"].append(points / 10)
        if "type" in trajectory.task.metadata:
            by_type[f"{role}/{trajectory.task.metadata['type']}"].append(verdict.share)
    for role in sorted(by_role.keys() | missing.keys()):
        scores = by_role[role]
        if scores:
            metrics[f"coach/{role}/score"] = statistics.fmean(scores)
            metrics[f"coach/{role}/spread"] = statistics.pstdev(scores)
        metrics[f"coach/{role}/missing"] = missing[role] / (missing[role] + len(scores))
    for name, scores in sorted(by_type.items()):
        metrics[f"coach/{name}/score"] = statistics.fmean(scores)
    metrics |= {name: statistics.fmean(shares) for name, shares in sorted(by_criterion.items())}
    if step:
        metrics["coach/missing"] = sum(missing.values()) / len(step)
    if agreed := agreements(step):
        metrics["coach/agreement"] = statistics.fmean(agreed)
    return metrics


def measure_members(
    step: Sequence[tuple[Trajectory, JudgedAction]], members: Sequence[str]
) -> dict[str, float]:
    """Returns the metrics of an ensemble's members: what each says and how often it has no verdict,
    and by role how far they disagree."""
    verdicts = [(j.action.role, j.verdict) for _, j in step if isinstance(j.verdict, JointVerdict)]
    metrics: dict[str, float] = {}
    for name in members:
        scores = [verdict.members[name] for _, verdict in verdicts if name in verdict.members]
        if scores:
            metrics[f"coach/member/{name}/score"] = statistics.fmean(scores)
        if step:
            metrics[f"coach/member/{name}/missing"] = 1 - len(scores) / len(step)
    by_role: dict[str, list[float]] = defaultdict(list)
    for role, verdict in verdicts:
        if len(verdict.members) > 1:
            by_role[role].append(verdict.disagreement)
    metrics |= {
        f"coach/{role}/disagreement": statistics.fmean(disagreements)
        for role, disagreements in sorted(by_role.items())
    }
    if by_role:
        metrics["coach/disagreement"] = statistics.fmean(
            d for disagreements in by_role.values() for d in disagreements
        )
    return metrics


def agreements(step: Sequence[tuple[Trajectory, JudgedAction]]) -> list[bool]:
    """Returns whether each verdict of a last action agrees with its role's outcome; without a claim
    of rightness its score decides."""
    agreed = []
    for trajectory, judged in step:
        verdict = judged.verdict
        outcome = trajectory.outcome_of(judged.action.role)
        if judged.last and verdict is not None and outcome is not None:
            right = verdict.share >= 0.5 if verdict.correct is None else verdict.correct
            agreed.append(right == (outcome >= 0.5))
    return agreed
