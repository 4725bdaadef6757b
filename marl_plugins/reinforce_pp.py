"""REINFORCE++ with global normalisation: the built-in estimator.

    G_t = sum over the sampled tokens s >= t of the row of gamma^(s-t) r_s
    A_t = (G_t - mean) / sqrt(max(variance, 1e-8))

with mean and variance over the sampled tokens of all rows of all policies, roles and ranks of the step (MAPPA sections 2.3
and E.2; REINFORCE++, arXiv 2501.03262; upstream's `reinforce`, experience_maker.py:325-338, to which this is equal for one
policy). r_s is minus the KL penalty at every token, plus the action's return at its last one. Fails where it always has: a
role whose returns lie far from the others' gets advantages of one sign, hence `--reinforce_pp.normalise role`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from marl_plugins import hookimpl
from marl_plugins.core.credit import Scope
from marl_plugins.core.estimators import Batch, Estimator, GroupBy
from marl_plugins.core.rows import Row

if TYPE_CHECKING:
    from torch import Tensor

    from marl_plugins.core.advantages import Moments
    from marl_plugins.run import Run


@dataclass(frozen=True)
class ReinforcePlusPlus:
    """See the module.

    Args:
        gamma: Discount per sampled token.
        return_scope: Which rewards an action's return sums.
        normalise: Over which rows mean and variance are taken.
        divide: Whether to divide by the standard deviation (`--algo.advantage.no_std_norm` does not).
    """

    gamma: float = 1.0
    return_scope: Scope = "action"
    normalise: Literal["global", "policy", "role"] = "global"
    divide: bool = True
    scope: Literal["action", "group", "batch"] = "batch"
    affine: bool = True
    group_by: GroupBy | None = None

    def _key(self, row: Row) -> str:
        return {"global": "", "policy": row.action.policy, "role": row.action.role}[self.normalise]

    def returns(self, rewards: Tensor, mask: Tensor) -> Tensor:
        from marl_plugins.core.advantages import masked_returns

        return masked_returns(rewards, mask, self.gamma)

    def statistics(self, batches: Sequence[Batch]) -> dict[str, Moments]:
        from marl_plugins.core.advantages import Moments

        total: dict[str, Moments] = {}
        for rows, returns, mask in batches:
            keys = [self._key(row) for row in rows]
            for key in dict.fromkeys(keys):
                chosen = [i for i, k in enumerate(keys) if k == key]
                total[key] = total.get(key, Moments()) + Moments.of(returns[chosen], mask[chosen])
        return total

    def apply(self, rows: Sequence[Row], returns: Tensor, statistics: dict[str, Moments]) -> Tensor:
        import torch

        from marl_plugins.core.advantages import normalise

        return torch.stack(
            [normalise(g, statistics[self._key(row)], self.divide) for row, g in zip(rows, returns, strict=True)]
        )


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("REINFORCE++ (marl_plugins.reinforce_pp)")
    group.add_argument(
        "--reinforce_pp.scope",
        choices=["action", "policy", "trajectory"],
        default="action",
        help="which rewards an action is credited with: its own, or those of all that depends on it, by the same policy or by any",
    )
    group.add_argument(
        "--reinforce_pp.normalise",
        choices=["global", "policy", "role"],
        default="global",
        help="over which rows advantages are normalised: all policies together, each policy, or each role",
    )


@hookimpl
def marl_configure(run: Run) -> list[str]:
    options = run.args.reinforce_pp
    if options.scope == "trajectory" and options.normalise == "global" and len(run.recipe.roles) > 1:
        run.warnings.append(
            "--reinforce_pp.scope trajectory with --reinforce_pp.normalise global: the first role's return sums the rewards "
            "of all that follow, so its advantages lie above the others'; consider --reinforce_pp.normalise role"
        )
    return []


@hookimpl
def marl_estimator(run: Run) -> Estimator:
    return ReinforcePlusPlus(
        gamma=run.args.algo.advantage.gamma,
        return_scope=run.args.reinforce_pp.scope,
        normalise=run.args.reinforce_pp.normalise,
        divide=not run.args.algo.advantage.no_std_norm,
    )
