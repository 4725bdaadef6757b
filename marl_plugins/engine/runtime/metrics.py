"""The numbers of a step: of its rollout, its rows, its updates, and of an evaluation.
docs/metrics.md explains each."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from statistics import fmean
from typing import TYPE_CHECKING

from marl_plugins.core.credit import Scope
from marl_plugins.core.estimators import Estimator, GroupBy, group_key
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Action, Task, ToolResult, Trajectory
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.intervals import interval
from marl_plugins.engine.runtime.roles import Cast
from marl_plugins.engine.runtime.rollout import Rollout
from marl_plugins.engine.runtime.several_samples import (
    AnswerKey,
    sample_metrics,
    upstream_metrics,
)

if TYPE_CHECKING:
    from types import SimpleNamespace

    from marl_plugins.engine.runtime.experience import PreparedExperience
    from marl_plugins.engine.runtime.policy import UpstreamPolicy

ROUNDING_ERROR = 1e-6
"""Advantages and differences of rewards below this are rounding."""
MOST_LOG_RATIO = 50.0
"""A ratio above exp of this has left nothing of the others; the weights of the effective sample
size stay finite."""


async def evaluation(
    rollout: Rollout, tasks: Sequence[Task], args: SimpleNamespace, display: Display
) -> tuple[dict[str, float], list[Trajectory]]:
    """Returns an evaluation's metrics and trajectories, in the order of tasks and samples.

    Sets with a number of samples of their own are played one after the other. Each that has a name
    has its metrics under it too.

    Args:
        args: `eval.n_samples_per_prompt` and `eval.temperature`.
    """
    started, trajectories = time.monotonic(), list[Trajectory]()
    sets: dict[tuple[str, int], list[Task]] = defaultdict(list)
    for task in tasks:
        sets[task.dataset, task.samples or args.n_samples_per_prompt].append(task)
    total = sum(samples * len(each) for (_, samples), each in sets.items())
    with display.phase("evaluation", total, announce=True) as tick:
        for (_, samples), each in sets.items():
            played = []
            async with aclosing(rollout.evaluate(each, samples, args.temperature)) as arriving:
                async for trajectory in arriving:
                    played.append(trajectory)
                    tick()
            trajectories += rollout.in_order(played)
    key = getattr(rollout.run.grader_module, "answer_key", None)
    by_policy = (
        policy_outcome_metrics(trajectories, "eval/policy") if rollout.cast.has_population else {}
    )
    by_set: dict[str, float] = {}
    for name in dict.fromkeys(name for name, _ in sets if name):
        own = held_out([t for t in trajectories if t.task.dataset == name], key)
        by_set |= {f"eval/{name}/{k.removeprefix('eval/')}": value for k, value in own.items()}
    return {
        **held_out(trajectories, key),
        **by_policy,
        **by_set,
        **({} if zero_sum(trajectories) else upstream_metrics(trajectories)),
        "eval/seconds": time.monotonic() - started,
    }, trajectories


def held_out(
    trajectories: Sequence[Trajectory], answer_key: AnswerKey | None = None
) -> dict[str, float]:
    """Returns the mean outcome of an evaluation with its interval, both over the tasks that have an
    outcome, and what several samples say (several_samples.py).

    What is lost to infrastructure is in neither and is counted apart; where all is lost there is no
    mean and no interval. In a zero-sum game there is none either, and each role has its own mean.
    """
    played = Counter(t.task.id for t in trajectories)
    by_task: dict[str, list[Trajectory]] = {task: [] for task in played}
    for t in trajectories:
        if t.outcome is not None:
            by_task[t.task.id].append(t)
    lost = sum(t.infrastructure_failure is not None for t in trajectories)
    metrics = {
        "eval/tasks": float(len(by_task)),
        "eval/answered": float(sum(map(bool, by_task.values()))),
        "eval/lost": float(lost),
        "eval/unscored": float(len(trajectories) - lost - sum(map(len, by_task.values()))),
    }
    metrics |= means(
        {
            f"eval/outcome/{role}": outcomes
            for role, outcomes in outcomes_by_role(trajectories).items()
        }
    )
    metrics |= task_type_metrics(trajectories) | workflow_metrics(trajectories)
    by_sample = [[t.outcome or 0.0 for t in each] for each in by_task.values() if each]
    scores = [fmean(outcomes) for outcomes in by_sample]
    if not scores or zero_sum(trajectories):
        return metrics
    binary = all(outcome in (0.0, 1.0) for outcomes in by_sample for outcome in outcomes)
    low, high = interval(scores, binary)
    samples, *others = {*played.values()}
    if binary and not others:  # sets with other numbers of samples have their own
        metrics |= sample_metrics(by_task, samples, answer_key)
    return {
        "eval/outcome": fmean(scores),
        "eval/low": low,
        "eval/high": high,
        "eval/binary": float(binary),
        **metrics,
    }


def task_type_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns the mean outcome by the tasks' `type`, where there are several: over the tasks of the
    mean over their samples."""
    by_type: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for t in trajectories:
        if t.outcome is not None and "type" in t.task.metadata:
            by_type[str(t.task.metadata["type"])][t.task.id].append(t.outcome)
    if len({t.task.metadata.get("type") for t in trajectories}) < 2 or zero_sum(trajectories):
        return {}
    return means(
        {
            f"eval/type/{kind}": [fmean(each) for each in tasks.values()]
            for kind, tasks in sorted(by_type.items())
        }
    )


def workflow_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns what workflows have done in an evaluation: the parts of their outcomes, calls and
    form by role, rounds."""
    kept = [t for t in trajectories if not t.infrastructure_failure]
    scored = [t for t in kept if t.outcome is not None]
    parts = sorted({name for t in scored for name in t.outcome_parts})
    metrics = {
        f"eval/part/{name}": fmean([t.outcome_parts.get(name, 0.0) for t in scored])
        for name in parts
    }
    for role in sorted({a.role for t in kept for a in t.actions}):
        mine = [a for t in kept for a in t.actions if a.role == role]
        metrics[f"eval/role/{role}/calls"] = calls_per_trajectory(mine, kept)
        metrics |= means({f"eval/role/{role}/legal": legalities(mine)})
    return metrics | means({"eval/rounds": rounds_of(kept)})


def calls_per_trajectory(actions: Sequence[Action], trajectories: Sequence[Trajectory]) -> float:
    """Returns the number of calls of which some actions are turns, per trajectory; of at least
    one."""
    return sum(a.before is None or a.before.call != a.call for a in actions) / len(trajectories)


def legalities(actions: Sequence[Action]) -> list[float]:
    """Returns 1 for each action that had the form in which a graph reads it, and 0 for others of a
    graph."""
    return [note["legal"] for a in actions if (note := a.notes.get("graph"))]


def outcomes_by_role(trajectories: Sequence[Trajectory]) -> dict[str, list[float]]:
    """Returns the outcomes of each role, where the grader gives one per role; an agent failure is
    every role's."""
    roles = sorted({role for t in trajectories for role in t.outcomes})
    played = [t for t in trajectories if t.outcomes or t.agent_failure]
    return {
        role: [outcome for t in played if (outcome := t.outcome_of(role)) is not None]
        for role in roles
    }


def policy_outcome_metrics(
    trajectories: Sequence[Trajectory], prefix: str = "policy"
) -> dict[str, float]:
    """Returns the mean outcome of the roles that each policy has played, where several play one
    role: over the trajectories in which it acted."""
    by_policy: dict[str, list[float]] = defaultdict(list)
    for t in trajectories:
        played = sorted({(a.policy, a.role) for a in t.actions})
        of_each: dict[str, list[float]] = defaultdict(list)
        for policy, role in played:
            if (outcome := t.outcome_of(role)) is not None:
                of_each[policy].append(outcome)
        for policy, outcomes in of_each.items():
            by_policy[policy].append(fmean(outcomes))
    return means(
        {f"{prefix}/{policy}/outcome": outcomes for policy, outcomes in sorted(by_policy.items())}
    )


def zero_sum(trajectories: Sequence[Trajectory]) -> bool:
    """Returns whether one role's gain is another's loss: outcomes differ from one trajectory to
    another, and add up to the same in each.

    Their mean over the roles is then the same whatever is learned. Roles of which one is always
    right and another never are no game.
    """
    outcomes = [tuple(t.outcomes.values()) for t in trajectories if t.outcomes]
    sums = [sum(values) for values in outcomes]
    return len({*outcomes}) > 1 and max(sums) - min(sums) < ROUNDING_ERROR


def summary(trajectories: Sequence[Trajectory], ledger: Ledger) -> dict[str, float]:
    """Returns the metrics of a rollout: outcome; by role score, reward and its terms, response
    length, tool calls; by tool how calls went. Outcomes are those of the trajectories that are no
    forks: a fork repeats what its original has done."""
    whole = [t for t in trajectories if not t.forked]
    scored = [t.outcome for t in whole if t.outcome is not None]
    generated = [a for t in trajectories for a in t.actions]
    kept = [t for t in trajectories if not t.infrastructure_failure]
    actions = [a for t in kept for a in t.actions]
    metrics = {
        **means(
            {
                "outcome/mean": [] if zero_sum(whole) else scored,
                **{f"outcome/{role}": each for role, each in outcomes_by_role(whole).items()},
                "reward/mean": [a.reward for a in actions if a.reward is not None],
            }
        ),
        "rows/generated": float(ledger.generated.total()),
        "rows/trained": float(ledger.trained.total()),
        "rows/left_out": float(sum(c.total() for c in ledger.left_out.values())),
        "trajectories/lost": float(ledger.lost.total()),
        "trajectories/failed": float(ledger.failed.total()),
        "tokens/sampled": float(sum(len(a.generation.ids) for a in generated if not a.replayed)),
        "tokens/trained": float(
            sum(len(a.generation.ids) for a in generated if a.left_out is None)
        ),
    }
    by_role: dict[str, list[Action]] = defaultdict(list)
    for action in actions:
        by_role[action.role].append(action)
    for role, mine in sorted(by_role.items()):
        metrics |= {f"role/{role}/{name}": value for name, value in role_metrics(mine).items()}
        acted = [t.outcome_of(role) for t in whole if any(a.role == role for a in t.actions)]
        metrics |= means(
            {f"role/{role}/outcome": [outcome for outcome in acted if outcome is not None]}
        )
        metrics[f"role/{role}/calls"] = calls_per_trajectory(mine, kept)
    metrics |= means({"trajectories/rounds": rounds_of(kept)})
    by_tool: dict[str, list[ToolResult]] = defaultdict(list)
    for results in (*(t.tool_results for t in trajectories), *(a.tool_results for a in generated)):
        for call in results:
            if call.start is not None:
                by_tool[call.tool].append(call)
    for tool, calls in sorted(by_tool.items()):
        metrics |= {f"tool/{tool}/{name}": value for name, value in tool_metrics(calls).items()}
    return metrics


def rollout_metrics(
    step: int,
    trajectories: Sequence[Trajectory],
    ledger: Ledger,
    rows: Sequence[Row],
    estimator: Estimator,
) -> dict[str, float]:
    """Returns the metrics of a step's rollout and of its rows, whose advantages are known."""
    own = estimator.metrics(rows) if rows else {}
    if received := ledger.received:
        own |= {
            "trajectories/received": float(received.trajectories),
            "rows/received": float(received.trained.total()),
        }
    return {
        "step": float(step),
        **summary(trajectories, ledger),
        **signal(rows, estimator.group_by),
        **own,
    }


def lag_metrics(rows: Sequence[Row], versions: Mapping[str, int]) -> dict[str, float]:
    """Returns how far the weights that rows train are from those that sampled them, by policy and
    by role: versions, and what ratios of the two make of the sampled tokens. Rows that entered by
    `marl_exchange` do not count: nothing of this run has sampled them for this step.

    With w = exp(trainer - engine) of each token, before the update: `ratio` is the mean of w, 1 in
    expectation for any two policies; `ess` the effective sample size as a share, (sum w)^2 / (n sum
    w^2) (Kong 1992), which is 1 where nothing has changed.
    """
    metrics: dict[str, float] = {}
    groups: dict[str, list[Action]] = defaultdict(list)
    for action in (row.action for row in rows if not row.trajectory.origin):
        groups[f"policy/{action.policy}"].append(action)
        groups[f"role/{action.role}"].append(action)
    for name, actions in sorted(groups.items()):
        if name.startswith("policy/"):
            metrics[f"{name}/lag"] = fmean(
                versions[a.policy] - fmean(a.generation.token_versions) for a in actions
            )
        weights = [
            math.exp(min(now - then, MOST_LOG_RATIO))
            for a in actions
            for now, then in zip(a.trainer_logprobs, a.generation.logprobs, strict=True)
        ]
        metrics[f"{name}/ratio"] = fmean(weights)
        metrics[f"{name}/ess"] = sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))
    return metrics


def step_metrics(
    prepared: Sequence[PreparedExperience],
    updates: Mapping[str, Mapping[str, float]],
    policies: Iterable[UpstreamPolicy],
    seconds: Mapping[str, float],
    tokens: float,
) -> dict[str, float]:
    """Returns the metrics of a step's updates, of its engines, and of its time.

    Args:
        seconds: By phase of the step.
        tokens: Sampled in the step.
    """
    return {
        **update_metrics(prepared, updates),
        "engines/restarted": float(sum(p.engines.restarted for p in policies if p.owns_engines)),
        **{f"seconds/{name}": value for name, value in seconds.items()},
        "tokens_per_second": tokens / seconds["rollout"],
    }


def version_change_metrics(rows: Sequence[Row]) -> dict[str, float]:
    """Returns by policy the share of rows that were sampled by weights of several versions
    (`--train.partial_rollout_enable`)."""
    by_policy: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        by_policy[f"policy/{row.action.policy}/changed"].append(bool(row.action.generation.changes))
    return means(dict(sorted(by_policy.items())))


def first_prompts(
    trajectories: Iterable[Trajectory], cast: Cast, shown: set[str]
) -> dict[str, str]:
    """Returns the context of the first action of every role that is not in `shown`, as the model
    saw it; they are put into it."""
    prompts: dict[str, str] = {}
    for action in (a for t in trajectories for a in t.actions):
        if action.role not in shown:
            shown.add(action.role)
            tokenizer = cast.played_by(action.role, action.policy).chat.tokenizer
            prompts[action.role] = tokenizer.decode(
                list(action.context_ids), skip_special_tokens=False
            )
    return {role: prompts[role] for role in cast.members if role in prompts}


def remarks(
    prepared: Sequence[PreparedExperience], policies: Iterable[UpstreamPolicy], scope: Scope
) -> list[str]:
    """Returns what a person should know of a step in addition to its metrics."""
    texts = []
    if clipped := sum(p.clipped for p in prepared):
        sums = f"; a return sums the rewards of scope {scope!r}, so it grows with their number"
        texts.append(
            f"{clipped} of {sum(len(p.rows) for p in prepared)} returns lie outside "
            f"--reward.clip_range and were clipped{sums if scope != 'action' else ''}. What lies "
            "beyond the bound is not told apart; widen it (--reward.clip_range -1000 1000)"
        )
    for policy in policies:
        texts += policy.engines.remarks
        policy.engines.remarks.clear()
    return texts


def signal(rows: Sequence[Row], group_by: GroupBy | None) -> dict[str, float]:
    """Returns whether a step's rows, whose advantages are known, teach anything.

    `signal/none` is 1 where every advantage is 0. `signal/flat_tasks` is the share of groups of
    samples whose rewards are all equal; without an estimator that compares groups they are those of
    a role on a task. It is missing where no group has two samples.
    """
    if not rows:
        return {}
    none = all(
        abs(a) < ROUNDING_ERROR
        for row in rows
        for a in (row.action.advantages or (row.action.advantage or 0.0,))
    )
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[group_key(row, group_by or "task+role")].append(row)
    compared = [
        [r.reward for r in group]
        for group in groups.values()
        if len({r.trajectory.sample for r in group}) > 1
    ]
    flat = [max(rewards) - min(rewards) < ROUNDING_ERROR for rewards in compared]
    return {"signal/none": float(none), **means({"signal/flat_tasks": flat})}


def update_metrics(
    prepared: Sequence[PreparedExperience], updates: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Returns the metrics of the updates, by policy, and over all policies."""
    metrics: dict[str, float] = {}
    if prepared:
        metrics["drift/max"] = max(p.drift for p in prepared)
        metrics["rows/clipped"] = float(sum(p.clipped for p in prepared))
    for p in prepared:
        metrics |= {f"policy/{p.policy}/{name}": value for name, value in updates[p.policy].items()}
        metrics[f"policy/{p.policy}/drift"] = p.drift
    if norms := [s["actor_grad_norm"] for s in updates.values() if "actor_grad_norm" in s]:
        metrics["grad_norm/max"] = max(norms)
    return metrics | means({"kl/mean": [s["kl"] for s in updates.values() if "kl" in s]})


def rounds_of(trajectories: Iterable[Trajectory]) -> list[float]:
    """Returns the most rounds of a loop that a graph's actions note, of each trajectory with a
    loop."""
    noted = [[a.notes.get("graph", {}).get("round") for a in t.actions] for t in trajectories]
    rounds = [[number for number in each if number is not None] for each in noted]
    return [1 + max(each) for each in rounds if each]


def role_metrics(actions: Sequence[Action]) -> dict[str, float]:
    """Returns the metrics of the actions of one role."""
    terms = sorted({term for a in actions for term in a.terms})
    turns = sorted({a.turn for a in actions}) if any(a.turn for a in actions) else []
    known = [(a.turn, a.advantage) for a in actions if a.advantage is not None]
    metrics = {"actions": float(len(actions))} | means(
        {
            "score": [a.score for a in actions if a.score is not None],
            "reward": [a.reward for a in actions if a.reward is not None],
            "advantage": [advantage for _, advantage in known],
            "legal": legalities(actions),
            **{
                f"reward/{term}": [a.terms[term] for a in actions if term in a.terms]
                for term in terms
            },
            **{
                f"advantage/turn{turn}": [a for other, a in known if other == turn]
                for turn in turns
            },
            "response_length": [len(a.generation.ids) for a in actions],
            "truncated": [a.generation.finish == "length" for a in actions],
            "tool_call_rate": [bool(a.tool_results) for a in actions],
            "restarted": [not a.extends for a in actions if a.before is not None],
            "tool_success": [result.ok for a in actions for result in a.tool_results],
        }
    )
    if any(a.thought for a in actions):
        metrics["thinking_length"] = fmean(a.thought for a in actions)
        metrics["answer_length"] = metrics["response_length"] - metrics["thinking_length"]
    if defused := sum(a.defused for a in actions):
        metrics["defused"] = float(defused)
    return metrics


def tool_metrics(calls: Sequence[ToolResult]) -> dict[str, float]:
    """Returns the metrics of the calls of one tool, at least one."""
    seconds = sorted(call.seconds for call in calls)
    return {
        "calls": float(len(calls)),
        "failed": float(sum(call.status == "failed" for call in calls)),
        "lost": float(sum(bool(call.failure) for call in calls)),
        "seconds": fmean(seconds),
        "seconds_p95": seconds[math.ceil(0.95 * len(seconds)) - 1],
        "bytes": fmean(call.bytes for call in calls),
    }


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the means of those that have any value: what nothing was measured of is no 0."""
    return {name: fmean(numbers) for name, numbers in values.items() if numbers}
