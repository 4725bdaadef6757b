"""The rubric coach: clear rules over what an agent saw and did. Offline, deterministic.

A rubric is a `.py` file with one list of criteria per role:

    RUBRIC = {
        "coder": [
            Criterion("has a program", 3, lambda action, seen: bool(action.tool_results)),
            Criterion("the program runs", 7, lambda action, seen: all(r.ok for r in
            action.tool_results)),
        ],
        "verifier": [
            Criterion("is a number", 2, is_number),
            Criterion("is right", 8, is_right, needs_label=True),
        ],
    }

It may give better actions too, as data for supervised training: `CORRECTIONS`, a mapping of role to
`(action, seen)` that returns the action as it should have been, or None where nothing needs to
change.

    CORRECTIONS = {"coder": lambda action, seen: None if action.tool_results else
    f"```python\\n{action.text}\\n```"}

Score = points that hold / points that apply. A criterion that needs the label applies to the last
action of the last role alone; everywhere else its function is not called, and what the other
criteria get holds no label.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from marl_plugins import (
    Action,
    ConfigurationError,
    Problem,
    RehearsalResult,
    Seen,
    SeenLast,
    Trajectory,
    arity_problem,
    at,
    load_file,
    meant,
    score_trajectory,
)
from marl_plugins.coach.verdict import Verdict

if TYPE_CHECKING:
    from marl_plugins import Run


Correct = Callable[[Action, Any], Awaitable[str | None] | str | None]
"""`(action, seen)` to the action as it should have been, or None; plain or async."""


@dataclass(frozen=True)
class Criterion:
    """One rule.

    Args:
        name: Short, for people: it appears in the explanation of every score.
        points: Its weight among the role's criteria.
        holds: `(action, seen)` to True or False, or to the extent to which it holds, in [0, 1];
            plain or async.
        needs_label: Whether `seen.label` is read.
    """

    name: str
    points: float
    holds: Callable[[Action, Any], bool | float | Awaitable[bool | float]]
    needs_label: bool = False


class RubricCoach:
    """Judges by criteria; every role has some.

    Args:
        corrections: By role, what gives a better action; a role may have none.
        weights: What the criteria's points are multiplied by now, by name.
    """

    def __init__(
        self,
        rubric: Mapping[str, Sequence[Criterion]],
        corrections: Mapping[str, Correct] = MappingProxyType({}),
        weights: Callable[[], Mapping[str, float]] = dict,
    ):
        self.rubric = rubric
        self.corrections = corrections
        self.weights = weights

    async def judge(self, action: Action, seen: Seen) -> Verdict:
        held = total = 0.0
        notes, criteria, weights = [], {}, self.weights()
        for criterion in self.rubric[action.role]:
            if criterion.needs_label and not isinstance(seen, SeenLast):
                continue
            points = criterion.points * weights.get(criterion.name, 1.0)
            held_to = criterion.holds(action, seen)
            share = float(await held_to if isinstance(held_to, Awaitable) else held_to)
            if not 0.0 <= share <= 1.0:
                raise ValueError(
                    f"criterion {criterion.name!r} of role {action.role!r} gave {share}; expected "
                    "0 to 1"
                )
            held += share * points
            total += points
            criteria[criterion.name] = 10 * share
            notes.append(f"{criterion.name} {share * points:g}/{points:g}")
        correction = await self._correction(action, seen)
        return Verdict(
            score=10 * (held / total),
            criteria=criteria,
            explanation="; ".join(notes),
            correction=correction,
        )

    async def _correction(self, action: Action, seen: Seen) -> str | None:
        correct = self.corrections.get(action.role)
        correction = correct(action, seen) if correct else None
        text = await correction if isinstance(correction, Awaitable) else correction
        if not isinstance(text, str | None):
            raise ValueError(
                f"CORRECTIONS[{action.role!r}] gave {text!r:.80}; expected a text, or None for no "
                "correction"
            )
        return text


def load_rubric(path: Path, roles: Sequence[str]) -> dict[str, list[Criterion]]:
    """Reads a rubric file.

    Raises:
        ConfigurationError: With every mistake in it.
    """
    rubric = getattr(load_file(path), "RUBRIC", None)
    if not isinstance(rubric, dict):
        raise ConfigurationError(
            Problem("rubric.missing", at(file=path), "has no RUBRIC, a mapping of role to criteria")
        )
    problems = unknown_roles(path, "RUBRIC", rubric, roles)
    for role in roles:
        criteria = rubric.get(role)
        if not criteria:
            problems.append(
                Problem(
                    "rubric.no_criteria", at(file=path), f"RUBRIC has no criteria for role {role!r}"
                )
            )
        elif wrong := [c for c in criteria if not isinstance(c, Criterion)]:
            problems.append(
                Problem(
                    "rubric.kind",
                    at(file=path),
                    f"RUBRIC[{role!r}]: expected Criterion, got {type(wrong[0]).__name__}",
                )
            )
        elif bad := [c for c in criteria if not c.points > 0]:
            problems.append(
                Problem(
                    "rubric.points",
                    at(file=path),
                    f"RUBRIC[{role!r}]: criterion {bad[0].name!r} has {bad[0].points} points",
                    fix="expected more than 0",
                )
            )
        elif all(c.needs_label for c in criteria):
            problems.append(
                Problem(
                    "rubric.label",
                    at(file=path),
                    f"RUBRIC[{role!r}]: every criterion needs the label, which all but one action "
                    "lack",
                )
            )
    if problems:
        raise ConfigurationError(problems)
    return dict(rubric)


def unknown_roles(
    path: Path, name: str, by_role: Mapping[str, Any], roles: Sequence[str]
) -> list[Problem]:
    """Returns the roles of a mapping in a rubric file that the recipe does not have."""
    return [
        Problem(
            "rubric.role",
            at(file=path),
            f"{name}: there is no role {role!r}",
            fix=meant(role, roles),
        )
        for role in by_role
        if role not in roles
    ]


def load_rules(
    path: Path, roles: Sequence[str]
) -> tuple[dict[str, list[Criterion]], dict[str, Correct]]:
    """Returns the criteria of a rubric file, and its corrections.

    Raises:
        ConfigurationError: With every mistake in it.
    """
    rubric, corrections = load_rubric(path, roles), getattr(load_file(path), "CORRECTIONS", {})
    problems = unknown_roles(path, "CORRECTIONS", corrections, roles)
    problems += [
        Problem("rubric.correction", at(file=path), f"CORRECTIONS[{role!r}]: {why}")
        for role, correct in corrections.items()
        if (why := arity_problem(correct, 2))
    ]
    if problems:
        raise ConfigurationError(problems)
    return rubric, dict(corrections)


def try_rubric(run: Run, coach: RubricCoach, place: str) -> list[Problem]:
    """Returns what is wrong with the criteria when they judge what the rehearsal of the run left;
    remarks are among it.

    Args:
        place: Where the rubric is named, for messages.
    """
    problems = [
        replace(problem, fix=f"criterion {criterion.name!r} is called with action and seen")
        for criteria in coach.rubric.values()
        for criterion in criteria
        if (problem := arity_problem(criterion.holds, 2))
    ]
    if problems:
        return problems

    async def share(action: Action, seen: Seen) -> float:
        return (await coach.judge(action, seen)).share

    async def score(trajectory: Trajectory) -> None:
        await score_trajectory(trajectory, share, None, roles=list(run.recipe.roles))

    return run.state(RehearsalResult).try_scorer(place, score, None)
