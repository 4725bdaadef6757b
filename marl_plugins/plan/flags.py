"""Words of a command line and `flags:` of a recipe, as flags with their place, and what is wrong with each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.hosts import upstream_cli
from marl_plugins.hosts.flags import FLAGS
from marl_plugins.manager import SHIPPED

OWN_FLAGS = ("recipe", "plugin", "mapping", "max_steps", "logical_gpus", "dry-run", "debug", "json")


@dataclass(frozen=True)
class Given:
    """A flag as it was given: its name without dashes, its values as words, and where it stands."""

    name: str
    words: tuple[str, ...]
    where: str
    off: bool = False
    """`false` in a recipe: takes back a switch that was set before."""

    @property
    def argv(self) -> list[str]:
        if len(self.words) == 1:  # a single word may begin with a dash
            return [f"--{self.name}={self.words[0]}"]
        return [f"--{self.name}", *self.words]


def in_force(flags: Iterable[Given]) -> list[Given]:
    """The flags without those that a later `false` takes back."""
    kept: list[Given] = []
    for flag in flags:
        if flag.off:
            kept = [f for f in kept if f.name != flag.name]
        else:
            kept.append(flag)
    return kept


def own_parser() -> upstream_cli.Parser:
    """The flags of `openrlhf train` that are not upstream's."""
    parser = upstream_cli.Parser(prog="openrlhf train", add_help=False, allow_abbrev=False)
    ours = parser.add_argument_group("multi-agent training")
    ours.add_argument("--recipe", metavar="PATH", help="a recipe's YAML file, its folder, or the name of a shipped recipe")
    ours.add_argument(
        "--plugin",
        metavar="NAME",
        action="append",
        default=[],
        help="take a plugin in: dotted name, entry-point name or .py file; may be given several times, order counts",
    )
    ours.add_argument(
        "--mapping", metavar="MAP", help="separate, shared, or role=policy,role=policy; overrides the recipe's"
    )
    ours.add_argument("--max_steps", type=int, metavar="N", help="end after N training steps (rollout, update and sync)")
    ours.add_argument(
        "--logical_gpus", type=int, metavar="N", help="on a machine without GPUs: so many logical ones; default: as needed"
    )
    ours.add_argument("--dry-run", action="store_true", help="check everything, print the plan, start nothing")
    ours.add_argument("--debug", action="store_true", help="show tracebacks and the output of all processes")
    ours.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def split_flags(words: Sequence[str], where: str) -> list[Given]:
    """A command line cut into flags with their values; `--flag=value` likewise.

    Raises:
        ConfigurationError: It begins with something that is not a flag.
    """
    flags: list[Given] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags.append(Given(name, (value,) if equals else (), where))
        elif not flags:
            raise ConfigurationError(f"{where}: expected a flag (--name), got {word!r}")
        else:
            last = flags.pop()
            flags.append(Given(last.name, (*last.words, word), where))
    return flags


def recipe_flags(flags: Mapping[str, Any], where: Callable[[str], str]) -> list[Given]:
    """A recipe's `flags:` as on a command line: true is a bare flag, false takes one back, a list is several words."""
    given = []
    for name, value in flags.items():
        if value is False:
            given.append(Given(name, (), where(name), off=True))
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        given.append(Given(name, tuple(str(v) for v in values), where(name)))
    return given


def check_flags(
    flags: Iterable[Given], parser: upstream_cli.Parser, actions: Mapping[str, argparse.Action], per_policy: bool
) -> list[str]:
    problems = []
    for flag in flags:
        if flag.name not in actions:
            problems.append(f"{flag.where}: unknown flag --{flag.name}{_cure(flag.name, actions)}")
            continue
        if flag.off:
            if actions[flag.name].nargs != 0:
                problems.append(f"{flag.where}: {flag.name}: false is for switches; this flag takes a value")
            continue
        entry = FLAGS.get(flag.name)
        if not entry and flag.name in parser.of_upstream:
            problems.append(
                f"{flag.where}: --{flag.name} is new in openrlhf {upstream_cli.upstream_version()}; what becomes of it with "
                "several policies is not known yet. Take it out, or install a newer openrlhf-marl"
            )
        elif entry and entry.status == "refused" and not _is_default(flag, actions[flag.name]):
            problems.append(f"{flag.where}: --{flag.name} cannot be used: {entry.note}")
        elif entry and entry.status == "replaced":
            problems.append(f"{flag.where}: --{flag.name} has no effect here: replaced: {entry.note}")
        elif per_policy and (entry is None or entry.status != "policy"):
            problems.append(f"{flag.where}: --{flag.name} holds for the whole run and cannot differ per policy")
        else:
            try:
                parser.parse_args(flag.argv)
            except ConfigurationError as error:
                problems += [f"{flag.where}: {p}" for p in error.problems]
    return problems


def _cure(name: str, known: Iterable[str]) -> str:
    """What to do about a flag that nobody has: name the shipped plugin that would, or the flag that was meant."""
    owners = [plugin for plugin in SHIPPED if plugin.rpartition(".")[2] == name.partition(".")[0]]
    if owners and not any(n.startswith(name.partition(".")[0] + ".") for n in known):
        return f"; it is {owners[0]}'s: add --plugin {owners[0]}"
    return nearest(name, known)


def check_estimator_flags(flags: Iterable[Given], actions: Mapping[str, argparse.Action], estimator: str) -> list[str]:
    """Flags of upstream's that the run's estimator has no use for; upstream overlooks them."""
    problems = []
    for flag in flags:
        entry = FLAGS.get(flag.name)
        idle = entry and entry.estimators and estimator not in entry.estimators
        if entry and idle and not flag.off and not _is_default(flag, actions[flag.name]):
            problems.append(
                f"{flag.where}: --{flag.name} has no effect with --algo.advantage.estimator {estimator}, only with "
                f"{' or '.join(entry.estimators)}; take one of the two out"
            )
    return problems


def _is_default(flag: Given, action: argparse.Action) -> bool:
    """Whether a flag was given what it would be without, `1.0` for 1 included."""
    convert: Callable[[str], Any] = action.type if callable(action.type) else str
    try:
        return len(flag.words) == 1 and bool(convert(flag.words[0]) == action.default)
    except ValueError:  # said elsewhere
        return False
