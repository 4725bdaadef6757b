"""Recipes: one YAML file each, checked all at once, every problem named by file, line and key.

A recipe says who the agents are and how they are trained; prompts, workflow, task loader and grader
are files beside it. What its plugins read in it are their sections (section.py).

    file -> RecipeTree (recipe_yaml.py) -> its plugins, and their sections -> Recipe, and a value of
    each section
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic_core import PydanticCustomError

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, meant
from marl_plugins.core.recipe.recipe_yaml import Origins, RecipeTree
from marl_plugins.core.recipe.validation import (
    key_place,
    not_a_mapping,
    unknown_key,
    validated,
)
from marl_plugins.core.section import FlagValue, Model, Section


def _policy_names(value: Any) -> Any:
    if isinstance(value, str) or (
        isinstance(value, list) and value and all(isinstance(name, str) for name in value)
    ):
        return value
    raise PydanticCustomError("policy_names", "expected the name of a policy, or a list of several")


Texts = Annotated[
    list[str], pydantic.BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]
"""One text or several."""


PolicyNames = Annotated[str | list[str], pydantic.PlainValidator(_policy_names)]
"""The policy that plays a role, or the members of its population."""


class RoleConfig(Model):
    """A logical agent."""

    EXAMPLE: ClassVar[str] = "{prompt: prompts/judge.md}"

    prompt: str | None = None
    """File of the user message. A call fills `{field}`; `{{` and `}}` are braces. Required without
    `agent:`."""
    system: str | None = None
    """File of the system message, with fields too."""
    examples: str | None = None
    """File of [examples](#examples): earlier turns of every conversation of the role."""
    followup: str | None = None
    """File of the user message of a call that continues an earlier one. Default: `prompt`."""
    tools: list[str] = []
    """Tools whose calls are looked for in the role's answers."""
    calls: str | None = None
    """Format of its model's tool calls: a tool parser of vLLM by name
    ([below](#how-tools-are-called)). Default: each tool's own syntax in the text."""
    reasoning: str | None = None
    """With `calls`: a reasoning parser of vLLM by name (`qwen3`, `deepseek_r1`, ...), which finds
    the thinking. Default: `<think>` blocks."""
    max_turns: int = pydantic.Field(1, ge=1)
    """Most generations per call of the role. Above 1, it needs tools, whose output starts the next
    turn."""
    endless_tools: Literal["fail", "go_on"] = "fail"
    """A tool call in the last of several turns: an agent failure, or it is run and the workflow
    continues."""
    max_new_tokens: int | None = pydantic.Field(None, ge=1)
    """Default: `rollout.max_new_tokens` of its policy."""
    stop: list[str] = []
    """Strings that end a generation."""
    template: dict[str, FlagValue] = pydantic.Field({}, examples=["{enable_thinking: false}"])
    """What its model's chat template is given beside the messages. Default: its policy's."""
    example: Texts = pydantic.Field([], examples=['\'{"team": "network"}\''])
    """An answer in the form that the workflow reads, or several, for
    [rehearsals](#the-rehearsal)."""


class PolicyConfig(Model):
    """A model with weights of its own."""

    EXAMPLE: ClassVar[str] = "{trainable: false}"

    model: str | None = None
    """Folder, hub name, `tiny` (a small random model), `smollm2` or another
    [kept model](#models-by-name). Default: the recipe's."""
    endpoint: str | None = pydantic.Field(None, examples=["http://127.0.0.1:8000/v1"])
    """Address of an OpenAI-compatible endpoint, where somebody else serves `model`: an
    [external policy](#external-policies), which is never trained."""
    key: str = "OPENAI_API_KEY"
    """With `endpoint`: the environment variable that holds its key."""
    trainable: bool = True
    """False: it only generates; its actions are recorded and never trained on."""
    follows: str | None = None
    """A trained policy whose weights it holds, instead of a `model`."""
    flags: dict[str, FlagValue] = pydantic.Field({}, examples=["{actor.adam.lr: 1.0e-6}"])
    """Upstream flags for this policy only: `actor.adam.lr: 1.0e-6`."""
    template: dict[str, FlagValue] = pydantic.Field({}, examples=["{enable_thinking: false}"])
    """What its chat template is given beside the messages; a role's own `template` is added."""


class LimitsConfig(Model):
    """Bounds of a run."""

    EXAMPLE: ClassVar[str] = "{task_seconds: 600}"

    task_seconds: float = pydantic.Field(600.0, gt=0)
    """Deadline of a trajectory, which is then lost to infrastructure; a request's wait in the
    controller does not count. Its scores have as long again; later ones are missing."""
    engine_restarts: int = pydantic.Field(3, ge=0)
    """Dead engines that a run replaces; later trajectories are lost."""
    silence_seconds: float = pydantic.Field(1800.0, gt=0)
    """A process that does not answer, or start, within this time is killed. Set it above the
    longest update or checkpoint, and on GPUs an engine's compilation."""


class Recipe(Model):
    """A multi-agent system and how it is trained."""

    name: str = pydantic.Field(pattern=r"^[a-z][a-z0-9_]*$")
    description: str = ""
    roles: dict[str, RoleConfig] = pydantic.Field(
        min_length=1, examples=["{judge: {prompt: prompts/judge.md}}"]
    )
    workflow: str = ""
    """File with `async def run(task, roles, tools)`, or a [graph](graphs.md) in YAML. Required
    without `agent:`."""
    mapping: Literal["separate", "shared"] | dict[str, PolicyNames] = "separate"
    """Which policy plays which role: one each, one for all, or [a list](#policies-name). Of several
    policies for a role, one plays it on each task."""
    model: str | None = None
    """Model of policies that name none. Default: `actor.model_name_or_path`."""
    policies: dict[str, PolicyConfig] = pydantic.Field({}, examples=["{judge: {trainable: false}}"])
    """Where a policy differs from the default."""
    grader: str | None = None
    """File with `score_outcome(trajectory)` and perhaps `score_action(action, seen)`."""
    tasks: str | None = None
    """File with `load(split)`. Default: the files in `data.prompt_dataset`."""
    plugins: list[str] = []
    """Names as for `--plugin`, which adds to them. `--without NAME` removes one, with its keys and
    flags."""
    limits: LimitsConfig = LimitsConfig()
    flags: dict[str, FlagValue] = pydantic.Field({}, examples=["{actor.adam.lr: 1.0e-6}"])
    """Upstream's and the plugins' flags for all policies."""

    def policies_of(self, role: str) -> tuple[str, ...]:
        """Returns the names of the policies that play a role: one, or the members of its
        population."""
        if isinstance(self.mapping, str):
            return (role if self.mapping == "separate" else "shared",)
        named = self.mapping[role]
        return (named,) if isinstance(named, str) else tuple(named)

    @property
    def mapped_roles(self) -> list[str]:
        """The roles that a policy plays; roles that `mapping` leaves out are reported when roles
        are checked."""
        return [
            role for role in self.roles if isinstance(self.mapping, str) or role in self.mapping
        ]

    def roles_of(self, policy: str) -> list[str]:
        """Returns the roles that a policy plays, be it on some tasks only, in the recipe's
        order."""
        return [role for role in self.mapped_roles if policy in self.policies_of(role)]

    @property
    def populations(self) -> dict[str, tuple[str, ...]]:
        """The roles that several policies play, with these."""
        return {
            role: names for role in self.mapped_roles if len(names := self.policies_of(role)) > 1
        }


def find_recipe(name: str) -> Path:
    """Returns the YAML file meant by `--recipe`: a file, a folder with a `recipe.yaml`, or the name
    of a recipe that is shipped.

    Raises:
        ConfigurationError: There is none.
    """
    from marl_plugins.core.recipe.shipped import recipes_root, shipped_recipes

    shipped = recipes_root()
    for candidate in (Path(name), shipped / name, shipped / name.removeprefix("recipes/")):
        if candidate.is_dir():
            candidate = candidate / "recipe.yaml"
        if candidate.is_file():
            return candidate
    known = [
        p.parent.name if p.name == "recipe.yaml" else f"{p.parent.name}/{p.name}"
        for p in shipped_recipes()
    ]
    got = (
        f"--recipe {name}: no such file, no folder with a recipe.yaml, and no recipe of that "
        "name is shipped"
    )
    fix = meant(name, known) or "openrlhf recipes list shows those that are"
    raise ConfigurationError(Problem("recipe.none", got=got, fix=fix, flags=("recipe",)))


Sections = Mapping[str, Section]
"""A recipe's sections by name; also those that it does not have, as far as all their keys have
defaults."""


def check_recipe(
    tree: RecipeTree, sections: Mapping[str, type[Section]], owners: Mapping[str, str]
) -> tuple[Recipe, Sections]:
    """Returns a recipe and its sections.

    Args:
        sections: The model of each section, by name.
        owners: Shipped plugins that take no part, by the sections that they would read.

    Raises:
        ConfigurationError: All problems of the file at once.
    """
    problems: list[Problem] = []
    values = dict(tree.values)
    section_values = _split(values, sections, owners, tree.origins, problems)
    for name in [key for key in values if key not in Recipe.model_fields]:
        known = [*Recipe.model_fields, *(section.partition(".")[0] for section in sections)]
        problems.append(unknown_key((name,), set(known), tree.origins, owners.get(name, "")))
        del values[name]
    recipe = validated(Recipe, values, (), tree.origins, problems)
    problems += _workflow_problems(
        values, [name for name in section_values if sections[name].GIVES_WORKFLOW], tree.origins
    )
    instances: dict[str, Section] = {}
    for name, model in sections.items():
        if name in section_values:
            section = validated(
                model, section_values[name], tuple(name.split(".")), tree.origins, problems
            )
        else:
            section = (
                None
                if any(field.is_required() for field in model.model_fields.values())
                else model()
            )
        if section is not None:
            instances[name] = section
    if recipe is None or problems:
        raise ConfigurationError(problems)
    return recipe, instances


def _workflow_problems(
    values: Mapping[str, Any], givers: Sequence[str], origins: Origins
) -> Iterator[Problem]:
    """Returns what is missing of a recipe's workflow and prompts, or that there are two workflows.

    Args:
        givers: The recipe's sections that give the workflow.
    """
    if givers:
        both = [key for key in ("workflow", *givers) if values.get(key) or key in givers]
        if len(both) == 1:
            return
        got = f"the recipe has {' and '.join(both)}, and each says who calls the roles"
        yield Problem(
            "recipe.two_workflows",
            key_place(both[-1:], origins),
            got,
            fix="remove one of the two",
        )
        return
    roles = values.get("roles")
    asked = roles.items() if isinstance(roles, dict) else ()
    prompts = [
        (("roles", str(name), "prompt"), role) for name, role in asked if isinstance(role, dict)
    ]
    for key, around in (*prompts, (("workflow",), values)):
        where = key_place(key, origins)
        if key[-1] not in around:
            yield Problem("recipe.missing_key", where, "this key is missing")
        elif around[key[-1]] is None and around is not values:
            yield Problem(
                "recipe.no_value", where, "has no value", fix="give one, or remove the key"
            )


def _split(
    values: dict[str, Any],
    sections: Mapping[str, type[Section]],
    owners: Mapping[str, str],
    origins: Origins,
    problems: list[Problem],
) -> dict[str, Any]:
    """Takes the sections out of a recipe's values and returns them, by name."""
    section_values = {name: values.pop(name) for name in sections if name in values}
    for head in dict.fromkeys(name.partition(".")[0] for name in sections if "." in name):
        block = values.pop(head, {})
        below = {
            name.partition(".")[2]: model
            for name, model in sections.items()
            if name.startswith(f"{head}.")
        }
        if not isinstance(block, dict):
            tail, model = next(iter(below.items()))
            problems.append(
                not_a_mapping((head,), f"{{{tail}: {model.shown_as()}}}", block, origins)
            )
            continue
        for tail, value in block.items():
            if tail in below:
                section_values[f"{head}.{tail}"] = value
            else:
                problems.append(
                    unknown_key((head, tail), below, origins, owners.get(f"{head}.{tail}", ""))
                )
    return {name: value for name, value in section_values.items() if value is not None}


def base_of(tree: RecipeTree) -> Recipe:
    """Returns a recipe without its sections, which its plugins would have to be loaded for.

    Raises:
        ConfigurationError: All problems of its own keys.
    """
    problems: list[Problem] = []
    values = {name: value for name, value in tree.values.items() if name in Recipe.model_fields}
    recipe = validated(Recipe, values, (), tree.origins, problems)
    if recipe is None:
        raise ConfigurationError(problems)
    return recipe
