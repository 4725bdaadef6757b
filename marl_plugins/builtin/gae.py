"""Generalised advantage estimation with a critic per trained policy
(`--algo.advantage.estimator gae`). Built in.

The critics are upstream's, in processes of their own (engine/processes/critic_actor.py); by default
each starts from its policy's model with a fresh value head. They see what the policy sees: the
row's ids up to each sampled token.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.core.estimators import (
    Estimator,
    WhitenedAdvantages,
    add_scope_flag,
    idle_scope_flags,
    returns_of,
    scope_flags,
)

if TYPE_CHECKING:
    from torch import Tensor

    from marl_plugins.core.problems import Problem
    from marl_plugins.core.run import Run


@dataclass(frozen=True)
class Gae(WhitenedAdvantages):
    """GAE (Schulman et al., arXiv 1506.02438; upstream's `gae`), then whitened over all policies of
    the step.

        delta_t = r_t + gamma V_t+1 - V_t
        A_t     = sum over the sampled tokens s >= t of the row of (gamma lambda)^(s-t) delta_s,
                whitened

    r_s is as for REINFORCE++; t+1 is the next *sampled* token of the row: what a tool answered in
    between neither decays credit nor has a value (upstream's loop treats it as steps of value 0;
    equal where the mask has no holes). The critic learns A_t + V_t before whitening.

    Fails where the critic has nothing to go by: with lambda below 1 its errors become bias, above
    all in the first steps (`--critic.freezing_steps` trains it alone at first); with lambda 1 (the
    default) they cancel but for the whitening.

    Args:
        lambd: How far a difference from the critic's expectation reaches back, per sampled token.
    """

    needs_critic: bool = True
    lambd: float = 1.0

    def estimate(
        self, rewards: Tensor, mask: Tensor, values: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        from marl_plugins.core.advantages import masked_gae

        assert values is not None, "check_estimator requires a critic"
        return masked_gae(values, rewards, mask, self.gamma, self.lambd)


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    add_scope_flag(
        parser.add_argument_group("generalised advantage estimation (marl_plugins.builtin.gae)"),
        "gae",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    if run.estimator == "gae":
        return idle_scope_flags("gae", run.args.gae, run.given)
    return [problem for flag in scope_flags("gae") for problem in run.unused_flag(flag, ["gae"])]


@hookimpl
def marl_estimator(run: Run) -> Estimator | None:
    advantage = run.args.algo.advantage
    if advantage.estimator != "gae":
        return None
    return Gae(
        gamma=advantage.gamma,
        lambd=advantage.lambd,
        **returns_of(run.args.gae),
        divide=not advantage.no_std_norm,
    )
