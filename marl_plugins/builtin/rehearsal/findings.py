"""Findings of the trials of a workflow beyond what it raises."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from marl_plugins.builtin.rehearsal.labels import MARK, MARK_OF_NUMBERS
from marl_plugins.builtin.rehearsal.traced import Trace, TracedSource
from marl_plugins.builtin.rehearsal.trial import ROLE_SECONDS, Trial
from marl_plugins.core.options import spans
from marl_plugins.core.problems import Problem
from marl_plugins.core.trajectory import Task, paths_before
from marl_plugins.core.workflow import RoleCall, forgotten
from marl_plugins.engine.plan.script import WORD
from marl_plugins.engine.plan.user_code_thread import Failure, where_of

SAID = re.compile(f"{WORD}[a-z]{{3}}")
LABEL = re.compile(r"\blabel\b")
RANDOM = re.compile(r"\brandom\b|\bshuffle\b|\bchoice\b|\brandint\b|\bsample\b")


def shown_labels(trial: Trial) -> list[Problem]:
    """Calls that show their role the task's label, where the trial's task had one that can be
    recognised."""
    return [
        Problem(
            "rehearsal.label",
            where_of(call.place),
            f"role {call.spec.name!r} is shown the task's label, in field {name!r}; a role that "
            "sees the label learns to repeat it",
            fix="remove it, also where it comes from the metadata; labels are for graders",
        )
        for call, name, text in shown_in(trial.calls)
        if MARK in text or str(MARK_OF_NUMBERS) in text
    ]


def answered_labels(trial: Trial, source: TracedSource, file: str) -> list[Problem]:
    """Returns the mistake of a workflow whose answer has the task's label in it."""
    answer = str(trial.trajectory.answer if trial.trajectory else "").casefold()
    if MARK not in answer and str(MARK_OF_NUMBERS) not in answer:
        return []
    got = (
        "run returns the task's label: whatever the agents say, the grader is asked about the "
        "right answer"
    )
    return [
        Problem(
            "rehearsal.label_answer",
            where_of(reached_line(trial, source, LABEL) or file),
            got,
            fix="return an action",
        )
    ]


def reached_line(trial: Trial, source: TracedSource, pattern: re.Pattern[str]) -> str | None:
    """Returns the first line that a trial has reached and in which a pattern is found."""
    lines = source.text.splitlines()
    named = [line for line in sorted(trial.reached.lines) if pattern.search(lines[line - 1])]
    return f"{source.file}:{named[0]}" if named else None


def shown_nothing(trial: Trial) -> list[Problem]:
    """Calls that show their role `None` in a field."""
    return [
        Problem(
            "rehearsal.none_shown",
            where_of(call.place),
            f"role {call.spec.name!r} is shown the text 'None', because field {name!r} is None",
            fix='give a text, or "" where there is nothing to show',
            severity="warning",
        )
        for call in trial.calls
        if call.action is not None
        for name, value in call.fields.items()
        if value is None
    ]


def lost_dependencies(trial: Trial) -> list[Problem]:
    """Calls that show their role the word of an action on which they do not depend."""
    actions = [call.action for call in trial.calls if call.action is not None]
    by_path = {action.path: action for action in actions}
    by_word = {action.text: action for action in actions}
    roles: dict[tuple[str, str, str], list[str]] = {}
    for call, name, text in shown_in(trial.calls):
        words = dict.fromkeys(SAID.findall(text))
        if not words:
            continue
        known = paths_before(call.action, by_path) if call.action else set()
        for word in words:
            action = by_word.get(word)
            if action is not None and action.path not in known:
                roles.setdefault((call.place, call.spec.name, name), []).append(action.role)
    return [
        Problem(
            "rehearsal.dependency",
            where_of(place),
            f"role {role!r} is shown what {_listed(others)} said, in field {name!r}, and does not "
            "depend on it: credit and coach "
            "will not know",
            fix="pass the action itself as a field, alone or in a list, or name it in after=[...]",
            severity="warning",
        )
        for (place, role, name), others in roles.items()
    ]


def shown_in(calls: Iterable[RoleCall]) -> Iterator[tuple[RoleCall, str, str]]:
    """Returns what was shown: call, field and text, of every call that was answered."""
    for call in calls:
        if call.action is not None:
            for name, text in call.shown.items():
                yield call, name, text.casefold()


def _listed(roles: Iterable[str]) -> str:
    names = [repr(role) for role in dict.fromkeys(roles)]
    return f"role {names[0]}" if len(names) == 1 else f"roles {', '.join(names)}"


def never_awaited(trials: Iterable[Trial]) -> list[Problem]:
    """Returns the calls that no trial has awaited, however it ended."""
    calls = [call for trial in trials for call in trial.calls]
    awaited = {call.place for call in calls if call.awaited}
    left = {call.place: call for call in calls if call.place not in awaited}
    return [
        Problem("rehearsal.mistake", where_of(place), forgotten(call).problem)
        for place, call in left.items()
    ]


def swallowed(
    failures: Iterable[Failure], tasks: Iterable[Task], what: str = "run"
) -> list[Problem]:
    """Returns warnings about names that are wrong, where the function `what` catches what that
    raises.

    Args:
        tasks: The run's, whose metadata tell a wrong key from one that only some of them have.
    """
    failures = list(failures)
    keys = {repr(key) for task in tasks for key in task.metadata} if failures else set()
    return [
        Problem(
            "rehearsal.swallowed",
            where_of(failure.place),
            f"{what} raises {failure.said}, and catches it: what stands behind it is never done",
            fix="correct the name, and catch no more than what an answer may raise (ValueError, "
            "KeyError, AgentFailure)",
            severity="warning",
        )
        for failure in failures
        if failure.kind != "KeyError" or failure.text.partition(";")[0] not in keys
    ]


def uncalled(trials: Iterable[Trial], roles: Iterable[str]) -> list[str]:
    """Returns the roles that no trial has called."""
    called = {call.spec.name for trial in trials for call in trial.calls}
    return [role for role in roles if role not in called]


def not_reached(reached: Trace, missing: Sequence[str], file: str, count: int) -> list[Problem]:
    """Returns warnings about lines that no trial has executed, and about roles that none has
    called.

    Args:
        missing: Roles that were not called.
        file: Where the workflow is, as `FILE:LINE`.
        count: Of the trials.
    """
    if lines := reached.missed:
        many = len(lines) > 1
        roles = f", where {_listed(missing)} may be called" if missing else ""
        return [
            Problem(
                "rehearsal.not_reached",
                where_of(f"{reached.source.file}:{lines[0]}"),
                f"not reached: {'lines' if many else 'line'} {spans(lines)}{roles}; {count} runs "
                "with invented answers did not "
                "lead there, so what stands there is not checked",
                fix="give the role an example of an answer that does (`roles: NAME: example:`), "
                "or write `variants()` beside run",
                severity="warning",
            )
        ]
    return [
        Problem(
            "rehearsal.never_called",
            where_of(file),
            f"role {role!r} is never called, with any of the invented answers",
            fix="call it, or remove it from the recipe; where an answer leads to it, give the role "
            "that says this an example",
            severity="warning",
        )
        for role in missing
    ]


def never_ended(trials: Sequence[Trial], file: str) -> list[Problem]:
    """Returns the warning about a workflow that gives up, or loses its trajectory, whatever the
    answers."""
    ended = [trial.trajectory for trial in trials if trial.trajectory]
    ends = [trajectory.agent_failure or trajectory.infrastructure_failure for trajectory in ended]
    if not ends or any(trial.complete for trial in trials) or {"deadline", "rehearsal"} & set(ends):
        return []
    kinds = " and ".join(dict.fromkeys(map(str, ends)))
    return [
        Problem(
            "rehearsal.always_fails",
            where_of(file),
            f"every run of the workflow with invented answers ends in a failure ({kinds}), whose "
            "outcome is 0, or none; if no "
            "real answer avoids it, nothing can be learned",
            fix="give the roles examples of answers that avoid it",
            severity="warning",
        )
    ]


def waited(trials: Iterable[Trial], file: str) -> list[Problem]:
    """Returns what the workflow waits for although everybody answers at once."""
    return [
        Problem(
            "rehearsal.waits",
            where_of(trial.left_at or file),
            f"run was still waiting here after {ROLE_SECONDS:g} s, although roles and tools answer "
            "at once",
            severity="warning",
        )
        for trial in trials
        if trial.trajectory is not None and trial.trajectory.infrastructure_failure == "deadline"
    ]


def unended(longest: Trial, when: str) -> list[Problem]:
    """Returns the warning about a loop that does not end.

    Args:
        longest: A trial that was left after many calls.
        when: The answers that lead into it; empty: all do.
    """
    answers = f" when {when}" if when else ", whatever the answers"
    return [
        Problem(
            "rehearsal.unended",
            where_of(longest.calls[-1].place),
            f"run was still calling roles after {len(longest.calls) - 1} calls{answers}",
            fix="bound the loop: a trajectory that does not end is lost after limits.task_seconds",
            severity="warning",
        )
    ]


def drawn(trials: Iterable[Trial], source: TracedSource, file: str) -> list[Problem]:
    """Returns the warning about a workflow that draws from a generator of the whole process."""
    drew = [trial for trial in trials if trial.drew]
    if not drew:
        return []
    return [draws("run", reached_line(drew[0], source, RANDOM) or file)]


def draws(what: str, where: str) -> Problem:
    """Returns the warning about a function that draws from a generator of the whole process."""
    return Problem(
        "rehearsal.random",
        where_of(where),
        f"{what} draws at random from a generator that the whole process shares; a run that is "
        "resumed does not repeat it",
        fix="draw from random.Random(task.id)",
        severity="warning",
    )


def unlike(got: str, where: str) -> Problem:
    """Returns the warning about code that gives something else when it is asked again."""
    fix = (
        "a run that is resumed has to repeat: draw from random.Random(task.id); use no clock, and "
        "no state of the process"
    )
    return Problem("rehearsal.unlike", where_of(where), got, fix=fix, severity="warning")
