"""`openrlhf models`: models that recipes name without a folder; `add` keeps one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.kept_models import NAME, SMOLLM2, models_folder
from marl_plugins.core.recipe.tiny import is_tiny
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.plan.estimate import parameters
from marl_plugins.engine.plan.models import model_problems, positions_of


def main(words: Sequence[str]) -> int:
    parser = UpstreamParser(
        prog="openrlhf models",
        description="Models that a recipe names without a folder: `model: NAME`. They lie in the "
        "user's cache.",
    )
    commands = parser.add_subparsers(dest="command", parser_class=UpstreamParser)
    commands.add_parser("list", help="those that are there")
    adding = commands.add_parser(
        "add",
        help="keep a model under a name",
        description="Keep a model under a name: a GGUF file, whose weights are dequantised to "
        "bfloat16, or a folder as transformers saves it, which stays where it is. "
        f"{SMOLLM2!r} is made by the first run that needs it, or here.",
        epilog="Example: openrlhf models add qwen.gguf --name qwen",
    )
    adding.add_argument("source", help=f"FILE.gguf, a folder, or {SMOLLM2}")
    adding.add_argument("--name", help="default: that of the file or folder")
    adding.add_argument(
        "--to", type=Path, metavar="FOLDER", help="of a GGUF: write it there, and keep no name"
    )
    options = parser.parse_args(words)
    if options.command == "add":
        return add(options.source, options.name, options.to)
    if options.command is None:
        parser.print_help()
        return 0
    kept = sorted(models_folder().glob("[!.]*"))
    print("\n".join(map(_line, kept)) or f"none in {models_folder()}")
    return 0


def add(source: str, name: str | None, to: Path | None) -> int:
    """Keeps a model, or writes the folder of a GGUF file.

    Raises:
        ConfigurationError: It is no model, or the name is taken.
    """
    from marl_plugins.engine.runtime.gguf_model import make_folder
    from marl_plugins.engine.runtime.tiny_model import made_once

    file = Path(source)
    is_file = file.suffix == ".gguf"
    if source == SMOLLM2:
        print(_line(Path(made_once(SMOLLM2, make_folder, among=models_folder().name))))
        return 0
    if not (file.is_file() if is_file else file.is_dir()):
        expected = f"a file that ends with .gguf, a folder, or {SMOLLM2}"
        raise ConfigurationError(Problem("models.source", got=source, expected=expected))
    if to is not None and is_file:
        folder = to
    else:
        folder = models_folder() / _free_name(name or file.resolve().stem)
    if folder.exists() or folder.is_symlink():
        fix = "give another --name, or remove it"
        raise ConfigurationError(
            Problem("models.taken", at(folder=folder), "is there already", fix=fix)
        )
    if is_file:
        folder.mkdir(parents=True)
        try:
            make_folder(folder, file.absolute())
            _check(folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
    else:
        _check(file)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(file.absolute())
    print(_line(folder))
    return 0


def _free_name(name: str) -> str:
    """Returns the name of a model to be kept.

    Raises:
        ConfigurationError: A recipe could not name it.
    """
    if not re.fullmatch(NAME, name) or is_tiny(name) or name == SMOLLM2:
        expected = "letters, digits, `_`, `-`, `.`; not `tiny` or `smollm2`"
        problem = Problem("models.name", got=f"the name {name!r}", expected=expected)
        raise ConfigurationError(problem)
    return name


def _check(folder: Path) -> None:
    if problems := model_problems(str(folder), trusted=True):
        raise ConfigurationError(problems)


def _line(folder: Path) -> str:
    """Returns what a model is: its name, folder, parameters, and longest sequence."""
    size, positions = parameters(str(folder)), positions_of(str(folder))
    return f"{folder.name}: {(size or 0) / 1e6:.1f} M parameters, {positions} tokens, {folder}"
