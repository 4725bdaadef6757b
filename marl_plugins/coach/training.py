"""A coach that is trained: a policy of the run that judges, and learns how well its scores predict
the outcome, or what an action has changed about it (`--coach.train_every N`, `--coach.learn`).

Each of its answers is one row of its policy: the question as it was shown, the tokens as they were
sampled, and a reward in [0, 1]:

    r_i = (c_i + k_i) / 2
    c_i = 1 - (s_i - o_i)^2                                                      calibration
    k_i = 1/2 + 1/2 mean over the other verdicts j of sign(s_i - s_j) sign(o_i - o_j)      ranking

s is the score in [0, 1], o the outcome of the judged role, both over the step's verdicts of one
judge on one role. c is Brier's score (1950), which is strictly proper (Gneiting and Raftery 2007):
its expectation is highest where s is the probability of success, given what the judge was shown.
The mean of the sums is Kendall's tau (1938): it does not change when all scores shift, and counts
pairs of the same outcome as 0, so that what is best for a verdict is to stand where its own chances
do.

With `--coach.learn effect`, o is (1 + outcome - mean outcome of the task's other samples) / 2. They
have not seen the action, so that what s then predicts is the chance of success with it, less the
chance on this task: how hard the task is, which a score of the chance itself consists of to a
large part, has no share in it. benchmarks.judged_effects compares both with forks of each action.

An answer that holds no verdict has reward 0, the lowest there is. A verdict on a trajectory without
outcome has none, nor one that infrastructure has lost. The same question has the same answer within
a step, and is one row, with the mean of its rewards. The
judge's own word is in no reward: outcomes are the verifier's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from marl_plugins import Action, Trajectory
from marl_plugins.asking.marked_answers import kept_as
from marl_plugins.coach.model import ModelCoach
from marl_plugins.coach.verdict import Verdict

if TYPE_CHECKING:
    from marl_plugins import Answer, Seen
    from marl_plugins.asking.asker import Asker
    from marl_plugins.asking.request import Judgement
    from marl_plugins.coach.model import Questions

UNREADABLE_REWARD = 0.0
"""Reward of an answer that holds no verdict."""


@dataclass(frozen=True)
class JudgeAnswer:
    """An answer of a judge about an action.

    Args:
        score: In [0, 1]; None: the answer holds no verdict.
    """

    policy: str
    action: Action
    answer: Answer
    score: float | None


class TrainedCoach(ModelCoach):
    """A policy that is trained on its verdicts.

    Args:
        policy: Its name.
        said: Where its answers are kept until the step has its credit, by action.
    """

    def __init__(
        self,
        asker: Asker,
        questions: Questions,
        policy: str,
        answers: dict[Action, list[JudgeAnswer]],
    ):
        super().__init__(asker, questions)
        self.policy = policy
        self.said = answers

    async def judge(self, action: Action, seen: Seen) -> Verdict:
        """Judges as `ModelCoach` does, and keeps the answers."""

        def heard(answer: Answer, judgement: Judgement | None) -> None:
            score = None if judgement is None else kept_as(Verdict, judgement).share
            self.said.setdefault(action, []).append(JudgeAnswer(self.policy, action, answer, score))

        request = replace(await self.questions.about(action, seen), heard=heard)
        return kept_as(Verdict, await self.asker.judge(request))


def shares_in_tau(verdicts: Sequence[tuple[float, float]]) -> list[float]:
    """Returns what each verdict contributes to Kendall's tau-a of scores and outcomes, in [-1, 1];
    their mean is tau.

    Args:
        verdicts: Score and outcome.
    """
    counts = Counter(verdicts)  # scores and outcomes have few values, so that pairs of them are few
    others = max(1, len(verdicts) - 1)
    shares = {
        (s, o): sum(n * _sign(s - other) * _sign(o - its) for (other, its), n in counts.items())
        / others
        for s, o in counts
    }
    return [shares[verdict] for verdict in verdicts]


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def rewards(answers: Sequence[tuple[float | None, float]]) -> list[float]:
    """Returns the reward of each answer of one judge on one role in a step.

    Args:
        answers: Score, None where the answer holds no verdict, and outcome, both in [0, 1].
    """
    shares = iter(shares_in_tau([(s, o) for s, o in answers if s is not None]))
    return [
        UNREADABLE_REWARD if s is None else (1 - (s - o) ** 2 + (1 + next(shares)) / 2) / 2
        for s, o in answers
    ]


@dataclass(frozen=True)
class Lesson:
    """An answer as an action of its policy, and the outcome or effect that it is held against."""

    action: Action
    outcome: float


def effects(trajectories: Sequence[Trajectory]) -> Callable[[Trajectory, str], float | None]:
    """Returns what gives a role's outcome in a trajectory, less the mean of the task's other
    samples, mapped from [-1, 1] to [0, 1]; None where one of the two is missing."""
    samples = defaultdict[str, list[Trajectory]](list)
    for trajectory in trajectories:
        if trajectory.is_original and not trajectory.infrastructure_failure:
            samples[trajectory.task.id].append(trajectory)

    def effect(trajectory: Trajectory, role: str) -> float | None:
        own = trajectory.outcome_of(role)
        others = [
            outcome
            for other in samples[trajectory.task.id]
            if other.sample != trajectory.sample and (outcome := other.outcome_of(role)) is not None
        ]
        return None if own is None or not others else (1 + own - fmean(others)) / 2

    return effect


def lessons(
    answers: Mapping[Action, Sequence[JudgeAnswer]],
    trajectories: Sequence[Trajectory],
    of_effects: Collection[str] = (),
) -> tuple[list[Trajectory], dict[str, float]]:
    """Returns what judges have said of each trajectory, as actions of their policies with rewards,
    or with the reason why there is none; and metrics of it.

    The `role` of such an action is `POLICY/ROLE`, ROLE being the one that was judged.

    Args:
        of_effects: The policies that learn effects.
    """
    effect = effects(trajectories)
    judgements: list[Trajectory] = []
    by_role: dict[str, list[Lesson]] = defaultdict(list)
    for trajectory in trajectories:
        mine = Trajectory(trajectory.task, trajectory.sample, trajectory.step)
        for one in (s for action in trajectory.actions for s in answers.get(action, ())):
            action = _action(one, len(mine.actions))
            mine.actions = [*mine.actions, action]
            goal = effect if one.policy in of_effects else Trajectory.outcome_of
            outcome = goal(trajectory, one.action.role)
            if trajectory.infrastructure_failure:
                action.left_out = f"infrastructure:{trajectory.infrastructure_failure}"
            elif outcome is None:
                action.left_out = "no outcome"
            elif not action.generation.ids:
                action.left_out = "nothing sampled"
            else:
                by_role[action.role].append(Lesson(action, outcome))
        if mine.actions:
            judgements.append(mine)
    metrics: dict[str, float] = {}
    for role, alike in sorted(by_role.items()):
        for lesson, reward in zip(
            alike, rewards([(x.action.score, x.outcome) for x in alike]), strict=True
        ):
            lesson.action.reward = reward
        metrics |= {
            f"coach/trained/{role}/{name}": value for name, value in _measure(alike).items()
        }
        _merge_repeated([lesson.action for lesson in alike])
    return judgements, metrics


def _action(one: JudgeAnswer, number: int) -> Action:
    return Action(
        path=f"{one.policy}.{one.action.path}.{number}",
        role=f"{one.policy}/{one.action.role}",
        policy=one.policy,
        turn=0,
        shown_ids=one.answer.context_ids,
        generation=one.answer.generation,
        text=one.answer.text,
        score=one.score,
    )


def _measure(samples: Sequence[Lesson]) -> dict[str, float]:
    verdicts = [(x.action.score, x.outcome) for x in samples if x.action.score is not None]
    metrics = {
        "reward": fmean(x.action.reward for x in samples if x.action.reward is not None),
        "unreadable": 1 - len(verdicts) / len(samples),
    }
    if verdicts:
        metrics["brier"] = fmean((s - o) ** 2 for s, o in verdicts)
        metrics["tau"] = fmean(shares_in_tau(verdicts))
    return metrics


def _merge_repeated(actions: Sequence[Action]) -> None:
    """The same answer to the same question is trained on once, with the mean of its rewards."""
    uses: dict[object, list[Action]] = defaultdict(list)
    for action in actions:
        uses[action.shown_ids, action.generation.ids].append(action)
    for first, *repeated in uses.values():
        first.reward = fmean(
            action.reward for action in (first, *repeated) if action.reward is not None
        )
        for action in repeated:
            action.reward, action.left_out = None, "repeated"
