"""Thin patches to an upstream that somebody carries as a checkout: read them, recognise a tree, change it safely.

A *series* is a folder `patches/<host>/<version>/`: patches in git's unified format, applied in the order of their names, and a
`tree.yaml` that says which release they are for, with the sha256 of every file they touch.

A touched file is *known* when it is the released text with some of the patches on it. That is found out by taking patches off
again in memory until the sha256 is the release's, so the released text is at hand as well, and whatever is wanted next is made
from it. Anything else in a touched file is somebody's work, and the tree is refused.

A change is computed whole in memory, written beside the files it is for, and renamed into place. A process that is killed in
between leaves every file whole and known, so the next command sees which patches are interrupted and ends what was begun:
there is no journal to lose. No `patch` or `git` program takes part, and nothing is guessed: a hunk has to match every byte.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.shipped import data
from marl_plugins.hosts.releases import parsed

# --- unified diffs ---------------------------------------------------------------------------------------------------------

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class DoesNotApply(Exception):
    """A hunk whose old lines are not at their place, nor at exactly one other."""


@dataclass(frozen=True)
class Hunk:
    """Lines that take the place of others; `old_at` and `new_at` are the numbers of lines before them."""

    old_at: int
    old: tuple[bytes, ...]
    new_at: int
    new: tuple[bytes, ...]

    def reversed(self) -> Hunk:
        return Hunk(self.new_at, self.new, self.old_at, self.old)


@dataclass(frozen=True)
class Patch:
    """A patch file: its name without suffix, its first line, and its hunks by touched file."""

    name: str
    title: str
    hunks: Mapping[str, tuple[Hunk, ...]]


def split_lines(text: bytes) -> list[bytes]:
    """Lines with their ends; only a line feed ends one, so that carriage returns are kept as they are."""
    lines = text.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def read_patch(text: bytes, name: str) -> Patch:
    """A patch that changes lines of existing files, after any header text.

    Raises:
        ConfigurationError: It is not of this kind, or not whole.
    """
    lines = split_lines(text)
    hunks: dict[str, tuple[Hunk, ...]] = {}
    at = next((i for i, line in enumerate(lines) if line.startswith(b"diff --git ")), len(lines))
    while at < len(lines):
        if not lines[at].startswith(b"diff --git "):
            raise _not_understood(name, lines, at, "expected `diff --git a/FILE b/FILE`")
        paths = [line.rstrip(b"\n").decode() for line in lines[at + 1 : at + 3]]
        if [p[:6] for p in paths] != ["--- a/", "+++ b/"] or paths[0][6:] != paths[1][6:]:
            raise _not_understood(name, lines, at + 1, "expected `--- a/FILE` and `+++ b/FILE` of an existing file")
        at += 3
        found = []
        while at < len(lines) and (match := _HUNK.match(lines[at])):
            hunk, at = _read_hunk(name, lines, at, match)
            found.append(hunk)
        hunks[paths[0][6:]] = tuple(found)
    if not hunks or not all(hunks.values()):
        raise ConfigurationError(f"{name}: changes nothing; a patch has a line `diff --git a/FILE b/FILE` and hunks")
    return Patch(name, lines[0].decode().strip(), hunks)


def _read_hunk(name: str, lines: Sequence[bytes], at: int, match: re.Match[bytes]) -> tuple[Hunk, int]:
    old_line, old_count, new_line, new_count = (1 if group is None else int(group) for group in match.groups())
    old: list[bytes] = []
    new: list[bytes] = []
    sides = {b" ": (old, new), b"-": (old,), b"+": (new,)}
    last: tuple[list[bytes], ...] = ()
    at += 1
    while at < len(lines):
        mark, line = lines[at][:1], lines[at][1:]
        if mark == b"\\":  # "\ No newline at end of file": of the line before
            for side in last:
                side[-1] = side[-1].removesuffix(b"\n")
        elif mark in sides and (len(old), len(new)) != (old_count, new_count):
            last = sides[mark]
            for side in last:
                side.append(line)
        else:
            break
        at += 1
    if (len(old), len(new)) != (old_count, new_count):
        raise _not_understood(
            name, lines, at, f"the hunk has {len(old)} and {len(new)} lines, not {old_count} and {new_count}"
        )
    # A side without lines is numbered by the line before it.
    return Hunk(old_line - bool(old), tuple(old), new_line - bool(new), tuple(new)), at


def _not_understood(name: str, lines: Sequence[bytes], at: int, why: str) -> ConfigurationError:
    found = repr(lines[at].decode(errors="replace").rstrip()) if at < len(lines) else "the end"
    return ConfigurationError(f"{name}: line {at + 1} is not understood: {found}; {why}")


def apply_hunks(text: bytes, hunks: Sequence[Hunk], *, reverse: bool = False) -> bytes:
    """The text with all hunks applied, or with `reverse` taken off again.

    Raises:
        DoesNotApply: For at least one of them.
    """
    lines = split_lines(text)
    result: list[bytes] = []
    done = shift = 0  # lines that are dealt with; how far the last hunk was from its stated place
    for hunk in hunks:
        wanted = hunk.reversed() if reverse else hunk
        at = _place(lines, wanted, done, shift)
        shift = at - wanted.old_at
        result += lines[done:at]
        result += wanted.new
        done = at + len(wanted.old)
    return b"".join(result + lines[done:])


def _place(lines: Sequence[bytes], hunk: Hunk, first: int, shift: int) -> int:
    """Where the hunk's old lines are: at the stated place, or at the only one where they are (other patches move lines)."""

    def fits(at: int) -> bool:
        return first <= at <= len(lines) and tuple(lines[at : at + len(hunk.old)]) == hunk.old

    if fits(hunk.old_at + shift):
        return hunk.old_at + shift
    places = [at for at in range(first, len(lines)) if fits(at)] if hunk.old else []
    if len(places) != 1:
        raise DoesNotApply(f"{len(places)} places for the hunk of line {hunk.old_at + 1}")
    return places[0]


# --- series ----------------------------------------------------------------------------------------------------------------


class TreeFile(BaseModel):
    """`tree.yaml`: the tree that a series is for."""

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

    def named(self, names: Sequence[str]) -> frozenset[str]:
        """The patches of these names or numbers (`0001`); all of them where none is given.

        Raises:
            ConfigurationError: A name that no patch has.
        """
        by_word = {word: p.name for p in self.patches for word in (p.name, p.name.partition("-")[0])}
        for name in names:
            if name not in by_word:
                known = [p.name for p in self.patches]
                raise ConfigurationError(
                    f"no patch {name!r} for {self.title}{nearest(name, known)} (openrlhf patch --help)"
                )
        return frozenset(by_word[name] for name in names) if names else frozenset(by_word.values())

    def text(self, file: str, released: bytes, names: frozenset[str]) -> bytes:
        """A touched file with some of the patches on it.

        Raises:
            DoesNotApply: A patch builds upon another one's lines, which is not among them.
        """
        for patch in self.patches:
            if patch.name in names:
                released = apply_hunks(released, patch.hunks.get(file, ()))
        return released

    def look_into(self, file: str, content: bytes) -> tuple[bytes, frozenset[str]] | None:
        """The released text of a touched file and the patches that are on it; None where it is anything else."""
        touching = [p for p in self.patches if file in p.hunks]
        for chosen in itertools.chain.from_iterable(itertools.combinations(touching, n) for n in range(len(touching) + 1)):
            released, names = content, frozenset(p.name for p in chosen)
            with contextlib.suppress(DoesNotApply):
                for patch in reversed(chosen):
                    released = apply_hunks(released, patch.hunks[file], reverse=True)
                if _sha256(released) == self.tree.released[file] and self.text(file, released, names) == content:
                    return released, names
        return None


def all_series(folder: Path | None = None) -> list[Series]:
    """Every series that is shipped.

    Raises:
        ConfigurationError: A patch is not one, or touches a file of which `tree.yaml` has no sha256.
    """
    found = []
    for path in sorted((folder or data("patches")).glob("*/*/tree.yaml")):
        try:
            tree = TreeFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            raise ConfigurationError(
                f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
            ) from None
        patches = tuple(read_patch(p.read_bytes(), p.stem) for p in sorted(path.parent.glob("*.patch")))
        unknown = {file for p in patches for file in p.hunks} ^ tree.released.keys()
        if unknown:
            raise ConfigurationError(
                f"{path}: `released` must name the files that the patches touch, no more and no fewer; "
                f"differing: {', '.join(sorted(unknown))}"
            )
        found.append(Series(path.parent, tree, patches))
    return found


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- trees -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """A recognised tree: the released text of its touched files, and which patches each of them has."""

    root: Path
    series: Series
    released: Mapping[str, bytes]
    names: Mapping[str, frozenset[str]]

    @cached_property
    def states(self) -> dict[str, str]:
        """Each patch `applied`, `absent`, or `interrupted`: in some of its files only, for a command was killed."""
        states = {}
        for patch in self.series.patches:
            there = {patch.name in self.names[file] for file in patch.hunks}
            states[patch.name] = "interrupted" if len(there) == 2 else "applied" if True in there else "absent"
        return states

    def having(self, *states: str) -> frozenset[str]:
        """Names of the patches in these states."""
        return frozenset(name for name, state in self.states.items() if state in states)

    def leftovers(self) -> list[Path]:
        """Temporary files of a killed command; the next change takes them away."""
        return [path for file in self.released if (path := _beside(self.root / file)).exists()]

    def change(self, wanted: frozenset[str]) -> list[str]:
        """Give the tree exactly these patches; the files that were changed.

        Raises:
            ConfigurationError: The patches do not go together, or a file cannot be written.
        """
        contents = {}
        for file, released in self.released.items():
            try:
                content = self.series.text(file, released, wanted)
            except DoesNotApply as error:
                raise ConfigurationError(
                    f"{self.series.title}: {', '.join(sorted(wanted))} cannot be on the tree without the others ({file}: {error}); "
                    "name those that come before as well, or none, which is all"
                ) from None
            if content != self.series.text(file, released, self.names[file]):
                contents[file] = content
        for path in self.leftovers():
            path.unlink()
        _replace({self.root / file: content for file, content in contents.items()})
        return list(contents)


def recognise(path: Path, among: Sequence[Series] | None = None) -> Tree:
    """The tree at `path`: a checkout, an unpacked wheel, or the folder that contains the package.

    Raises:
        ConfigurationError: It is none that there are patches for, or a touched file is neither as released nor as patched.
    """
    if not path.is_dir():
        raise ConfigurationError(f"{path}: no such folder; --to takes the folder that contains the package")
    series = all_series() if among is None else among
    roots = [path, *sorted(path.glob("*.data/purelib"))]
    candidates = [(r, s) for r in roots for s in series if all((r / mark).exists() for mark in s.tree.recognise)]
    if not candidates:
        marks = dict.fromkeys(f"{s.tree.host} ({', '.join(s.tree.recognise)})" for s in series)
        raise ConfigurationError(
            f"{path}: no tree that there are patches for; looked for {' or '.join(marks) or 'nothing: no patch is shipped'}; "
            "--to takes the folder that contains the package, such as the root of a checkout"
        )
    refusals = []
    for root, one in candidates:
        tree = _look(root, one)
        if isinstance(tree, Tree):
            return tree
        refusals.append(tree)
    raise ConfigurationError(min(refusals, key=len))  # of several releases, the one that is nearest


def _look(root: Path, series: Series) -> Tree | list[str]:
    """The tree as one of this series, or why it is none."""
    problems: list[str] = []
    released: dict[str, bytes] = {}
    names: dict[str, frozenset[str]] = {}
    for file in series.tree.released:
        path = root / file
        if path.is_symlink():
            problems.append(f"{path}: a symbolic link to {path.readlink()}; give the tree in which the file itself lies")
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            problems.append(f"{path}: cannot be read ({error.strerror}); {series.title} has it: is the tree complete?")
            continue
        known = series.look_into(file, content)
        if known is None:
            problems.append(f"{path}: {_why_unknown(root, series, file, content)}")
        else:
            released[file], names[file] = known
    said = _said_version(root, series.tree.host)
    if problems and said and parsed(said) != parsed(series.tree.version):
        return [f"{root}: is {series.tree.host} {said} by its own account; these patches are for {series.tree.version}"]
    return problems or Tree(root, series, released, names)


def _said_version(root: Path, host: str) -> str:
    """What a checkout's `version.txt` or an installation's metadata say; empty where there is neither."""
    file = root / "version.txt"
    if file.is_file():
        return file.read_text(encoding="utf-8", errors="replace").strip()
    beside = root.parents[1] if root.match("*.data/purelib") else root  # of an unpacked wheel
    folders = sorted(beside.glob(f"{host}-*.dist-info"))
    return folders[0].name.removesuffix(".dist-info").partition("-")[2] if folders else ""


def _why_unknown(root: Path, series: Series, file: str, content: bytes) -> str:
    if series.look_into(file, content.replace(b"\r\n", b"\n")):
        return f"has CRLF line ends where {series.title} has LF; check it out again with core.autocrlf=false"
    cure = f"get it again ({series.tree.source})"
    if (root / ".git").exists():
        seen = f"git -C {shlex.quote(str(root))} diff -- {file}"
        cure = f"see `{seen}`, then `git stash` or commit your work and check out what the patches are for"
    return (
        f"has changes that are not ours, or is another release's: neither as released in {series.title} nor with patches of it "
        f"(sha256 {_sha256(content)[:12]}, released: {series.tree.released[file][:12]}); {cure}; "
        f"to keep your changes: git apply {shlex.quote(str(series.folder))}/NAME.patch"
    )


# --- writing ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """No other of our commands works on the tree meanwhile; where it is none, `recognise` says so."""
    if not root.is_dir():
        yield
        return
    folder = os.open(root, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then nobody else has to be at work
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _beside(path: Path) -> Path:
    """Where a file's new content is written first."""
    return path.with_name(f".{path.name}.openrlhf-patch")


def _replace(contents: Mapping[Path, bytes]) -> None:
    """Write all new contents, then rename them into place. Each file is whole at any time, its mode and owner stay."""
    try:
        for path, content in contents.items():
            with _beside(path).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(PermissionError):  # only root can give files away, and only root has to
                os.chown(_beside(path), path.stat().st_uid, path.stat().st_gid)
            shutil.copymode(path, _beside(path))
        for path in contents:
            os.replace(_beside(path), path)
    except OSError as error:
        for path in contents:
            _beside(path).unlink(missing_ok=True)
        raise ConfigurationError(
            f"{error.filename}: cannot be written ({error.strerror}); make the tree writable, then give the command again"
        ) from None
