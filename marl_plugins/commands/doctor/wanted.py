"""What a recipe's run wants of the machine: its plan, extras, GPUs."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins import coach
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, fine, red, red_if, remark
from marl_plugins.core.recipe import PythonToolConfig
from marl_plugins.core.tiny import is_tiny

if TYPE_CHECKING:
    from marl_plugins.commands.doctor.gpus import Cards
    from marl_plugins.run import Run

EXTRAS = {
    "coach": (coach.NEEDED, "a coach at an endpoint"),
    "math": (("math_verify",), "grading formulas"),
    "plots": (("matplotlib",), "curves.png"),
}
"""Modules of this package's extras, and what they are for; TensorBoard's is among the trackers."""


def plan(words: Sequence[str]) -> tuple[Run | None, list[Finding]]:
    """The checked run of these flags of `openrlhf train`; without one, all that is wrong with them."""
    from marl_plugins.hosts import upstream_cli
    from marl_plugins.plan.build import build_run

    try:
        upstream_cli.upstream_root()
    except ConfigurationError:
        return None, []  # said where upstream is looked at
    try:
        run, _ = build_run(words)
    except ConfigurationError as error:
        return None, [problem_line(problem) for problem in error.problems]
    roles = ", ".join(run.recipe.roles)
    return run, [
        fine("plan", f"{run.recipe.name}: {len(run.recipe.roles)} roles ({roles}) on {len(run.policies)} policies")
    ]


def problem_line(problem: str) -> Finding:
    """A problem of the plan as a red line; after the last semicolon a problem says its cure."""
    found, _, cure = problem.rpartition("; ")
    return red(
        "plan",
        found or cure,
        cure if found else "change it in the recipe (docs/recipes.md) or on the command line (docs/flags.md)",
    )


def hub_models(run: Run | None) -> bool:
    """Whether a policy's model comes from the hub."""
    return run is not None and any(not is_tiny(p.model) and not Path(p.model).is_dir() for p in run.policies)


def python_tool(run: Run | None) -> PythonToolConfig | None:
    """The limits of the `python` tool, where a role uses it."""
    used = run is not None and any("python" in role.tools for role in run.recipe.roles.values())
    return run.recipe.tools.python if run is not None and used else None


def devices(run: Run, cards: Cards) -> list[Finding]:
    """The GPUs of the run's layout, and those that are there."""
    from marl_plugins.run import needed_devices

    needed = needed_devices(run)
    total, parts = sum(needed.values()), ", ".join(f"{name} {count}" for name, count in needed.items())
    if run.device == "cpu":
        return [fine("layout", f"{total} logical GPUs ({parts})")]
    if os.environ.get("RAY_ADDRESS"):
        return [remark("layout", f"needs {total} GPUs ({parts}) of the cluster at RAY_ADDRESS")]
    if not cards.cards:
        return [remark("layout", f"needs {total} GPUs ({parts}); how many are here is not known")]
    if cards.visible < total:
        cure = "--train.colocate_all, --mapping shared, fewer --vllm.num_engines or --actor.num_gpus_per_node"
        return [red("layout", f"needs {total} GPUs ({parts}), {cards.visible} are here", cure)]
    return [fine("layout", f"needs {total} GPUs ({parts}), {cards.visible} are here")]


def extras(run: Run | None, endpoint: bool) -> list[Finding]:
    """Installed extras; red where the recipe's own files or the coach's flags need one that is not.

    Args:
        endpoint: Whether the flags name a model at an endpoint.
    """
    imported = imports(run) if run is not None else {}
    findings, have = [], []
    for extra, (modules, what) in EXTRAS.items():
        missing = [name for name in modules if find_spec(name) is None]
        if not missing:
            have.append(extra)
            continue
        used = any(name in imported for name in missing) or (extra == "coach" and endpoint)
        cure = f"pip install 'openrlhf-marl[{extra}]'"
        findings.append(red_if(used, "extras", f"{', '.join(missing)} not installed, for {what}", cure))
    known = {name for modules, _ in EXTRAS.values() for name in modules}
    for name, file in imported.items():
        beside = file.parent / f"{name}.py", file.parent / name
        if name not in known and find_spec(name) is None and not any(path.exists() for path in beside):
            cure = f"pip install {name}, or what it is called there"
            findings.append(red("extras", f"{file} imports {name}, which is not installed", cure))
    return [fine("extras", ", ".join(have)), *findings] if have else findings


def imports(run: Run) -> dict[str, Path]:
    """Top-level modules that the recipe's own files cannot do without, also inside functions, and one file that says so."""
    recipe = run.recipe
    demonstrations = recipe.warm_start.demonstrations if recipe.warm_start else None
    names = [
        recipe.workflow,
        recipe.grader,
        recipe.tasks,
        demonstrations,
        *(p for p in recipe.plugins if p.endswith(".py")),
    ]
    found: dict[str, Path] = {}
    for file in (run.folder / name for name in names if name):
        for node in _always(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0]: file for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found[node.module.partition(".")[0]] = file
    return found


def _always(node: ast.AST) -> Iterator[ast.AST]:
    """A tree's nodes without what is only tried (`except ImportError`), or read by type checkers."""
    yield node
    match node:
        case ast.Try(handlers=[_, *_]) if any("ImportError" in ast.unparse(h) for h in node.handlers):
            within: list[ast.AST] = [*node.handlers, *node.orelse, *node.finalbody]
        case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
            within = list(node.orelse)
        case _:
            within = list(ast.iter_child_nodes(node))
    for child in within:
        yield from _always(child)
