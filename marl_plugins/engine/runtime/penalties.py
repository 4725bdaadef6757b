"""Upstream's length penalties (`--reward.overlong_buffer_len`,
`--reward.stop_properly_penalty_coef`), on each action's own reward.

Upstream has one action per trajectory, whose reward is its return. Here a return may sum the
rewards of several actions, so
the penalties come before the sum: only the action that is too long, or was cut off, loses by its
own doing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from types import SimpleNamespace

import torch

# Installs the host support, before upstream is imported below.
import marl_plugins.engine.processes.policy_actor  # isort: skip  # noqa: F401
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from marl_plugins.core.run import Run
from marl_plugins.core.trajectory import Action, Trajectory

TERM = "length"
"""The name of what a penalty adds to a reward."""


def penalise_lengths(trajectories: Iterable[Trajectory], run: Run) -> None:
    """Adds each trained action's penalty to its reward; lengths are compared with the recipe's
    limit of the action's role and policy."""
    penalised = {
        policy.name: args
        for policy in run.policies
        if policy.trainable and (args := run.policy_args[policy.name])
        if args.reward.overlong_buffer_len is not None
        or args.reward.stop_properly_penalty_coef is not None
    }
    alike: dict[tuple[str, str], list[Action]] = defaultdict(list)
    for action in (a for t in trajectories for a in t.actions):
        if action.reward is not None and action.policy in penalised:
            alike[action.role, action.policy].append(action)
    for (role, policy), actions in alike.items():
        args = penalised[policy]
        limit = run.role(role).max_new_tokens or args.rollout.max_new_tokens
        rewards = torch.tensor([a.reward for a in actions], dtype=torch.float64)
        experience = SimpleNamespace(
            rewards=rewards.clone(),
            response_length=torch.tensor([len(a.generation.ids) for a in actions]),
            truncated=torch.tensor([a.generation.finish == "length" for a in actions]),
            info={},
        )
        flags = SimpleNamespace(
            reward=args.reward, rollout=SimpleNamespace(max_new_tokens=limit), data=args.data
        )
        apply_length_penalties([experience], flags)
        for action, penalty in zip(actions, (experience.rewards - rewards).tolist(), strict=True):
            if penalty:
                action.add_reward(TERM, penalty)
