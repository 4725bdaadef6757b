"""Importing what a user names: a plugin by dotted name, entry point or `.py` file, and the Python
files of a recipe.

A `.py` file is a module of its folder's package and is loaded once, so the files of a recipe import
each other by `from .tasks import load`; only this package's own types cross processes. Whatever a
user's code raises while it is imported, or called before a run starts, is reported with the user's
own line (`users_code`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import threading
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import FrameType, ModuleType
from typing import TypeGuard

from marl_plugins.core.failures import ConfigurationError, RunEnded, is_from_outside
from marl_plugins.core.plugin_names import GROUP, SHIPPED
from marl_plugins.core.problems import Problem, Where, at, close_names, meant
from marl_plugins.core.version import __version__

FOLDERS = "marl_folder_"
"""Beginning of the names of packages that stand for a user's folder."""
NOT_USERS = (
    Path(__file__).resolve().parents[1],
    *{Path(sysconfig.get_path(p)) for p in ("stdlib", "purelib", "platlib")},
)
"""Folders of this package, of Python and of what is installed: code in them is not a user's, unless
a plugin is."""


def present(names: Iterable[str]) -> list[str]:
    """Returns those of the package's plugins that are there: a capability's folder may be taken
    out."""
    plugins = []
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("marl_plugins"):
                continue
        plugins.append(name)
    return plugins


def load(name: str) -> ModuleType:
    """Imports a plugin by dotted name, entry-point name or `.py` path.

    Raises:
        ConfigurationError: It cannot be found; or its own import failed, with the reason.
    """
    if name.endswith(".py"):
        return load_file(Path(name))
    if name not in SHIPPED:  # reading the entry points of all that is installed takes 15 ms
        name = next((e.value for e in metadata.entry_points(group=GROUP) if e.name == name), name)
    try:
        with users_code(packages={name.partition(".")[0]}, place=at(plugin=name)):
            return importlib.import_module(name)
    except ConfigurationError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{name}.".startswith(f"{missing.name}."):
            known = [*SHIPPED, *(e.name for e in metadata.entry_points(group=GROUP))]
            by_last_part = {each.rpartition(".")[2]: each for each in known}
            close = [by_last_part[part] for part in close_names(name, by_last_part)]
            raise ConfigurationError(
                Problem(
                    "plugin.unknown",
                    at(plugin=name),
                    f"is not a module, an entry point of group {GROUP!r} or a .py file",
                    fix=meant(close[0] if close else name, known),
                )
            ) from None
        raise ConfigurationError(_around(p, at(plugin=name)) for p in error.problems) from missing


def load_file(path: Path) -> ModuleType:
    """Imports a `.py` file as a module of its folder's package; the same file is imported once.

    Raises:
        ConfigurationError: The file is missing, cannot be read or cannot be imported.
    """
    if problem := _unreadable(path):
        raise ConfigurationError(problem)
    path = path.resolve()
    try:
        with users_code(place=at(file=path)):
            return _module(f"{_package(path.parent)}.{path.stem.replace('.', '_')}", path)
    except ConfigurationError as error:
        raise ConfigurationError(
            _within(p, at(file=path)) for p in error.problems
        ) from error.__cause__


def _around(problem: Problem, where: Where) -> Problem:
    return (
        problem
        if problem.where[: len(where)] == where
        else replace(problem, where=where + problem.where)
    )


def _within(problem: Problem, where: Where) -> Problem:
    """The problem of a file that cannot be imported, with its name where no line of it is named."""
    return (
        problem
        if any(line.startswith(where[0].name) for line in problem.names("line"))
        else _around(problem, where)
    )


def _package(folder: Path) -> str:
    """Returns the name of the package that stands for a folder, with or without an `__init__.py`;
    another folder has another."""
    name = f"{FOLDERS}{hashlib.blake2b(str(folder).encode(), digest_size=6).hexdigest()}"
    # it may not know of a file that has just been written
    sys.path_importer_cache.pop(str(folder), None)
    if name not in sys.modules:
        if (start := folder / "__init__.py").is_file():
            _module(name, start, [str(folder)])
        else:
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(folder)]
    return name


def _module(name: str, path: Path, folders: list[str] | None = None) -> ModuleType:
    """Returns the module of a file, executed under a name unless it has been; with `folders` it is
    a package."""
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it may be a run's record
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.dont_write_bytecode = before
    return module


def _unreadable(path: Path) -> Problem | None:
    """Returns why a file cannot be read; None if it can."""
    where = at(file=path)
    try:
        path.open("rb").close()
    except FileNotFoundError:
        return Problem("files.missing", where, "no such file")
    except OSError as error:
        return Problem("files.unreadable", where, f"cannot be read: {error.strerror}")
    return None if path.suffix == ".py" else Problem("files.not_python", where, "is not a .py file")


@contextmanager
def users_code(
    doing: Where = (), packages: Collection[str] = (), place: Where | None = None
) -> Iterator[None]:
    """Runs code of the user's before anything starts: whatever it raises, `sys.exit` included, is
    the user's to fix.

    Args:
        doing: The hook that is called, or the flag that is read.
        packages: Top-level packages that are the user's although they are installed.
        place: What is named where no line of the user's took part; None: such a failure is raised
            as it is.

    Raises:
        ConfigurationError: The code failed, with the last line of the user's that led there.
    """
    try:
        yield
    except (ConfigurationError, RunEnded):
        raise
    except BaseException as error:
        if is_from_outside(error):
            raise
        line = users_line(error, packages)
        if line is None and place is None:
            raise
        where = (at(line=line) if line else place or ()) + doing
        raise ConfigurationError(_failure(error, where)) from error


def users_line(error: BaseException, packages: Collection[str]) -> str | None:
    if _of_a_file(error):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.walk_tb(error.__traceback__)
    lines = [
        f"{frame.f_code.co_filename}:{line}" for frame, line in frames if is_users(frame, packages)
    ]
    return lines[-1] if lines else None


def is_users(frame: FrameType, packages: Collection[str]) -> bool:
    module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
    if module.startswith(FOLDERS) or module.partition(".")[0] in packages:
        return True
    return file.endswith(".py") and not any(
        Path(file).is_relative_to(folder) for folder in NOT_USERS
    )


def line_of(thread: threading.Thread) -> str | None:
    """Returns the innermost line of the user's that a thread is executing."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and not is_users(frame, ()):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else None


def _of_a_file(error: BaseException) -> TypeGuard[SyntaxError]:
    """Returns whether an error is about a file's syntax, and not about a text that was
    evaluated."""
    return isinstance(error, SyntaxError) and str(error.filename).endswith(".py")


def _failure(error: BaseException, where: Where) -> Problem:
    if _of_a_file(error):
        return Problem("code.syntax", where, str(error.msg))
    if isinstance(error, SystemExit):
        got = f"sys.exit({error.code!r}) ends the program"
        return Problem("code.exit", where, got, fix="raise an exception that says what is wrong")
    return Problem("code.failed", where, f"{type(error).__name__}: {text_of(error)}")


def text_of(error: BaseException) -> str:
    """Returns an exception's text; a user's own class may fail to give one."""
    try:
        return str(error)
    except Exception as fault:  # the user's code, of any kind
        return f"its text cannot be shown: {type(fault).__name__}"


def version_of(name: str) -> str:
    """Returns a plugin's version: of its distribution, of this package, or the digest of its
    file."""
    if name.endswith(".py"):
        return "file:" + hashlib.blake2b(Path(name).read_bytes(), digest_size=8).hexdigest()
    top = name.partition(".")[0]
    if top == "marl_plugins":
        return __version__
    owners = metadata.packages_distributions().get(top)
    if owners:
        return metadata.version(owners[0])
    file = getattr(importlib.import_module(name), "__file__", None)
    return version_of(str(Path(file).resolve())) if file and file.endswith(".py") else "unknown"
