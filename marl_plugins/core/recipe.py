"""Recipes: one YAML file each, checked all at once, every problem named by file, line and key.

A recipe says who the agents are and how they are trained; prompts, workflow, task loader and grader are files beside it.
`extends: other.yaml` starts from another recipe and changes keys of it; `key: null` takes one of its keys back.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic_core import PydanticCustomError

from marl_plugins.core.failures import ConfigurationError, nearest


def _flag_value(value: Any) -> Any:
    if value is None or isinstance(value, Mapping):
        raise PydanticCustomError("flag_value", "")  # worded where the key is known
    return value


LARGEST = 10_000
"""Values of a YAML file, with what its aliases stand for; nine lines of aliases of aliases stand for 10^9."""
Factor = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
FlagValue = Annotated[Any, pydantic.AfterValidator(_flag_value)]
"""A flag's value or, as a list, its values."""


class Model(pydantic.BaseModel):
    """Strict, frozen, unknown keys are errors."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_as_number(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """YAML's `true` and `yes` would pass for 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise PydanticCustomError("truth_value", "expected another value than true or false")
        return value


class RoleConfig(Model):
    """A logical agent."""

    prompt: str
    """File of the user message; `{field}` is filled by the workflow's call, `{{` and `}}` are braces."""
    system: str | None = None
    """File of the system message, with fields as in `prompt`."""
    followup: str | None = None
    """File of the user message of a call that continues an earlier one (`continues=`), with fields as in `prompt`. Default:
    that of `prompt`."""
    tools: list[str] = []
    """Names of the tools whose calls are looked for in the role's answers."""
    calls: str | None = None
    """Format in which its model calls tools, one of vLLM's tool parsers by name (`hermes`, `llama3_json`, ...); the model's chat
    template then shows the tools. Default: each tool's own syntax in the text."""
    reasoning: str | None = None
    """With `calls`: how its model thinks, one of vLLM's reasoning parsers by name (`qwen3`, `deepseek_r1`, ...); what is only
    thought is no call. Default: what stands in `<think>` blocks is not."""
    max_turns: int = pydantic.Field(1, ge=1)
    """Maximum number of generations per call of the role; above 1, a tool's answer starts the next turn."""
    endless_tools: Literal["fail", "go_on"] = "fail"
    """A tool call in the last of several turns: an agent failure, or the workflow continues with that action."""
    max_new_tokens: int | None = pydantic.Field(None, ge=1)
    """Default: `rollout.max_new_tokens` of its policy."""
    stop: list[str] = []
    """Strings that end a generation."""


class PolicyConfig(Model):
    """A model with weights of its own."""

    model: str | None = None
    """Folder, hub name, or `tiny` (built on the spot, see marl_plugins/core/tiny.py). Default: the recipe's."""
    trainable: bool = True
    """False: it only generates; its actions are recorded and never trained on. `--coach.policy` may name it, and with
    `--coach.train_every` one that is trained."""
    follows: str | None = None
    """A trained policy whose weights it holds, so that it has no `model` and is not trained: the newest weights, or those of an
    earlier version with `marl_plugins.opponent_pool`. Not on GPUs yet."""
    flags: dict[str, FlagValue] = {}
    """Upstream flags for this policy only, such as `actor.adam.lr: 1.0e-6`."""


class PythonToolConfig(Model):
    """Limits of one run of the `python` tool."""

    seconds: float = pydantic.Field(5.0, gt=0)
    memory_mb: int = pydantic.Field(512, ge=64)
    """Memory of the program, and of its processes together."""
    disk_mb: int = pydantic.Field(1024, ge=1)
    """Files of the program in its folder; one file has at most `memory_mb`."""
    output_chars: int = pydantic.Field(2000, ge=100)
    """Longer output keeps its head and its tail."""
    concurrency: int | None = pydantic.Field(None, ge=1)
    """Maximum number at the same time; default: the machine's cores."""
    packages: bool = True
    """Whether programs may import installed packages; without them a program starts in less than half the time."""
    workspace: bool = False
    """Whether all programs of a trajectory work in one folder, which is kept until the trajectory has been scored and begins
    with the task's files; otherwise each has an empty folder of its own."""
    calls_per_answer: int = pydantic.Field(16, ge=1)
    """Maximum number of programs run per answer; the others are not run, and the answer's last output says how many."""
    seconds_per_trajectory: float = pydantic.Field(60.0, gt=0)
    """Time of all programs of a trajectory, without waiting for a slot; once it is used up, no other program is begun."""


class SqlToolConfig(Model):
    """The database of the `sql` tool, and limits of one query."""

    database: str
    """SQLite file; it is opened read-only, and must not change while the run lasts."""
    tables: list[str] = []
    """Tables and views that agents may read, each of which has to be there. Default: all."""
    today: date | None = None
    """What `date('now')` is to a query, as in `2025-12-31`. Default: a query that asks for it is wrong."""
    rows: int = pydantic.Field(20, ge=1)
    """Maximum number of rows in an answer, which says whether there are more."""
    output_chars: int = pydantic.Field(2000, ge=100)
    """A longer answer keeps its head, and says so."""
    steps: int = pydantic.Field(2_000_000, ge=1000)
    """Maximum number of steps of SQLite's virtual machine for a query; two million take about 0.2 seconds. Those of a query that
    searches texts (LIKE, GLOB, instr, replace, trim, json) count four."""
    value_bytes: int = pydantic.Field(2_000, ge=1000)
    """Longest text, blob and row that a query may read or make."""
    calls_per_answer: int = pydantic.Field(16, ge=1)
    """Maximum number of queries run per answer; the others are not run, and the answer's last output says how many."""


Level = Literal["process", "landlock", "namespaces"]
"""What isolates a program from its machine, the strongest last (marl_plugins/sandbox/levels.py)."""


class SandboxConfig(Model):
    """Where programs of agents run."""

    isolation: Literal["auto", "process", "landlock", "namespaces", "service"] = "auto"
    """What isolates programs from the machine ([sandbox.md](sandbox.md)); `auto` is the strongest that this machine has. One that
    it does not have is an error. `service`: they run elsewhere, at `url`."""
    url: str = ""
    """With `isolation: service`: address of a SandboxFusion, or of `openrlhf sandbox serve`. `$NAME` stands for a variable of the
    run's environment, where a password belongs."""
    imports: list[str] = []
    """Modules that are imported once, before any program: importing them in a program then takes no time."""
    warm_up: str | None = None
    """A Python file that is run once, after the imports: what it imports late and caches, no program has to do again."""


class MCPServerConfig(Model):
    """A server of the Model Context Protocol, whose tools are one tool of the recipe. It has `command` or `url`.

    In `env`, `headers` and `url`, `$NAME` stands for a variable of the run's environment, and `$$` for a dollar sign.
    """

    command: list[str] = []
    """A program and its arguments, started in the recipe's folder and spoken to over its standard input and output."""
    env: dict[str, str] = {}
    """Its environment, beside HOME, LOGNAME, PATH, SHELL, TERM and USER. `$NAME` stands for a variable of the run's own, where
    secrets belong."""
    url: str = ""
    """Address of a server that runs already (streamable HTTP)."""
    headers: dict[str, str] = {}
    """Sent with every request to `url`; `$NAME` as in `env`."""
    tools: list[str] = []
    """Names of its tools that may be called. Default: all that it has."""
    per_trajectory: bool = False
    """Whether each trajectory has a session (and a process) of its own, for a server with a state."""
    seconds: float = pydantic.Field(30.0, gt=0)
    """A call that takes longer is lost to infrastructure, with its trajectory."""
    output_chars: int = pydantic.Field(2000, ge=100)
    """Longer output keeps its head and its tail."""
    calls_per_answer: int = pydantic.Field(16, ge=1)
    """Maximum number of calls per answer; the others are not made, and the answer's last output says how many."""

    @property
    def variables(self) -> list[str]:
        """Names of the variables of the run's environment that it is given."""
        texts = map(Template, (*self.env.values(), *self.headers.values(), self.url))
        return list(dict.fromkeys(name for text in texts if text.is_valid() for name in text.get_identifiers()))

    def program(self, folder: Path) -> str | None:
        """The file of its command: by a path from the recipe's folder, or by a name that is looked for beside the run's own
        Python and then in PATH; None where there is none."""
        name = self.command[0]
        if os.sep in name:
            return shutil.which(folder.absolute() / name)
        return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


class ToolsConfig(Model):
    """Settings of the built-in tools."""

    python: PythonToolConfig = PythonToolConfig()
    sql: SqlToolConfig | None = None
    """Without it there is no `sql` tool."""
    sandbox: SandboxConfig = SandboxConfig()
    mcp: dict[str, MCPServerConfig] = {}
    """Servers of the Model Context Protocol, each a tool of the name that it has here."""


class LimitsConfig(Model):
    """Bounds of a run."""

    task_seconds: float = pydantic.Field(600.0, gt=0)
    """Deadline of a trajectory, which is then lost to infrastructure; its scores have as long again, later ones are missing."""
    engine_restarts: int = pydantic.Field(3, ge=0)
    """Number of dead engines that a run replaces; after that its trajectories are lost."""
    silence_seconds: float = pydantic.Field(1800.0, gt=0)
    """A process that has been asked something and has answered nothing for so long is ended: an engine is replaced, a training
    process ends the run. More than the longest update or checkpoint takes."""


class WarmStartConfig(Model):
    """Supervised training of `tiny` models before the run: a fixed number of steps, cached."""

    demonstrations: str
    """File with `demonstrate(task, rng)`, yielding `Demonstration`s of a training task."""
    steps: int = pydantic.Field(ge=1)
    batch_size: int = pydantic.Field(64, ge=1)
    """Demonstrations per step."""
    learning_rate: float = pydantic.Field(2e-3, gt=0)
    seed: int = 0


class CoachMemberConfig(Model):
    """A coach among several: it has one of `rubric`, `model` and `policy`."""

    rubric: str | None = None
    """File with `RUBRIC`, as of `--coach.rubric`."""
    model: str | None = None
    """A model at an endpoint, as of `--coach.model`."""
    policy: str | None = None
    """A policy of the run, as of `--coach.policy`."""
    weight: float = pydantic.Field(1.0, gt=0, allow_inf_nan=False)
    """What its score counts in a mean, among the members that answered."""
    flags: dict[str, FlagValue] = {}
    """Where it differs from the coach's flags: those of an endpoint and of a model without `coach.`, as in
    `{base_url: "http://127.0.0.1:8000/v1", api_key_env: OTHER_KEY}`."""


class CoachStageConfig(Model):
    """What the coach asks for in a stage of the training. All stages but the last have `until_outcome` or `until_step`."""

    until_outcome: float | None = pydantic.Field(None, gt=0, le=1)
    """The stage lasts while the smoothed mean outcome of training is below it, and comes back when that falls 0.05 below."""
    until_step: int | None = pydantic.Field(None, ge=1)
    """The last step of the stage."""
    weights: dict[str, Factor] = {}
    """By the name of a rubric's criterion, what its points are multiplied by."""
    ask: str = ""
    """What models are told that counts now; it stands for `{training}` in their prompts."""


class CoachConfig(Model):
    """Several coaches as one, and what they ask for first (docs/coach.md)."""

    members: dict[str, CoachMemberConfig] | None = pydantic.Field(None, min_length=1)
    """Each coach by its name, in the place of the coach in the flags; a coach on the command line replaces them."""
    combine: Literal["mean", "median", "worst"] = "mean"
    """One score of those of the members that answered; the worst is the lowest."""
    disagreement: Literal["ignore", "weigh"] = "ignore"
    """`weigh`: the more the members disagree on an action, the closer its score is brought to the mean of its role in the step."""
    stages: list[CoachStageConfig] = []
    """What counts in one stage of the training after the other."""
    tools: list[str] = []
    """What models may use before a verdict: `python`, programs on copies of the files that agents left, with the limits of
    `tools: python:`."""
    max_calls: int = pydantic.Field(3, ge=1)
    """Maximum number of programs for one verdict."""


class Recipe(Model):
    """A multi-agent system and how it is trained."""

    name: str = pydantic.Field(pattern=r"^[a-z][a-z0-9_]*$")
    description: str = ""
    roles: dict[str, RoleConfig] = pydantic.Field(min_length=1)
    workflow: str
    """File with `async def run(task, roles, tools)`."""
    mapping: Literal["separate", "shared"] | dict[str, str] = "separate"
    """Which policy plays which role: one each, one for all, or `role: policy`."""
    model: str | None = None
    """Model of every policy that names none. Default: `actor.model_name_or_path`."""
    policies: dict[str, PolicyConfig] = {}
    """Only where a policy differs from the default."""
    grader: str | None = None
    """File with `score_outcome(trajectory)` and, if actions are scored one by one, `score_action(action, seen)`."""
    tasks: str | None = None
    """File with `load(split)`, giving the tasks of `train` and `eval`. Default: the files in `data.prompt_dataset`."""
    warm_start: WarmStartConfig | None = None
    """What `tiny` models learn before the run starts."""
    tools: ToolsConfig = ToolsConfig()
    coach: CoachConfig | None = None
    """Several coaches, and stages, with the plugin `marl_plugins.coach`; a single coach is in `flags`."""
    plugins: list[str] = []
    limits: LimitsConfig = LimitsConfig()
    flags: dict[str, FlagValue] = {}
    """Upstream's and the plugins' flags for all policies. The command line wins over them."""

    def policy_of(self, role: str) -> str:
        """Name of the policy that plays a role."""
        if isinstance(self.mapping, str):
            return role if self.mapping == "separate" else "shared"
        return self.mapping[role]

    @property
    def uses_programs(self) -> bool:
        """Whether a role or the coach writes programs that are run, or a service for programs is named, also where the workflow
        calls it."""
        writers = [role.tools for role in self.roles.values()] + ([self.coach.tools] if self.coach else [])
        return any("python" in tools for tools in writers) or self.tools.sandbox.isolation == "service"

    @property
    def mapped_roles(self) -> list[str]:
        """The roles that a policy plays; roles that `mapping` leaves out are reported when roles are checked."""
        return [role for role in self.roles if isinstance(self.mapping, str) or role in self.mapping]

    def roles_of(self, policy: str) -> list[str]:
        """The roles that a policy plays, in the recipe's order."""
        return [role for role in self.mapped_roles if self.policy_of(role) == policy]


class Origins:
    """Where each key of a recipe stands, for messages."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, ...], tuple[Path, int]] = {}

    def where(self, *key: str | int) -> str:
        """`file:line` of a key, or of the closest key around it."""
        path = tuple(str(k) for k in key)
        while path and path not in self.lines:
            path = path[:-1]
        file, line = self.lines[path]
        return f"{file}:{line}"

    def placed(self, problem: str) -> str:
        """A problem with `file:line` in front where it begins with a key, as in `coach.members: ...`."""
        key = tuple(problem.partition(": ")[0].split("."))
        return f"{self.where(*key)}: {problem}" if key in self.lines else problem


def find_recipe(name: str) -> Path:
    """The YAML file meant by `--recipe`: a file, a folder with a `recipe.yaml`, or the name of a recipe that is shipped.

    Raises:
        ConfigurationError: There is none.
    """
    from marl_plugins.core.shipped import recipes_root

    if not name.strip():
        raise ConfigurationError(
            "--recipe is empty: give a recipe's YAML file, its folder, or the name of a shipped recipe"
        )
    path = Path(name)
    shipped = recipes_root()
    candidates = [path, shipped / name, shipped / path.name if path.parent.name == "recipes" else shipped / name]
    try:
        for candidate in candidates:
            if candidate.is_dir():
                candidate = candidate / "recipe.yaml"
            if candidate.is_file():
                return candidate
    except OSError as error:
        raise ConfigurationError(f"--recipe {name}: {error.filename} cannot be read: {error.strerror}") from None
    known = [p.parent.name if p.name == "recipe.yaml" else f"{p.parent.name}/{p.name}" for p in shipped.glob("*/*.yaml")]
    raise ConfigurationError(
        f"--recipe {name}: no such file, no folder with a recipe.yaml, and no recipe of that name is shipped"
        f"{nearest(name, known) or '; openrlhf recipes list shows those that are'}"
    )


def load_recipe(path: Path) -> tuple[Recipe, Origins]:
    """Read and check a recipe.

    Raises:
        ConfigurationError: All problems of the file at once.
    """
    origins = Origins()
    data = _read(path, origins, [])
    try:
        return Recipe.model_validate(data), origins
    except pydantic.ValidationError as error:
        wrong = [e for e in error.errors() if e["type"] != "literal_error" or not isinstance(e["input"], dict)]
        raise ConfigurationError(dict.fromkeys(_explain(e, origins) for e in wrong)) from None


YAML_HINTS = {
    "mapping values are not allowed here": "indent keys of one mapping alike, and quote a text that contains a colon",
    "expected <block end>": "this line is indented differently from those that it belongs to",
    "'\\t' that cannot start any token": "indent with spaces, not tabs",
    "cannot start any token": "quote a text that begins with this character",
    "unexpected end of stream": "a quotation mark is never closed",
    "<stream end>": "a bracket is never closed",
}
"""What the parser's words mean in a recipe, by a part of them."""


def yaml_hint(problem: str) -> str:
    """What to do about a fault that the parser of YAML has found."""
    return next((f"; {hint}" for part, hint in YAML_HINTS.items() if part in problem), "")


def _read(path: Path, origins: Origins, chain: list[Path]) -> dict[str, Any]:
    if path in chain:
        raise ConfigurationError(f"{path}: extends itself: {' -> '.join(str(p) for p in [*chain, path])}")
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        origins.lines[()] = (path, 1)
        if not isinstance(node, yaml.MappingNode):
            got = "nothing" if node is None else "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
            raise ConfigurationError(f"{path}: a recipe is a mapping of keys, as in `name: mine`, got {got}")
        own: dict[str, Any] = build(node, path, (), origins, yaml.SafeLoader(""))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: an alias refers to itself, or values are nested too deep") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigurationError(f"{path}:{line}: not YAML: {error.problem}{yaml_hint(error.problem or '')}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{path}: not YAML that can be read: {' '.join(str(error).split())}") from None
    base_name = own.pop("extends", None)
    if base_name is None:
        return own
    mine = dict(origins.lines)
    where = f"{origins.where('extends')}: extends: {base_name}"
    if not isinstance(base_name, str) or Path(base_name).name != base_name:
        raise ConfigurationError(f"{where}: expected one file in the same folder, with its prompts; copy the recipe")
    base_path = path.parent / base_name
    if not base_path.is_file():
        raise ConfigurationError(f"{where}: no such file: {base_path}")
    base = _read(base_path, origins, [*chain, path])
    origins.lines.update(mine)
    merged: dict[str, Any] = _merge(base, own)
    return merged


def build(node: yaml.Node, path: Path, key: tuple[str, ...], origins: Origins, loader: yaml.SafeLoader) -> Any:
    if len(origins.lines) > LARGEST:
        raise ConfigurationError(f"{path}: has more than {LARGEST} values, counting what its aliases (`*name`) stand for")
    if isinstance(node, yaml.MappingNode):
        built: dict[str, Any] = {}
        for name_node, value_node in node.value:
            if name_node.tag == "tag:yaml.org,2002:merge":
                line = name_node.start_mark.line + 1
                raise ConfigurationError(f"{path}:{line}: `<<` is not read; repeat the keys, or use `extends: FILE`")
            if not isinstance(name_node, yaml.ScalarNode):
                raise ConfigurationError(
                    f"{path}:{name_node.start_mark.line + 1}: a key is a word, not a list or a mapping"
                )
            name = str(loader.construct_object(name_node))
            here = (*key, name)
            if name in built:
                raise ConfigurationError(f"{path}:{name_node.start_mark.line + 1}: key {name!r} is given twice")
            origins.lines[here] = (path, name_node.start_mark.line + 1)
            built[name] = build(value_node, path, here, origins, loader)
        return built
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            origins.lines[(*key, str(number))] = (path, item.start_mark.line + 1)
        return [build(item, path, (*key, str(n)), origins, loader) for n, item in enumerate(node.value)]
    value = loader.construct_object(node)
    if (
        isinstance(value, str) and isinstance(node, yaml.ScalarNode) and node.style is None
    ):  # YAML 1.1 reads 1e-6 as a string
        try:
            return float(value) if any(c in value for c in "eE") and value[0] in "+-.0123456789" else value
        except ValueError:
            return value
    return value


def _merge(base: Any, own: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(own, Mapping):
        merged = {**base, **{k: _merge(base[k], v) if k in base else v for k, v in own.items()}}
        return {k: v for k, v in merged.items() if k not in own or own[k] is not None or k not in base}
    return own


def _explain(error: Any, origins: Origins) -> str:
    location = [str(p) for p in error["loc"] if p not in ("literal['separate','shared']", "dict[str,str]")]
    if location == ["mapping"] and not isinstance(word := error["input"], dict):
        hint = nearest(word, ["separate", "shared"]) if isinstance(word, str) else ""
        wanted = "separate, shared, or one `role: policy` per role"
        return f"{origins.where('mapping')}: mapping: {word!r}: expected {wanted}{hint}"
    where = origins.where(*location)
    key = ".".join(location)
    if location[:2] == ["tools", "mcp"] and location[3:4] in (["env"], ["headers"]):  # what was given may be a secret
        wanted = "a text in quotes" if len(location) > 4 else f"a mapping such as {_example(location)}"
        return f"{where}: {key}: expected {wanted}"
    if error["type"] == "extra_forbidden":
        model = _model_at(location[:-1])
        known = list(model.model_fields) if model else []
        return f"{where}: unknown key {key!r}{nearest(location[-1], known)}"
    if error["type"] == "missing":
        return f"{where}: key {key!r} is missing"
    if error["type"] in ("dict_type", "model_type"):
        return f"{where}: {key}: expected a mapping such as {_example(location)}, got {error['input']!r}"
    if error["type"] == "flag_value":
        return f"{where}: {key}: {_flag_problem(location[-1], error['input'])}"
    if error["input"] is None:
        return f"{where}: {key}: has no value; give one, or remove the key"
    return f"{where}: {key}: expected {_expected(error, key)}, got {error['input']!r}"


def _expected(error: Any, key: str) -> str:
    """What a key takes, in words."""
    bounds = error.get("ctx", {})
    match error["type"]:
        case "list_type":
            return f"a list, as in `[{error['input']}]`"
        case "string_type" if key.startswith("mapping"):
            return "the name of a policy"
        case "string_type":
            return "a text"
        case "string_pattern_mismatch":
            return "lower-case letters, digits and underscores, a letter first"
        case "int_type" | "int_parsing" | "int_from_float":
            return "a whole number"
        case "float_type" | "float_parsing":
            return "a number"
        case "bool_type" | "bool_parsing":
            return "true or false"
        case "greater_than_equal":
            return f"at least {bounds['ge']:g}"
        case "greater_than":
            return f"a number above {bounds['gt']:g}"
        case "too_short":
            return "at least one"
        case "literal_error":
            return str(bounds["expected"])
    return str(error["msg"]).removeprefix("expected ")


def _flag_problem(name: str, value: Any) -> str:
    if value is None:
        return (
            "has no value; true is a switch that is on, and null only takes back a flag of the recipe that this one extends"
        )
    return f"flags are written flat: {', '.join(_flat_names(name, value)) or name + '.NAME: VALUE'}"


def _flat_names(name: str, value: Any) -> list[str]:
    """Names of the flags that a nested mapping means."""
    return [n for k, v in value.items() for n in _flat_names(f"{name}.{k}", v)] if isinstance(value, Mapping) else [name]


def _example(location: list[str]) -> str:
    """What a mapping at a location of the recipe looks like."""
    match location:
        case ["roles"]:
            return "{judge: {prompt: prompts/judge.md}}"
        case ["roles", _]:
            return "{prompt: prompts/judge.md}"
        case ["policies"]:
            return "{judge: {trainable: false}}"
        case ["policies", _]:
            return "{trainable: false}"
        case ["tools"]:
            return "{python: {seconds: 5}}"
        case ["tools", "python"]:
            return "{seconds: 5}"
        case ["tools", "sql"]:
            return "{database: shop.db}"
        case ["tools", "sandbox"]:
            return "{isolation: auto}"
        case ["tools", "mcp"]:
            return "{time: {command: [mcp-server-time]}}"
        case ["tools", "mcp", _]:
            return "{command: [mcp-server-time]}"
        case ["tools", "mcp", _, "env" | "headers"]:
            return "{API_KEY: $API_KEY}"
        case ["limits"]:
            return "{task_seconds: 600}"
        case ["coach"]:
            return "{members: {strict: {rubric: strict.py}, large: {model: qwen3-32b}}}"
        case ["coach", "members"]:
            return "{strict: {rubric: strict.py}, large: {model: qwen3-32b}}"
        case ["coach", "members", _]:
            return "{rubric: strict.py}"
        case ["coach", "stages", _]:
            return "{until_outcome: 0.5, weights: {runs: 3}}"
        case ["coach", "stages", _, "weights"]:
            return "{runs: 3}"
        case ["coach", "members", _, "flags"]:
            return "{base_url: http://127.0.0.1:8000/v1}"
        case ["warm_start"]:
            return "{demonstrations: demonstrations.py, steps: 100}"
    return "{actor.adam.lr: 1.0e-6}"


def _model_at(location: list[str]) -> type[Model] | None:
    """The model that describes the mapping at a location of the recipe."""
    match location:
        case []:
            return Recipe
        case ["roles", _]:
            return RoleConfig
        case ["policies", _]:
            return PolicyConfig
        case ["tools"]:
            return ToolsConfig
        case ["tools", "python"]:
            return PythonToolConfig
        case ["tools", "sql"]:
            return SqlToolConfig
        case ["tools", "sandbox"]:
            return SandboxConfig
        case ["tools", "mcp", _]:
            return MCPServerConfig
        case ["limits"]:
            return LimitsConfig
        case ["coach"]:
            return CoachConfig
        case ["coach", "members", _]:
            return CoachMemberConfig
        case ["coach", "stages", _]:
            return CoachStageConfig
        case ["warm_start"]:
            return WarmStartConfig
    return None
