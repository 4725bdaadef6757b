"""`openrlhf patch status | apply | revert --to PATH`: thin patches for a checkout of an upstream.

This project does not require them: plugins run on an unmodified upstream. `docs/patches.md`
explains each patch, `engine/hosts/patches.py` how a tree is recognised and changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.engine.hosts.patches import change, load_series, recognise
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser

ABOUT = """\
Thin patches for a checkout of an upstream. Training with plugins requires none of them.

  openrlhf patch status --to ~/OpenRLHF         which patches the tree has
  openrlhf patch apply --to ~/OpenRLHF          all of them
  openrlhf patch apply --to ~/OpenRLHF 0004     one of them
  openrlhf patch revert --to ~/OpenRLHF         none

They are in git's format, and `git apply` is what changes the tree. Where one of them fits neither
forwards nor backwards, nothing is changed.
"""


def main(words: Sequence[str]) -> int:
    """Runs the command, and returns its exit code, which is 0 also if there was nothing to do.

    Raises:
        ConfigurationError: The arguments, the tree or a name is wrong; nothing was changed.
    """
    parser = _build_parser()
    options = parser.parse_args(list(words))
    if options.command is None:
        parser.print_help()
        return 0
    root, series = recognise(options.to)
    named = series.select(options.names)
    before = {patch.name: patch.state(root) for patch in named}
    if options.command != "status":
        change(root, series, named, "applied" if options.command == "apply" else "absent")
    patches = [
        {"name": p.name, "title": p.title, "was": before[p.name], "state": p.state(root)}
        for p in named
    ]
    if options.json:
        host, version = series.tree.host, series.tree.version
        report = {"tree": str(root), "host": host, "version": version, "patches": patches}
        print(json.dumps(report, indent=2))
        return 0
    from marl_plugins.commands.tables import print_table

    already = "" if options.command == "status" else "already "
    rows = [
        [f"{already if p['was'] == p['state'] else ''}{p['state']}", p["name"], p["title"]]
        for p in patches
    ]
    print_table(f"{series.title} in {root}", ["state", "patch", "what it is for"], rows)
    return 0


def _build_parser() -> argparse.ArgumentParser:
    listed = [
        f"{series.title}\n" + "\n".join(f"  {p.name}\n      {p.title}" for p in series.patches)
        for series in load_series()
    ]
    parser = UpstreamParser(
        prog="openrlhf patch",
        description=ABOUT,
        epilog="Patches:\n" + "\n".join(listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", parser_class=UpstreamParser)
    for name, about in (
        ("status", "which patches a tree has"),
        ("apply", "apply patches to a tree; those already applied are skipped"),
        ("revert", "remove patches from a tree"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument(
            "names", nargs="*", help="names or numbers of patches (0001); default: all"
        )
        command.add_argument(
            "--to",
            type=Path,
            required=True,
            metavar="PATH",
            help="the folder that contains the package: a checkout's root",
        )
        command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser
