"""A language model as the coach: its prompts, and what it is shown of an action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins import Problem, Seen, SeenLast, at
from marl_plugins.asking.marked_answers import kept_as
from marl_plugins.asking.prompts import (
    FIELDS,
    LABEL_FIELDS,
    checked_prompt,
    files_of,
    prompt_fields,
)
from marl_plugins.asking.request import JudgeRequest
from marl_plugins.coach import correcting, verdict
from marl_plugins.coach.programs import NO_FILES, CoachPrograms, ProgramCopies, Work, copied
from marl_plugins.coach.verdict import Verdict

if TYPE_CHECKING:
    from marl_plugins import Action
    from marl_plugins.asking.asker import Asker

PROMPTS = Path(__file__).parent / "prompts"
"""The package's prompts."""


@dataclass(frozen=True)
class Questions:
    """The questions that a model is asked of an action.

    Args:
        prompts: For all actions but the last, and for the last role's last action.
        duties: By role, the text of its prompt.
        corrections: Whether it is also asked for a better action.
        training: What it is told of the training of a role (memory.py).
        programs: What it may run programs with before a verdict.
    """

    prompts: tuple[str, str]
    duties: Mapping[str, str]
    corrections: bool = False
    training: Callable[[str], str] = lambda role: ""
    programs: CoachPrograms | None = None

    async def about(self, action: Action, seen: Seen) -> JudgeRequest:
        """Does the same as `of`, with the files for its programs."""
        copies = await copied(files_of(action, seen), seen.workspace) if self.programs else NO_FILES
        return self.of(action, seen, copies)

    def of(self, action: Action, seen: Seen, copies: ProgramCopies = NO_FILES) -> JudgeRequest:
        last = isinstance(seen, SeenLast)
        fields = prompt_fields(action, seen, self.duties[action.role]) | {
            "training": self.training(action.role)
        }

        def prompt(nonce: str, form: str) -> str:
            how = _instruction(nonce, form, last, self.corrections)
            first = f"{self.programs.instruction}\n\n" if self.programs else ""
            return self.prompts[last].format(**fields, fence=nonce, form=first + how)

        work = Work(self.programs, copies) if self.programs else None
        return _request(prompt, last, self.corrections, work)


class ModelCoach:
    """Asks a model for every action."""

    def __init__(self, asker: Asker, questions: Questions):
        self.asker = asker
        self.questions = questions

    async def judge(self, action: Action, seen: Seen) -> Verdict:
        """Returns the model's verdict.

        Raises:
            InfrastructureFailure: It is unavailable.
            RunPaused: So are all further ones.
        """
        return kept_as(Verdict, await self.asker.judge(await self.questions.about(action, seen)))


def trial_request() -> JudgeRequest:
    """Returns a request for a score of 7, to try a model before anything is started."""

    def prompt(nonce: str, form: str) -> str:
        return (
            "This tries out the form of your answers. Give a score of "
            f"7.\n{verdict.instruction(nonce, form, False)}"
        )

    return _request(prompt, False)


def _instruction(nonce: str, form: str, last: bool, corrections: bool) -> str:
    how = verdict.instruction(nonce, form, last)
    return f"{correcting.instruction(nonce, form)} {how}" if corrections else how


def _request(
    prompt: Callable[[str, str], str],
    last: bool,
    corrections: bool = False,
    work: Work | None = None,
) -> JudgeRequest:
    def parse(text: str, nonce: str, form: str) -> dict[str, Any] | None:
        rest, block = (
            correcting.taken_out(text, nonce) if corrections and form == "text" else (text, None)
        )
        parsed = verdict.parse(rest, nonce, form, last)
        # not asked for
        if parsed is None or parsed.runs or (parsed.correction is not None and not corrections):
            return None
        values = parsed.model_dump(exclude={"runs"})
        if block is not None:
            values["correction"] = block
        if not corrections:
            del values["correction"]  # as it was kept before there were any
        if work is not None and work.runs:
            values["runs"] = [run.model_dump() for run in work.runs]
        return values

    def again(nonce: str, form: str) -> str:
        return verdict.again(nonce, form, last)

    schema = verdict.schema(last)
    request = JudgeRequest(
        prompt, parse, again, correcting.with_correction(schema) if corrections else schema
    )
    if work is None:
        return request
    first = work

    async def done(text: str, nonce: str) -> str | None:
        shown = await first.answer(text, nonce)
        return (
            None if shown is None else f"{shown} {_instruction(nonce, 'text', last, corrections)}"
        )

    return replace(request, work=done, depends_on=first.depends_on)


def read_prompt(path: Path, *, with_label: bool) -> str:
    """Returns the coach's prompt for the last action, or for all others.

    Raises:
        ConfigurationError: It cannot be read, or has a placeholder that is unknown, forbidden here
            or missing.
    """
    if with_label:
        return checked_prompt(path, (*FIELDS, *LABEL_FIELDS))
    return checked_prompt(path, FIELDS, "it is allowed in --coach.last_prompt only")


def without_training(prompts: Sequence[str]) -> list[Problem]:
    """Returns a problem where prompts do not show what there is to say of the training."""
    wanting = [
        name
        for name, text in zip(("prompt", "last_prompt"), prompts, strict=True)
        if "{training}" not in text
    ]
    return [
        Problem(
            "prompt.training",
            at(flag=f"coach.{name}"),
            "{training} is missing",
            fix="--coach.memory and the stages' `ask` are read there",
        )
        for name in wanting
    ]
