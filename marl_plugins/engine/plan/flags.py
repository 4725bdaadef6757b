"""Words of a command line and `flags:` of a recipe, as flags with their place, and what is wrong
with each.

Each flag is first parsed alone, so that every wrong one is reported with where it stands; then all
are parsed together, once for the run and once per policy. Precedence: command line, then recipe,
then this project's defaults, then upstream's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import from_home
from marl_plugins.core.loading import users_code
from marl_plugins.core.options import at_least, recipe_file
from marl_plugins.core.plugin_names import SHIPPED
from marl_plugins.core.policy import Policy
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.recipe.recipe_yaml import Origins
from marl_plugins.core.recipe.sources import with_paths
from marl_plugins.core.recipe.tasks import SUFFIXES
from marl_plugins.core.redaction import SECRETS
from marl_plugins.core.run import MOST_IDLE_STEPS
from marl_plugins.engine.hosts import upstream_cli
from marl_plugins.engine.hosts.flags import FLAGS
from marl_plugins.engine.hosts.old_flags import old_flags, successor
from marl_plugins.engine.plan.problems import Problems
from marl_plugins.engine.plan.ranges import CHOICES, RANGES

MAX_LAG = (
    "with --train.partial_rollout_enable: leave out rows with a token sampled by weights more than "
    "N versions older than those it would train; default: none"
)
COMMAND_LINE = "command line"
DEFAULT = "default"
DEFAULTS = {
    "algo.advantage.estimator": "reinforce",
    "vllm.num_engines": 1,
    "ckpt.best_metric_key": "none",
    "reward.num_gpus_per_node": 1,
}
"""Where this project's default differs from upstream's."""
CPU_DEFAULTS = {
    "actor.num_gpus_per_node": 1,
    "vllm.enforce_eager": True,
    "ds.attn_implementation": "eager",
    "ds.zero_stage": 0,
}
"""Further defaults on a machine without an accelerator."""
AS_THE_POLICY = ("num_nodes", "num_gpus_per_node")
"""Sizes of a critic and a reference that nobody gives are the policy's. Upstream's default is 8,
whatever the policy has."""
UPSTREAM_FILES = ("data.prompt_dataset", "eval.dataset", "reward.remote_url")
"""Upstream's flags that may name a file; a recipe's is relative to the recipe, like all its
paths."""


@dataclass(frozen=True)
class GivenFlag:
    """A flag as it was given: its name without dashes, its values as words, and where it stands."""

    name: str
    words: tuple[str, ...]
    where: str
    off: bool = False
    """`false` in a recipe: takes back a switch that was set before."""
    policy: str = ""
    """The policy that it is for, where it was typed as --policy.NAME.FLAG."""

    @property
    def argv(self) -> list[str]:
        if len(self.words) == 1:  # a single word may begin with a dash
            return [f"--{self.name}={self.words[0]}"]
        return [f"--{self.name}", *self.words]


def in_force(flags: Iterable[GivenFlag]) -> list[GivenFlag]:
    """Returns the flags without those that a later `false` takes back."""
    kept: list[GivenFlag] = []
    for flag in flags:
        if flag.off:
            kept = [f for f in kept if f.name != flag.name]
        else:
            kept.append(flag)
    return kept


def own_parser() -> upstream_cli.UpstreamParser:
    """Returns the flags of `openrlhf train` that are not upstream's."""
    parser = upstream_cli.UpstreamParser(prog="openrlhf train", add_help=False, allow_abbrev=False)
    add = parser.add_argument_group("multi-agent training").add_argument
    add(
        "--recipe",
        metavar="PATH",
        help="a recipe's YAML file, its folder, or the name of a shipped recipe",
    )
    add(
        "--plugin",
        metavar="NAME",
        action="append",
        default=[],
        help="use a plugin: dotted name, entry-point name or .py file; repeatable, order counts",
    )
    add(
        "--without",
        metavar="NAME",
        action="append",
        default=[],
        help="remove a plugin of the recipe, with keys and flags that only it reads; repeatable",
    )
    add(
        "--mapping",
        metavar="MAP",
        help="separate, shared, or role=policy,role=policy+policy; overrides the recipe's",
    )
    add(
        "--max_steps",
        type=at_least(1),
        metavar="N",
        help="end after N training steps (rollout, update and sync)",
    )
    add(
        "--max_idle_steps",
        type=at_least(0),
        default=MOST_IDLE_STEPS,
        metavar="N",
        help="save and end the run (exit code 1) after N steps in a row that train no row or in "
        "which a tool loses every call, or after N lost evaluations; 0: never",
    )
    add("--async.max_lag", dest="max_lag", type=at_least(0), metavar="N", help=MAX_LAG)
    add(
        "--resume",
        metavar="FOLDER",
        help="continue the run of a folder (its --ckpt.output_dir); further flags change it",
    )
    add(
        "--resume_with_changes",
        action="store_true",
        help="accept differences between the saved run and this one",
    )
    add(
        "--trust_remote_code",
        action="store_true",
        help="run the code that models bring along (`auto_map` in their config.json)",
    )
    add(
        "--sequences",
        choices=["conversations", "actions", "trees"],
        default="conversations",
        help="sequences of training: a conversation's turns as one; each action with its context; "
        "or as trees all that begin alike, so that a prefix is computed once",
    )
    add(
        "--no_trainer_logprobs",
        action="store_true",
        help="do not record the trainer's log-probs in trajectories.jsonl; the engine's always are",
    )
    add(
        "--logger.trajectories",
        dest="logged_trajectories",
        type=at_least(0),
        default=0,
        metavar="N",
        help="send N trajectories of each step and each evaluation to W&B (a table) and "
        "TensorBoard (text); the seed chooses tasks, the same in every evaluation",
    )
    add("--dry-run", action="store_true", help="check everything, print the plan, start nothing")
    add("--debug", action="store_true", help="show tracebacks and the output of all processes")
    add("--json", action="store_true", help="print JSON instead of tables")
    return parser


def split_flags(words: Sequence[str]) -> list[GivenFlag]:
    """Returns a command line cut into flags with their values, also those of the form
    `--flag=value`.

    Raises:
        ConfigurationError: It begins with something that is not a flag.
    """
    flags: list[GivenFlag] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags.append(GivenFlag(name, (value,) if equals else (), COMMAND_LINE))
        elif not flags:
            fix = f"a recipe is named by --recipe {word}"
            raise ConfigurationError(
                Problem("flags.no_flag", at(line=COMMAND_LINE), repr(word), "a flag (--name)", fix)
            )
        else:
            last = flags.pop()
            flags.append(GivenFlag(last.name, (*last.words, word), COMMAND_LINE))
    return [replace(flag, words=tuple(map(from_home, flag.words))) for flag in flags]


def recipe_flags(flags: Mapping[str, Any], where: Callable[[str], str]) -> list[GivenFlag]:
    """Returns a recipe's `flags:` as on a command line: true is a bare flag, false takes one back,
    a list is several words."""
    given_flags = []
    for name, value in flags.items():
        if value is False:
            given_flags.append(GivenFlag(name, (), where(name), off=True))
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        words = tuple(from_home(str(v)) for v in values)
        given_flags.append(GivenFlag(name, words, where(name)))
    return given_flags


def beside_recipe(
    flag: GivenFlag, folder: Path, actions: Mapping[str, argparse.Action]
) -> GivenFlag:
    """Returns a recipe's flag, its file relative to the recipe's folder where it names one."""
    if len(flag.words) != 1 or flag.name not in actions:
        return flag
    name = flag.words[0]

    def beside(path: str) -> str:
        is_file = path.startswith(".") or Path(path).suffix in (*SUFFIXES, ".py")
        return str(folder / path) if is_file or (path and (folder / path).exists()) else path

    if actions[flag.name].type is recipe_file:
        return replace(flag, words=(str(folder / name),))
    if flag.name in UPSTREAM_FILES:
        return replace(flag, words=(with_paths(name, beside),))
    return flag


def settle_alternatives(
    flags: Iterable[GivenFlag], parser: argparse.ArgumentParser
) -> tuple[list[GivenFlag], list[Problem]]:
    """Returns the flags with at most one of each mutually exclusive group, and the problems with
    the others.

    One on the command line replaces a recipe's.
    """
    kept, problems = list(flags), list[Problem]()
    for group in parser._mutually_exclusive_groups:
        names = {option[2:] for action in group._group_actions for option in action.option_strings}
        mine = [f for f in kept if f.name in names]
        first = [f for f in mine if f.where == COMMAND_LINE] or mine
        chosen = {f.name: f for f in first}
        if len(chosen) > 1:
            where = at(line=first[0].where, flag=sorted(chosen))
            problems.append(
                Problem(
                    "flags.exclusive", where, "they exclude each other", fix="remove one of them"
                )
            )
        kept = [f for f in kept if f.name not in names or f.name == first[0].name]
    return kept, problems


def check_flag(
    flag: GivenFlag,
    parser: upstream_cli.UpstreamParser,
    actions: Mapping[str, argparse.Action],
    per_policy: bool,
) -> list[Problem]:
    """Returns what is wrong with one flag, parsed alone."""
    where = at(line=flag.where, flag=flag.name)
    entry = FLAGS.get(flag.name)
    action = actions.get(flag.name)
    if action is None:
        typed = f"policy.{flag.policy}.{flag.name}" if flag.policy else flag.name
        return [
            Problem(
                "flags.unknown",
                at(line=flag.where, flag=typed),
                "unknown flag",
                fix=_hint(flag, actions),
            )
        ]
    if flag.off:
        got = "false is for switches, and this flag takes a value"
        fix = "give the value, or remove the key; YAML reads off and no as false: put it in quotes"
        return [Problem("flags.no_switch", where, got, fix=fix)] if action.nargs != 0 else []
    if not entry and flag.name in parser.of_upstream:
        got = (
            f"new in openrlhf {upstream_cli.upstream_version()}; what becomes of it with several "
            "policies is not known yet"
        )
        return [Problem("flags.new", where, got, fix="remove it, or install a newer openrlhf-marl")]
    if entry and not _is_default(flag, action):
        if entry.status == "refused":
            return [Problem("flags.refused", where, f"cannot be used: {entry.note}")]
        if entry.status == "replaced":
            return [Problem("flags.replaced", where, f"has no effect here: replaced: {entry.note}")]
    if per_policy and (entry is None or entry.status != "policy"):
        return [
            Problem(
                "flags.whole_run", where, "holds for the whole run and cannot differ per policy"
            )
        ]
    return parse_alone(flag, parser)


def parse_alone(flag: GivenFlag, parser: argparse.ArgumentParser) -> list[Problem]:
    """Returns the problems that parsing one flag reports, with its place."""
    try:
        # a plugin's `type` may raise anything
        with users_code(at(flag=flag.name), place=at(line=flag.where)):
            _, rest = parser.parse_known_args(flag.argv)
    except ConfigurationError as error:
        problems = [p if p.names("line") else p.within(line=flag.where) for p in error.problems]
        other = old_flags().other_values.get(flag.name, {})
        meant = "; ".join(other[word] for word in flag.words if word in other)
        return [replace(p, fix=p.fix or meant) for p in problems]
    if rest:
        where, got = at(line=flag.where, flag=flag.name), f"takes fewer values, got {rest}"
        fix = f"see openrlhf train --help for --{flag.name}"
        return [Problem("flags.too_many", where, got, fix=fix)]
    return []


def own_options(flags: Iterable[GivenFlag], problems: Problems) -> argparse.Namespace:
    """Returns this project's own flags, without those that are wrong, which are reported."""
    parser, right = own_parser(), []
    for flag in flags:
        wrong = parse_alone(flag, parser)
        problems += wrong
        right += [] if wrong else flag.argv
    return parser.parse_args(right)


def unknown_flags(words: Sequence[str]) -> list[Problem]:
    """Returns the flags of a command line for upstream's own trainer that upstream does not have,
    with what was probably meant."""
    root = upstream_cli.upstream_root()
    try:
        actions = actions_of(upstream_cli.build_parser(root))
    except ConfigurationError:  # a release whose parser only upstream itself can build
        return []
    return [
        Problem(
            "flags.unknown",
            at(line=flag.where, flag=flag.name),
            "unknown flag",
            fix=_hint(flag, actions),
        )
        for flag in split_flags(words)
        if flag.name not in actions
    ]


def actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Returns a parser's actions by the names of their flags, without dashes."""
    return {
        option[2:]: a
        for a in parser._actions
        for option in a.option_strings
        if option.startswith("--")
    }


OWN_FLAGS = tuple(actions_of(own_parser()))


def _hint(flag: GivenFlag, known: Iterable[str]) -> str:
    """Returns what to do about an unknown flag: its name of today, the shipped plugin that has it,
    or what was probably meant."""
    name, first = flag.name, flag.name.partition(".")[0]
    if name in OWN_FLAGS:
        return "it is for the whole run, and only the command line takes it"
    if first == "policy" and name.count(".") > 1:
        policy, _, own = name.partition(".")[2].partition(".")
        return f"in a recipe it is `policies: {{{policy}: {{flags: {{{own}: VALUE}}}}}}`"
    if renamed := successor(name):
        return renamed
    owners = [plugin for plugin in SHIPPED if plugin.rpartition(".")[2] == first]
    if owners and not any(n.startswith(f"{first}.") for n in known):
        return f"it is {owners[0]}'s: add --plugin {owners[0]}"
    last = name.rpartition(".")[2]
    longer = sorted(n for n in known if n.endswith(f".{name}")) or sorted(
        n for n in known if first != last and n.startswith(f"{first}.") and n.endswith(f".{last}")
    )
    if longer:
        return f"did you mean {' or '.join(map(repr, longer))}?"
    return meant(name, [*known, *(OWN_FLAGS if flag.where == COMMAND_LINE else ())])


def check_estimator_flags(
    flags: Iterable[GivenFlag], actions: Mapping[str, argparse.Action], estimator: str
) -> Iterator[Problem]:
    """Returns upstream's flags that have no effect with the run's estimator; upstream ignores them
    silently."""
    for flag in flags:
        entry = FLAGS.get(flag.name)
        idle = entry and entry.estimators and estimator not in entry.estimators
        if entry and idle and not flag.off and not _is_default(flag, actions[flag.name]):
            got = (
                f"has no effect with --algo.advantage.estimator {estimator}, only with "
                f"{' or '.join(entry.estimators)}"
            )
            where = at(line=flag.where, flag=flag.name)
            yield Problem("flags.idle", where, got, fix="remove one of the two")


def template_value(words: Sequence[str]) -> Any:
    """Returns what a chat template is given on a command line: a truth value, a number or a
    text."""
    text = " ".join(words) or "true"
    try:
        return json.loads(low if (low := text.lower()) in ("true", "false") else text)
    except ValueError:
        return text


def _is_default(flag: GivenFlag, action: argparse.Action) -> bool:
    """Returns whether a flag was given its default value, also `1.0` for 1."""
    convert: Callable[[str], Any] = action.type if callable(action.type) else str
    try:
        return len(flag.words) == 1 and bool(convert(flag.words[0]) == action.default)
    except (ValueError, argparse.ArgumentTypeError):  # reported when the flag is parsed
        return False


class Flags:
    """All flags of a command line and its recipe, checked one by one, ready to be parsed for the
    run and for each policy.

    Args:
        command_line: The flags on it that are not this project's own.
        recipe: The recipe's `flags:`, with their places.
        problems: What is wrong is added to it; wrong flags are left out of what is parsed.
        output: The run's folder where none is given, so that runs of two recipes do not meet; None:
            upstream's default.
        plugins: The names of those that take part, built-in ones too.
        trees: Whether sequences become trees, which attention `eager` does not see.
    """

    def __init__(
        self,
        parser: upstream_cli.UpstreamParser,
        command_line: Iterable[GivenFlag],
        recipe: Sequence[GivenFlag],
        folder: Path,
        device: str,
        problems: Problems,
        output: str | None,
        plugins: Collection[str],
        trees: bool,
    ):
        self.parser = parser
        self.plugins = plugins
        self.root = upstream_cli.upstream_root()
        self.actions = actions_of(parser)
        for name, number in RANGES.items():
            self.actions[name].type = number
        for name, choices in CHOICES.items():
            self.actions[name].choices = choices
        self.problems = problems
        self.of_policies = [f for f in command_line if f.name.startswith("policy.")]
        shared = [f for f in command_line if not f.name.startswith("policy.")]
        settled, conflicts = settle_alternatives(
            [*(beside_recipe(f, folder, self.actions) for f in recipe), *shared], self.parser
        )
        problems += conflicts
        problems += [
            Problem(
                "flags.secret",
                at(line=flag.where, flag=flag.name),
                "is secret, and a recipe is copied into the folder of every run",
                fix="remove it from the recipe, and give it on the command line or in the "
                "environment (WANDB_API_KEY)",
            )
            for flag in recipe
            if flag.name in SECRETS and flag.words
        ]
        self.templates: dict[str, dict[str, Any]] = {}
        """What chat templates are given on the command line, by policy."""
        self.given = frozenset(f.name for f in in_force(settled))
        self.on_command_line = frozenset(f.name for f in shared)
        defaults = {**DEFAULTS, **(CPU_DEFAULTS if device == "cpu" else {})}
        if trees and device == "cpu":
            defaults["ds.attn_implementation"] = "sdpa"
        if output:
            chosen = [
                f.words[0] for f in in_force(settled) if f.name == "ckpt.output_dir" and f.words
            ]
            output = chosen[-1] if chosen else output
            defaults |= {"ckpt.output_dir": output, "ckpt.path": f"{output}/checkpoints"}
        self.shared = [
            *recipe_flags(defaults, lambda _: DEFAULT),
            *self._checked(settled, per_policy=False),
        ]

    def _checked(self, flags: Iterable[GivenFlag], per_policy: bool) -> list[GivenFlag]:
        """The flags that nothing is wrong with."""
        right = []
        for flag in flags:
            wrong = check_flag(flag, self.parser, self.actions, per_policy) or self._without_plugin(
                flag
            )
            self.problems += wrong
            right += [] if wrong else [flag]
        return right

    def _without_plugin(self, flag: GivenFlag) -> list[Problem]:
        """Returns the problem with a flag of upstream's that a plugin honours which takes no
        part."""
        entry = FLAGS.get(flag.name)
        if not entry or not entry.plugin or entry.plugin in self.plugins or flag.off:
            return []
        got = f"{entry.plugin} honours it, and takes no part"
        fix = f"add --plugin {entry.plugin}, or remove it"
        return [Problem("flags.no_plugin", at(line=flag.where, flag=flag.name), got, fix=fix)]

    def check_estimator(self, estimator: str) -> None:
        """Reports the flags that have no effect with the run's estimator."""
        flags = [flag for flag in self.shared if flag.name in self.given]
        self.problems += check_estimator_flags(flags, self.actions, estimator)

    def _parse(self, flags: Iterable[GivenFlag]) -> SimpleNamespace:
        # `--flag` arguments of a recipe are kept even when the command line repeats them: argparse
        # takes the last one.
        flat = self.parser.parse_args([w for f in in_force(flags) for w in f.argv])
        return upstream_cli.hierarchize(flat, self.root)

    def args(self) -> SimpleNamespace:
        """Returns all flags for the whole run, nested."""
        return self._parse(self.shared)

    def by_policy(
        self, policies: Iterable[Policy], origins: Origins, estimator: str | None
    ) -> dict[str, list[GivenFlag]]:
        """Returns the flags of each policy's own, from the recipe and the command line."""
        own: dict[str, list[GivenFlag]] = {}
        for policy in policies:
            own_flags = recipe_flags(
                policy.flags, partial(origins.where, "policies", policy.name, "flags")
            )
            own[policy.name] = list(own_flags)
        for flag in self.of_policies:
            name, _, upstream_name = flag.name.partition(".")[2].partition(".")
            where = at(line=flag.where, flag=flag.name)
            if not upstream_name:
                expected = "--policy.NAME.FLAG, FLAG being one of upstream's"
                self.problems.append(Problem("flags.of_policy", where, f"--{flag.name}", expected))
            elif name not in own:
                got = f"there is no policy {name!r}"
                self.problems.append(Problem("flags.no_policy", where, got, fix=meant(name, own)))
            elif upstream_name.startswith("template."):
                argument = upstream_name.partition(".")[2]
                self.templates.setdefault(name, {})[argument] = template_value(flag.words)
            else:
                own[name].append(GivenFlag(upstream_name, flag.words, flag.where, policy=name))
        checked = {name: self._checked(flags, per_policy=True) for name, flags in own.items()}
        if estimator is not None:
            for flags in checked.values():
                self.problems += check_estimator_flags(flags, self.actions, estimator)
        return checked

    def policy_args(self, own: Sequence[GivenFlag]) -> SimpleNamespace:
        """Returns all flags for one policy, nested.

        The command line beats the recipe; in each of them a policy's own flag beats one for all
        policies. Its critic and its reference have as many processes as itself, where nothing else
        is said.
        """
        args = self._parse(sorted([*self.shared, *own], key=lambda f: f.where == COMMAND_LINE))
        names = {flag.name for flag in in_force([*self.shared, *own])}
        for model in ("critic", "ref"):
            for size in AS_THE_POLICY:
                if f"{model}.{size}" not in names:
                    setattr(getattr(args, model), size, getattr(args.actor, size))
        return args
