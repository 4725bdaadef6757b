"""A policy and its critic, trained by our subclasses of a release's actors:
`python -m marl_plugins.commands.upstream_ci.adapter`

One process, no Ray, no engines. The last line of output is a JSON object: where the release was
imported from, and for two fits of the same three rows (the second with an additional weightless
row) the optimiser steps, the norm of the largest weight's gradient, and the metrics that are not
finite.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import random
import sys
from typing import Any

# Installs the host support, before upstream is imported.
from marl_plugins.engine.processes.policy_actor import PolicyActor  # isort: skip
import openrlhf
import torch
from openrlhf.utils import get_strategy

from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory
from marl_plugins.engine.hosts import upstream_cli
from marl_plugins.engine.processes.critic_actor import CriticActor
from marl_plugins.engine.runtime.experience import row_experience, weightless
from marl_plugins.engine.runtime.tiny_model import resolve

FLAGS = {
    "actor.adam.lr": "0",
    "critic.adam.lr": "0",
    "ds.zero_stage": "1",
    "ds.attn_implementation": "eager",
    "train.micro_batch_size": "1",
    "train.batch_size": "1",
    "train.max_epochs": "1",
    "algo.kl.init_coef": "0",
    "algo.advantage.estimator": "gae",
}


def build_arguments() -> Any:
    """Returns the release's own flags for a tiny model, completed by its validation."""
    root = upstream_cli.upstream_root()
    words = [word for name, value in FLAGS.items() for word in (f"--{name}", value)]
    args = upstream_cli.hierarchize(upstream_cli.build_parser(root).parse_args(words), root)
    args.actor.model_name_or_path = args.critic.model_name_or_path = resolve("tiny")
    upstream_cli.validate(args, root)
    return args


def make_experiences(policy: Any, count: int) -> list[Any]:
    """Returns the rows of random bytes in the form that training processes receive, with the
    policy's log-probs."""
    draw = random.Random(0)
    made = []
    for number in range(count):
        context, sampled = (
            [draw.randrange(3, 250) for _ in range(draw.randint(2, 6))] for _ in range(2)
        )
        generation = Generation(tuple(sampled), tuple(-1.0 for _ in sampled), "stop", "p", 0)
        action = Action(str(number), "solver", "p", 0, tuple(context), generation, "")
        row = Row(Trajectory(Task(str(number), "task"), 0, step=1), action, 1.0)
        e = row_experience(row)
        e.action_log_probs = policy.forward(e.sequences, e.action_mask, e.attention_mask)
        e.values = torch.zeros(e.action_mask.shape)
        e.advantages = torch.full(e.action_mask.shape, 1.0 - number)
        e.returns = e.advantages.clone()
        made.append(e)
    return made


def load_actor(kind: type[Any]) -> Any:
    """Returns a training process with one rank, in this process, with its model."""
    args = build_arguments()
    actor = kind(1, 0, "127.0.0.1", None)
    actor.init_model_from_pretrained(get_strategy(args), args.actor.model_name_or_path, 100)
    return actor


def run_fits(actor: Any, rows: list[Any], kind: str) -> list[dict[str, Any]]:
    """Fits the same rows twice, the second time with a weightless row."""
    findings = []
    gradient: list[torch.Tensor] = []
    weight = max((p for p in actor.engine.module.parameters() if p.requires_grad), key=torch.numel)
    # Upstream's own norm is that of the previous step until the next one.
    weight.register_hook(lambda grad: gradient.append(grad.double()))
    for fill in ([], [weightless(rows[0])]):
        for row in [*rows, *fill]:
            actor.append(copy.copy(row))
        gradient.clear()
        actor.lay_out([[(number,) for number in range(len(rows) + len(fill))]])
        actor.prepare_fit(len(rows) + len(fill), seed=0)
        status = actor.fit()
        actor.trainer.replay_buffer.clear()
        findings.append(
            {
                "optimiser_steps": status[
                    "critic_optimiser_steps" if kind == "critic" else "optimiser_steps"
                ],
                "gradient": float(torch.stack(gradient).sum(0).norm()),
                "not_finite": sorted(
                    name for name, value in status.items() if not math.isfinite(value)
                ),
            }
        )
    actor.check_finite()
    return findings


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        answer: dict[str, Any] = {"openrlhf": list(openrlhf.__path__)}
        policy = load_actor(PolicyActor)
        rows = make_experiences(policy, 3)
        answer["actor"] = run_fits(policy, rows, "actor")
        answer["state_bytes"] = sum(len(buffer) for piece in policy.pieces() for buffer in piece)
        answer["critic"] = run_fits(load_actor(CriticActor), rows, "critic")
        torch.distributed.destroy_process_group()
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
