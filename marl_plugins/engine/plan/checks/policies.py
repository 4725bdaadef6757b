"""Checks of the policies of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from marl_plugins.core.policy import Policy
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.recipe.recipe_yaml import Origins
from marl_plugins.core.recipe.schema import PolicyConfig
from marl_plugins.core.run import Run
from marl_plugins.engine.plan.checks.numbers import with_policies_named
from marl_plugins.engine.plan.checks.roles import NAME


def check_policies(
    run: Run, policies: Sequence[Policy], without: Mapping[str, str], origins: Origins
) -> Iterator[Problem]:
    """Returns what is wrong with the policies that a run is to have.

    Args:
        without: Policies of the recipe that this run does without, and the flag for which it does.
    """
    recipe = run.recipe
    names = [p.name for p in policies]
    for role, policy in [
        (name, policy) for name in recipe.mapped_roles for policy in recipe.policies_of(name)
    ]:
        if policies and policy not in names:
            yield Problem(
                "roles.no_policy",
                got=f"role {role!r} is mapped to policy {policy!r}, which does not exist",
                fix=meant(policy, names),
            )
    yield from [
        Problem(
            "policies.unused",
            at(line=origins.where("policies", name)),
            f"no role is mapped to policy {name!r}",
            fix=meant(name, names),
        )
        for name in recipe.policies
        if name not in names and name not in without
    ]
    yield from [
        Problem(
            "policies.name",
            at(policy=p.name),
            "a policy's name is also a folder's: letters, digits and underscores only, at most 64",
        )
        for p in policies
        if not re.fullmatch(NAME, p.name)
    ]
    if policies and not any(p.trainable for p in policies):
        line = next(
            (origins.where(*key) for key in origins.lines if key[-1:] == ("trainable",)), ""
        )
        got, fix = "every policy is frozen (trainable: false)", "at least one must be trained"
        yield Problem("policies.frozen", at(line=line), got, fix=fix)


def check_followers(run: Run, policies: Sequence[Policy]) -> Iterator[Problem]:
    """Returns what is wrong with the policies that hold another one's weights."""
    by_name = {p.name: p for p in policies}
    for policy in (p for p in policies if p.follows):
        for key, problem in _follower(run, policy, by_name):
            yield problem.within(key=f"policies.{policy.name}.{key}")


def _follower(
    run: Run, policy: Policy, by_name: Mapping[str, Policy]
) -> Iterator[tuple[str, Problem]]:
    """Returns what is wrong with one follower, by the key that says it."""
    followed, name = by_name.get(policy.follows), repr(policy.follows)
    if followed is None:
        others = [p.name for p in by_name.values() if p.trainable and p is not policy]
        got = f"there is no policy {name} in this run"
        yield "follows", Problem("policies.unknown", got=got, fix=meant(policy.follows, others))
    elif not followed.trainable:
        fix = "name a trained one, or use `trainable: false`"
        yield "follows", Problem("policies.untrained", got=f"policy {name} is not trained", fix=fix)
    if policy.trainable:
        got = f"it follows {name} and is not trained itself"
        yield "trainable", Problem("policies.trained_follower", got=got, fix="remove the key")
    if run.recipe.policies.get(policy.name, PolicyConfig()).model:
        got = f"it has the model of {name}, which it follows"
        yield "model", Problem("policies.model_of_follower", got=got, fix="remove the key")


def check_external(run: Run, policies: Sequence[Policy]) -> Iterator[Problem]:
    """Returns what needs the tokens of external policies, of which there are words alone."""
    for policy in (p for p in policies if p.served):
        own = ("trainable", "follows", "template")
        keys = [f"policies.{policy.name}.{key}" for key in own if getattr(policy, key)]
        for role in run.recipe.roles_of(policy.name):
            config, of_model = run.recipe.roles[role], ("calls", "reasoning", "template")
            keys += [f"roles.{role}.{key}" for key in of_model if getattr(config, key)]
        for key in keys:
            got = f"needs the tokens of policy {policy.name!r}, and an endpoint gives words alone"
            fix = "remove the key, or give it a model here"
            yield Problem("policies.words_alone", at(key=key), got, fix=fix)


def check_adapters(run: Run) -> list[Problem]:
    """Returns the policies that are to be adapters where they cannot be."""
    ranks = {p.name: run.policy_args[p.name].ds.lora.rank for p in run.policies if p.trainable}
    whole = run.processes is not None and not run.processes.adapters
    got = "it is to be an adapter of its model, and in this run a policy is a whole model"
    fix = "add --plugin marl_plugins.adapters"
    refused = Problem("policies.adapter", at(flag="ds.lora.rank"), got, fix=fix)
    return with_policies_named(
        {name: [refused] if rank and whole else [] for name, rank in ranks.items()}
    )
