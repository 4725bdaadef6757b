"""What the trials of a workflow show beyond what it raises."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence

from marl_plugins.core.fields import as_text
from marl_plugins.core.trajectory import Action
from marl_plugins.core.workflow import RoleCall, Workflow
from marl_plugins.plan.rehearsal.trial import MARK, MARK_OF_NUMBERS, MOST_CALLS, SECONDS, WORD, Trial
from marl_plugins.run import Run


def shown_labels(trial: Trial) -> list[str]:
    """Calls that show their role the task's label, where the trial's task had one that can be recognised."""
    return [
        f"{call.place}: role {call.spec.name!r} is shown the task's label, in field {name!r}; a role that sees the label "
        "learns to repeat it: remove it, also where it comes from the metadata; labels are for graders"
        for call, name, text in _shown(trial.calls)
        if MARK in text or str(MARK_OF_NUMBERS) in text
    ]


def lost_dependencies(trial: Trial) -> list[str]:
    """Calls that show their role the word of an action on which they do not depend."""
    actions = [call.action for call in trial.calls if call.action is not None]
    by_path = {action.path: action for action in actions}
    by_word = {action.text: action for action in actions}
    found: dict[tuple[str, str, str], list[str]] = {}
    for call, name, text in _shown(trial.calls):
        words = dict.fromkeys(WORD.findall(text))
        if not words:
            continue
        known = ancestors(call.action, by_path)
        for said in words:
            action = by_word.get(said)
            if action is not None and action.path not in known:
                found.setdefault((call.place, call.spec.name, name), []).append(action.role)
    return [
        f"{place}: role {role!r} is shown what {_listed(others)} said, in field {name!r}, and does not depend on it: credit "
        "and coach will not know; pass the action itself as a field, alone or in a list, or name it in after=[...]"
        for (place, role, name), others in found.items()
    ]


def ancestors(action: Action | None, by_path: dict[str, Action]) -> set[str]:
    """Paths of the actions that one depends on, directly or through others."""
    reached: set[str] = set()
    wanted = list(action.parents) if action else []
    while wanted:
        path = wanted.pop()
        if path not in reached and path in by_path:
            reached.add(path)
            wanted += by_path[path].parents
    return reached


def _shown(calls: Iterable[RoleCall]) -> Iterator[tuple[RoleCall, str, str]]:
    """What was shown: call, field and text, of every call that was answered."""
    for call in calls:
        if call.action is not None:
            for name, value in call.fields.items():
                yield call, name, as_text(value, name, call.place)[0].casefold()


def _listed(roles: Iterable[str]) -> str:
    names = [repr(role) for role in dict.fromkeys(roles)]
    return f"role {names[0]}" if len(names) == 1 else f"roles {', '.join(names)}"


def uncalled(trials: Sequence[Trial], roles: Iterable[str]) -> list[str]:
    """The roles that no trial has called; none of them where no trial came to its end, and so to all of its calls."""
    called = {call.spec.name for trial in trials for call in trial.calls}
    return [role for role in roles if role not in called] if any(trial.complete for trial in trials) else []


def idle(role: str, file: str) -> str:
    """The remark on a role that nobody calls; `file` is where the workflow is."""
    return (
        f"{file}: role {role!r} is never called, whether every answer is a word, a number, or its name; call it, or remove it "
        "from the recipe"
    )


def idle_followups(run: Run) -> list[str]:
    """Prompts for calls that continue a conversation, where no call does."""
    return [
        f"{run.folder / config.followup}: role {role!r} has a followup prompt, and the workflow continues no conversation; call it "
        "with continues=ACTION, its own last one"
        for role, config in run.recipe.roles.items()
        if config.followup
    ]


def source_of(workflow: Workflow) -> str:
    """The text of the file that a workflow stands in; empty where there is none."""
    module = inspect.getmodule(workflow)
    try:
        return inspect.getsource(module) if module else ""
    except (OSError, TypeError):
        return ""


def never_ended(trials: Sequence[Trial], file: str) -> list[str]:
    """The remark on a workflow that gives up, or loses its trajectory, whatever the answers."""
    ends = [
        trial.trajectory.agent_failure or trial.trajectory.infrastructure_failure for trial in trials if trial.trajectory
    ]
    if len(ends) < len(trials) or not all(ends) or {"deadline", "rehearsal"} & set(ends):
        return []
    kinds = " and ".join(dict.fromkeys(map(str, ends)))
    return [
        f"{file}: every run of the workflow with invented answers ends in a failure ({kinds}), "
        "whose outcome is 0, or none; if no real answer avoids it, nothing can be learned"
    ]


def unended(trials: Sequence[Trial], file: str) -> list[str]:
    """Loops that no kind of answer ends, and what the workflow waits for although everybody answers at once."""
    found = [
        f"{trial.left_at or file}: run was still waiting here after {SECONDS:g} s, although roles and tools answer at once"
        for trial in trials
        if trial.trajectory is not None and trial.trajectory.infrastructure_failure == "deadline"
    ]
    if trials and all(trial.endless for trial in trials):
        place = trials[0].calls[-1].place
        found.append(
            f"{place}: run was still calling roles after {MOST_CALLS} calls, whatever the answers; bound the loop: a "
            "trajectory that does not end is lost after limits.task_seconds"
        )
    return list(dict.fromkeys(found))
