"""Patches of `patches/`, applied as docs/patches.md says: by git alone."""

import os
import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "patches"


def series(name):
    """The patches of a folder, such as `openrlhf/0.11.2`, by number."""
    return {path.name.partition("-")[0]: path for path in sorted((FOLDER / name).glob("*.patch"))}


def files_of(patch):
    return re.findall(r"^diff --git a/(\S+) ", patch.read_text(), re.MULTILINE)


def apply(folder, *patches, reverse=False):
    """In a folder that counts as no part of a repository: git passes over the files of one below
    its root."""
    subprocess.run(
        ["git", "apply", *["-R"] * reverse, *map(str, patches)],
        cwd=folder,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(Path(folder).resolve().parent)},
        check=True,
    )
