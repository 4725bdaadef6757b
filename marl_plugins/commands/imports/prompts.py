"""Their prompts as ours: `$name` and `{name}` become fields of the workflow's call; a coach's template becomes two.

An agent's prompt may show the task and what earlier agents said. The label may stand in none of them, and in a coach's
prompt only for the last action of the last role; where a template showed it for every action, it is taken out.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterable
from pathlib import Path

from marl_plugins.coach.model import FIELDS, LABEL_FIELDS
from marl_plugins.core.failures import ConfigurationError, nearest

TASK = ("question", "problem", "prompt", "input", "task_description")
LABELS = ("label", "answer", "ground_truth", "ground_truth_answer", "reference_answer")
OTHERS = ("responses_str", "responses")
SAID = {"solution": 0, "preprocessing_summary": 0, "model_summary": 1}
"""Fields of their workflows for what the first or second agent said."""
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
"""Placeholders of their coach's template and ours."""

THEIR_FORM = re.compile(r"^[\s\-*]*\**(PROCESS_SCORE|OUTCOME_SCORE|ANSWER_CORRECT)\**\s*:.*$\n?", re.MULTILINE)
FENCE = "----- {fence} -----"


class Unknown(ConfigurationError):
    """Placeholders that mean nothing here."""


def escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def role_prompt(text: str, roles: list[str], names: dict[str, str], braces: bool) -> tuple[str, list[str], list[str]]:
    """A prompt of ours, its placeholders that show the label, and those that are unknown; both are left as text.

    Its fields are `problem`, `others`, `computed` and the names of earlier roles.

    Args:
        names: What the configuration calls the roles, and our names.
        braces: Whether the text has `{name}` (`str.format`), else `$name`, of which unknown ones are text there too.

    Raises:
        ValueError: A brace is not closed.
    """
    text = text.replace("\x08", "\\b").replace("\x0c", "\\f")  # \boxed and \frac that JSON read as control characters
    known = {
        **dict.fromkeys(TASK, "problem"),
        **dict.fromkeys(OTHERS, "others"),
        **{theirs: roles[number] for theirs, number in SAID.items() if number < len(roles)},
        COMPUTED: "computed",
        **names,
    }
    leaks, unknown = [], []

    def field(name: str) -> str | None:
        if name in known:
            return "{" + known[name] + "}"
        if name in LABELS:
            leaks.append(f"{name!r} shows an agent the label; delete it")
        elif braces:
            unknown.append(f"{name!r} is nothing that an agent can be shown here{nearest(name, known)}")
        return None

    if braces:
        parts = []
        for literal, name, _, _ in string.Formatter().parse(text):
            parts.append(escaped(literal))
            if name is not None:
                parts.append(field(name) or escaped("{" + name + "}"))
        new = "".join(parts)
    else:
        new = re.sub(r"\$([A-Za-z_]\w*)", lambda m: field(m.group(1)) or m.group(), escaped(text))
    return new.rstrip("\n") + "\n", leaks, unknown


def neutral_prompt(roles: list[str]) -> str:
    """A prompt where there is none: the task and what was said before."""
    earlier = [f"What {name} said:\n{{{name}}}\n" for name in roles]
    return "\n".join(["{problem}\n", *earlier])


def fields_of(prompt: str) -> list[str]:
    """The fields of a prompt of ours, each once."""
    return list(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(prompt) if name))


def prompts_in(path: Path) -> list[tuple[str, str]]:
    """Prompts that a workflow file of theirs holds, by the name of their variable, in the order of the file."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read for its prompts: {error}") from None
    found: list[tuple[int, str, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if re.search(r"_(prompt|template)$", name):
                text = _written(value)
                if text is not None and "{" in text:
                    found.append((node.lineno, name, text))
    return [(name, text) for _, name, text in sorted(found)]


def _written(value: ast.expr) -> str | None:
    """A string for `str.format`: a constant, or an f-string that names nothing but variables."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts) if all(isinstance(p, ast.Constant) or _variable(p) for p in parts):
            return "".join(escaped(str(p.value)) if isinstance(p, ast.Constant) else f"{{{_variable(p)}}}" for p in parts)
    return None


def _variable(part: ast.expr) -> str | None:
    match part:
        case ast.FormattedValue(value=ast.Name(id=name), conversion=-1, format_spec=None):
            return name
    return None


def coach_prompts(template: str, where: str) -> tuple[str, str, list[str]]:
    """Their template as a prompt for all actions, one for the last, and what to look at.

    Raises:
        Unknown: Placeholders that mean nothing here.
    """
    notes, problems = [], []
    lines = [m.group().strip() for m in THEIR_FORM.finditer(template)]
    if lines:
        notes.append("prompts/coach*.md: lines that ask for scores in their form were taken out: " + "; ".join(lines))
    try:
        parsed = list(string.Formatter().parse(THEIR_FORM.sub("", template)))
    except ValueError as error:
        raise Unknown(f"{where}: {error}; write {{{{ and }}}} for braces") from None
    common, last = [], []
    shown = set()
    for literal, name, _, _ in parsed:
        common.append(escaped(literal))
        last.append(escaped(literal))
        if name is None:
            continue
        ours = COACH.get(name, name if name in (*FIELDS, *LABEL_FIELDS) else None)
        if ours is None:
            problems.append(f"{where}: there is no placeholder {{{name}}}{nearest(name, COACH)}")
            continue
        shown.add(ours)
        text = f"{FENCE}\n{{action}}\n{FENCE}" if ours == "action" else "{" + ours + "}"
        last.append(text)
        common.append("N/A" if ours in LABEL_FIELDS else text)
        if name == "label":
            notes.append(
                f"{where}: {{label}} let the label into the score of every agent; it is shown for the last action of the last "
                "role only"
            )
    if problems:
        raise Unknown(problems)
    ends = [] if "action" in shown else [f"\n## The step to judge\n{FENCE}\n{{action}}\n{FENCE}\n"]
    if ends:
        notes.append(f"{where}: has no {{agent_output}}; it was added at the end")
    return _ended(common, ends), _ended(last, ends), notes


def _ended(parts: Iterable[str], ends: list[str]) -> str:
    return "".join([*parts, *ends]).rstrip("\n") + "\n\n{form}\n"
