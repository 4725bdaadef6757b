"""The members of an ensemble as the recipe's `coach:` names them, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from marl_plugins import Problem, at, meant, recipe_file
from marl_plugins.coach.flags import (
    IRRELEVANT,
    KINDS,
    OF_A_MODEL,
    OF_A_POLICY,
    OF_AN_ENDPOINT,
    add_flags,
    policy_problems,
)
from marl_plugins.coach.section import CoachConfig, CoachMemberConfig

# inside: parses a member's flags as the plan does
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.plan.flags import GivenFlag, actions_of, parse_alone

if TYPE_CHECKING:
    from marl_plugins import Run

SHARED = ("cache", "record", "replay", "memory")
"""What all members have together."""
OF_A_MEMBER = tuple(
    name for name in (*OF_A_MODEL, *OF_AN_ENDPOINT, *OF_A_POLICY) if name not in SHARED
)
BUDGETS = ("budget", "budget_tokens")


def members_of(run: Run) -> dict[str, CoachMemberConfig]:
    """Returns the members of the recipe's ensemble; empty where it has none, or the command line
    names a coach."""
    replaced = any(f"coach.{kind}" in run.on_command_line for kind in KINDS)
    return {} if replaced else dict(config_of(run).members or {})


def of_member(name: str, problems: Iterable[Problem]) -> list[Problem]:
    """Returns problems of one coach, with the key of the member that it is; empty: there is one
    coach alone."""
    return [p.within(key=f"coach.members.{name}") if name else p for p in problems]


def config_of(run: Run) -> CoachConfig:
    """Returns the recipe's `coach:`."""
    return run.section(CoachConfig) or CoachConfig()


def coaches_of(run: Run) -> list[SimpleNamespace]:
    """Returns the coach's flags, for each of several."""
    return [member_args(run, member) for member in members_of(run).values()] or [run.args.coach]


def member_args(run: Run, member: CoachMemberConfig) -> SimpleNamespace:
    """Returns the coach's flags as they hold for a member; a value that is wrong is left out,
    `check_members` says so."""
    args = SimpleNamespace(**vars(run.args.coach))
    args.rubric = str(run.folder / member.rubric) if member.rubric else None
    args.model, args.policy = member.model, member.policy
    parser = _parser()
    actions = actions_of(parser)
    for name, value in member.flags.items():
        if name in OF_A_MEMBER and not parse_alone(_given(name, value), parser):
            parsed = vars(parser.parse_args(_given(name, value).argv))[f"coach.{name}"]
            setattr(
                args,
                name,
                str(run.folder / parsed)
                if actions[f"coach.{name}"].type is recipe_file
                else parsed,
            )
    return args


def check_members(run: Run) -> list[Problem]:
    """Returns everything that is wrong with the ensemble, each beginning with its key."""
    members, config = members_of(run), config_of(run)
    problems = [
        Problem(
            "coach.members_and_flags",
            at(key="coach.members", flag=f"coach.{kind}"),
            "the recipe has a coach in `flags` too",
            fix="remove one of the two",
        )
        for kind in KINDS
        if f"coach.{kind}" in run.given
    ]
    for name, member in members.items():
        problems += _member_problems(run, name, member)
    if config.combine != "mean":
        problems += [
            Problem(
                "coach.weight",
                at(key=f"coach.members.{name}.weight"),
                f"it counts in a mean, and `combine` is {config.combine}",
                fix="remove one of the two",
            )
            for name, member in members.items()
            if "weight" in member.model_fields_set
        ]
    kinds = [kind for member in members.values() for kind in kinds_of(member)]
    if kinds.count("model") > 1:
        problems += [
            Problem(
                "coach.budget_of_members",
                at(key="coach.members", flag=f"coach.{name}"),
                f"would hold for each of {kinds.count('model')} endpoints",
                fix=f"give each its own in its `flags`, as in {{{name}: 10}}",
            )
            for name in BUDGETS
            if f"coach.{name}" in run.given
        ]
    slow = [
        name
        for name, member in members.items()
        if {"model", "policy"} & {*kinds_of(member)}
        and member_args(run, member).deadline >= run.recipe.limits.task_seconds
    ]
    if slow and len(members) > 1:
        where = at(key="limits.task_seconds", flag="coach.deadline")
        got = f"where {' or '.join(slow)} is late, the others' verdicts are lost with it"
        problems.append(
            Problem("coach.late", where, got, fix="lower the deadline", severity="warning")
        )
    problems += [
        Problem(
            "coach.irrelevant",
            at(key="coach.members", flag=f"coach.{flag}"),
            f"has no effect, because no member is about {what}",
        )
        for flag, what in IRRELEVANT["rubric"].items()
        if f"coach.{flag}" in run.given and all(flag in IRRELEVANT[kind] for kind in kinds)
    ]
    return problems


def kinds_of(member: CoachMemberConfig) -> list[str]:
    """Returns which of `rubric`, `model` and `policy` a member has; there should be one."""
    return [kind for kind in KINDS if getattr(member, kind)]


def _member_problems(run: Run, name: str, member: CoachMemberConfig) -> Iterator[Problem]:
    """Returns what is wrong with one member."""
    key = f"coach.members.{name}"
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        got = (
            "letters, digits, `_`, `-` and `.` make the name of a member, which metrics and "
            "files have"
        )
        yield Problem("coach.member_name", at(key=key), got, fix="rename it")
    kinds = kinds_of(member)
    if len(kinds) != 1:
        got, expected = " and ".join(kinds) or "none", "one of rubric, model and policy"
        yield Problem("coach.member_kind", at(key=key), got, expected)
    yield from [
        problem
        for flag, value in member.flags.items()
        for problem in _flag_problems(key, flag, value, kinds)
    ]
    if member.policy:
        yield from of_member(name, policy_problems(run, member_args(run, member)))


def _flag_problems(member: str, flag: str, value: Any, kinds: Sequence[str]) -> list[Problem]:
    """Returns what is wrong with a flag of a member.

    Args:
        member: The member's key.
        kinds: Which of `rubric`, `model` and `policy` it has.
    """
    where = at(key=f"{member}.flags.{flag}")
    if flag not in OF_A_MEMBER:
        return [
            Problem(
                "coach.member_flag",
                where,
                f"a member has no flag {flag!r}",
                fix=f"give --coach.{flag}" if flag in SHARED else meant(flag, OF_A_MEMBER),
            )
        ]
    if len(kinds) == 1 and flag in IRRELEVANT[kinds[0]]:
        got = f"it is about {IRRELEVANT[kinds[0]][flag]}, and this member is {KINDS[kinds[0]]}"
        return [Problem("coach.irrelevant", where, got, fix="remove it")]
    return [
        replace(problem, where=where) for problem in parse_alone(_given(flag, value), _parser())
    ]


def _parser() -> UpstreamParser:
    parser = UpstreamParser(prog="coach", add_help=False, allow_abbrev=False)
    add_flags(parser)
    return parser


def _given(name: str, value: Any) -> GivenFlag:
    return GivenFlag(
        f"coach.{name}", tuple(str(v) for v in (value if isinstance(value, list) else [value])), ""
    )
