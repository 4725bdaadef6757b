"""Several coaches as one: each judges every action, and their scores become one.

mean     sum w s / sum w, over the members that answered
median   of those that answered; of an even number the mean of the two in the middle
worst    the lowest

A member whose verdict is unavailable is left out and counted; without any verdict there is none.
How far members disagree is the standard deviation of their scores, in [0, 0.5]: a metric, and with
`disagreement: weigh` a weight (`weigh_by_agreement`). Of corrected actions the first member's is
kept that has one.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from marl_plugins import InfrastructureFailure, all_of
from marl_plugins.coach.verdict import JointVerdict, Verdict

if TYPE_CHECKING:
    from marl_plugins import Action, Seen
    from marl_plugins.coach.metrics import JudgedAction
    from marl_plugins.coach.section import CoachConfig
    from marl_plugins.coach.state import Coach

TERM = "disagreement"
"""What a score is changed by, among the terms of the reward."""


class Ensemble:
    """Judges by its members.

    Args:
        members: By name, in the recipe's order.
        config: How their scores become one, and what each counts.
    """

    def __init__(self, members: Mapping[str, Coach], config: CoachConfig):
        self.members = members
        self.config = config

    async def judge(self, action: Action, seen: Seen) -> JointVerdict:
        """Returns the joint verdict.

        Raises:
            InfrastructureFailure: No member has one.
        """
        answers = await all_of(_verdict_of(m, action, seen) for m in self.members.values())
        return self.joint(dict(zip(self.members, answers, strict=True)))

    def joint(self, answers: Mapping[str, Verdict | InfrastructureFailure]) -> JointVerdict:
        """Returns one verdict of the members'.

        Raises:
            InfrastructureFailure: There is none among them; of the members' kind, where they all
                failed alike.
        """
        verdicts = {name: answer for name, answer in answers.items() if isinstance(answer, Verdict)}
        failed = {
            name: answer
            for name, answer in answers.items()
            if isinstance(answer, InfrastructureFailure)
        }
        if not verdicts:
            kinds = {failure.kind for failure in failed.values()}
            told = "; ".join(f"{name}: {failure}" for name, failure in failed.items())
            raise InfrastructureFailure(kinds.pop() if len(kinds) == 1 else "coach_members", told)
        lines = [
            f"{name} {verdict.score:g}: {verdict.explanation}" for name, verdict in verdicts.items()
        ]
        lines += [f"{name}: no verdict: {failure}" for name, failure in failed.items()]
        return JointVerdict(
            score=self._score(verdicts),
            correct=self._correct([v.correct for v in verdicts.values() if v.correct is not None]),
            criteria={
                f"{name}: {c}": score
                for name, v in verdicts.items()
                for c, score in v.criteria.items()
            },
            explanation="\n".join(lines),
            correction=next(
                (v.correction for v in verdicts.values() if v.correction is not None), None
            ),
            runs=[run for v in verdicts.values() for run in v.runs],
            members={name: verdict.share for name, verdict in verdicts.items()},
            failed={name: failure.kind for name, failure in failed.items()},
        )

    def _score(self, verdicts: Mapping[str, Verdict]) -> float:
        scores = [verdict.score for verdict in verdicts.values()]
        match self.config.combine:
            case "worst":
                return min(scores)
            case "median":
                return statistics.median(scores)
        configs = self.config.members or {}
        mean = statistics.fmean(scores, weights=[configs[name].weight for name in verdicts])
        return min(max(scores), max(min(scores), mean))  # rounding, at 10

    def _correct(self, claims: Sequence[bool]) -> bool | None:
        """Returns what most members say of the answer; the worst of them is the one that says
        no."""
        if self.config.combine == "worst" and claims:
            return all(claims)
        wrong = claims.count(False)
        return None if 2 * wrong == len(claims) else 2 * wrong < len(claims)


async def _verdict_of(member: Coach, action: Action, seen: Seen) -> Verdict | InfrastructureFailure:
    try:
        return await member.judge(action, seen)
    except InfrastructureFailure as failure:
        return failure


def weigh_by_agreement(step: Sequence[JudgedAction]) -> None:
    """Brings the score of each action closer to the mean m of its role's in the step, the more its
    judges disagree.

        s' = m + (1 - 2 d) (s - m)      d the disagreement: 0 changes nothing, 0.5 leaves m

    So with a baseline that knows the role an action counts with the weight 1 - 2 d, and scores stay
    within [0, 1].
    """
    by_role: dict[str, list[tuple[Action, float, float]]] = defaultdict(list)
    for action, verdict in ((judged.action, judged.verdict) for judged in step):
        if isinstance(verdict, JointVerdict) and action.score is not None:
            by_role[action.role].append((action, action.score, verdict.disagreement))
    for entries in by_role.values():
        mean = statistics.fmean(score for _, score, _ in entries)
        for action, score, disagreement in entries:
            action.change_score(mean + (1 - 2 * disagreement) * (score - mean), TERM)
