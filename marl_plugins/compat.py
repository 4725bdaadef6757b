"""`openrlhf compat PATH | VERSION`: whether a release of upstream still has every place this project relies on.

Its sources are read and its command line is compiled from them; nothing of it is imported or installed, so that a release can be
looked at before anyone upgrades. `--tests` goes further: a fit with it and upstream's own tests (`marl_plugins.upstream_ci`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.hosts import releases, upstream_cli
from marl_plugins.hosts.flags import flags_of
from marl_plugins.hosts.seams import check_seams, seams_of
from marl_plugins.hosts.trees import Tree, open_tree


@dataclass(frozen=True)
class Area:
    """One line of the answer: what was compared, what was found, and what does not hold."""

    what: str
    found: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def main(words: Sequence[str]) -> int:
    """Print what holds; exit code 0 when all of it does, 1 when something does not, 2 when there was nothing to look at."""
    parser = upstream_cli.Parser(
        prog="openrlhf compat",
        description="Whether a release of OpenRLHF still has every function, class and flag this project relies on.",
        epilog="examples:  openrlhf compat 0.11.1    openrlhf compat ../OpenRLHF    openrlhf compat openrlhf-0.11.2-*.whl --tests",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source",
        help="a checkout, an unpacked wheel, a wheel file, or a published version (downloaded without dependencies)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--tests",
        action="store_true",
        help="train a tiny policy with it and run its own tests as well; a minute, needs the stack",
    )
    options = parser.parse_args(list(words))
    with open_tree(options.source) as tree:
        areas = look(tree)
        good = not any(area.problems for area in areas)
        _print(tree, areas, good, options.json)
        if options.tests and good:
            good = _tests(tree, quiet=options.json)
    return 0 if good else 1


def look(tree: Tree) -> list[Area]:
    """Everything that can be seen without importing it."""
    version = tree.version
    seams = seams_of(version)
    refusal = releases.refusal(version)
    return [
        Area(
            "release",
            f"openrlhf {version} ({tree.origin}); {releases.standing(version)}",
            warnings=(*([] if releases.known(version) else [_not_known(version)]), *([refusal] if refusal else [])),
        ),
        Area("seams", f"{len(seams)} places that are relied on", tuple(check_seams(tree.package, version))),
        *_command_line(tree),
    ]


def _not_known(version: str) -> str:
    return f"openrlhf {version} has not been tried: whether runs work with it only a run can tell (openrlhf compat SOURCE --tests)"


def _command_line(tree: Tree) -> list[Area]:
    """The flag table beside the release's parser, and its validation on its own defaults."""
    try:
        parser = upstream_cli.build_parser(tree.package)
        nested = upstream_cli.hierarchize(parser.parse_args([]), tree.package)
    except ConfigurationError as error:
        return [Area("command line", "its parser cannot be taken from its source", tuple(error.problems))]
    here, there = flags_of(tree.version), parser.of_upstream
    gone = tuple(f"--{name} is gone; a recipe that sets it is refused" for name in sorted(here - there))
    new = tuple(f"--{name} is new; refused until it is known here" for name in sorted(there - here))
    failed = [problem for problem in upstream_cli.validate(nested, tree.package)[0] if "failed" in problem]
    return [
        Area("flags", f"{len(there)} flags", gone, new),
        Area("validation", "upstream's own checks of the flags run", tuple(failed)),
    ]


def _print(tree: Tree, areas: Sequence[Area], good: bool, as_json: bool) -> None:
    if as_json:
        answer = {"version": tree.version, "good": good, "areas": [asdict(area) for area in areas]}
        print(json.dumps(answer, indent=2))
        return
    from marl_plugins.runtime.display import print_table

    rows = [["BROKEN" if a.problems else "look" if a.warnings else "ok", a.what, a.found] for a in areas]
    print_table(f"openrlhf {tree.version}", ["", "what", "found"], rows)
    for area in areas:
        for problem in area.problems:
            print(f"  {area.what}: {problem}")
        for warning in area.warnings:
            print(f"  {area.what}, warning: {warning}")
    if not good:
        print("runs would fail with this release: see the lines above")
    elif releases.refusal(tree.version):
        print("every place that is relied on is there, but runs are refused with this release: see the warning")
    else:
        print("everything that is relied on is there")


def _tests(tree: Tree, quiet: bool) -> bool:
    """The compatibility tests on the tree, in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "marl_plugins.upstream_ci.fixtures"]
    command += ["--pyargs", "marl_plugins.upstream_ci", "--openrlhf", str(tree.root)]
    done = subprocess.run(command, env={**os.environ}, stdout=sys.stderr if quiet else None)
    return done.returncode == 0
