"""`openrlhf compat PATH | VERSION`: whether a release of upstream still has every place this project relies on.

Its sources are read and its command line is compiled from them; nothing of it is imported or installed, so that a release can be
looked at before anyone upgrades. `--tests` goes further: a fit with it and upstream's own tests (`marl_plugins.upstream_ci`).
A checkout of MARTI is looked at likewise: what is known of it, and its known defects (docs/marti.md).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, all_good, fine, red, remark
from marl_plugins.hosts import marti, releases, upstream_cli
from marl_plugins.hosts.flags import flags_of
from marl_plugins.hosts.seams import check_seams, seams_of
from marl_plugins.hosts.trees import Tree, open_tree

CURE = f"install openrlhf {releases.TRAINED}, or a newer openrlhf-marl"


def main(words: Sequence[str]) -> int:
    """Print what holds; exit code 0 when all of it does, 1 when something does not, 2 when there was nothing to look at."""
    parser = upstream_cli.Parser(
        prog="openrlhf compat",
        description="Whether a release of OpenRLHF still has every function, class and flag this project relies on.",
        epilog="examples:\n  openrlhf compat 0.11.1\n  openrlhf compat ../OpenRLHF\n"
        "  openrlhf compat openrlhf-0.11.2-cp311-cp311-manylinux1_x86_64.whl --tests",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source",
        help="a checkout (of OpenRLHF, or of MARTI), an unpacked wheel, a wheel file, or a published version (downloaded without "
        "dependencies)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON: version, good, and findings with what, good, found, cure"
    )
    parser.add_argument(
        "--tests",
        action="store_true",
        help="train a tiny policy with it and run its own tests as well; a minute, needs the stack",
    )
    options = parser.parse_args(list(words))
    if name := marti.recognise(Path(options.source)):
        if options.tests:
            raise ConfigurationError(f"{options.source} is {name}; --tests is for releases of OpenRLHF")
        findings = marti.check(Path(options.source))
        _print(name, name, findings, options.json, "it is as it is known here", "see the lines marked MEND")
        return 0 if all_good(findings) else 1
    with open_tree(options.source) as tree:
        findings = look(tree)
        good = all_good(findings)
        kept = "every place that is relied on is there"
        if releases.refusal(tree.version):
            kept += ", but runs are refused with this release"
        _print(f"openrlhf {tree.version}", tree.version, findings, options.json, kept, "runs would fail with this release")
        if options.tests and good:
            good = _tests(tree, quiet=options.json)
    return 0 if good else 1


def look(tree: Tree) -> list[Finding]:
    """Everything that can be seen without importing it."""
    seams = seams_of(tree.version)
    gone = [red("seams", problem, CURE) for problem in check_seams(tree.package, seams)]
    return [
        *_release(tree),
        *(gone or [fine("seams", f"all {len(seams)} places that are relied on are there")]),
        *_command_line(tree),
    ]


def _release(tree: Tree) -> list[Finding]:
    found = f"openrlhf {tree.version} ({tree.origin}); {releases.standing(tree.version)}"
    if refused := releases.refusal(tree.version):
        return [remark("release", found, refused)]
    if not releases.known(tree.version):
        return [remark("release", found, "only a run can tell whether it works; openrlhf compat SOURCE --tests tells more")]
    return [fine("release", found)]


def _command_line(tree: Tree) -> list[Finding]:
    """The flag table beside the release's parser, and its validation on its own defaults."""
    try:
        parser = upstream_cli.build_parser(tree.package)
        nested = upstream_cli.hierarchize(parser.parse_args([]), tree.package)
    except ConfigurationError as error:
        return [red("command line", problem, CURE) for problem in error.problems]
    here, there = flags_of(tree.version), parser.of_upstream
    gone = [red("flags", f"--{name} is gone", CURE) for name in sorted(here - there)]
    new = [remark("flags", f"--{name} is new", "refused when set, until it is known here") for name in sorted(there - here)]
    failed = [problem for problem in upstream_cli.validate(nested, tree.package)[0] if "failed" in problem]
    return [
        *(gone or [fine("flags", f"all {len(here)} flags that are known are there")]),
        *new,
        *([red("validation", p, CURE) for p in failed] or [fine("validation", "upstream's own checks of its flags run")]),
    ]


def _print(title: str, version: str, findings: Sequence[Finding], as_json: bool, kept: str, broken: str) -> None:
    good = all_good(findings)
    if as_json:
        print(json.dumps({"version": version, "good": good, "findings": [asdict(f) for f in findings]}, indent=2))
        return
    from marl_plugins.runtime.display import print_findings

    print_findings(title, findings)
    print(kept if good else broken)


def _tests(tree: Tree, quiet: bool) -> bool:
    """The compatibility tests on the tree, in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "marl_plugins.upstream_ci.fixtures"]
    command += ["--pyargs", "marl_plugins.upstream_ci", "--openrlhf", str(tree.root)]
    done = subprocess.run(command, env={**os.environ}, stdout=sys.stderr if quiet else None)
    return done.returncode == 0
