"""The verdict of a coach about one action, and how it is read: strictly, because a wrong reading is
a wrong reward.

    text    lines that carry the request's nonce: `CORRECT 9f31c2aa: yes`, `SCORE 9f31c2aa: 7.5`
    json    one object of the schema with the nonce in it, and nothing around it (structured output)

Whoever wrote what is judged cannot know the nonce, so nothing that the coach quotes passes for its
verdict. What is ambiguous or out of range is no verdict; nothing is clamped or guessed. Reading
takes time in proportion to the answer's length.
"""

from __future__ import annotations

import json
import statistics
from typing import Annotated, Any

import pydantic

from marl_plugins.asking.marked_answers import (
    LONGEST_EXPLANATION_CHARS,
    json_object,
    line_patterns,
    value_of,
)

NUMBER = r"(?:10(?:\.0+)?|\d(?:\.\d+)?)"
VALUES = {"SCORE": rf"({NUMBER})(?:\s*/\s*10(?:\.0+)?)?\.?", "CORRECT": r"(yes|no|true|false)\.?"}
"""By the name of a line, what may stand in it."""


class ProgramRun(pydantic.BaseModel):
    """A program that a coach ran before its verdict (programs.py)."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    program: str
    output: str
    ok: bool


class Verdict(pydantic.BaseModel):
    """One verdict.

    Args:
        score: 0 useless, 10 perfect.
        correct: Whether the team's answer is right, where the coach was asked.
        criteria: By name, 0 to 10, where the coach gave any.
        explanation: For people.
        correction: A better action, where the coach was asked for one and gave one (correcting.py).
        runs: The programs that it ran first.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    score: float = pydantic.Field(ge=0, le=10)
    correct: bool | None = None
    criteria: dict[str, Annotated[float, pydantic.Field(ge=0, le=10)]] = {}
    explanation: str = ""
    correction: str | None = None
    runs: list[ProgramRun] = []

    @property
    def share(self) -> float:
        """The score in [0, 1]."""
        return self.score / 10


class JointVerdict(Verdict):
    """The verdict of several.

    Args:
        members: The scores of those that answered, in [0, 1].
        failed: Why there is none of the others, by kind of failure.
    """

    members: dict[str, float]
    failed: dict[str, str]

    @property
    def disagreement(self) -> float:
        """Standard deviation of the members' scores, at most 0.5."""
        return statistics.pstdev(self.members.values())


def schema(with_label: bool) -> dict[str, Any]:
    """Returns the JSON schema of a verdict, as strict structured output requires it: every field
    required, no other one."""
    criterion = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "score": {"type": "number", "minimum": 0, "maximum": 10},
        },
        "required": ["name", "score"],
        "additionalProperties": False,
    }
    fields: dict[str, Any] = {
        "nonce": {"type": "string"},
        "explanation": {"type": "string"},
        "criteria": {"type": "array", "items": criterion},
        **({"correct": {"type": "boolean"}} if with_label else {}),
        "score": {"type": "number", "minimum": 0, "maximum": 10},
    }
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def instruction(nonce: str, form: str, with_label: bool) -> str:
    """Returns how the coach has to answer."""
    if form == "json":
        correct = ', "correct": true or false (is the team\'s answer right?)' if with_label else ""
        return (
            f'Answer with one JSON object: {{"nonce": "{nonce}", "explanation": two sentences on '
            "what was good and what was "
            'not, "criteria": a list of {"name", "score"} for what you looked at (may be empty)'
            f'{correct}, "score": 0 (useless) to 10 (perfect)}}.'
        )
    correct = f"CORRECT {nonce}: yes or no (is the team's answer right?)\n" if with_label else ""
    lines = f"{correct}SCORE {nonce}: a number from 0 (useless) to 10 (perfect)"
    return f"Say in two sentences what was good and what was not. Then end with exactly:\n{lines}"


def again(nonce: str, form: str, with_label: bool) -> str:
    """Returns the second question, after an answer without a verdict; the task is above it in the
    conversation."""
    return (
        "That holds no verdict that can be read. Judge the same step again. "
        f"{instruction(nonce, form, with_label)}"
    )


def parse(text: str, nonce: str, form: str, with_label: bool) -> Verdict | None:
    """Returns the verdict in an answer, or None."""
    return (
        _parse_json(text, nonce, with_label)
        if form == "json"
        else _parse_lines(text, nonce, with_label)
    )


def _parse_lines(text: str, nonce: str, with_label: bool) -> Verdict | None:
    score = value_of(text, "SCORE", nonce, VALUES["SCORE"])
    correct = value_of(text, "CORRECT", nonce, VALUES["CORRECT"])
    if score is None or (with_label and correct is None):
        return None
    known = None if correct is None or not with_label else correct in ("yes", "true")
    return Verdict(
        score=float(score), correct=known, explanation=text.strip()[-LONGEST_EXPLANATION_CHARS:]
    )


def answer(verdict: Verdict, nonce: str, form: str, with_label: bool) -> str:
    """Returns a verdict as `instruction` asks for it, without its correction: `parse` reads the
    same verdict, its score to two decimals.

    Lines of the explanation that state a verdict, to whatever question, are left out. A verdict
    that says nothing of rightness is
    read as in metrics: right from 5 on.
    """
    correct = verdict.share >= 0.5 if verdict.correct is None else verdict.correct
    score = f"{round(verdict.score, 2):g}"
    forms = [line_patterns(name, value)[1] for name, value in VALUES.items()]
    rows = [
        r
        for r in verdict.explanation.splitlines()
        if nonce not in r.lower() and not any(p.fullmatch(r) for p in forms)
    ]
    explanation = "\n".join(rows).strip()
    if form == "text":
        lines = [f"CORRECT {nonce}: {'yes' if correct else 'no'}"] if with_label else []
        return "\n".join(
            [*([explanation] if explanation else []), *lines, f"SCORE {nonce}: {score}"]
        )
    fields = {"nonce": nonce, "explanation": explanation}
    criteria = [
        {"name": name, "score": round(value, 2)} for name, value in verdict.criteria.items()
    ]
    more = {"correct": correct} if with_label else {}
    return json.dumps(
        {**fields, "criteria": criteria, **more, "score": float(score)}, ensure_ascii=False
    )


def _parse_json(text: str, nonce: str, with_label: bool) -> Verdict | None:
    fields = json_object(text, nonce)
    if fields is None or (with_label and fields.get("correct") is None):
        return None
    try:
        named = fields.pop("criteria", [])
        criteria = {c["name"]: c["score"] for c in named}
        if len(criteria) < len(named):
            return None
        fields["explanation"] = (fields.get("explanation") or "")[:LONGEST_EXPLANATION_CHARS]
        verdict = Verdict(**fields, criteria=criteria)
    except (pydantic.ValidationError, TypeError, KeyError):
        return None
    return verdict if with_label else verdict.model_copy(update={"correct": None})
