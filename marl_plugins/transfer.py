"""Knowledge transfer within a team: a population's member also learns from what the others have
done well (Sandbox-RL, section on
knowledge transfer: B_j += transfer(K_i)).

After its rollout a step draws, for each member that is trained, `--transfer.groups` groups of
another member: all samples of a task, of which the best has at least the outcome
`--transfer.outcome` for that member's role. The member says their words in its own voice
(`Exchange.read`), graders score them again, and it is trained on its own part as if its weights had
sampled it; what other policies say beside it is not trained on a second time. Nothing goes to
policies that do not play the same role.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from marl_plugins import (
    Exchange,
    Problem,
    RefusedRecord,
    Run,
    Trajectory,
    all_or_none,
    at,
    at_least,
    between,
    derive_seed,
    hookimpl,
)


class TransferredTrajectories(list[Trajectory]):
    """The trajectories that have been transferred in this step."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "transfer within a population (--plugin marl_plugins.transfer)"
    )
    group.add_argument(
        "--transfer.groups",
        type=at_least(0),
        default=1,
        help="groups (all samples of a task) of other members that each member learns from in a "
        "step",
    )
    group.add_argument(
        "--transfer.outcome",
        type=between(0, 1),
        default=1.0,
        help="a group qualifies if its best sample has at least this outcome for the role",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    if run.recipe.populations:
        return []
    got, fix = "no role has several policies", "map a role to a list of policies"
    return [Problem("transfer.no_population", at(plugin="marl_plugins.transfer"), got, fix=fix)]


def sources(group: Sequence[Trajectory], member: str, run: Run) -> list[str]:
    """Returns the policies of a group from which a member may learn: they play, and it does not, a
    role that it could play, and the best outcome of that role is at least `--transfer.outcome`."""
    best: dict[tuple[str, str], float] = {}
    for t in group:
        for a in t.actions:
            best[a.role, a.policy] = max(
                best.get((a.role, a.policy), 0.0), t.outcome_of(a.role) or 0.0
            )
    if any(policy == member for _, policy in best):
        return []
    able = {role for role, team in run.recipe.populations.items() if member in team}
    return sorted(
        {
            policy
            for (role, policy), most in best.items()
            if role in able and most >= run.args.transfer.outcome
        }
    )


@hookimpl
async def marl_exchange(
    trajectories: Sequence[Trajectory], run: Run, exchange: Exchange
) -> Sequence[Trajectory]:
    transferred, options = run.state(TransferredTrajectories), run.args.transfer
    transferred.clear()
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for t in trajectories:
        if t.is_original and not t.infrastructure_failure:
            groups[t.task.id].append(t)
    members = {name for team in run.recipe.populations.values() for name in team}
    for member in sorted(
        policy.name for policy in run.policies if policy.trainable and policy.name in members
    ):
        offered = [
            (group, origins)
            for group in groups.values()
            if (origins := sources(group, member, run))
        ]
        draw = random.Random(derive_seed(run.args.train.seed, "transfer", exchange.step, member))
        for group, origins in draw.sample(offered, min(options.groups, len(offered))):
            origin = f"{' and '.join(origins)} to {member}"
            asked = [exchange.read(exchange.write(t), origin, policy=member) for t in group]
            with suppress(RefusedRecord):  # its words depend on more than on words
                transferred += await all_or_none(asked)
    return [*trajectories, *transferred]


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    metrics["transfer/trajectories"] = float(len(run.state(TransferredTrajectories)))
