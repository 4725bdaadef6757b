"""Upstream's own command line, taken from its source without importing it.

`openrlhf/cli/train_ppo_ray.py` builds its parser and validates under `if __name__ == "__main__"`
(lines 197-771 of 0.11.2), where it cannot be imported. The statements up to `parse_args` are
compiled and executed here as the parser, those after it up to `train(args)` as the validation. Only
Python's own modules are imported, so `--help` takes a fraction of a second.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import importlib.metadata
import importlib.util
import io
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, cast

from marl_plugins.core import command
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.texts import syntax_tree

CLI = "cli/train_ppo_ray.py"
SKIPPED = (
    "hierarchize",  # already done
    # dispatch lists are padded to the ranks here, so fewer batches are valid
    "The number of sample batches must be",
)
"""Text that marks the validation's statements that are not executed."""


@lru_cache
def upstream_root() -> Path:
    """Returns the folder of the installed `openrlhf` package.

    Raises:
        ConfigurationError: It is not installed.
    """
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        fix = (
            "on a machine with CUDA: pip install 'openrlhf[vllm]==0.11.2', without: make install "
            "in a checkout of openrlhf-marl"
        )
        raise ConfigurationError(
            Problem(
                "upstream.missing", got="OpenRLHF is not installed in this environment", fix=fix
            )
        )
    return Path(spec.submodule_search_locations[0])


@lru_cache
def upstream_version() -> str:
    """Returns the version of the installed upstream distribution, or `unknown`."""
    try:
        return importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@lru_cache
def _main_block(path: Path) -> tuple[CodeType, list[tuple[int, CodeType]]]:
    """The `__main__` block up to `args = parser.parse_args()`, and each statement from there to
    `train(args)` with its line.

    Our patch 0001 moves the same statements into `build_parser`, which ends with a `return`, and
    `main`.
    """
    tree = syntax_tree(path)
    blocks = {node.name: node.body for node in tree.body if isinstance(node, ast.FunctionDef)}
    mains = [
        n.body
        for n in tree.body
        if isinstance(n, ast.If) and ast.unparse(n.test) == "__name__ == '__main__'"
    ]
    if not mains:
        raise _unsupported(path, "no `if __name__ == '__main__'` block")
    patched = {"build_parser", "main"} <= blocks.keys()
    body = [*blocks["build_parser"][:-1], *blocks["main"]] if patched else mains[0]
    sources = list(map(ast.unparse, body))
    try:
        parse = sources.index(
            "args = build_parser().parse_args(argv)" if patched else "args = parser.parse_args()"
        )
        train = sources.index("train(args)")
    except ValueError:
        raise _unsupported(path, "parses its arguments in an unknown way") from None
    after = [
        (statement.lineno, _compiled([statement], path))
        for statement, source in zip(
            body[parse + 1 : train], sources[parse + 1 : train], strict=True
        )
        if not isinstance(statement, ast.ImportFrom) and not any(word in source for word in SKIPPED)
    ]
    return _compiled(body[:parse], path), after


def _compiled(statements: list[ast.stmt], path: Path) -> CodeType:
    return compile(ast.Module(statements, type_ignores=[]), str(path), "exec")


def _execute(code: CodeType, namespace: dict[str, Any]) -> dict[str, Any]:
    namespace["__builtins__"] = {**vars(builtins), "__import__": _import_standard}
    exec(code, namespace)
    return namespace


def _import_standard(name: str, *rest: Any) -> Any:
    """`import` for upstream's statements: only Python's own modules, because others take seconds or
    are another release's."""
    if name.partition(".")[0] not in sys.stdlib_module_names:
        raise ImportError(f"{name} is imported, which requires a run")
    return __import__(name, *rest)


def _cannot_run(path: Path, error: Exception, what: str) -> ConfigurationError:
    """The error for what upstream's own statements raised; those of an unknown release may raise
    anything."""
    return _unsupported(path, f"{what} without importing it ({type(error).__name__}: {error})")


def _unsupported(path: Path, got: str) -> ConfigurationError:
    return ConfigurationError(
        Problem(
            "upstream.unsupported",
            at(file=path),
            got,
            fix="this OpenRLHF release is not supported: openrlhf compat",
        )
    )


class UpstreamParser(command.Parser):
    """A parser of upstream's flags and of ours."""

    of_upstream: frozenset[str] = frozenset()
    """Names of upstream's own flags; plugins add theirs later."""


def build_parser(root: Path) -> UpstreamParser:
    """Returns upstream's own parser, with all its flags and defaults."""
    names = {
        "argparse": SimpleNamespace(
            **{
                **vars(argparse),
                "ArgumentParser": lambda *_, **__: UpstreamParser(
                    prog="openrlhf train", allow_abbrev=False
                ),
            }
        ),
        "os": os,
        "datetime": datetime,
    }
    code, _ = _main_block(root / CLI)
    try:
        parser: UpstreamParser = _execute(code, names)["parser"]
    except Exception as error:
        raise _cannot_run(root / CLI, error, "its parser cannot be built") from None
    # argparse's own pattern lacks exponents and takes -1e-5 for a flag.
    parser._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
    options = (option for action in parser._actions for option in action.option_strings)
    parser.of_upstream = frozenset(o[2:] for o in options if o.startswith("--") and o != "--help")
    return parser


@lru_cache
def _hierarchize(root: Path) -> Callable[[Any], SimpleNamespace]:
    path = root / "utils/config.py"
    statements = syntax_tree(path).body
    try:
        function = _execute(_compiled(statements, path), {})["hierarchize"]
    except Exception as error:
        raise _cannot_run(path, error, "its hierarchize cannot be compiled") from None
    return cast(Callable[[Any], SimpleNamespace], function)


def hierarchize(flat: argparse.Namespace, root: Path) -> SimpleNamespace:
    """Returns upstream's nested form of parsed flags: `actor.adam.lr` becomes
    `args.actor.adam.lr`."""
    return _hierarchize(root)(flat)


def nested(flags: Mapping[str, Any]) -> SimpleNamespace:
    """Returns flags by their dotted names as nested attributes, without upstream's help."""
    root = SimpleNamespace()
    for name, value in flags.items():
        *parts, last = name.split(".")
        below = root
        for part in parts:
            below.__dict__.setdefault(part, SimpleNamespace())
            below = getattr(below, part)
        setattr(below, last, value)
    return root


def validate(args: SimpleNamespace, root: Path) -> tuple[list[Problem], list[Problem]]:
    """Runs upstream's own validation on nested arguments, which also completes them in place.

    Returns:
        Problems (its failed assertions) and warnings (what it prints).
    """
    printed = io.StringIO()
    problems = []
    # The recipe's workflow replaces upstream's agent function; without one upstream requires a
    # reward model.
    args.train.agent_func_path = "recipe"
    _, statements = _main_block(root / CLI)
    namespace = {"args": args}
    with contextlib.redirect_stdout(printed):
        for (
            line,
            code,
        ) in statements:  # one at a time: a failed assertion must not hide the next one
            try:
                _execute(code, namespace)
            except AssertionError as error:
                got = f"upstream refuses the flags: {error}"
                problems.append(Problem("upstream.refused", got=got))
            except Exception as error:  # statements of an unknown release may raise anything
                got = (
                    f"upstream's validation (train_ppo_ray.py:{line}) failed: "
                    f"{type(error).__name__}: {error}"
                )
                problems.append(Problem("upstream.validation", got=got))
    args.train.agent_func_path, args.reward.remote_url = None, None
    lines = [line for line in printed.getvalue().splitlines() if line.strip()]
    return problems, [Problem("upstream.warning", got=line, severity="warning") for line in lines]
