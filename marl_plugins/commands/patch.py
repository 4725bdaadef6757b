"""`openrlhf patch status | apply | revert --to PATH`: thin patches for a checkout of an upstream.

This project does not require them: plugins run on an unmodified upstream. `docs/patches.md`
explains each patch, `engine/hosts/patches.py` how a tree is recognised and changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.engine.hosts.patches import PatchedTree, load_series, recognise
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser

ABOUT = """\
Thin patches for a checkout of an upstream. Training with plugins requires none of them.

  openrlhf patch status --to ~/OpenRLHF         which patches the tree has
  openrlhf patch apply --to ~/OpenRLHF          all of them
  openrlhf patch apply --to ~/OpenRLHF 0004     one of them
  openrlhf patch revert --to ~/OpenRLHF         back to the release, byte for byte

A tree is changed only if every touched file is as released, or as released with some of these
patches. A killed command is completed by the next `apply`, or undone by the next `revert`.
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
    tree = recognise(options.to)
    named = tree.series.select(options.names)
    changed: list[str] = []
    before = tree.states
    if options.command != "status":
        interrupted = tree.in_state("interrupted")
        kept = tree.in_state("applied")
        changed = tree.change(
            kept | interrupted | named if options.command == "apply" else kept - named
        )
        tree = recognise(options.to, [tree.series])
    _print_report(tree, before, named, changed, options)
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


def _print_report(
    tree: PatchedTree,
    before: dict[str, str],
    named: frozenset[str],
    changed: list[str],
    options: argparse.Namespace,
) -> None:
    patches = [
        p for p in tree.series.patches if p.name in named or before[p.name] != tree.states[p.name]
    ]
    if options.json:
        report = {
            "tree": str(tree.root),
            "host": tree.series.tree.host,
            "version": tree.series.tree.version,
            "patches": [
                {
                    "name": p.name,
                    "title": p.title,
                    "was": before[p.name],
                    "state": tree.states[p.name],
                }
                for p in patches
            ],
            "changed": changed,
        }
        print(json.dumps(report, indent=2))
        return
    from marl_plugins.commands.tables import print_table

    already = "" if options.command == "status" else "already "
    real = tree.root.resolve()
    print_table(
        f"{tree.series.title} in {tree.root}"
        + (f" ({real})" if real != tree.root.absolute() else ""),
        ["state", "patch", "what it is for"],
        [
            [
                (already if before[p.name] == tree.states[p.name] else "") + tree.states[p.name],
                p.name,
                p.title,
            ]
            for p in patches
        ],
    )
    if changed:
        print("changed: " + ", ".join(changed))
    if "interrupted" in tree.states.values():
        print(
            "a command was killed here: `openrlhf patch apply` completes it, `openrlhf patch "
            "revert` undoes it"
        )
