"""Thin patches to a checkout of an upstream: recognise a tree, change it with `git apply`.

A *series* is a folder `patches/<host>/<version>/`: patches in git's format, applied in the order of
their names, and a `tree.yaml` that names their release and the sha256 of every file they touch.

git works on copies of the touched files. Taking back whatever patch can be taken back must give the
release, byte for byte; any other change is the user's work, and the tree is refused. The patches
that are wanted are then applied to the release, and what differs from the tree is written to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.files import replace_bytes
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.shipped import data


class TreeFile(BaseModel):
    """`tree.yaml`: the release that a series is for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str
    version: str
    licence: str
    source: str
    recognise: list[str]
    """What every tree of this host has, whatever its version."""
    released: dict[str, str]
    """sha256 of each touched file in the release."""


@dataclass(frozen=True)
class Patch:
    """A patch file, its first line, and the files that it touches."""

    path: Path
    title: str
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    def apply(self, folder: Path, *options: str) -> str:
        """Applies the patch to a folder, and returns why git did not; empty if it did.

        The folder counts as no part of a repository (git would pass over the files of one below its
        root), and nobody's settings apply, such as one that converts the ends of lines.

        Args:
            options: Of `git apply`, such as `-R`, which takes the patch back.

        Raises:
            ConfigurationError: git is not installed.
        """
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {
            "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        words = ["git", "apply", "--whitespace=nowarn", *options, str(self.path.resolve())]
        try:
            done = subprocess.run(
                words, cwd=folder, env=environment, capture_output=True, text=True
            )
        except FileNotFoundError:
            fix = "install git, for example with `apt install git`"
            raise ConfigurationError(
                Problem(
                    "patches.no_git", got="git applies the patches and is not installed", fix=fix
                )
            ) from None
        return "" if done.returncode == 0 else done.stderr.strip() or "git failed"


@dataclass(frozen=True)
class Series:
    """The patches for one release of one host, in their order."""

    folder: Path
    tree: TreeFile
    patches: tuple[Patch, ...]

    @property
    def title(self) -> str:
        return f"{self.tree.host} {self.tree.version}"

    def select(self, names: Sequence[str]) -> frozenset[str]:
        """Returns the patches with these names or numbers (`0001`); without names, all.

        Raises:
            ConfigurationError: A name that no patch has.
        """
        by_word = {
            word: p.name for p in self.patches for word in (p.name, p.name.partition("-")[0])
        }
        for name in names:
            if name not in by_word:
                known = [p.name for p in self.patches]
                raise ConfigurationError(
                    Problem(
                        "patches.unknown",
                        got=f"no patch {name!r} for {self.title}{nearest(name, known)} (openrlhf "
                        "patch --help)",
                    )
                )
        return frozenset(by_word[name] for name in names) if names else frozenset(by_word.values())


def load_series() -> list[Series]:
    """Returns every shipped series."""
    every_series = []
    for path in sorted(data("patches").glob("*/*/tree.yaml")):
        tree = TreeFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        patches = map(_read_patch, sorted(path.parent.glob("*.patch")))
        every_series.append(Series(path.parent, tree, tuple(patches)))
    return every_series


def _read_patch(path: Path) -> Patch:
    text = path.read_text(encoding="utf-8")
    files = re.findall(r"^diff --git a/(\S+) ", text, re.MULTILINE)
    return Patch(path, text.partition("\n")[0], tuple(files))


@dataclass(frozen=True)
class PatchedTree:
    """A recognised tree, and the state of each patch.

    *applied*, *absent*, or *interrupted*: applied to only some of its files, because a command was
    killed.
    """

    root: Path
    series: Series
    states: dict[str, str]

    def in_state(self, *states: str) -> frozenset[str]:
        """Returns the names of the patches in these states."""
        return frozenset(name for name, state in self.states.items() if state in states)

    def change(self, patches: frozenset[str]) -> list[str]:
        """Applies exactly these patches to the tree, and returns the changed files.

        Raises:
            ConfigurationError: The patches depend on others, or a file cannot be written.
        """
        changed = []
        with _copies(self.root, self.series) as copies:
            _take_back(copies, self.series)
            for patch in self.series.patches:
                if patch.name in patches and (why := patch.apply(copies)):
                    names = ", ".join(sorted(patches))
                    got = (
                        f"{self.series.title}: {names} cannot be applied without the others: {why}"
                    )
                    fix = "name the patches before them too, or none to apply all"
                    raise ConfigurationError(Problem("patches.alone", got=got, fix=fix))
            for file in self.series.tree.released:
                content = (copies / file).read_bytes()
                if content != (self.root / file).read_bytes():
                    _write(self.root / file, content)
                    changed.append(file)
        return changed


def recognise(path: Path, among: Sequence[Series] | None = None) -> PatchedTree:
    """Returns the tree at `path`: a checkout, an unpacked wheel, or the folder that contains the
    package.

    Raises:
        ConfigurationError: No patches exist for it, or a touched file is neither as released nor as
            patched.
    """
    series = load_series() if among is None else among
    candidates = [
        (root, one)
        for root in (path, *sorted(path.glob("*.data/purelib")))
        for one in series
        if all((root / mark).exists() for mark in one.tree.recognise)
    ]
    if not candidates:
        marks = dict.fromkeys(f"{s.tree.host} ({', '.join(s.tree.recognise)})" for s in series)
        got = f"not a tree for which patches exist; looked for {' or '.join(marks)}"
        fix = "--to takes the folder that contains the package, such as the root of a checkout"
        raise ConfigurationError(Problem("patches.unknown_tree", at(file=path), got, fix=fix))
    refusals = []
    for root, one in candidates:
        try:
            return _read_tree(root, one)
        except ConfigurationError as refusal:
            refusals.append(refusal)
    raise min(refusals, key=lambda refusal: len(refusal.problems))  # the closest release


def _read_tree(root: Path, series: Series) -> PatchedTree:
    with _copies(root, series) as copies:
        states = _take_back(copies, series)
        if problems := [
            Problem("patches.other_content", at(file=root / file), _why_not(root, series, file))
            for file, released in series.tree.released.items()
            if hashlib.sha256((copies / file).read_bytes()).hexdigest() != released
        ]:
            raise ConfigurationError(problems)
    return PatchedTree(root, series, states)


@contextlib.contextmanager
def _copies(root: Path, series: Series) -> Iterator[Path]:
    """A folder with copies of the touched files.

    Raises:
        ConfigurationError: One is missing, no file (a pipe would be read for ever), or reached by a
            link, which a change would replace, or lead out of the tree.
    """
    files = series.tree.released
    problems = [
        Problem(
            "patches.no_file",
            at(file=root / file),
            "missing, no file, or behind a symbolic link",
            fix=f"{series.title} has a file there: is the tree complete, and given itself?",
        )
        for file in files
        if not (root / file).is_file() or (root / file).resolve() != root.resolve() / file
    ]
    if problems:
        raise ConfigurationError(problems)
    with tempfile.TemporaryDirectory() as folder:
        copies = Path(folder)
        for file in files:
            (copies / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / file, copies / file)
        yield copies


def _take_back(copies: Path, series: Series) -> dict[str, str]:
    """Takes back what can be taken back of each patch, and returns their states."""
    states = {}
    for patch in reversed(series.patches):
        undone = [not patch.apply(copies, "-R", f"--include={file}") for file in patch.files]
        states[patch.name] = (
            "applied" if all(undone) else "interrupted" if any(undone) else "absent"
        )
    return {patch.name: states[patch.name] for patch in series.patches}


def _why_not(root: Path, series: Series, file: str) -> str:
    if b"\r\n" in (root / file).read_bytes():
        return "has CRLF line ends; check it out again with core.autocrlf=false"
    return (
        f"neither as released in {series.title} nor with its patches; get that release "
        f"({series.tree.source}), or, to keep your changes: "
        f"git apply {shlex.quote(str(series.folder))}/NAME.patch"
    )


def _write(path: Path, content: bytes) -> None:
    """Replaces a file, which is complete at any time; mode and owner are kept."""
    try:
        was = path.stat()
        replace_bytes(path, content)
        path.chmod(was.st_mode)
        with contextlib.suppress(PermissionError):  # only root can change owners, or needs to
            os.chown(path, was.st_uid, was.st_gid)
    except OSError as error:
        got = f"cannot be written ({error.strerror})"
        fix = "make the tree writable, then repeat the command"
        raise ConfigurationError(
            Problem("patches.unwritable", at(file=path), got, fix=fix)
        ) from None
