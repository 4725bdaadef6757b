"""Opponents from the past, for self-play: a policy that follows a trained one plays as one of its
earlier versions.

    policies: {earlier: {follows: player}}      in the recipe, with roles that `earlier` plays

The weights of versions 0, d, 2d, ... of the followed policy are kept, where d is
`--opponents.every`, doubled for as long as there would be more than `--opponents.size` of them:
they lie evenly over the run, the start among them, and one that is left out never comes back. After
every sync one of them is drawn, all with the same probability (the case delta = 0 of arXiv
1710.03748, section 4.2), by the run's seed and the version. So what is kept and who plays follow
from the version alone, and a resumed run repeats.

    <ckpt.path>/earlier/version-20.safetensors      renamed into place when it is on disk; belongs
        to the steps that are saved
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import re
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import cast

from marl_plugins import (
    Follower,
    PolicyProcesses,
    Problem,
    Run,
    RunEnded,
    at,
    at_least,
    derive_seed,
    hookimpl,
    replace_bytes,
)


class Pool:
    """The saved weights of one policy that follows another one, in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.kept: dict[int, str] = {}
        """Versions with the digests of their weights."""
        self.saved: set[int] = set()
        """Those that a saved step may name, whose files are no longer ours to remove."""
        self.playing: int | None = None
        self.drawn: int | None = None
        """The versions that play in this step and in the next one."""

    def path(self, version: int) -> Path:
        return self.folder / f"version-{version}.safetensors"

    def begin(self, version: int) -> None:
        """Removes what is not continued: files of later versions than the one that the run begins
        with, and unfinished ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            name = re.fullmatch(r"version-(\d+)\.safetensors(\.new)?", path.name)
            if name and (name[2] or (int(name[1]) >= version and int(name[1]) not in self.kept)):
                path.unlink()

    def keep(self, version: int, weights: bytes) -> None:
        replace_bytes(self.path(version), weights)
        self.kept[version] = content(weights)

    def leave_out(self, versions: Iterable[int]) -> None:
        for version in versions:
            del self.kept[version]
            if version not in self.saved:
                self.path(version).unlink()

    def read(self, version: int) -> bytes:
        """Returns the weights of a version that is kept.

        Raises:
            RunEnded: The file is not what was written.
        """
        weights = self.path(version).read_bytes()
        if content(weights) != self.kept[version]:
            raise RunEnded(f"{self.path(version)} is damaged: its content is not what was written")
        return weights


class Pools(dict[str, Pool]):
    """The pools of a run, by the name of the policy that follows."""


def content(weights: bytes) -> str:
    """Returns a digest."""
    return hashlib.blake2b(weights, digest_size=16).hexdigest()


def distance(version: int, every: int, size: int) -> int:
    """Returns the number of versions from one that is kept to the next, when `version` is the
    newest one; a larger one is a multiple of a smaller one."""
    while version // every >= size:
        every *= 2
    return every


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "opponents of earlier versions (--plugin marl_plugins.opponent_pool)"
    )
    group.add_argument(
        "--opponents.every",
        type=at_least(1),
        default=10,
        help="every N-th version is kept; N doubles whenever more than --opponents.size would be",
    )
    group.add_argument(
        "--opponents.size",
        type=at_least(1),
        default=8,
        help="maximum number of versions that are kept",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    if any(policy.follows for policy in run.policies):
        return []
    who, fix = (
        at(plugin="marl_plugins.opponent_pool"),
        "add `policies: {NAME: {follows: POLICY}}` to the recipe",
    )
    return [
        Problem(
            "opponent_pool.unused",
            who,
            "no policy follows another one",
            fix=fix,
            severity="warning",
        )
    ]


@hookimpl
def marl_sync(run: Run, policy: PolicyProcesses, version: int) -> Awaitable[bool] | None:
    return play_earlier(run, cast("Follower", policy), version) if policy.spec.follows else None


async def play_earlier(run: Run, policy: Follower, version: int) -> bool:
    """Keeps `version` if it is its turn, and brings the policy's engines to one that is kept.

    Raises:
        RunEnded: A file cannot be written or read.
    """
    pool = _pool(run, policy.name)
    apart = distance(version, run.args.opponents.every, run.args.opponents.size)
    try:
        if pool.playing is None:
            pool.begin(version)
        if version not in pool.kept and (version % apart == 0 or not pool.kept):
            await asyncio.to_thread(pool.keep, version, await policy.weights())
        versions = sorted([v for v in pool.kept if v % apart == 0] or pool.kept)
        pool.leave_out(pool.kept.keys() - versions)
        pool.drawn = versions[
            derive_seed(run.args.train.seed, "opponent", policy.name, version) % len(versions)
        ]
        weights = await asyncio.to_thread(pool.read, pool.drawn)
    except OSError as error:
        raise RunEnded(
            f"policy {policy.name!r}, version {version}: {error.filename}: {error.strerror}"
        ) from error
    if pool.playing is None:
        pool.playing = pool.drawn
    return await policy.hold(weights, pool.drawn)


def _pool(run: Run, name: str) -> Pool:
    return run.state(Pools).setdefault(name, Pool(Path(run.policy_args[name].ckpt.path)))


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    for name, pool in run.state(Pools).items():
        if pool.playing is not None:
            metrics |= {
                f"opponents/{name}/version": float(pool.playing),
                f"opponents/{name}/kept": float(len(pool.kept)),
            }
        pool.playing = pool.drawn


@hookimpl
def marl_state(run: Run) -> dict[str, dict[str, str]]:
    return {
        name: {str(v): digest for v, digest in pool.kept.items()}
        for name, pool in run.state(Pools).items()
    }


@hookimpl
def marl_restore(run: Run, state: Mapping[str, Mapping[str, str]]) -> None:
    for name, kept in state.items():
        if name in run.policy_args:
            pool = _pool(run, name)
            pool.kept = {int(version): digest for version, digest in kept.items()}
            pool.saved = set(pool.kept)


@hookimpl
def marl_files(run: Run) -> list[Path]:
    pools = run.state(Pools).values()
    for pool in pools:
        pool.saved |= pool.kept.keys()
    return [pool.path(version) for pool in pools for version in pool.kept]
