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
from dataclasses import dataclass
from pathlib import Path

from marl_plugins.asking.prompts import FIELDS, LABEL_FIELDS
from marl_plugins.commands.imports.report import Report
from marl_plugins.core.failures import nearest
from marl_plugins.core.problems import Problem, Where, at
from marl_plugins.core.recipe.texts import syntax_tree

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
ACTION = "----- {fence} -----\n{action}\n----- {fence} -----"


@dataclass(frozen=True)
class Template:
    """A template of theirs.

    Args:
        braces: Whether its fields are `{name}` (`str.format`), else `$name`.
        variable: The variable of the workflow's file that holds it; empty where the configuration
            has it.
    """

    text: str
    where: Where
    braces: bool = False
    variable: str = ""


def escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def fields_for(roles: list[str], names: dict[str, str]) -> dict[str, str]:
    """Returns the placeholders of agents' templates, and the fields of ours that they become:
    `problem`, `others`, `computed` and names of roles.

    Args:
        names: What the configuration calls the roles, and our names.
    """
    return {
        **dict.fromkeys(TASK, "problem"),
        **dict.fromkeys(OTHERS, "others"),
        **{theirs: roles[number] for theirs, number in ANSWERS.items() if number < len(roles)},
        COMPUTED: "computed",
        **names,
    }


def to_prompt(template: Template, fields: dict[str, str], report: Report) -> str:
    """Returns a template as a prompt of ours; a placeholder that shows the label is reported, and
    so is an unknown one with braces (`$name` may be text)."""
    where = template.where
    # \boxed and \frac that JSON read as control characters
    text = template.text.replace("\x08", "\\b").replace("\x0c", "\\f")

    def field(name: str) -> str | None:
        if name in fields:
            return "{" + fields[name] + "}"
        if name in LABELS:
            got = f"{name!r} shows an agent the label"
            report.problem(Problem("imports.shows_label", where, got, fix="delete it"))
        elif template.braces:
            near = nearest(name, fields)
            got = f"{name!r} is unknown: no such field can be shown to an agent here{near}"
            fix = "delete it from the prompt"
            report.unknown(Problem("imports.unknown_field", where, got, fix=fix))
        return None

    if template.braces:
        new = "".join(
            escape(literal) + ("" if name is None else field(name) or escape("{" + name + "}"))
            for literal, name in _parsed(text, where, report)
        )
    else:
        new = re.sub(r"\$([A-Za-z_]\w*)", lambda m: field(m[1]) or m[0], escape(text))
    return new.rstrip("\n") + "\n"


def _parsed(text: str, where: Where, report: Report) -> list[tuple[str, str | None]]:
    """The literal parts of a text for `str.format`, each with the placeholder after it."""
    try:
        return [(literal, name) for literal, name, _, _ in string.Formatter().parse(text)]
    except ValueError as error:  # an unclosed brace
        fix = "write {{ and }} for braces"
        report.problem(Problem("imports.braces", where, str(error), fix=fix))
        return []


def neutral_prompt(earlier: list[str], sees_others: bool) -> str:
    """Returns a prompt for a role without one: the task, the answers of earlier roles, and those of
    the others if it sees them."""
    prompt = "\n".join(["{problem}\n", *(f"What {name} said:\n{{{name}}}\n" for name in earlier)])
    return f"{prompt}\nWhat others answered:\n{{others}}\n" if sees_others else prompt


def templates_in(path: Path) -> list[Template]:
    """Returns the templates in a workflow file of theirs, in the order of the file."""
    assigned = [node for node in ast.walk(syntax_tree(path)) if isinstance(node, ast.Assign)]
    templates = []
    for node in sorted(assigned, key=lambda node: node.lineno):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if re.search(
                r"_(prompt|template)$", name
            ):
                text = _literal(value)
                if text is not None and "{" in text:
                    templates.append(Template(text, at(file=path, name=name), True, name))
    return templates


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


def split_coach_template(template: str, where: Where, report: Report) -> tuple[str, str]:
    """Splits a coach's template into a prompt for all actions, and one for the last action."""
    place = ": ".join(name for _, name in where)
    if lines := [m[0].strip() for m in THEIR_FORM.finditer(template)]:
        report.note(
            "prompts/coach*.md: lines that request scores in their form were removed: "
            + "; ".join(lines)
        )
    common, last, shown = "", "", set()
    for literal, name in _parsed(THEIR_FORM.sub("", template), where, report):
        common += escape(literal)
        last += escape(literal)
        if name is None:
            continue
        ours = COACH.get(name, name)
        if ours not in (*FIELDS, *LABEL_FIELDS):
            got, fix = f"no placeholder {{{name}}} exists", "delete it from the template"
            problem = Problem("imports.placeholder", where, got + nearest(name, COACH), fix=fix)
            report.problem(problem)
            continue
        shown.add(ours)
        text = ACTION if ours == "action" else "{" + ours + "}"
        last += text
        common += "N/A" if ours in LABEL_FIELDS else text
        if name == "label":
            report.note(
                f"{place}: {{label}} showed the label when any agent was scored; it is shown only "
                "for the last action of the last role"
            )
    end = ""
    if "action" not in shown:
        end = f"\n## The step to judge\n{ACTION}\n"
        report.note(f"{place}: has no {{agent_output}}; it was appended")
    common, last = ((text + end).rstrip("\n") + "\n\n{form}\n" for text in (common, last))
    return common, last
