"""What each release of upstream has been through here, and what differs between them.

*Trained*: whole runs, in the tests and benchmarks. *Checked*: seams, flags and parser, a fit of policy and critic, and upstream's
own tests with our classes in place (`marl_plugins.upstream_ci`). What differs between releases is written beside the seam
or flag it concerns (`releases` in `hosts/seams.py` and `hosts/flags.py`), as a version specifier.
"""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

TRAINED = "0.11.2"
CHECKED = ("0.10.2", "0.10.3", "0.10.4", "0.11.0", "0.11.1")
WINDOWED = ">=0.10.4"
"""Releases whose loss is a mean over an optimiser step's tokens, for which `hosts/seams.py` has `loss_batch_info`."""


def parsed(version: str) -> Version | None:
    """A version that can be compared, or None (`unknown`, a branch's name)."""
    try:
        return Version(version)
    except InvalidVersion:
        return None


def concerns(releases: str, version: str) -> bool:
    """Whether a specifier such as `>=0.11.1` covers a release; one whose version cannot be read counts as the trained one."""
    return SpecifierSet(releases).contains(parsed(version) or Version(TRAINED), prereleases=True)


def standing(version: str) -> str:
    """What is known of a release, as people read it."""
    found = parsed(version)
    if version == TRAINED:
        return "trained: whole runs are tested with it"
    if version in CHECKED:
        return "checked: seams, flags, a fit and upstream's own tests; runs are tested with " + TRAINED
    if found is None:
        return "a release that cannot be named: checked as far as the seams go"
    if found > Version(TRAINED):
        return f"newer than any release known here ({TRAINED}): checked as far as the seams go"
    return f"not looked at ({CHECKED[0]} to {TRAINED} are): checked as far as the seams go"


def known(version: str) -> bool:
    """Whether the release is one that is trained or checked."""
    return version == TRAINED or version in CHECKED


def refusal(version: str) -> str | None:
    """Why runs of several policies cannot be trained with a release, and the cure; None where they can."""
    if concerns(WINDOWED, version):
        return None
    return (
        f"openrlhf {version}: its loss is the mean of each micro-batch's mean, so a micro-batch of weightless rows is 0/0 and the "
        f"grid cannot be filled; install openrlhf{WINDOWED}, best {TRAINED}"
    )
