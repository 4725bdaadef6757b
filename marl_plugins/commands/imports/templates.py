"""Converts prompt templates of MARTI and MAPPA to text of ours: `$name` and `{name}` become fields
of a prompt; a coach's template becomes two prompts.

An agent's prompt may show the task and earlier agents' answers, never the label. A coach's prompt
may show the label only for the last action of the last role; where a template shows it for every
action, it is removed.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterable
from pathlib import Path

from marl_plugins.asking.prompts import FIELDS, LABEL_FIELDS
from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.problems import Problem, Where, at
from marl_plugins.core.recipe.texts import read_text

TASK = ("question", "problem", "prompt", "input", "task_description")
LABELS = ("label", "answer", "ground_truth", "ground_truth_answer", "reference_answer")
OTHERS = ("responses_str", "responses")
ANSWERS = {"solution": 0, "preprocessing_summary": 0, "model_summary": 1}
"""Their fields for the answer of the first or second agent."""
COMPUTED = "execution"
"""Their field for a program and its output."""

COACH = {
    "problem": "task",
    "task": "task",
    "agent_role": "role",
    "agent_name": "role",
    "agent_input": "messages",
    "agent_output": "action",
    "tool_observation": "tools",
    "all_tool_observations": "tools",
    "previous_actions": "before",
    "previous_outputs": "before",
    "files_available": "files",
    "files_from_previous_agents": "files",
    "ground_truth_answer": "label",
    "label": "label",
}
"""Placeholders of their coach's template, and ours."""

THEIR_FORM = re.compile(
    r"^[\s\-*]*\**(PROCESS_SCORE|OUTCOME_SCORE|ANSWER_CORRECT)\**\s*:.*$\n?", re.MULTILINE
)
FENCE = "----- {fence} -----"


class UnknownPlaceholders(ConfigurationError):
    """A coach's template has placeholders without a counterpart."""


def escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def to_prompt(
    text: str, roles: list[str], names: dict[str, str], braces: bool
) -> tuple[str, list[str], list[tuple[str, list[str]]]]:
    """Returns a template as a prompt of ours, its placeholders that show the label, and its unknown
    ones with all names that are known.

    The prompt's fields are `problem`, `others`, `computed` and the names of earlier roles.

    Args:
        names: What the configuration calls the roles, and our names.
        braces: Whether placeholders are `{name}` (`str.format`), else `$name`; unknown ones of the
            second form are text there too.

    Raises:
        ValueError: An unclosed brace.
    """
    text = text.replace("\x08", "\\b").replace(
        "\x0c", "\\f"
    )  # \boxed and \frac that JSON read as control characters
    known = {
        **dict.fromkeys(TASK, "problem"),
        **dict.fromkeys(OTHERS, "others"),
        **{theirs: roles[number] for theirs, number in ANSWERS.items() if number < len(roles)},
        COMPUTED: "computed",
        **names,
    }
    leaks: list[str] = []
    unknown: list[tuple[str, list[str]]] = []

    def field(name: str) -> str | None:
        if name in known:
            return "{" + known[name] + "}"
        if name in LABELS:
            leaks.append(name)
        elif braces:
            unknown.append((name, list(known)))
        return None

    if braces:
        parts = []
        for literal, name, _, _ in string.Formatter().parse(text):
            parts.append(escape(literal))
            if name is not None:
                parts.append(field(name) or escape("{" + name + "}"))
        new = "".join(parts)
    else:
        new = re.sub(r"\$([A-Za-z_]\w*)", lambda m: field(m.group(1)) or m.group(), escape(text))
    return new.rstrip("\n") + "\n", leaks, unknown


def neutral_prompt(earlier: list[str], sees_others: bool) -> str:
    """Returns a prompt for a role without one: the task, the answers of earlier roles, and those of
    the others if it sees them."""
    prompt = "\n".join(["{problem}\n", *(f"What {name} said:\n{{{name}}}\n" for name in earlier)])
    return f"{prompt}\nWhat others answered:\n{{others}}\n" if sees_others else prompt


def fields_of(prompt: str) -> list[str]:
    """Returns the fields of a prompt of ours, each once."""
    return list(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(prompt) if name))


def templates_in(path: Path) -> list[tuple[str, str]]:
    """Returns the templates in a workflow file of theirs, each with its variable's name, in the
    order of the file."""
    try:
        tree = ast.parse(read_text(path), str(path))
    except SyntaxError as error:
        got = f"cannot be read for its prompts: {error}"
        raise ConfigurationError(Problem("imports.unreadable", at(file=path), got)) from None
    found: list[tuple[int, str, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if re.search(
                r"_(prompt|template)$", name
            ):
                text = _literal(value)
                if text is not None and "{" in text:
                    found.append((node.lineno, name, text))
    return [(name, text) for _, name, text in sorted(found)]


def _literal(value: ast.expr) -> str | None:
    """A string for `str.format`: a constant, or an f-string that contains only variables."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts) if all(
            isinstance(p, ast.Constant) or _variable(p) for p in parts
        ):
            return "".join(
                escape(str(p.value)) if isinstance(p, ast.Constant) else f"{{{_variable(p)}}}"
                for p in parts
            )
    return None


def _variable(part: ast.expr) -> str | None:
    match part:
        case ast.FormattedValue(value=ast.Name(id=name), conversion=-1, format_spec=None):
            return name
    return None


def split_coach_template(template: str, where: Where) -> tuple[str, str, list[str]]:
    """Splits a coach's template into a prompt for all actions, one for the last action, and notes.

    Raises:
        UnknownPlaceholders: Of the template.
    """
    notes, problems, place = [], list[Problem](), ": ".join(name for _, name in where)
    lines = [m.group().strip() for m in THEIR_FORM.finditer(template)]
    if lines:
        notes.append(
            "prompts/coach*.md: lines that request scores in their form were removed: "
            + "; ".join(lines)
        )
    try:
        parsed = list(string.Formatter().parse(THEIR_FORM.sub("", template)))
    except ValueError as error:
        raise UnknownPlaceholders(
            Problem("imports.braces", where, str(error), fix="write {{ and }} for braces")
        ) from None
    common, last = [], []
    shown = set()
    for literal, name, _, _ in parsed:
        common.append(escape(literal))
        last.append(escape(literal))
        if name is None:
            continue
        ours = COACH.get(name, name if name in (*FIELDS, *LABEL_FIELDS) else None)
        if ours is None:
            got = f"no placeholder {{{name}}} exists{nearest(name, COACH)}"
            problems.append(
                Problem("imports.placeholder", where, got, fix="delete it from the template")
            )
            continue
        shown.add(ours)
        text = f"{FENCE}\n{{action}}\n{FENCE}" if ours == "action" else "{" + ours + "}"
        last.append(text)
        common.append("N/A" if ours in LABEL_FIELDS else text)
        if name == "label":
            notes.append(
                f"{place}: {{label}} showed the label when any agent was scored; it is shown only "
                "for the last action of "
                "the last role"
            )
    if problems:
        raise UnknownPlaceholders(problems)
    end = [] if "action" in shown else [f"\n## The step to judge\n{FENCE}\n{{action}}\n{FENCE}\n"]
    if end:
        notes.append(f"{place}: has no {{agent_output}}; it was appended")
    return _with_end(common, end), _with_end(last, end), notes


def _with_end(parts: Iterable[str], end: list[str]) -> str:
    return "".join([*parts, *end]).rstrip("\n") + "\n\n{form}\n"
