"""The roles: their prompts, tools and turns, and the workflow that calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marl_plugins.commands.imports import shapes, templates
from marl_plugins.commands.imports.agents import Agent
from marl_plugins.commands.imports.read import ImportSource
from marl_plugins.commands.imports.report import Report
from marl_plugins.commands.imports.shapes import KINDS, Kind, Shape
from marl_plugins.commands.imports.templates import Template
from marl_plugins.core.problems import Problem, Where, at
from marl_plugins.core.recipe.prompts import fields_of


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


def translate_prompts(
    source: ImportSource, shape: Shape, agents: Sequence[Agent], report: Report
) -> dict[str, str]:
    """Returns a prompt for every role; in a debate also `ROLE_again`, for the rounds after the
    first."""
    in_workflow = _templates_in_workflow(source, shape, agents)
    roles = [agent.role for agent in agents]
    # of a name that two agents have, the first one
    names = {name: a.role for a in reversed(agents) for name in (a.title, a.key)}
    fields = templates.fields_for(roles, names)
    prompts: dict[str, str] = {}
    for number, role in enumerate(roles):
        earlier = roles[:number] if shape.kind == "chain" else []
        configured = [
            Template(text, at(role=role, key="chat_template"))
            for text in _configured(source, agents[number])
        ]
        for turn in range(2 if shape.kind == "debate" else 1):
            name = f"{role}_again" if turn else role
            if turn < len(configured):
                template = configured[turn]
            elif in_workflow:
                template = in_workflow[number if shape.kind == "chain" else turn]
                report.take(template.variable, f"`prompts/{name}.md`")
            else:
                decides = shape.kind == "mixture" and number == len(agents) - 1
                prompts[name] = templates.neutral_prompt(earlier, bool(turn) or decides)
                report.note(f"prompts/{name}.md: no prompt was found for it; write it")
                continue
            prompts[name] = templates.to_prompt(template, fields, report)
            known = {"problem", *earlier}
            if turn or (shape.kind == "mixture" and number):
                known.add("others")
            if any(n < number for n in shape.tools):
                known.add("computed")
            _check_fields(prompts[name], name, template.where, role, known, report)
    return prompts


def _configured(source: ImportSource, agent: Agent) -> list[str]:
    """The agent's `chat_template`, which may be one text or a list."""
    texts = agent.config.get("chat_template") or source.settings.get("chat_template") or []
    return [texts] if isinstance(texts, str) else texts


def _templates_in_workflow(
    source: ImportSource, shape: Shape, agents: Sequence[Agent]
) -> list[Template]:
    """The templates in the workflow's file, if an agent lacks one and their number fits the shape;
    else none."""
    file = source.settings.get("workflow_func_path")
    path = source.find(str(file).replace("openrlhf/", "marti/", 1)) if file else None
    if path is None or all(_configured(source, agent) for agent in agents):
        return []
    in_file = templates.templates_in(path)
    expected = {"chain": len(agents), "debate": 2}.get(shape.kind)
    return in_file if len(in_file) == expected else []


def _check_fields(
    prompt: str, name: str, where: Where, role: str, known: set[str], report: Report
) -> None:
    fields = fields_of([prompt])
    for field in fields:
        if field not in known:
            got = f"{field!r} is not known yet when {role!r} is called"
            report.problem(Problem("imports.early_field", where, got))
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
            got = "a model behind an API cannot play it, but a policy"
            fix = "delete the key to train its pretrain instead"
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
