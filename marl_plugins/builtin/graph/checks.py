"""Graphs are checked here against the recipe: its roles and their prompts, and its tools."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from marl_plugins.builtin.graph.expressions import Expression
from marl_plugins.builtin.graph.files import Spot
from marl_plugins.builtin.graph.grammar import ReadConfig, ToolSpec
from marl_plugins.builtin.graph.reading import FORM, FORMS, ReadForm
from marl_plugins.core.cases import CaseGenerator, CaseSection
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, meant
from marl_plugins.core.run import Run
from marl_plugins.core.tools import Tool


@dataclass(frozen=True)
class Prompt:
    """The fields of a role's prompts: of the one that opens a conversation, and of the one that
    continues it."""

    opening: frozenset[str]
    following: frozenset[str]


@dataclass(frozen=True)
class RecipeParts:
    """The parts of a recipe that a graph may name.

    Args:
        roles: Each role with its prompt's fields; None where a prompt cannot be read, which is
            reported elsewhere.
        tools: By name.
        cases: By name; None where the recipe has none.
        case_seconds: Maximum time of one call of a case's functions.
    """

    roles: Mapping[str, Prompt | None]
    tools: Mapping[str, Tool]
    cases: Mapping[str, CaseGenerator] | None = None
    case_seconds: float = 5.0

    @classmethod
    def of(cls, run: Run) -> RecipeParts:
        """Returns those of a run.

        Raises:
            ConfigurationError: The cases cannot be had.
        """
        roles = {role: _prompt(run, role) for role in run.recipe.roles}
        section = run.section(CaseSection)
        if section is None:
            return cls(roles, run.tools)
        return cls(roles, run.tools, section.generators(run.folder), section.limit())


def _prompt(run: Run, role: str) -> Prompt | None:
    try:
        prompt, system, followup = run.prompt(role), run.system(role) or "", run.followup(role)
        opening = frozenset(_fields(prompt + system))
        return Prompt(opening, opening if followup is None else frozenset(_fields(followup)))
    except (ConfigurationError, ValueError):
        return None


def _fields(text: str) -> Iterator[str]:
    return (name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


def check_role(
    role: str, fields: Collection[str] | None, continued: bool, known: RecipeParts, spot: Spot
) -> list[Problem]:
    """Returns what is wrong with a call of a role.

    Args:
        fields: Those that the call gives; None: a case gives some, which the rehearsal shows.
        continued: Whether the call may continue a conversation.
        spot: Of the node.
    """
    if role not in known.roles:
        got = f"the recipe has no role {role!r}"
        return [Problem("graph.role", spot.below("role").where, got, fix=meant(role, known.roles))]
    prompt = known.roles[role]
    if prompt is None or fields is None:
        return []
    places = prompt.opening | (prompt.following if continued else frozenset())
    unused = [name for name in fields if name not in places]
    problems = []
    for name in sorted(places - {*fields}):
        near = meant(name, unused) if unused else ""
        fix = near or f"with: {{{name}: ...}}"
        problems.append(
            Problem(
                "graph.fields",
                spot.below("with").where,
                f"the prompt of role {role!r} shows {{{name}}}",
                fix=fix,
            )
        )
    return problems


def check_case(name: str | None, has_given: bool, known: RecipeParts, spot: Spot) -> list[Problem]:
    """Returns what is wrong with the case of a node; None: it has none.

    Args:
        has_given: Whether the node says what the case is made of.
    """
    if name is None:
        got, fix = "`given` is a case's, and the node has none", "case: NAME"
        return [Problem("graph.case", spot.below("given").where, got, fix=fix)] if has_given else []
    where = spot.below("case").where
    if known.cases is None:
        return [
            Problem(
                "graph.case", where, "the recipe has no cases", fix="cases: cases.py, in the recipe"
            )
        ]
    if name not in known.cases:
        fix = meant(name, known.cases)
        return [Problem("graph.case", where, f"the recipe has no case {name!r}", fix=fix)]
    return []


def check_tool(
    name: str, function: str, config: ToolSpec, known: RecipeParts, spot: Spot
) -> list[Problem]:
    """Returns what is wrong with a call of a tool, or of one of its functions."""
    where = spot.below("tool").where
    if name not in known.tools:
        got = f"the recipe has no tool {name!r}"
        return [Problem("graph.tool", where, got, fix=meant(name, known.tools))]
    text, arguments = "call" in config.model_fields_set, "fields" in config.model_fields_set
    if function:
        offered = known.tools[name].functions
        if offered is None:
            got = f"tool {name!r} has no functions"
            return [Problem("graph.function", where, got, fix=f"tool: {name}")]
        if offered and known.tools[name].function(function) is None:
            got, names = (
                f"tool {name!r} has no function {function!r}",
                [one.name for one in offered],
            )
            return [Problem("graph.function", where, got, fix=meant(function, names))]
        if text:
            got = "a function is called with `with`, not with `call`"
            return [
                Problem("graph.call", spot.below("call").where, got, fix="with: {ARGUMENT: ...}")
            ]
    elif arguments or not text:
        got, fix = (
            "a tool without a function is called with `call` alone",
            "call: TEXT, or tool: NAME.FUNCTION",
        )
        return [Problem("graph.call", spot.where, got, fix=fix)]
    return []


def reading_of(
    config: ReadConfig, default: Expression | None, spot: Spot
) -> tuple[ReadForm, list[Problem]]:
    """Returns how an answer is read, and what is wrong with it."""
    form, _, name = config.form.partition(".")
    where, problems = spot.below("read").where, list[Problem]()
    if not FORM.fullmatch(config.form):
        expected = f"one of {', '.join(FORMS)}"
        problem = Problem("graph.read", where, repr(config.form), expected, meant(form, FORMS))
        problems.append(problem)
    elif config.keys and form != "json":
        got = f"`keys` are a JSON object's, not {form}'s"
        problems.append(Problem("graph.read", where, got, fix="as: json"))
    return ReadForm(form, name, config.keys, default, config.most), problems
