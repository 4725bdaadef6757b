"""Prompts: what a model is shown of an action that it is asked about, and the files that show
it."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.scoring import Seen, SeenLast

if TYPE_CHECKING:
    from marl_plugins.core.run import Run
    from marl_plugins.core.trajectory import Action, File

FIELDS = (
    "task",
    "role",
    "duties",
    "training",
    "messages",
    "before",
    "action",
    "tools",
    "files",
    "fence",
    "form",
)
LABEL_FIELDS = ("label", "answer")
NEEDED = {
    "action": "what is to be judged",
    "fence": "where the agent's text ends",
    "form": "how to answer",
}
"""Placeholders that a prompt has to have, and what the coach knows by each."""
LONGEST_PART_CHARS = 4000
"""Characters of any one part of the prompt; longer ones keep head and tail, where tracebacks
end."""
CUT_OFF = "\n[cut off here: the limit of its length was reached]"


def duties_of(run: Run) -> dict[str, str]:
    """Returns the text of each role's prompt.

    Raises:
        ConfigurationError: One cannot be read.
    """
    return {role: run.prompt(role) for role in run.recipe.roles}


def checked_prompt(path: Path, allowed: Sequence[str], no_label: str = "") -> str:
    """Returns a prompt file for a coach, with its placeholders checked.

    Args:
        no_label: Why the label's placeholders are forbidden.

    Raises:
        ConfigurationError: It cannot be read, or has a placeholder that is unknown, forbidden here
            or missing.
    """
    text, names = placeholders(path)
    problems, where = [], at(name="coach prompt", file=path)
    for name in sorted(names - set(allowed)):
        if name in LABEL_FIELDS:
            got = f"{{{name}}} is forbidden here: {no_label}"
            fix = "the label must not reach the score of any other action"
            problems.append(Problem("prompt.label", where, got, fix=fix))
        else:
            got = f"there is no placeholder {{{name}}}"
            problems.append(Problem("prompt.placeholder", where, got, fix=meant(name, allowed)))
    for name, known in NEEDED.items():
        if name not in names:
            fix = f"without it the coach cannot know {known}"
            problems.append(Problem("prompt.missing", where, f"{{{name}}} is missing", fix=fix))
    if problems:
        raise ConfigurationError(problems)
    return text


def placeholders(path: Path) -> tuple[str, set[str]]:
    """Returns a prompt file's text and the names in its braces.

    Raises:
        ConfigurationError: It cannot be read, or a brace is not closed.
    """
    text, where = read_text(path), at(name="coach prompt", file=path)
    try:
        fields = [
            (name, spec, how)
            for _, name, spec, how in string.Formatter().parse(text)
            if name is not None
        ]
        if formatted := [name for name, spec, how in fields if spec or how]:
            raise ValueError(f"{{{formatted[0]}}} has a format, and stands for a text")
        return text, {name for name, _, _ in fields}
    except ValueError as error:
        fix = "write {{ and }} for braces"
        raise ConfigurationError(Problem("prompt.braces", where, str(error), fix=fix)) from None


def prompt_fields(action: Action, seen: Seen, duties: str) -> dict[str, str]:
    """Returns the texts of a prompt's placeholders; the label only where the scorer may know it."""
    fields = {
        "task": shorten(seen.prompt),
        "role": action.role,
        "duties": shorten(duties),
        "messages": shorten("\n".join(f"<{role}> {text}" for role, text in seen.messages)),
        "before": shorten("\n".join(describe(a) for a in seen.before)) or "nothing",
        "action": shorten(action.text) + (CUT_OFF if action.generation.finish == "length" else ""),
        "tools": shorten(tool_answers([action])) or "none used",
        "files": shorten(files_left(action, seen)) or "none",
    }
    if isinstance(seen, SeenLast):
        fields |= {"label": shorten(str(seen.label)), "answer": shorten(str(seen.answer))}
    return fields


def files_left(action: Action, seen: Seen) -> str:
    """Returns the files of the workspace, each with who wrote it; without a workspace the names
    that tools have given.

    Only those of the task, of the action and of what it depends on: what parallel branches have
    written depends on timing.
    """
    if not seen.files:
        return ", ".join(
            sorted({f for a in (*seen.before, action) for r in a.tool_results for f in r.files})
        )
    writers = {"": "nobody of the team"} | {
        a.path: f"{a.role} in turn {a.turn + 1}" for a in seen.before
    }
    writers[action.path] = "this step"
    return "\n".join(
        f"{f.path} ({f.size:,} bytes), written by {writers[f.writer]}"
        for f in files_of(action, seen)
    )


def files_of(action: Action, seen: Seen) -> list[File]:
    """Returns the files of the workspace that were the task's or were written by the action or by
    what it depends on."""
    writers = {"", action.path, *(a.path for a in seen.before)}
    return [f for f in seen.files if f.writer in writers]


def describe(action: Action) -> str:
    """Returns an earlier action as the coach reads it, with its tools' answers."""
    answers = tool_answers([action])
    return f"<{action.role}> {action.text}" + (
        f"\n<tools of {action.role}> {answers}" if answers else ""
    )


def tool_answers(actions: Sequence[Action]) -> str:
    return "\n".join(
        f"{'ok' if r.ok else 'failed'}: {r.output}" for a in actions for r in a.tool_results
    )


def shorten(text: str, most: int = LONGEST_PART_CHARS) -> str:
    """Returns the head and tail of a long text."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
