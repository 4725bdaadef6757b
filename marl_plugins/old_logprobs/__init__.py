"""The trainer's log-probs at the weights that sampled a row: how much of the ratio comes from the
lag, how much from the engine.

    openrlhf train --recipe R --train.async_enable --plugin marl_plugins.old_logprobs

    w = (p_now / p_old) (p_old / p_engine)

p_engine is what the engine gave a token when it was sampled, p_now what the trainer's weights give
it before the update. They differ because the weights have changed since, and because engine and
trainer do not compute the same for the same weights. p_old
tells them apart: it is the trainer's, by the weights that sampled the token. For each policy and
each role the metrics of a step have the mean and the effective sample size of the first factor
(`lag_ratio`, `lag_ess`) and of the second (`engine_ratio`, `engine_ess`); the run's own `ratio` and
`ess` are those of w. What the old weights give the tokens of an action is recorded as
`notes.old_logprobs`.

The training processes keep the weights of the last versions (`worker.py`), one copy in the host's
memory and in checkpoints for each version of lag, and a step has one more forward pass for each
version that its rows have. Nothing that is trained changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from marl_plugins import Action, Problem, Run, StepPart, at, hookimpl

# inside: works in the training processes
from marl_plugins.core.run import EarlierWeights, max_lag, queue_size
from marl_plugins.engine.records.trajectory_record import spelled

if TYPE_CHECKING:
    from marl_plugins import PolicyProcesses, Row, Step
    from marl_plugins.engine.runtime.experience import ForwardedExperience, PreparedExperience

NOTE, EXTENSION = "old_logprobs", "OldWeights"
ASYNC = "train.async_enable"


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    if queue_size(run.args):
        run.state(EarlierWeights).kept = True
        return []
    got = "without a lag the trainer's log-probs are by the weights that sampled the row already"
    return [
        Problem(
            "old_logprobs.async",
            at(plugin=__name__),
            got,
            fix=f"add --{ASYNC}, or leave out the plugin",
        )
    ]


@hookimpl
def marl_extensions(run: Run) -> Sequence[str]:
    return [f"{__name__}.worker:{EXTENSION}"]


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart:
    return OldLogProbs(step, max_lag(run))


class OldLogProbs(StepPart):
    """Forward passes by older weights, before the updates of a step.

    Args:
        lag: Versions by which a row may be older than the weights that it trains.
    """

    def __init__(self, step: Step, lag: int):
        self.step, self.lag = step, lag
        self.found: dict[Action, list[float]] = {}
        """The log-probs of an action's tokens by the weights that sampled them."""

    async def prepared(
        self, prepared: Sequence[PreparedExperience]
    ) -> Sequence[PreparedExperience]:
        for p in prepared:
            await self._forward(
                self.step.policies[p.policy], [row for row in p.rows if not row.trajectory.origin]
            )
        for policy in self.step.policies.values():
            if policy.spec.trainable:
                await policy.extension(
                    EXTENSION, "keep", policy.version, policy.version + 1 - self.lag
                )
        return prepared

    async def _forward(self, policy: PolicyProcesses, rows: Sequence[Row]) -> None:
        """Compute the log-probs of each row's tokens by the weights that sampled them, as far as
        these are known."""
        values = {row.action: list(row.action.trainer_logprobs) for row in rows}
        unknown = set[Action]()
        for version in sorted(
            {v for row in rows for v in row.action.generation.token_versions} - {policy.version}
        ):
            mine = [row for row in rows if version in row.action.generation.token_versions]
            if not all(await policy.extension(EXTENSION, "put", version)):
                unknown |= {row.action for row in mine}
                continue
            try:
                forwarded = cast("ForwardedExperience", await policy.forward(mine))
            finally:
                await policy.extension(EXTENSION, "put_back")
            for row, log_probs in zip(mine, forwarded.tokens.log_probs.tolist(), strict=True):
                for n, sampled_by in enumerate(row.action.generation.token_versions):
                    if sampled_by == version:
                        values[row.action][n] = log_probs[n]
        for action, logprobs in values.items():
            if action not in unknown:
                self.found[action] = logprobs
                action.notes[NOTE] = spelled(logprobs)

    def metrics(self) -> Mapping[str, float]:
        from marl_plugins.engine.runtime.metrics import log_ratio_metrics

        groups: dict[str, list[Action]] = defaultdict(list)
        for action in self.found:
            groups[f"policy/{action.policy}"].append(action)
            groups[f"role/{action.role}"].append(action)
        metrics: dict[str, float] = {}
        for name, actions in sorted(groups.items()):
            tokens = [
                each
                for a in actions
                for each in zip(
                    a.trainer_logprobs, self.found[a], a.generation.logprobs, strict=True
                )
            ]
            metrics |= log_ratio_metrics(f"{name}/lag_", [now - old for now, old, _ in tokens])
            metrics |= log_ratio_metrics(
                f"{name}/engine_", [old - engine for _, old, engine in tokens]
            )
        return metrics
