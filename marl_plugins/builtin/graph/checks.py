"""Graphs are checked here against the recipe: its roles and their prompts, and its tools."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from marl_plugins.builtin.graph.expressions import Expression
from marl_plugins.builtin.graph.files import Spot
from marl_plugins.builtin.graph.grammar import ReadConfig, RoleNode, ToolSpec, Unset
from marl_plugins.builtin.graph.reading import FORM, FORMS, ReadForm
from marl_plugins.builtin.graph.values import Result
from marl_plugins.core.cases import CaseGenerator, CaseSection
from marl_plugins.core.problems import Problem, meant
from marl_plugins.core.run import Run
from marl_plugins.core.tools import Tool


@dataclass(frozen=True)
class RecipeParts:
    """The parts of a recipe that a graph may name.

    Args:
        roles: By name.
        tools: By name.
        cases: By name.
        case_seconds: Maximum time of one call of a case's functions.
    """

    roles: Collection[str]
    tools: Mapping[str, Tool]
    cases: Mapping[str, CaseGenerator] = field(default_factory=dict)
    case_seconds: float = 5.0

    @classmethod
    def of(cls, run: Run) -> RecipeParts:
        """Returns those of a run.

        Raises:
            ConfigurationError: The cases cannot be had.
        """
        section = run.section(CaseSection)
        cases = (section.generators(run.folder), section.limit()) if section else ()
        return cls(run.recipe.roles, run.tools, *cases)


def check_role(role: str, known: RecipeParts, spot: Spot) -> list[Problem]:
    """Returns the problem with the role of a node; which fields its prompt shows is seen in the
    rehearsal."""
    if role in known.roles:
        return []
    got = f"the recipe has no role {role!r}"
    return [Problem("graph.role", spot.below("role").where, got, fix=meant(role, known.roles))]


def check_case(config: RoleNode, known: RecipeParts, spot: Spot) -> list[Problem]:
    """Returns what is wrong with the case of a node."""
    name = config.case
    if name is None and config.given is not Unset:
        got, fix = "`given` is a case's, and the node has none", "case: NAME"
        return [Problem("graph.case", spot.below("given").where, got, fix=fix)]
    if name is None or name in known.cases:
        return []
    got = f"the recipe has no case {name!r}"
    fix = meant(name, known.cases) or "an object of `cases: FILE` with case, prompt and verify"
    return [Problem("graph.case", spot.below("case").where, got, fix=fix)]


def check_tool(
    name: str, function: str, config: ToolSpec, known: RecipeParts, spot: Spot
) -> list[Problem]:
    """Returns what is wrong with a call of a tool, or of one of its functions."""
    where = spot.below("tool").where
    if name not in known.tools:
        got = f"the recipe has no tool {name!r}"
        return [Problem("graph.tool", where, got, fix=meant(name, known.tools))]
    text, arguments = config.call is not Unset, "fields" in config.model_fields_set
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
    if text if function else arguments or not text:
        got = "a function is called with `with` alone, a tool without one with `call` alone"
        fix = "with: {ARGUMENT: ...}" if function else "call: TEXT, or tool: NAME.FUNCTION"
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
    elif not name and (shadowed := [key for key in config.keys if key in Result.READ]):
        got = (
            f"keys {', '.join(shadowed)}: NODE.{shadowed[0]} is what every answer has, not the key"
        )
        fix = "give them other names, in the prompt too"
        problems.append(Problem("graph.read", where, got, fix=fix))
    return ReadForm(form, name, config.keys, default, config.most), problems
