"""The numbers of a step: of its rollout, and of an evaluation."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from marl_plugins.core.intervals import wilson
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.trajectory import Action, Task, Trajectory
from marl_plugins.runtime.display import Display
from marl_plugins.runtime.rollout import Rollout


async def evaluation(rollout: Rollout, tasks: Sequence[Task], args: Any, display: Display) -> dict[str, float]:
    """Success on tasks, with its interval over tasks; what is lost to infrastructure counts as wrong and is reported beside it.

    Args:
        args: `eval.n_samples_per_prompt` and `eval.temperature`.
    """
    started, found = time.monotonic(), []
    with display.phase("evaluation", len(tasks) * args.n_samples_per_prompt) as tick:
        async with aclosing(rollout.evaluate(tasks, args.n_samples_per_prompt, args.temperature)) as arriving:
            async for trajectory in arriving:
                found.append(trajectory)
                tick()
    found = rollout.in_order(found, tasks)
    rate = mean([t.outcome or 0.0 for t in found])
    low, high = wilson(rate, len(tasks))
    return {
        "eval/outcome": rate,
        "eval/low": low,
        "eval/high": high,
        "eval/tasks": float(len(tasks)),
        "eval/lost": float(sum(t.infrastructure_failure is not None for t in found)),
        "eval/seconds": time.monotonic() - started,
    }


def summary(trajectories: Sequence[Trajectory], ledger: Ledger) -> dict[str, float]:
    """Metrics of a rollout: outcome, and by role reward and its terms, response length, tool calls and how they went."""
    scored = [t.outcome for t in trajectories if t.outcome is not None]
    actions = [a for t in trajectories if not t.infrastructure_failure for a in t.actions]
    metrics = {
        **({"outcome/mean": mean(scored)} if scored else {}),
        "reward/mean": mean([a.reward for a in actions if a.reward is not None]),
        "rows/generated": float(ledger.generated.total()),
        "rows/trained": float(ledger.trained.total()),
        "rows/left_out": float(sum(c.total() for c in ledger.left_out.values())),
        "trajectories/lost": float(ledger.lost.total()),
        "trajectories/failed": float(ledger.failed.total()),
        "tokens/sampled": float(sum(len(a.generation.ids) for a in actions)),
    }
    by_role: dict[str, list[Action]] = defaultdict(list)
    for action in actions:
        by_role[action.role].append(action)
    for role, mine in sorted(by_role.items()):
        metrics |= {f"role/{role}/{name}": value for name, value in of_role(mine).items()}
    return metrics


def of_role(actions: Sequence[Action]) -> dict[str, float]:
    """Metrics of the actions of one role."""
    calls = [result for a in actions for result in a.tool_results]
    metrics = {
        "actions": float(len(actions)),
        "reward": mean([a.reward for a in actions if a.reward is not None]),
        "advantage": mean([a.advantage for a in actions if a.advantage is not None]),
    }
    for term in sorted({term for a in actions for term in a.terms}):
        metrics[f"reward/{term}"] = mean([a.terms[term] for a in actions if term in a.terms])
    for turn in sorted({a.turn for a in actions}) if any(a.turn for a in actions) else ():
        values = [a.advantage for a in actions if a.turn == turn and a.advantage is not None]
        metrics[f"advantage/turn{turn}"] = mean(values)
    metrics["response_length"] = mean([float(len(a.generation.ids)) for a in actions])
    metrics["truncated"] = mean([float(a.generation.finish == "length") for a in actions])
    metrics["tool_call_rate"] = mean([float(bool(a.tool_results)) for a in actions])
    if calls:
        metrics["tool_success"] = mean([float(r.ok) for r in calls])
    return metrics


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of no values."""
    return sum(values) / len(values) if values else 0.0
