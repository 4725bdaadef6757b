"""`openrlhf patch status | apply | revert --to PATH`: thin patches for those who carry a checkout of an upstream.

Nothing of this project needs them: plugins run on an unmodified upstream, which is the default. `docs/patches.md` says what each is
for; `hosts/patches.py` says how a tree is recognised and changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.hosts.patches import Tree, all_series, alone, recognise
from marl_plugins.hosts.upstream_cli import Parser

ABOUT = """\
Thin patches for those who carry a checkout of an upstream. Training with plugins needs none of them.

  openrlhf patch status --to ~/OpenRLHF         which patches are on the tree
  openrlhf patch apply --to ~/OpenRLHF          all of them
  openrlhf patch apply --to ~/OpenRLHF 0004     one of them
  openrlhf patch revert --to ~/OpenRLHF         back to the release, byte for byte

A tree is changed only if each file concerned is as released, or as released with patches of ours on it. A command that
was killed is ended by the next `apply`, or undone by the next `revert`.
"""


def main(words: Sequence[str]) -> int:
    """Run the command; 0 also where there was nothing to do.

    Raises:
        ConfigurationError: The words, the tree or the names are wrong; nothing was changed.
    """
    parser = _parser()
    options = parser.parse_args(list(words))
    if options.command is None:
        parser.print_help()
        return 0
    with alone(options.to):
        tree = recognise(options.to)
        named = tree.series.named(options.names)
        changed: list[str] = []
        before = tree.states
        if options.command != "status":
            interrupted = tree.having("interrupted")
            kept = tree.having("applied")
            changed = tree.change(kept | interrupted | named if options.command == "apply" else kept - named)
            tree = recognise(options.to, [tree.series])
    _report(tree, before, named, changed, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    listed = [
        f"{series.title}\n" + "\n".join(f"  {p.name}\n      {p.title}" for p in series.patches) for series in all_series()
    ]
    parser = Parser(
        prog="openrlhf patch",
        description=ABOUT,
        epilog="Patches:\n" + "\n".join(listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", parser_class=Parser)
    for name, about in (
        ("status", "which patches are on a tree"),
        ("apply", "put patches on a tree; those that are on it already are left alone"),
        ("revert", "take patches off a tree again"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("names", nargs="*", help="names or numbers of patches (0001); all of them without")
        command.add_argument(
            "--to", type=Path, required=True, metavar="PATH", help="the folder that contains the package: a checkout's root"
        )
        command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _report(
    tree: Tree, before: dict[str, str], named: frozenset[str], changed: list[str], options: argparse.Namespace
) -> None:
    patches = [p for p in tree.series.patches if p.name in named or before[p.name] != tree.states[p.name]]
    if options.json:
        report = {
            "tree": str(tree.root),
            "host": tree.series.tree.host,
            "version": tree.series.tree.version,
            "patches": [
                {"name": p.name, "title": p.title, "was": before[p.name], "state": tree.states[p.name]} for p in patches
            ],
            "changed": changed,
            "leftovers": [str(path) for path in tree.leftovers()],
        }
        print(json.dumps(report, indent=2))
        return
    from marl_plugins.runtime.display import print_table

    already = "" if options.command == "status" else "already "
    real = tree.root.resolve()
    print_table(
        f"{tree.series.title} in {tree.root}" + (f" ({real})" if real != tree.root.absolute() else ""),
        ["state", "patch", "what it is for"],
        [
            [(already if before[p.name] == tree.states[p.name] else "") + tree.states[p.name], p.name, p.title]
            for p in patches
        ],
    )
    if changed:
        print("changed: " + ", ".join(changed))
    if "interrupted" in tree.states.values() or tree.leftovers():
        print("a command was killed here: `openrlhf patch apply` ends what was begun, `openrlhf patch revert` undoes it")
