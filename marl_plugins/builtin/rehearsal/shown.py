"""Findings about what a workflow shows its roles: texts that nobody means to show, and fields that
no prompt shows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from marl_plugins.builtin.rehearsal.findings import shown_in
from marl_plugins.builtin.rehearsal.trial import Trial
from marl_plugins.core.fields import holds_action
from marl_plugins.core.problems import Problem
from marl_plugins.core.recipe.prompts import fields_of
from marl_plugins.core.run import Run
from marl_plugins.engine.plan.user_code_thread import where_of

OBJECT = re.compile(
    r"<(?:bound method [\w.<>]+ of |built-in (?:method|function) \w+|(?:function|coroutine object) "
    r"[^ ]+ at 0x"
    r"|[\w.]+ object at 0x)[^>]*>"
    r"|\btoolresult\(tool=|(?P<member><\w+\.\w+: ['\d][^>]*>)"
)
"""Python's notation of what has no text of its own: functions, objects, members of an enumeration;
in small letters."""
KEYWORDS = ("after", "continues")
"""What a call takes besides the fields."""
CLOSE = 0.75
"""How much of a field's name has to be one of these, to be taken for it."""
PROMPTS = (".md", ".txt")
"""What the files of prompts end with."""
MOST_PROMPTS = 200


def shown_objects(trial: Trial) -> list[Problem]:
    """Returns calls that show their role Python's notation of an object."""
    task = trial.trajectory.task if trial.trajectory else None
    return [
        Problem(
            "rehearsal.object_shown",
            where_of(call.place),
            f"role {call.spec.name!r} is shown {match[0]!r:.80} in field {name!r}",
            fix="write the text that it is to see: call what is a function, and name the part of "
            "an object that is a text",
            severity="warning" if match["member"] else "error",
        )
        for call, name, text in shown_in(trial.calls)
        if (match := OBJECT.search(text)) and match[0] not in repr(task).casefold()
    ]


def unshown_fields(trials: Iterable[Trial], run: Run) -> list[Problem]:
    """Returns fields of which no prompt of the recipe's folder knows: a role's own need not show
    all, for there may be several sets of prompts."""
    calls = {
        (call.spec.name, name): (call.place, value)
        for trial in trials
        for call in trial.calls
        if call.messages is None and call.action is not None
        for name, value in call.fields.items()
    }
    prompts: list[bytes] = []
    problems = []
    for (role, name), (place, value) in calls.items():
        if name in fields_of((run.prompt(role), run.system(role) or "", run.followup(role) or "")):
            continue
        prompts = prompts or [file.read_bytes() for file in _prompts_of(run)]
        if any(f"{{{name}}}".encode() in text for text in prompts):
            continue
        close = get_close_matches(name, KEYWORDS, 1, CLOSE) if holds_action(value) else []
        got = f"role {role!r} is given field {name!r}, which no prompt shows"
        fix = (
            f"did you mean {close[0]!r}?"
            if close
            else f"write {{{name}}} into its prompt, or do not give the field"
        )
        problems.append(
            Problem("rehearsal.unshown", where_of(place), got, fix=fix, severity="warning")
        )
    return problems


def _prompts_of(run: Run) -> Iterable[Path]:
    """The files of the recipe's folder that may be prompts."""
    files = (file for pattern in ("*", "*/*", "*/*/*") for file in run.folder.glob(pattern))
    return islice(
        (file for file in files if file.suffix in PROMPTS and file.is_file()), MOST_PROMPTS
    )
