"""The parts of docs/ that are made from the code: `python tests/pages.py` writes them,
tests/test_docs.py compares them.

Each part stands under a heading of its page: the first table there, or (in hooks.md) everything
from the first hook on.
"""

import argparse
import ast
import inspect
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import escapes

from benchmarks.arena import show
from marl_plugins.builtin import groups, reinforce_pp
from marl_plugins.builtin.agents.section import AgentConfig
from marl_plugins.builtin.cases.section import CasesConfig
from marl_plugins.builtin.graph import grammar
from marl_plugins.builtin.tools.mcp.section import MCPServerConfig
from marl_plugins.builtin.tools.python import PythonToolConfig
from marl_plugins.builtin.tools.search.section import SearchToolConfig
from marl_plugins.builtin.tools.sql.section import SqlToolConfig
from marl_plugins.coach.section import CoachConfig, CoachMemberConfig, CoachStageConfig
from marl_plugins.commands import evaluate
from marl_plugins.core import hookspecs
from marl_plugins.core.demonstrations import WarmStartConfig
from marl_plugins.core.estimators import scope_flags
from marl_plugins.core.loading import load
from marl_plugins.core.plugin_names import BUILTINS, SHIPPED
from marl_plugins.core.recipe import schema as config
from marl_plugins.core.section import Model
from marl_plugins.engine.hosts import flags, old_flags
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.estimate import training_memory
from marl_plugins.engine.plan.flags import own_parser
from marl_plugins.environments.section import EnvConfig, OpenEnvServer
from marl_plugins.rewards.section import RewardsConfig, RewardTerm
from marl_plugins.sandbox.section import SandboxConfig

DOCS = Path(__file__).resolve().parent.parent / "docs"

RECIPE = {
    "The recipe": config.Recipe,
    "`roles: NAME:`": config.RoleConfig,
    "`policies: NAME:`": config.PolicyConfig,
    "`limits:`": config.LimitsConfig,
    "`agent:`": AgentConfig,
    "`env:`": EnvConfig,
    "`env: openenv:`": OpenEnvServer,
    "`tools: python:`": PythonToolConfig,
    "`tools: sql:`": SqlToolConfig,
    "`tools: search:`": SearchToolConfig,
    "`tools: sandbox:`": SandboxConfig,
    "`tools: mcp: NAME:`": MCPServerConfig,
    "`warm_start:`": WarmStartConfig,
    "`rewards:`": RewardsConfig,
    "`rewards: terms:`": RewardTerm,
    "`cases:`": CasesConfig,
}
"""Headings of recipes.md."""
COACH = {
    "`coach:`": CoachConfig,
    "`coach: members: NAME:`": CoachMemberConfig,
    "`coach: stages:`": CoachStageConfig,
}
"""Headings of coach.md."""
GRAPH = {
    "A graph": grammar.GraphConfig,
    "A file": grammar.GraphFile,
    "Every node": grammar.NodeConfig,
    "`role:`": grammar.RoleNode,
    "`read:`": grammar.ReadConfig,
    "`tool:`": grammar.ToolSpec,
    "`let:`": grammar.LetSpec,
    "`map:`": grammar.MapSpec,
    "In a `map:`": grammar.MapConfig,
    "`loop:`": grammar.LoopSpec,
    "In a `loop:`": grammar.LoopConfig,
    "`graph:`": grammar.GraphNode,
    "`fail:`": grammar.FailSpec,
    "`retry:`": grammar.RetryConfig,
    "`choose:`": grammar.ChooseConfig,
}
"""Headings of graphs.md."""
SAYS_ITSELF = {
    "Recipe.name": "Lower-case letters, digits and underscores, a letter first.",
    "Recipe.description": "One line, for `openrlhf recipes list`.",
    "Recipe.roles": "Each role by its name. A coach scores the last one with the label.",
    "Recipe.limits": "Bounds of a run.",
    "PythonToolConfig.seconds": "Wall time; a program that is not done by then is stopped.",
    "WarmStartConfig.steps": "Optimiser steps.",
    "WarmStartConfig.learning_rate": "At its height.",
    "WarmStartConfig.seed": "Of the order and of the demonstrations.",
}
"""Keys that their models have no text for."""
KINDS = {
    "dict[str, Any]": "name to any value",
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "`true` or `false`",
    "date": "day",
    "list[str]": "texts",
    "tuple[float, float]": "two numbers",
    "Texts": "text, or texts",
    "dict[str, str]": "name to text",
    "dict[str, PolicyNames]": "role to policy, or to a list of policies",
    "dict[str, FlagValue]": "flag to value",
    "dict[str, Factor]": "name to number",
    "Value": "expression",
    "dict[str, Value]": "name to expression",
    "dict[str, Number]": "name to number",
    "dict[str, dict[str, Any]]": "by name",
}


def flags_table() -> str:
    """What becomes of upstream's flags, as Markdown; those with the same note are one row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, flag in sorted(flags.FLAGS.items()):
        only = f"only with estimator {', '.join(flag.estimators)}" if flag.estimators else ""
        releases = f"openrlhf{flag.releases}" if flag.releases else ""
        note = "; ".join(filter(None, [flag.note, only, releases]))
        rows.setdefault((flag.status, note), []).append(f"`--{name}`")
    lines = ["| flags | here | note |", "|---|---|---|"]
    lines += [
        f"| {', '.join(names)} | {status} | {note} |" for (status, note), names in rows.items()
    ]
    return "\n".join(lines)


def old_flags_table() -> str:
    """The names of old flags that are not only spelled anew, as Markdown."""
    old = old_flags.old_flags()
    lines = ["| 0.10.1 and older | now | note |", "|---|---|---|"]
    lines += [
        f"| `--{name}` | `--{old.renamed[name]}` | {why} |"
        for name, why in sorted(old.notes.items())
    ]
    lines += [f"| `--{name}` |  | {why} |" for name, why in sorted(old.gone.items())]
    return "\n".join(lines)


def recipe_table(model: type[Model]) -> str:
    """A model's keys as Markdown."""
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for field, (annotation, text) in _fields(model).items():
        info = model.model_fields[field]
        name = info.alias or field
        bounds = [f"≥ {m.ge}" for m in info.metadata if hasattr(m, "ge")]
        bounds += [f"> {m.gt}" for m in info.metadata if hasattr(m, "gt")]
        default = "required" if info.is_required() else _default(info.default)
        meaning = text or SAYS_ITSELF[f"{model.__name__}.{field}"]
        kind = _kind(annotation)
        lines.append(f"| `{name}` | {' '.join([kind, *bounds])} | {default} | {meaning} |")
    return "\n".join(lines)


def _fields(model: type[Model]) -> dict[str, tuple[str, str]]:
    """Annotation and docstring of each key, from the source."""
    (body,) = (
        node.body
        for node in ast.parse(textwrap.dedent(inspect.getsource(model))).body
        if isinstance(node, ast.ClassDef)
    )
    found: dict[str, tuple[str, str]] = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and "ClassVar" not in ast.unparse(statement.annotation)
        ):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            found[statement.target.id] = (ast.unparse(statement.annotation), text)
    return found


def _kind(annotation: str) -> str:
    """What a value is, in words."""
    kinds = []
    for part in annotation.split(" | "):
        if "Literal[" in part:
            kinds += [f"`{word}`" for word in re.findall(r"'(.*?)'", part)]
        elif part in KINDS:
            kinds.append(KINDS[part])
        elif part != "None":  # a model of its own
            name = re.sub(r"(?:dict\[str, |list\[)(.*)\]", r"\1", part)
            headings = {
                model.__name__: heading for heading, model in (RECIPE | COACH | GRAPH).items()
            }
            kinds.append(f"[keys](#{anchor(headings[name])})")
    return ", ".join(kinds)


def anchor(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")


def _default(value: object) -> str:
    if isinstance(value, Model) or value in (None, "", [], {}, grammar.Unset):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def own_flags() -> Iterator[tuple[str, argparse.Action]]:
    """This project's own flags of `openrlhf train` and `openrlhf eval`, and whose each is."""
    parsers = [("`train`", own_parser()), ("`eval`", evaluate.parser())]
    for name in dict.fromkeys([*SHIPPED, *BUILTINS]):
        parser = argparse.ArgumentParser(add_help=False)
        if hasattr(module := load(name), "marl_options"):
            module.marl_options(parser)
        parsers.append((f"`{name}`", parser))
    for whose, parser in parsers:
        for action in parser._actions:
            yield whose, action


def own_flags_table() -> str:
    """This project's own flags as Markdown; those that differ in their plugin alone are one row."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for whose, action in own_flags():
        choices = ", ".join(f"`{c}`" for c in action.choices or ())
        value = f" {action.metavar}" if isinstance(action.metavar, str) and not choices else ""
        what = "; ".join(filter(None, [str(action.help or "").replace("|", "\\|"), choices]))
        default = (
            ""
            if any(action.default is nothing for nothing in (None, False)) or action.default == []
            else f"`{action.default}`"
        )
        flag = f"`{action.option_strings[0]}{value}`"
        rows.setdefault((default, what), {})[flag] = whose.replace("marl_plugins.", "")
    lines = ["| flag | of | default | what |", "|---|---|---|---|"]
    for (default, what), flags_of_row in rows.items():
        owners = ", ".join(dict.fromkeys(flags_of_row.values()))
        lines.append(f"| {', '.join(flags_of_row)} | {owners} | {default} | {what} |")
    return "\n".join(lines)


def hooks() -> str:
    """Every hook with its signature and its text."""
    parts = []
    for name, function in vars(hookspecs).items():
        if name.startswith("marl_"):
            parts += [
                f"## `{name}{inspect.signature(function)}`".replace("'", ""),
                inspect.cleandoc(function.__doc__),
            ]
    return "\n\n".join(parts) + "\n"


SIZES = (0.5, 0.6, 1.5, 1.7, 3, 4, 7, 8, 14, 32, 70)
"""Billions of parameters of models that are commonly trained."""
ROOM = 0.8
"""Share of a device that training may take by the estimate, which leaves activations and logits
out."""
LAYOUTS = {
    "1 for each policy": [],
    "1 for each policy, Adam in the host's memory": ["--ds.adam_offload"],
    "2 for each policy": [
        "--actor.num_gpus_per_node",
        "2",
        "--vllm.num_engines",
        "2",
        "--ds.zero_stage",
        "3",
    ],
    "2 for each policy, Adam in the host's memory": [
        *(
            "--actor.num_gpus_per_node",
            "2",
            "--vllm.num_engines",
            "2",
            "--ds.zero_stage",
            "3",
            "--ds.adam_offload",
        )
    ],
    "8 for one policy": [
        *(
            "--mapping",
            "shared",
            "--actor.num_gpus_per_node",
            "8",
            "--vllm.num_engines",
            "8",
            "--ds.zero_stage",
            "3",
        )
    ],
}
"""Devices, and the flags of MathChat."""


def what_fits() -> str:
    """The largest models that fit, by the plan's own estimate."""
    lines = ["| devices | flags | of 24 GB | of 80 GB | of 141 GB |", "|---|---|---|---|---|"]
    before = os.environ.get("MARL_PLUGINS_DEVICE")
    os.environ["MARL_PLUGINS_DEVICE"] = "cuda"
    try:
        for devices, flags in LAYOUTS.items():
            args = next(iter(build_plan(["--recipe", "mathchat", *flags]).run.policy_args.values()))
            fit = [
                max((s for s in SIZES if _fits(args, s * 1e9, memory * 1e9)), default=0)
                for memory in (24, 80, 141)
            ]
            shown = " | ".join(f"{size:g} B" if size else "none" for size in fit)
            lines.append(f"| {devices} | {' '.join(flags)} | {shown} |")
    finally:
        os.environ.pop("MARL_PLUGINS_DEVICE")
        if before is not None:
            os.environ["MARL_PLUGINS_DEVICE"] = before
    return "\n".join(lines)


def _fits(args: SimpleNamespace, size: float, memory: float) -> bool:
    return sum(training_memory(args, size)[0].values()) <= ROOM * memory


def estimators_table() -> str:
    """This project's flags that some estimators alone read, as Markdown; flags.md has upstream's."""
    readers = {"reinforce_pp.normalise": ("reinforce",), "groups.by": tuple(groups.ESTIMATORS)}
    of_plugins = {
        "reinforce_pp": reinforce_pp.ESTIMATORS,
        "groups": tuple(groups.ESTIMATORS),
        "gae": ("gae",),
    }
    readers |= {
        name: estimators
        for plugin, estimators in of_plugins.items()
        for name in scope_flags(plugin)
    }
    lines = ["| flag | estimators |", "|---|---|"]
    for estimators in sorted(set(readers.values())):
        names = ", ".join(f"`--{name}`" for name in sorted(readers) if readers[name] == estimators)
        lines.append(f"| {names} | {', '.join(f'`{name}`' for name in estimators)} |")
    return "\n".join(lines)


def table_under(text: str, heading: str) -> tuple[int, int]:
    """Where the first table after a heading begins and ends."""
    start = re.search(rf"^#+ {re.escape(heading)}\n", text, re.MULTILINE)
    assert start, f"no heading {heading!r}"
    table = re.compile(r"(^\|.*\n)+", re.MULTILINE).search(text, start.end())
    assert table, f"no table under {heading!r}"
    return table.start(), table.end()


TABLES = {
    **{
        ("recipes.md", heading): lambda model=model: recipe_table(model)
        for heading, model in RECIPE.items()
    },
    **{
        ("coach.md", heading): lambda model=model: recipe_table(model)
        for heading, model in COACH.items()
    },
    **{
        ("graphs.md", heading): lambda model=model: recipe_table(model)
        for heading, model in GRAPH.items()
    },
    ("sandbox.md", "What was tried"): escapes.table,
    ("flags.md", "This project's own"): own_flags_table,
    ("flags.md", "Upstream's, and what becomes of each"): flags_table,
    ("from_openrlhf.md", "Old flag names"): old_flags_table,
    ("gpu.md", "What fits"): what_fits,
    ("no_effect.md", "By estimator"): estimators_table,
    ("credit.md", "All ways"): lambda: show.overview(show.recorded()),
    ("credit.md", "What predicts learning"): lambda: show.predictions(show.recorded()),
    ("credit.md", "The games"): lambda: show.the_games(show.recorded()),
}
"""The tables that are made from the code, by page and heading."""


def main() -> None:
    for (page, heading), make in TABLES.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        start, end = table_under(text, heading)
        (DOCS / page).write_text(text[:start] + make() + "\n" + text[end:], encoding="utf-8")
    text = (DOCS / "hooks.md").read_text(encoding="utf-8")
    (DOCS / "hooks.md").write_text(text[: text.index("## `marl_")] + hooks(), encoding="utf-8")


if __name__ == "__main__":
    main()
