"""Checks the groups, and whether their control can have an effect."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter

from marl_plugins import Problem, Run, at, meant

SCALES = at(flag="mean_group.scales")
LEARNED = tuple(f"mean_group.{name}" for name in ("budget", "stage", "learning_rate", "discount"))
"""Flags of a learned policy."""


def groups_of(run: Run) -> list[tuple[str, ...]]:
    """Returns the policies of each group."""
    if named := run.args.mean_group.groups:
        return [tuple(group.split("+")) for group in named.split(",")]
    return list(dict.fromkeys(run.recipe.populations.values()))


def check_groups(run: Run) -> Iterator[Problem]:
    """Yields what is wrong with the groups and their policies."""
    where, names = at(flag="mean_group.groups"), [p.name for p in run.policies]
    grouped = [name for group in groups_of(run) for name in group]
    for name in dict.fromkeys(grouped):
        if name not in names:
            yield Problem(
                "mean_group.no_policy",
                where,
                f"there is no policy {name!r}",
                fix=meant(name, names),
            )
        elif grouped.count(name) > 1:
            yield Problem(
                "mean_group.twice",
                where,
                f"policy {name!r} is in two groups",
                fix="leave it in one",
            )
    if not any(len(group) > 1 for group in groups_of(run)):
        got, fix = "no group has two policies", "name the groups, as in a+b,c+d"
        yield Problem("mean_group.alone", where, got, fix=fix, severity="warning")
    for name in LEARNED if run.args.mean_group.policy == "fixed" else ():
        if name in run.given:
            got, fix = "has no effect without --mean_group.policy learned", "add it, or remove this"
            yield Problem("mean_group.fixed", at(flag=name), got, fix=fix, severity="warning")


def check_tau(run: Run) -> Iterator[Problem]:
    """Yields why a control cannot multiply the tau of `marl_plugins.cooperation`."""
    if not hasattr(run.args, "cooperation"):
        got = "tau: it belongs to marl_plugins.cooperation, which this run does not have"
        yield Problem(
            "mean_group.tau",
            SCALES,
            got,
            fix="add --plugin marl_plugins.cooperation, or scale the reward",
        )
        return
    if not run.args.mean_group.low:
        got, fix = "0: a member with this share would have a tau of 0", "set a share above 0"
        yield Problem(
            "mean_group.tau_of_0",
            at(flag="mean_group.low"),
            got,
            fix=fix,
            flags=("mean_group.scales",),
        )
    cooperation = run.args.cooperation
    factor, tau, preset = cooperation.factor, cooperation.tau, cooperation.preset
    shown = f"--cooperation.tau {tau:g} and --cooperation.factor {factor:g}"
    if preset:
        factor, competition = preset.factors
        tau, shown = (competition and 1 / competition) or math.inf, f"--cooperation.preset {preset}"
    if tau in (0, math.inf) or not factor:
        got = f"tau: has no effect with {shown}"
        fix = "set a tau between 0 and inf and a factor above 0"
        yield Problem("mean_group.no_effect", SCALES, got, fix=fix, severity="warning")


def check_limits(run: Run) -> Iterator[Problem]:
    """Yields why a control of the limits of answers has no effect, or one that is not meant."""
    grouped = {name for group in groups_of(run) for name in group}
    roles = [role for role in run.recipe.roles if grouped & set(run.recipe.policies_of(role))]
    if roles and all(run.longest_answer(role) == 1 for role in roles):
        got = (
            f"max_tokens: has no effect, because answers of {', '.join(roles)} have one token at "
            "most"
        )
        yield Problem(
            "mean_group.no_effect", SCALES, got, fix="scale the reward", severity="warning"
        )
    penalties = ("reward.overlong_buffer_len", "reward.stop_properly_penalty_coef")
    used_by = grouped & run.policy_args.keys()
    used = [
        f
        for f in penalties
        if any(attrgetter(f)(run.policy_args[name]) is not None for name in used_by)
    ]
    if used:
        got = (
            "max_tokens: answers are cut at less than the limit of the recipe, with which their "
            "penalty compares them"
        )
        fix = f"leave out {' and '.join(f'--{flag}' for flag in used)}, or scale the reward"
        yield Problem(
            "mean_group.penalty",
            SCALES,
            got,
            fix=fix,
            severity="warning",
            flags=tuple(used),
        )
