"""A plugin for benchmarks/robustness.py: the rubric's verdicts, but asked for at an endpoint that
repeats them.

The prompt holds the rubric's score; the server (coach_server.py) answers with it, or fails. So an
undisturbed run has exactly the rubric's rewards, and all that a disturbed one differs by is what
the client made of the failures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.asking.askers import Askers
from marl_plugins.asking.request import JudgeRequest
from marl_plugins.coach import verdict
from marl_plugins.coach.rubric import RubricCoach, load_rubric
from marl_plugins.coach.state import CoachState
from marl_plugins.coach.verdict import Verdict

if TYPE_CHECKING:
    from marl_plugins.asking.asker import Asker
    from marl_plugins.core.run import Run
    from marl_plugins.core.scoring import Seen
    from marl_plugins.core.trajectory import Action


class Through:
    def __init__(self, rubric: RubricCoach, asker: Asker):
        self.rubric = rubric
        self.asker = asker
        self.asked = 0

    async def judge(self, action: Action, seen: Seen) -> Verdict:
        self.asked += 1
        number, score = self.asked, (await self.rubric.judge(action, seen)).score

        def prompt(nonce: str, form: str) -> str:
            how = verdict.instruction(nonce, form, False)
            return f"Step #{number} [{score}].\n<step>{action.text}</step>\n{how}"

        def parse(text: str, nonce: str, form: str) -> dict[str, object] | None:
            found = verdict.parse(text, nonce, form, False)
            return None if found is None else found.model_dump()

        def again(nonce: str, form: str) -> str:
            return verdict.again(nonce, form, False)

        found = Verdict.model_validate(
            await self.asker.judge(JudgeRequest(prompt, parse, again, {}))
        )
        assert found.score == score, f"a verdict of {found.score} where the rubric says {score}"
        return found


@hookimpl
def marl_configure(run: Run) -> None:
    """The coach has been configured before: its asker stays, what it is asked changes."""
    asker = run.state(Askers).first
    if asker is not None:
        rubric = load_rubric(run.folder / "tiny_rubric.py", list(run.recipe.roles))
        run.state(CoachState).coach = Through(RubricCoach(rubric), asker)
