"""The sources of a release of upstream: a checkout, an unpacked wheel, a wheel file or a published
version; never imported."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import cache_folder
from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.hosts.releases import parsed


class SourceTree(NamedTuple):
    """A release on disk."""

    root: Path
    """Folder to put on `sys.path`: it holds `openrlhf/`, and `tests/` where the release ships its
    tests."""
    version: str
    """As stated by the release, or `unknown`."""
    origin: str
    """What it is: `checkout`, `wheel`, `installed`."""

    @property
    def package(self) -> Path:
        return self.root / "openrlhf"

    @property
    def tests(self) -> Path | None:
        """The folder of upstream's own tests."""
        return self.root / "tests" if list((self.root / "tests").glob("test_*.py")) else None


@contextlib.contextmanager
def open_tree(source: str) -> Iterator[SourceTree]:
    """Provides the release that a path or a version names; unpacked files are deleted afterwards.

    Raises:
        ConfigurationError: The path or version does not exist, is something else, or is incomplete.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        yield _read_folder(path.resolve())
    elif path.is_file():
        with tempfile.TemporaryDirectory(prefix="openrlhf-") as unpacked:
            yield _unpack(path, Path(unpacked))
    elif os.sep not in source and (version := parsed(source)):
        with tempfile.TemporaryDirectory(prefix="openrlhf-") as unpacked:
            yield _unpack(download(str(version)), Path(unpacked))
    else:
        raise ConfigurationError(
            Problem(
                "trees.unknown",
                where=at(file=source),
                got="no such file or folder, and not a version",
                fix="expected a checkout, a wheel, or a version like 0.11.2",
            )
        )


def _read_folder(path: Path) -> SourceTree:
    """A checkout, or what a wheel holds."""
    root = next(path.glob("openrlhf-*.data/purelib"), path)  # where a wheel's files may be
    if not (root / "openrlhf").is_dir():
        got, fix = "has no folder openrlhf/", "give a checkout or a wheel of OpenRLHF, or a version"
        raise ConfigurationError(Problem("trees.no_package", at(file=path), got, fix=fix))
    stated, metadata = path / "version.txt", next(path.glob("openrlhf-*.dist-info"), None)
    if metadata is not None:
        return SourceTree(root, metadata.stem.removeprefix("openrlhf-"), "wheel")
    version = stated.read_text(encoding="utf-8").strip() if stated.is_file() else "unknown"
    return SourceTree(root, version, "checkout")


def _unpack(wheel: Path, folder: Path) -> SourceTree:
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    except zipfile.BadZipFile as error:
        got, fix = f"not a complete wheel ({error})", "download it again"
        raise ConfigurationError(Problem("trees.wheel", at(file=wheel), got, fix=fix)) from None
    return _read_folder(folder)


def download(version: str) -> Path:
    """Returns the wheel of a published version, without its dependencies; downloaded once.

    Raises:
        ConfigurationError: pip cannot download it, with its reason.
    """
    cache = cache_folder() / "openrlhf-marl" / "releases"
    cache.mkdir(parents=True, exist_ok=True)
    cached = sorted(cache.glob(f"openrlhf-{version}-*.whl"))
    if cached:
        return cached[0]
    with tempfile.TemporaryDirectory(dir=cache, prefix=".new-") as fresh:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", fresh]
        # Upstream's code is the same for all Pythons; every release has a wheel with this tag.
        command += [
            "--python-version",
            "3.11",
            "--platform",
            "manylinux1_x86_64",
            f"openrlhf=={version}",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = sorted(Path(fresh).glob("*.whl"))
        if done.returncode or not wheels:
            got = f"openrlhf {version} could not be downloaded: {done.stderr.strip()[:300]}"
            fix = "is the index reachable (pip config list)? Or give a path"
            raise ConfigurationError(Problem("trees.download", got=got, fix=fix))
        return wheels[0].rename(cache / wheels[0].name)
