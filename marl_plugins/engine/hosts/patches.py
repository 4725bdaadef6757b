"""Thin patches to a checkout of an upstream: recognise a tree, change it with `git apply`.

A *series* is a folder `patches/<host>/<version>/`: patches in git's format, and a `tree.yaml` that
names their release. A patch that git can take back is applied, and one that it can apply is not;
the user's own changes elsewhere in a file are none of its business.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from marl_plugins.core.failures import ConfigurationError, nearest
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

    def state(self, folder: Path) -> str:
        """Returns `applied`, `absent`, or `other`: the lines that it changes are neither as before
        it nor as after it.

        Raises:
            ConfigurationError: git is not installed.
        """
        if not self.apply(folder, "--check", "-R"):
            return "applied"
        return "other" if self.apply(folder, "--check") else "absent"


@dataclass(frozen=True)
class Series:
    """The patches for one release of one host. Each applies with any of the others."""

    tree: TreeFile
    patches: tuple[Patch, ...]

    @property
    def title(self) -> str:
        return f"{self.tree.host} {self.tree.version}"

    def select(self, names: Sequence[str]) -> list[Patch]:
        """Returns the patches with these names or numbers (`0001`); without names, all.

        Raises:
            ConfigurationError: A name that no patch has.
        """
        by_word = {word: p for p in self.patches for word in (p.name, p.name.partition("-")[0])}
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
        return [p for p in self.patches if not names or p in [by_word[name] for name in names]]


def load_series() -> list[Series]:
    """Returns every shipped series."""
    every_series = []
    for path in sorted(data("patches").glob("*/*/tree.yaml")):
        tree = TreeFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        patches = map(_read_patch, sorted(path.parent.glob("*.patch")))
        every_series.append(Series(tree, tuple(patches)))
    return every_series


def _read_patch(path: Path) -> Patch:
    text = path.read_text(encoding="utf-8")
    files = re.findall(r"^diff --git a/(\S+) ", text, re.MULTILINE)
    return Patch(path, text.partition("\n")[0], tuple(files))


def recognise(path: Path) -> tuple[Path, Series]:
    """Returns the root of the tree at `path`, which may be a checkout, an unpacked wheel, or the
    folder that contains the package, and the series most of which fits it.

    Raises:
        ConfigurationError: No patches exist for it.
    """
    series = load_series()
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
    return max(candidates, key=lambda found: -_states(*found).count("other"))


def _states(root: Path, series: Series) -> list[str]:
    return [patch.state(root) for patch in series.patches]


def change(root: Path, series: Series, patches: Sequence[Patch], to: str) -> None:
    """Applies patches to a tree, or takes them back; those that are in that state are left.

    Args:
        to: `applied` or `absent`.

    Raises:
        ConfigurationError: One fits neither way, and nothing was changed; or git cannot write.
    """
    todo = [patch for patch in patches if patch.state(root) != to]
    if problems := [
        Problem(
            "patches.other_content",
            at(file=root),
            f"{patch.name} can be neither applied nor taken back: {patch.apply(root, '--check')}",
            fix=f"get {series.title} ({series.tree.source}), or look for your own changes there",
        )
        for patch in todo
        if patch.state(root) == "other"
    ]:
        raise ConfigurationError(problems)
    for patch in todo:
        if why := patch.apply(root, *(["-R"] if to == "absent" else [])):
            raise ConfigurationError(Problem("patches.git", at(file=root), why))
