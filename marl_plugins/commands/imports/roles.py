"""The roles: their prompts, tools and turns, and the workflow that calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_plugins.commands.imports import shapes, templates
from marl_plugins.commands.imports.agents import Agent, names_in_templates
from marl_plugins.commands.imports.read import ImportSource
from marl_plugins.commands.imports.report import Report
from marl_plugins.commands.imports.shapes import KINDS, Kind, Shape
from marl_plugins.core.failures import nearest
from marl_plugins.core.problems import Problem, Where, at


def choose_shape(source: ImportSource, start_from: Kind | None, report: Report) -> Shape:
    """Returns the shape of the source's workflow, or the one that `--workflow` names to start
    from."""
    settings = source.settings
    name = shapes.shape_name(settings.get("workflow_func_path"), settings.get("agent_workflow"))
    if name in shapes.SHAPES and start_from in (None, shapes.SHAPES[name].kind):
        return shapes.SHAPES[name]
    if start_from is not None:
        report.note(
            f"workflow.py: starts as a {start_from}; theirs ({name}) is Python that has to be "
            "rewritten"
        )
        return Shape(start_from)
    key = "workflow_func_path" if settings.get("workflow_func_path") else "agent_workflow"
    got = f"the workflow {name!r} has no counterpart (known: {', '.join(shapes.SHAPES)})"
    fix = f"give --workflow {', '.join(KINDS)} for one to start from"
    report.problem(Problem("imports.workflow", at(line=source.where(key), key=key), got, fix=fix))
    return Shape("chain")


# --- prompts
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Template:
    """A template of theirs.

    Args:
        braces: Whether its fields are `{name}`, else `$name`.
        variable: The variable of the workflow's file that holds it; empty where the configuration
            has it.
    """

    text: str
    where: Where
    braces: bool = False
    variable: str = ""


def translate_prompts(
    source: ImportSource, shape: Shape, agents: Sequence[Agent], report: Report
) -> dict[str, str]:
    """Returns a prompt for every role; in a debate also `ROLE_again`, for the rounds after the
    first."""
    in_workflow = _templates_in_workflow(source, shape, agents)
    prompts: dict[str, str] = {}
    for number, agent in enumerate(agents):
        earlier = [a.role for a in agents[:number]] if shape.kind == "chain" else []
        configured = [
            Template(text, at(role=agent.role, key="chat_template"))
            for text in _configured(source, agent)
        ]
        names = [agent.role, f"{agent.role}_again"] if shape.kind == "debate" else [agent.role]
        for turn, name in enumerate(names):
            if turn < len(configured):
                template = configured[turn]
            elif in_workflow:
                template = in_workflow[number if shape.kind == "chain" else turn]
                report.take(template.variable, f"`prompts/{name}.md`")
            else:
                sees_others = bool(turn) or (shape.kind == "mixture" and number == len(agents) - 1)
                prompts[name] = templates.neutral_prompt(earlier, sees_others)
                report.note(f"prompts/{name}.md: no prompt was found for it; write it")
                continue
            prompts[name] = _translate(template, agents, report)
            known = {
                "problem",
                *earlier,
                *(["others"] if turn or (shape.kind == "mixture" and number) else []),
            }
            known |= {"computed"} if any(n < number for n in shape.tools) else set()
            _check_fields(prompts[name], name, template.where, agent.role, known, report)
    return prompts


def _configured(source: ImportSource, agent: Agent) -> list[str]:
    """The agent's `chat_template`, which may be one text or a list."""
    found = agent.config.get("chat_template") or source.settings.get("chat_template") or []
    return [found] if isinstance(found, str) else [str(text) for text in found]


def _templates_in_workflow(
    source: ImportSource, shape: Shape, agents: Sequence[Agent]
) -> list[Template]:
    """The templates in the workflow's file, if an agent lacks one and their number fits the shape;
    else none."""
    file = source.settings.get("workflow_func_path")
    path = source.find(str(file).replace("openrlhf/", "marti/", 1)) if file else None
    if path is None or all(_configured(source, agent) for agent in agents):
        return []
    found = [
        Template(text, at(file=path, name=name), braces=True, variable=name)
        for name, text in templates.templates_in(path)
    ]
    expected = {"chain": len(agents), "debate": 2}.get(shape.kind)
    return found if len(found) == expected else []


def _translate(template: Template, agents: Sequence[Agent], report: Report) -> str:
    roles = [agent.role for agent in agents]
    try:
        text, leaks, unknown = templates.to_prompt(
            template.text, roles, names_in_templates(agents), template.braces
        )
    except ValueError as error:  # an unclosed brace
        report.problem(
            Problem("imports.braces", template.where, str(error), fix="write {{ and }} for braces")
        )
        return templates.escape(template.text)
    for name in leaks:
        got = f"{name!r} shows an agent the label"
        report.problem(Problem("imports.shows_label", template.where, got, fix="delete it"))
    for name, valid in unknown:
        got = (
            f"{name!r} is unknown: no such field can be shown to an agent "
            f"here{nearest(name, valid)}"
        )
        report.unknown(
            Problem("imports.unknown_field", template.where, got, fix="delete it from the prompt")
        )
    return text


def _check_fields(
    prompt: str, name: str, where: Where, role: str, known: set[str], report: Report
) -> None:
    fields = templates.fields_of(prompt)
    for field in fields:
        if field not in known:
            report.problem(
                Problem(
                    "imports.early_field",
                    where,
                    f"{field!r} is not known yet when {role!r} is called",
                )
            )
    if "problem" not in fields:
        report.note(f"prompts/{name}.md: does not show the task ({{problem}})")


# --- roles
# --------------------------------------------------------------------------------------------------


def translate_roles(
    source: ImportSource,
    shape: Shape,
    agents: Sequence[Agent],
    prompts: Mapping[str, str],
    report: Report,
) -> dict[str, dict[str, Any]]:
    """Returns `roles:` of the recipe."""
    roles: dict[str, dict[str, Any]] = {}
    for number, agent in enumerate(agents):
        roles[agent.role] = role = _role(source, shape, number, agent, report)
        if f"{agent.role}_again" in prompts:
            role["followup"] = f"prompts/{agent.role}_again.md"
        if agent.config.get("is_api_model"):
            where = at(line=source.where("agents"), key="is_api_model", role=agent.role)
            got, fix = (
                "a model behind an API cannot play it, but a policy",
                "delete the key to train its pretrain instead",
            )
            report.unknown(Problem("imports.api_model", where, got, fix=fix))
    return roles


def _role(
    source: ImportSource, shape: Shape, number: int, agent: Agent, report: Report
) -> dict[str, Any]:
    arguments = source.settings.get("workflow_args") or {}
    tools = source.settings.get("tools_config") or {}
    key = shape.turns[number] if number < len(shape.turns) else None
    turns = int(arguments.get(key) or (number in shape.tools and tools.get("max_turns")) or 1)
    role: dict[str, Any] = {"prompt": f"prompts/{agent.role}.md"}
    if number in shape.tools or agent.config.get("code_execution"):
        role["tools"] = ["python"]
        if turns > 1:
            role |= {"max_turns": turns, "endless_tools": "go_on"}
    elif turns > 1:
        report.note(
            f"{source.where('workflow_args', key or '')}: {agent.role} has no tools, so it has one "
            "turn"
        )
    if key in arguments:
        report.take(f"workflow_args.{key}", f"`roles.{agent.role}.max_turns`")
    return role


def translate_tools(
    source: ImportSource, roles: Mapping[str, Mapping[str, Any]], report: Report
) -> dict[str, Any]:
    """Returns `tools:` of the recipe; empty if the source sets no time limit."""
    tools = (source.settings.get("tools_config") or {}).get("tools") or {}
    seconds = [config["timeout"] for config in tools.values() if config.get("timeout")]
    if not seconds or not any("tools" in role for role in roles.values()):
        return {}
    report.take("tools_config.tools.NAME.timeout", f"`tools.python.seconds: {seconds[0]}`")
    return {"python": {"seconds": float(seconds[0])}}


# --- the workflow
# --------------------------------------------------------------------------------------------------


def write_workflow(
    source: ImportSource,
    shape: Shape,
    roles: Mapping[str, Any],
    prompts: Mapping[str, str],
    report: Report,
) -> str:
    """Returns `workflow.py`."""
    names = list(roles)
    arguments = source.settings.get("workflow_args") or {}
    rounds = arguments.get("num_rounds")
    if shape.kind == "debate":
        report.note(
            "workflow.py: an agent continues its own conversation from round to round, so its "
            "earlier answers are in it, and "
            "`others` holds those of the others; theirs begins every round anew and shows its own "
            "answer among the others' "
            "(contain_self)"
        )
        return shapes.write_debate(
            names,
            prompts[f"{names[0]}_again"],
            rounds=int(rounds or len(names)),
            max_others=int(arguments.get("max_others") or 5),
            shuffle=arguments.get("shuffle_responses") is not False,
        )
    where = source.where("workflow_args", "num_rounds")
    if shape.kind == "mixture":
        if rounds not in (None, 2):
            report.note(f"{where}: num_rounds {rounds}: the proposers here answer once")
        return shapes.write_mixture(names, prompts[names[-1]])
    if rounds not in (None, len(names)):
        report.note(f"{where}: num_rounds {rounds}: the chain here runs once")
    return shapes.write_chain(prompts, [name for name, role in roles.items() if "tools" in role])
