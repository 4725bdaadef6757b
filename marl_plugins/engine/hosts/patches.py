"""Thin patches to a checkout of an upstream: read them, recognise a tree, change it safely.

A *series* is a folder `patches/<host>/<version>/`: patches in git's unified format, applied in the
order of their names, and a
`tree.yaml` that names their release and the sha256 of every file they touch.

A touched file is *known* if it is the released text with some of the patches applied. To find out
which, patches are reverted in memory until the sha256 is the release's; every other state of the
file is then computed from that released text. Any other change to a touched file is the user's
work, and the tree is refused.

A change is computed completely in memory, written to temporary files, and renamed into place. A
process killed in between leaves every file complete and known: the next command sees which patches
are interrupted and completes or undoes the change, without a journal. No `patch` or `git` program
is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.shipped import data
from marl_plugins.engine.hosts.diffs import DoesNotApply, Patch, apply_hunks, read_patch
from marl_plugins.engine.hosts.releases import parsed

# --- series
# --------------------------------------------------------------------------------------------------


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

    def patched_text(self, file: str, released: bytes, names: frozenset[str]) -> bytes:
        """Returns a touched file with some of the patches applied.

        Raises:
            DoesNotApply: A patch depends on another one that is not among them.
        """
        for patch in self.patches:
            if patch.name in names:
                released = apply_hunks(released, patch.hunks.get(file, ()))
        return released

    def identify(self, file: str, content: bytes) -> tuple[bytes, frozenset[str]] | None:
        """Returns the released text of a touched file and the patches applied to it; None for any
        other content."""
        touching = [p for p in self.patches if file in p.hunks]
        for chosen in itertools.chain.from_iterable(
            itertools.combinations(touching, n) for n in range(len(touching) + 1)
        ):
            released, names = content, frozenset(p.name for p in chosen)
            with contextlib.suppress(DoesNotApply):
                for patch in reversed(chosen):
                    released = apply_hunks(released, patch.hunks[file], reverse=True)
                if (
                    _sha256(released) == self.tree.released[file]
                    and self.patched_text(file, released, names) == content
                ):
                    return released, names
        return None


def load_series(folder: Path | None = None) -> list[Series]:
    """Returns every shipped series.

    Raises:
        ConfigurationError: A patch is invalid, or touches a file without a sha256 in `tree.yaml`.
    """
    found = []
    for path in sorted((folder or data("patches")).glob("*/*/tree.yaml")):
        try:
            tree = TreeFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            raise ConfigurationError(
                Problem(
                    "patches.form",
                    at(file=path),
                    f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}",
                )
                for problem in error.errors()
            ) from None
        patches = tuple(
            read_patch(p.read_bytes(), p.stem) for p in sorted(path.parent.glob("*.patch"))
        )
        unknown = {file for p in patches for file in p.hunks} ^ tree.released.keys()
        if unknown:
            raise ConfigurationError(
                Problem(
                    "patches.released",
                    at(file=path),
                    "`released` must name the files that the patches touch, exactly",
                    fix=f"differing: {', '.join(sorted(unknown))}",
                )
            )
        if outside := [file for file in tree.released if not _is_within(file)]:
            raise ConfigurationError(
                Problem(
                    "patches.outside",
                    at(file=path),
                    f"not the path of a file within the tree: {', '.join(map(repr, outside))}",
                )
            )
        found.append(Series(path.parent, tree, patches))
    return found


def _is_within(file: str) -> bool:
    """Returns whether a path stays in the tree that it is relative to."""
    path = PurePosixPath(file)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- trees
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PatchedTree:
    """A recognised tree: the released text of its touched files, and which patches each of them
    has."""

    root: Path
    series: Series
    released: Mapping[str, bytes]
    names: Mapping[str, frozenset[str]]

    @cached_property
    def states(self) -> dict[str, str]:
        """Each patch `applied`, `absent`, or `interrupted`: applied to only some of its files,
        because a command was killed."""
        states = {}
        for patch in self.series.patches:
            found = {patch.name in self.names[file] for file in patch.hunks}
            states[patch.name] = (
                "interrupted" if len(found) == 2 else "applied" if True in found else "absent"
            )
        return states

    def in_state(self, *states: str) -> frozenset[str]:
        """Returns the names of the patches in these states."""
        return frozenset(name for name, state in self.states.items() if state in states)

    def leftovers(self) -> list[Path]:
        """Returns the temporary files of a killed command; the next change deletes them."""
        return [
            path for file in self.released if os.path.lexists(path := _temporary(self.root / file))
        ]

    def change(self, wanted: frozenset[str]) -> list[str]:
        """Applies exactly these patches to the tree, and returns the changed files.

        Raises:
            ConfigurationError: The patches depend on others, or a file cannot be written.
        """
        contents = {}
        for file, released in self.released.items():
            try:
                content = self.series.patched_text(file, released, wanted)
            except DoesNotApply as error:
                raise ConfigurationError(
                    Problem(
                        "patches.alone",
                        got=(
                            f"{self.series.title}: {', '.join(sorted(wanted))} cannot be applied "
                            f"without the others ({file}: "
                            f"{error})"
                        ),
                        fix="name the patches before them too, or none to apply all",
                    )
                ) from None
            if content != self.series.patched_text(file, released, self.names[file]):
                contents[file] = content
        _write_all(
            self.leftovers(), {self.root / file: content for file, content in contents.items()}
        )
        return list(contents)


def recognise(path: Path, among: Sequence[Series] | None = None) -> PatchedTree:
    """Returns the tree at `path`: a checkout, an unpacked wheel, or the folder that contains the
    package.

    Raises:
        ConfigurationError: No patches exist for it, or a touched file is neither as released nor as
            patched.
    """
    if not path.is_dir():
        raise ConfigurationError(
            Problem(
                "patches.no_folder",
                at(file=path),
                "no such folder",
                fix="--to takes the folder that contains the package",
            )
        )
    series = load_series() if among is None else among
    roots = [path, *sorted(path.glob("*.data/purelib"))]
    candidates = [
        (r, s)
        for r in roots
        for s in series
        if all((r / mark).exists() for mark in s.tree.recognise)
    ]
    if not candidates:
        marks = dict.fromkeys(f"{s.tree.host} ({', '.join(s.tree.recognise)})" for s in series)
        raise ConfigurationError(
            Problem(
                "patches.unknown_tree",
                at(file=path),
                (
                    "not a tree for which patches exist; looked for "
                    f"{' or '.join(marks) or 'nothing: no patches are shipped'}"
                ),
                fix="--to takes the folder that contains the package, such as the root of a "
                "checkout",
            )
        )
    refusals = []
    for root, one in candidates:
        tree = _read_tree(root, one)
        if isinstance(tree, PatchedTree):
            return tree
        refusals.append(tree)
    raise ConfigurationError(min(refusals, key=len))  # of several releases, the closest one


def _read_tree(root: Path, series: Series) -> PatchedTree | list[Problem]:
    """The tree for this series, or why it does not fit."""
    problems: list[Problem] = []
    released: dict[str, bytes] = {}
    names: dict[str, frozenset[str]] = {}
    for file in series.tree.released:
        path = root / file
        links = [f for f in (path, *path.parents[: len(Path(file).parts) - 1]) if f.is_symlink()]
        if links:
            problems.append(
                Problem(
                    "patches.link",
                    where=at(file=links[-1]),
                    got=f"a symbolic link to {links[-1].readlink()}",
                    fix=f"give the tree that contains {file} itself",
                )
            )
            continue
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                problems.append(
                    Problem(
                        "patches.no_file",
                        at(file=path),
                        "not a file",
                        fix=f"{series.title} has one there",
                    )
                )
                continue
            content = path.read_bytes()
        except OSError as error:
            problems.append(
                Problem(
                    "patches.unreadable",
                    at(file=path),
                    f"cannot be read ({error.strerror})",
                    fix=f"{series.title} has it: is the tree complete?",
                )
            )
            continue
        known = series.identify(file, content)
        if known is None:
            problems.append(
                Problem(
                    "patches.other_content",
                    at(file=path),
                    str(_explain_unknown(root, series, file, content)),
                )
            )
        else:
            released[file], names[file] = known
    stated = _stated_version(root, series.tree.host)
    if problems and stated and parsed(stated) != parsed(series.tree.version):
        return [
            Problem(
                "patches.other_release",
                at(file=root),
                f"is {series.tree.host} {stated} according to its own files",
                fix=f"these patches are for {series.tree.version}",
            )
        ]
    return problems or PatchedTree(root, series, released, names)


def _stated_version(root: Path, host: str) -> str:
    """The version in a checkout's `version.txt` or an installation's metadata; empty without
    either."""
    file = root / "version.txt"
    if file.is_file():
        return file.read_text(encoding="utf-8", errors="replace").strip()
    parent = root.parents[1] if root.match("*.data/purelib") else root  # of an unpacked wheel
    folders = sorted(parent.glob(f"{host}-*.dist-info"))
    return folders[0].name.removesuffix(".dist-info").partition("-")[2] if folders else ""


def _explain_unknown(root: Path, series: Series, file: str, content: bytes) -> str:
    if series.identify(file, content.replace(b"\r\n", b"\n")):
        return (
            f"has CRLF line ends where {series.title} has LF; check it out again with "
            "core.autocrlf=false"
        )
    fix = f"get it again ({series.tree.source})"
    if (root / ".git").exists():
        seen = f"git -C {shlex.quote(str(root))} diff -- {file}"
        fix = f"see `{seen}`, then `git stash` or commit your work and check out the release"
    return (
        f"has other changes, or is another release's: neither as released in {series.title} nor "
        "with its patches "
        f"(sha256 {_sha256(content)[:12]}, released: {series.tree.released[file][:12]}); {fix}; "
        f"to keep your changes: git apply {shlex.quote(str(series.folder))}/NAME.patch"
    )


# --- writing
# --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def lock_tree(root: Path) -> Iterator[None]:
    """Keeps other patch commands away from the tree; if it does not exist, `recognise` reports
    that."""
    if not root.is_dir():
        yield
        return
    folder = os.open(root, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _temporary(path: Path) -> Path:
    """Returns the path to which a file's new content is written first."""
    return path.with_name(f".{path.name}.openrlhf-patch")


def _write_all(leftovers: Sequence[Path], contents: Mapping[Path, bytes]) -> None:
    """Write all new contents, then rename them into place. Every file is complete at any time; mode
    and owner are kept."""
    try:
        for path in leftovers:
            path.unlink()
        for path, content in contents.items():
            with _temporary(path).open("xb") as file:  # never what a link at this name leads to
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(
                PermissionError
            ):  # only root can change owners, and only root needs to
                os.chown(_temporary(path), path.stat().st_uid, path.stat().st_gid)
            shutil.copymode(path, _temporary(path))
        for path in contents:
            os.replace(_temporary(path), path)
    except OSError as error:
        for path in contents:
            with contextlib.suppress(OSError):  # what prevented it may be a folder of that name
                _temporary(path).unlink(missing_ok=True)
        raise ConfigurationError(
            Problem(
                "patches.unwritable",
                at(file=error.filename),
                f"cannot be written ({error.strerror})",
                fix="make the tree writable, then repeat the command",
            )
        ) from None
