"""`openrlhf compat PATH | VERSION`: whether a release of upstream still has everything that this
project depends on.

Its sources are read and its command line is compiled from them; nothing is imported or installed,
so that a release can be checked before upgrading. `--tests` also runs a fit with it and upstream's
own tests (`marl_plugins.commands.upstream_ci`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from marl_plugins.commands.doctor.upstream import REPAIR, report_seams
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, error, note, ok
from marl_plugins.engine.hosts import releases, upstream_cli
from marl_plugins.engine.hosts.flags import flags_of
from marl_plugins.engine.hosts.trees import SourceTree, open_tree


def main(words: Sequence[str]) -> int:
    """Prints the findings, and returns the exit code 0 if all are good, 1 if not, 2 if there was
    nothing to check."""
    parser = upstream_cli.UpstreamParser(
        prog="openrlhf compat",
        description="Whether a release of OpenRLHF still has every function, class and flag that "
        "this project depends on.",
        epilog="examples:\n  openrlhf compat 0.11.1\n  openrlhf compat ../OpenRLHF\n"
        "  openrlhf compat openrlhf-0.11.2-cp311-cp311-manylinux1_x86_64.whl --tests",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source",
        help="a checkout, an unpacked wheel, a wheel file, or a published version (downloaded "
        "without dependencies)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON: version, good, and findings with what, good, found, fix",
    )
    parser.add_argument(
        "--tests",
        action="store_true",
        help="also train a tiny policy with it and run its own tests; takes a minute, requires the "
        "stack",
    )
    options = parser.parse_args(words)
    from marl_plugins.commands.tables import report

    with open_tree(options.source) as tree:
        intact = "everything that this project depends on is there"
        if releases.refusal(tree.version):
            intact += ", but runs with this release are refused"
        good = report(
            f"openrlhf {tree.version}",
            tree.version,
            check_release(tree),
            options.json,
            intact,
            "runs would fail with this release",
        )
        if options.tests and good:
            good = _run_tests(tree, quiet=options.json)
    return 0 if good else 1


def check_release(tree: SourceTree) -> list[Finding]:
    """Returns everything that can be checked without importing the release."""
    return [
        *_describe_release(tree),
        *report_seams(tree.package, tree.version),
        *_check_command_line(tree),
    ]


def _describe_release(tree: SourceTree) -> list[Finding]:
    text = f"openrlhf {tree.version} ({tree.origin}); {releases.standing(tree.version)}"
    if refused := releases.refusal(tree.version):
        return [note("release", text, str(refused))]
    if not releases.known(tree.version):
        return [
            note(
                "release",
                text,
                "only a run can show whether it works; openrlhf compat SOURCE --tests checks more",
            )
        ]
    return [ok("release", text)]


def _check_command_line(tree: SourceTree) -> list[Finding]:
    """The flag table against the release's parser, and its validation on its own defaults."""
    try:
        parser = upstream_cli.build_parser(tree.package)
        nested = upstream_cli.hierarchize(parser.parse_args([]), tree.package)
    except ConfigurationError as wrong:
        return [error("command line", str(problem), REPAIR) for problem in wrong.problems]
    known, present = flags_of(tree.version), parser.of_upstream
    gone = [error("flags", f"--{name} is gone", REPAIR) for name in sorted(known - present)]
    new = [
        note("flags", f"--{name} is new", "refused when set, until it is in the flag table")
        for name in sorted(present - known)
    ]
    failed = [
        problem
        for problem in upstream_cli.validate(nested, tree.package)[0]
        if problem.code == "upstream.validation"
    ]
    return [
        *(gone or [ok("flags", f"all {len(known)} known flags exist")]),
        *new,
        *(
            [error("validation", str(p), REPAIR) for p in failed]
            or [ok("validation", "upstream's own checks of its flags run")]
        ),
    ]


def _run_tests(tree: SourceTree, quiet: bool) -> bool:
    """Run the compatibility tests on the tree in a separate process."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "marl_plugins.commands.upstream_ci.fixtures",
    ]
    command += ["--pyargs", "marl_plugins.commands.upstream_ci", "--openrlhf", str(tree.root)]
    done = subprocess.run(command, stdout=sys.stderr if quiet else None)
    return done.returncode == 0
