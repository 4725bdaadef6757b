"""The recipe's `rewards:`, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import pydantic

from marl_plugins import ConfigurationError, Model, Problem, Run, Section, at, load_file, meant

OF_ROUNDS = ("value", "gain")


class RewardTerm(Model):
    """A part of a reward."""

    EXAMPLE: ClassVar[str] = "{kind: outcome}"

    kind: Literal["outcome", "format", "score", "value", "gain"]
    """The number that counts."""
    roles: list[str] = pydantic.Field([])
    """Roles whose actions have it. Default: all."""
    weight: float = 1.0
    """Factor of the number."""
    share: Literal["full", "split"] = "full"
    """Of `outcome`: each of these actions gets all of it, or an equal part."""
    of: list[str] = pydantic.Field([])
    """Of `value` and `gain`: the roles whose answers have a value."""
    delay: int = pydantic.Field(0, ge=0)
    """Of `value` and `gain`: how many rounds later the round that counts is."""


class RewardsConfig(Section):
    """The parts of rewards, in the place of scores and outcomes (marl_plugins.rewards)."""

    EXAMPLE: ClassVar[str] = "{terms: [{kind: outcome}, {kind: format}]}"

    terms: list[RewardTerm] = pydantic.Field([], examples=["[{kind: outcome}, {kind: format}]"])
    """The parts, which are added up."""
    file: str | None = None
    """For rewards that are no such sum: a file with `rewards(trajectory)`, which maps actions'
    paths to named parts."""
    unscored: Literal["leave_out", "zero"] = "leave_out"
    """An action without a term, or without a number for one: left out of training, or the number
    counts as 0."""

    def files(self) -> Mapping[str, str]:
        return {"rewards": self.file} if self.file else {}


def check_rewards_section(run: Run) -> list[Problem]:
    """Returns what is wrong with the section."""
    config, problems = run.section(RewardsConfig) or RewardsConfig(), list[Problem]()
    if not (config.terms or config.file):
        problems.append(
            Problem(
                "rewards.none",
                at(key="rewards"),
                "no terms and no file",
                fix=f"rewards: {config.EXAMPLE}",
            )
        )
    if config.file:
        where, got = (
            at(key="rewards.file", file=run.folder / config.file),
            "has no function rewards(trajectory)",
        )
        try:
            if not callable(getattr(load_file(run.folder / config.file), "rewards", None)):
                problems.append(Problem("rewards.no_function", where, got))
        except ConfigurationError as error:
            problems += [problem.within(key="rewards.file") for problem in error.problems]
    for number, term in enumerate(config.terms):
        key = f"rewards.terms.{number}"
        for field in ("roles", "of"):
            for role in (role for role in getattr(term, field) if role not in run.recipe.roles):
                where, fix = at(key=f"{key}.{field}"), meant(role, run.recipe.roles)
                problems.append(
                    Problem("rewards.role", where, f"the recipe has no role {role!r}", fix=fix)
                )
        if (term.kind in OF_ROUNDS) != bool(term.of) or (term.delay and term.kind not in OF_ROUNDS):
            got, fix = (
                "`of` and `delay` belong to value and gain, and these need `of`; this is "
                f"{term.kind}",
                "of: [ROLE]",
            )
            problems.append(Problem("rewards.of", at(key=key), got, fix=fix))
        if term.share == "split" and term.kind != "outcome":
            got = f"only an outcome is shared; this is {term.kind}"
            problems.append(Problem("rewards.share", at(key=f"{key}.share"), got, fix="remove it"))
        if term.kind in OF_ROUNDS and not callable(getattr(run.grader_module, "value", None)):
            got, fix = (
                f"{term.kind} needs value(action, task) of the grader, which has none",
                "write it",
            )
            problems.append(Problem("rewards.no_value", at(key=key), got, fix=fix))
    return problems
