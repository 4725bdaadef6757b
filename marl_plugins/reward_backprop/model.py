"""A language model as the attributor: asked as the coach is, through the same client and within its
limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic

from marl_plugins.asking.marked_answers import (
    AROUND,
    BEFORE,
    LONGEST_EXPLANATION_CHARS,
    json_object,
    kept_as,
    lines_with,
    value_of,
)
from marl_plugins.asking.prompts import FIELDS as SEEN_FIELDS
from marl_plugins.asking.prompts import checked_prompt, prompt_fields, shorten
from marl_plugins.asking.request import JudgeRequest
from marl_plugins.reward_backprop.backward import Attribution, Residual

if TYPE_CHECKING:
    from marl_plugins import Action, Seen
    from marl_plugins.asking.asker import Asker

FIELDS = (*SEEN_FIELDS, "outcome", "value", "left", "residual")
NUMBER = r"([+-]?(?:10(?:\.0+)?|\d(?:\.\d+)?))(?:\s*/\s*10(?:\.0+)?)?\.?"
SCHEMA = {
    "type": "object",
    "properties": {
        "nonce": {"type": "string"},
        "explanation": {"type": "string"},
        "passed_on": {"type": "string"},
        "contribution": {"type": "number", "minimum": -10, "maximum": 10},
    },
    "required": ["nonce", "explanation", "passed_on", "contribution"],
    "additionalProperties": False,
}


class AttributionAnswer(pydantic.BaseModel, extra="forbid", frozen=True, strict=True):
    """The values that are read from a model's answer."""

    contribution: Annotated[float, pydantic.Field(ge=-10, le=10)]
    passed_on: str = ""
    explanation: str = ""


class ModelAttributor:
    """Asks a model about every action.

    Args:
        duties: By role, the text of its prompt.
    """

    def __init__(self, asker: Asker, prompt: str, duties: Mapping[str, str]):
        self.asker = asker
        self.prompt = prompt
        self.duties = duties

    async def attribute(self, action: Action, seen: Seen, residual: Residual) -> Attribution:
        """Returns the model's attribution.

        Raises:
            InfrastructureFailure: It is unavailable.
            RunPaused: So are all further ones.
        """
        fields = prompt_fields(action, seen, self.duties[action.role]) | {
            "outcome": shorten(residual.outcome),
            "value": f"{10 * residual.value:+.1f}",
            "left": f"{10 * residual.left:+.1f}",
            "residual": shorten("\n".join(f"<{role}> {note}" for role, note in residual.notes))
            or "nothing; this step is the last",
        }

        def prompt(nonce: str, form: str) -> str:
            return self.prompt.format(**fields, fence=nonce, form=instruction(nonce, form))

        reading = kept_as(
            AttributionAnswer, await self.asker.judge(JudgeRequest(prompt, parse, again, SCHEMA))
        )
        return Attribution(reading.contribution / 10, reading.passed_on, reading.explanation)


def read_prompt(path: Path) -> str:
    """Returns the attributor's prompt; it has no place for a label.

    Raises:
        ConfigurationError: It cannot be read, or has a placeholder that is unknown or missing.
    """
    return checked_prompt(path, FIELDS, "the attributor knows the outcome and no label")


def instruction(nonce: str, form: str) -> str:
    if form == "json":
        return (
            f'Answer with one JSON object: {{"nonce": "{nonce}", "explanation": two sentences, '
            '"passed_on": what the earlier '
            'steps have to answer for, in words, "contribution": -10 (this step ruined it) to 10 '
            "(this step made it)}."
        )
    return (
        "Explain in two sentences. Then end with exactly:\n"
        f"PASSED_ON {nonce}: in one line, what the earlier steps have to answer for\n"
        f"CONTRIBUTION {nonce}: a number from -10 (this step ruined it) to 10 (this step made it)"
    )


def again(nonce: str, form: str) -> str:
    return (
        "That holds no contribution that can be read. Look at the same step again. "
        f"{instruction(nonce, form)}"
    )


def parse(text: str, nonce: str, form: str) -> dict[str, Any] | None:
    """Returns the attribution in an answer, or None; as strict as a verdict
    (asking/marked_answers.py)."""
    if form == "json":
        fields = json_object(text, nonce)
        try:
            return None if fields is None else AttributionAnswer.model_validate(fields).model_dump()
        except pydantic.ValidationError:
            return None
    contribution = value_of(text, "CONTRIBUTION", nonce, NUMBER)
    if contribution is None:
        return None
    marked = re.compile(rf"{BEFORE}PASSED_ON{AROUND}{re.escape(nonce)}\b{AROUND}:(.*)")
    notes = (marked.match(row) for row in lines_with(text, nonce))
    return {
        "contribution": float(contribution),
        "passed_on": next((note.group(1).strip() for note in notes if note), ""),
        "explanation": text.strip()[-LONGEST_EXPLANATION_CHARS:],
    }
