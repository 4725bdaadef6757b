"""The training of policies that judge, as a part of the step (training.py has the rewards)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from marl_plugins import Action, Answer, Generation, PreparedRows, Row, Step, Trajectory
from marl_plugins.coach.judged import JudgedRollout
from marl_plugins.coach.members import coaches_of
from marl_plugins.coach.state import CoachState
from marl_plugins.coach.training import JudgeAnswer, lessons

# inside: trains judges inside the step
from marl_plugins.core.estimators import WhitenedAdvantages
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.rows import auxiliary_rows
from marl_plugins.core.run import max_lag, queue_size
from marl_plugins.engine.runtime.crediting import without_stale
from marl_plugins.engine.runtime.experience import estimate

if TYPE_CHECKING:
    from marl_plugins import Run


class WhitenedAdvantagesByRole(WhitenedAdvantages):
    """Whitened rewards; verdicts on one role are compared with each other alone."""

    def normalisation_group(self, row: Row) -> str:
        return row.action.role


class JudgeTraining(JudgedRollout):
    """Adds what judges said in the step, with rewards, to what policies are updated with.

    A policy with `train_every` N is updated in every N-th step alone; what it said in the others is
    left out.

    Args:
        of_effects: The policies that learn effects.
        lag: Versions by which an answer may be older than the weights that it trains; None: rollout
            and training take turns, and one that is older is a fault.
    """

    def __init__(
        self,
        state: CoachState,
        step: Step,
        of_effects: Collection[str] = (),
        lag: int | None = None,
    ):
        super().__init__(state, step)
        self.of_effects, self.lag = of_effects, lag
        self.answers: list[Trajectory] = []
        self.own_rows: list[Row] = []

    async def rows(self, rows: Sequence[Row]) -> None:
        await super().rows(rows)
        self.answers, metrics = lessons(self.state.said, self.step.trajectories, self.of_effects)
        self.state.metrics |= metrics
        for _, action in self.actions:
            self.state.said.pop(action, None)
        due = {
            name
            for name, policy in self.step.policies.items()
            if policy.spec.is_due(self.step.number)
        }
        self.own_rows = auxiliary_rows(self.answers, due)
        if self.lag is not None:
            self.own_rows = without_stale(self.own_rows, self.step.policies, self.lag)

    async def prepared(self, prepared: Sequence[PreparedRows]) -> Sequence[PreparedRows]:
        by_policy: dict[str, list[Row]] = {}
        for row in self.own_rows:
            by_policy.setdefault(row.action.policy, []).append(row)
        forwarded: list[Any] = [
            await self.step.policies[name].forward(rows) for name, rows in by_policy.items()
        ]
        return [*prepared, *estimate(forwarded, WhitenedAdvantagesByRole())]

    def ledger(self) -> Ledger | None:
        return Ledger.of(self.step.number, self.answers, self.own_rows) if self.answers else None

    def record(self) -> dict[str, Any]:
        by_action = self.state.said
        answers = [
            [
                *place,
                [
                    asdict(one.answer) | {"policy": one.policy, "score": one.score}
                    for one in by_action[action]
                ],
            ]
            for place, action in self.actions
            if action in by_action
        ]
        return super().record() | {"said": answers}

    def restore(self, record: Any) -> None:
        super().restore(record)
        actions = dict(self.actions)
        for *place, answers in record["said"]:
            action = actions[tuple(place)]
            self.state.said[action] = [_answer_of(action, **answer) for answer in answers]


def judge_training(run: Run, step: Step) -> JudgeTraining:
    """The part of a step of a run, as its coaches say."""
    of_effects = [coach.policy for coach in coaches_of(run) if coach.learn == "effect"]
    lag = max_lag(run) if queue_size(run.args) else None
    return JudgeTraining(run.state(CoachState), step, of_effects, lag)


def _answer_of(
    action: Action,
    policy: str,
    score: float | None,
    context_ids: Sequence[int],
    generation: Mapping[str, Any],
    text: str,
) -> JudgeAnswer:
    """Reads what a judge has said of an action."""
    changes = tuple((first, version) for first, version in generation["changes"])
    ids, logprobs = tuple(generation["ids"]), tuple(generation["logprobs"])
    sampled = Generation(**{**generation, "ids": ids, "logprobs": logprobs, "changes": changes})
    return JudgeAnswer(policy, action, Answer(tuple(context_ids), sampled, text), score)
