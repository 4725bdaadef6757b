"""Upstream's own command line, taken from its source without importing it.

`openrlhf/cli/train_ppo_ray.py` builds its parser and validates under `if __name__ == "__main__"` (lines 197-771 of 0.11.2),
where nobody can import it. The statements up to `parse_args` are compiled and executed here as the parser, the ones after
it up to `train(args)` as the validation. Nothing of upstream is imported, so `--help` takes a fraction of a second.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.metadata
import importlib.util
import io
import os
import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from marl_plugins.core.failures import ConfigurationError

CLI = "cli/train_ppo_ray.py"
NOT_OURS = (
    "hierarchize",  # done already
    "The number of sample batches must be",  # dispatch lists are padded to the ranks here, so fewer batches are fine
)
"""Marks of the validation's statements that are left out."""


@lru_cache
def upstream_root() -> Path:
    """Folder of the installed `openrlhf` package.

    Raises:
        ConfigurationError: It is not installed.
    """
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "OpenRLHF is not installed beside this plugin; on a machine with CUDA: pip install 'openrlhf[vllm]==0.11.2', "
            "without: make install in a checkout of openrlhf-marl"
        )
    return Path(spec.submodule_search_locations[0])


def upstream_version() -> str:
    """Version of the installed upstream distribution, or `unknown`."""
    try:
        return importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@lru_cache
def _main_block(path: Path) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Statements of the `__main__` block before and after `args = parser.parse_args()`, up to `train(args)`.

    Our patch 0001 puts the same statements into `build_parser`, which ends with a `return`, and `main`.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    blocks = {node.name: node.body for node in tree.body if isinstance(node, ast.FunctionDef)}
    mains = [n.body for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "__name__ == '__main__'"]
    if not mains:
        raise ConfigurationError(f"{path}: no `if __name__ == '__main__'` block; this OpenRLHF release is not supported")
    patched = "build_parser" in blocks
    body = [*blocks["build_parser"][:-1], *blocks["main"]] if patched else mains[0]
    sources = [ast.unparse(statement) for statement in body]
    try:
        parse = sources.index("args = build_parser().parse_args(argv)" if patched else "args = parser.parse_args()")
        train = sources.index("train(args)")
    except ValueError:
        raise ConfigurationError(
            f"{path}: does not parse its arguments as known; this OpenRLHF release is not supported"
        ) from None
    after = [s for s in body[parse + 1 : train] if not isinstance(s, ast.ImportFrom)]
    return body[:parse], after


def _execute(statements: list[ast.stmt], path: Path, namespace: dict[str, Any]) -> dict[str, Any]:
    exec(compile(ast.Module(statements, type_ignores=[]), str(path), "exec"), namespace)
    return namespace


class Parser(argparse.ArgumentParser):
    """A parser that raises `ConfigurationError` where argparse would print and exit."""

    of_upstream: frozenset[str] = frozenset()
    """Names of the flags that upstream itself has; plugins add theirs later."""

    def error(self, message: str) -> Any:
        raise ConfigurationError(message)


def build_parser(root: Path) -> Parser:
    """Upstream's own parser, with all its flags and defaults."""
    names = {
        "argparse": SimpleNamespace(ArgumentParser=lambda: Parser(prog="openrlhf train", allow_abbrev=False)),
        "os": os,
        "datetime": datetime,
    }
    # argparse's own pattern knows no exponents and takes -1e-5 for a flag.
    parser = _execute(_main_block(root / CLI)[0], root / CLI, dict(names))["parser"]
    assert isinstance(parser, Parser)
    parser._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
    options = (option for action in parser._actions for option in action.option_strings)
    parser.of_upstream = frozenset(o[2:] for o in options if o.startswith("--") and o != "--help")
    return parser


@lru_cache
def _hierarchize(root: Path) -> Callable[[Any], SimpleNamespace]:
    path = root / "utils/config.py"
    function = _execute(ast.parse(path.read_text(encoding="utf-8")).body, path, {})["hierarchize"]
    assert callable(function)
    return cast(Callable[[Any], SimpleNamespace], function)


def hierarchize(flat: argparse.Namespace, root: Path) -> SimpleNamespace:
    """Upstream's nested form of parsed flags: `actor.adam.lr` becomes `args.actor.adam.lr`."""
    return _hierarchize(root)(flat)


def validate(args: SimpleNamespace, root: Path) -> tuple[list[str], list[str]]:
    """Run upstream's own validation on nested arguments, which it also completes in place.

    Returns:
        Problems (its failed assertions) and warnings (what it prints).
    """
    said = io.StringIO()
    problems = []
    # The recipe's workflow stands where upstream expects an agent function; without one it asks for a reward model.
    args.train.agent_func_path = args.train.agent_func_path or "recipe"
    statements = [s for s in _main_block(root / CLI)[1] if not any(word in ast.unparse(s) for word in NOT_OURS)]
    namespace = {"args": args}
    with contextlib.redirect_stdout(said):
        for statement in statements:  # one by one: a failed assertion must not hide the next one
            try:
                _execute([statement], root / CLI, namespace)
            except AssertionError as error:
                problems.append(f"upstream refuses the flags: {error}")
            except (AttributeError, TypeError) as error:
                problems.append(f"upstream's validation (train_ppo_ray.py:{statement.lineno}) failed: {error}")
    args.train.agent_func_path, args.reward.remote_url = None, None
    return problems, [line for line in said.getvalue().splitlines() if line.strip()]
