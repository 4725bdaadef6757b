"""The requirements of a recipe's run: a valid plan, extras, GPUs."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, check_extra, error, note, ok
from marl_plugins.core.recipe.tiny import is_tiny

if TYPE_CHECKING:
    from marl_plugins.commands.doctor.gpus import Cards
    from marl_plugins.core.run import Run

EXTRAS = {
    "math": (("math_verify",), "grading formulas"),
    "plots": (("matplotlib",), "curves.png"),
    "tables": (("pandas", "pyarrow", "scipy", "sklearn"), "the recipe dsbench, and tables of rows"),
}
"""Modules of this package's extras that are no plugin's, and their purpose; for TensorBoard see
services.check_trackers."""

CHANGE_IT = (
    "change it in the recipe (openrlhf docs recipes) or on the command line (openrlhf docs flags)"
)
"""What to do about a problem of the plan that does not say so itself."""

BEHIND = dict.fromkeys(("marl_plugins.grading.right", "marl_plugins.grading.same"), "math_verify")
"""Modules that functions of this package import when they are called, by the function."""


def try_plan(words: Sequence[str]) -> tuple[Run | None, list[Finding]]:
    """Returns the checked run for these flags of `openrlhf train`; if they are wrong, None and
    every problem."""
    from marl_plugins.engine.hosts import upstream_cli
    from marl_plugins.engine.plan.build import build_plan

    try:
        upstream_cli.upstream_root()
    except ConfigurationError:
        return None, []  # reported by upstream.check_upstream
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a user's code prints is no finding
            run = build_plan(words).run
    except ConfigurationError as wrong:
        return None, [
            error("plan", str(replace(problem, fix="")), problem.fix or CHANGE_IT)
            for problem in wrong.problems
        ]
    roles = ", ".join(run.recipe.roles)
    return run, [
        ok(
            "plan",
            f"{run.recipe.name}: {len(run.recipe.roles)} roles ({roles}) on {len(run.policies)} "
            "policies",
        )
    ]


def uses_hub_models(run: Run | None) -> bool:
    """Returns whether a policy's model comes from the hub."""
    return run is not None and any(
        not is_tiny(p.model) and not Path(p.model).is_dir() for p in run.policies
    )


def check_devices(run: Run, cards: Cards) -> list[Finding]:
    """Returns the GPUs that the run's layout requires, against those of this machine."""
    from marl_plugins.engine.plan.devices import needed_devices

    needed = needed_devices(run)
    total, parts = (
        sum(needed.values()),
        ", ".join(f"{name} {count}" for name, count in needed.items()),
    )
    if run.device == "cpu":
        return [ok("layout", f"{total} logical GPUs ({parts})")]
    if os.environ.get("RAY_ADDRESS"):
        return [note("layout", f"needs {total} GPUs ({parts}) on the cluster at RAY_ADDRESS")]
    if not cards.cards:
        return [note("layout", f"needs {total} GPUs ({parts}); the number available is unknown")]
    if cards.visible < total:
        fix = (
            "--train.colocate_all, --mapping shared, fewer --vllm.num_engines or "
            "--actor.num_gpus_per_node"
        )
        return [
            error("layout", f"needs {total} GPUs ({parts}), {cards.visible} are available", fix)
        ]
    return [ok("layout", f"needs {total} GPUs ({parts}), {cards.visible} are available")]


def check_extras(run: Run | None) -> list[Finding]:
    """Returns the installed extras that are no plugin's, and modules that the recipe's own files
    import; a missing one is an error if they import it."""
    imported = imported_modules(run) if run is not None else {}
    findings = [
        check_extra(
            extra,
            modules,
            what,
            any(name in imported for name in modules if find_spec(name) is None),
        )
        for extra, (modules, what) in EXTRAS.items()
    ]
    known = {name for modules, _ in EXTRAS.values() for name in modules}
    for name, file in imported.items():
        siblings = file.parent / f"{name}.py", file.parent / name
        if (
            name not in known
            and find_spec(name) is None
            and not any(path.exists() for path in siblings)
        ):
            fix = f"pip install {name}, or its distribution if that has another name"
            findings.append(error("extras", f"{file} imports {name}, which is not installed", fix))
    return findings


def imported_modules(run: Run) -> dict[str, Path]:
    """Returns the top-level modules that the recipe's own files require, also inside functions,
    each with a file that imports it."""
    recipe = run.recipe
    names = [
        recipe.workflow,
        recipe.grader,
        recipe.tasks,
        *(p for p in recipe.plugins if p.endswith(".py")),
    ]
    names += [file for section in run.sections.values() for file in section.modules()]
    modules: dict[str, Path] = {}
    for file in (run.folder / name for name in names if name and name.endswith(".py")):
        for node in _required_nodes(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0]: file for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules[node.module.partition(".")[0]] = file
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                modules |= {BEHIND[name]: file for name in names if name in BEHIND}
    return modules


def _required_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A tree's nodes, except optional imports (`except ImportError`) and those for type
    checkers."""
    yield node
    match node:
        case ast.Try(handlers=[_, *_]) if any(
            "ImportError" in ast.unparse(h) for h in node.handlers
        ):
            within: list[ast.AST] = [*node.handlers, *node.orelse, *node.finalbody]
        case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
            within = list(node.orelse)
        case _:
            within = list(ast.iter_child_nodes(node))
    for child in within:
        yield from _required_nodes(child)
