"""The form of a trajectory's record: the keys that are relied on where a record is read, and the
types of their values.

A record may have been edited, damaged or written by other software; what is not of this form is
refused where it is read, so nothing that is shown or trained on meets a text where a number is
expected.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired

from pydantic import (
    Field,
    InstanceOf,
    StrictBool,
    StrictFloat,
    StrictInt,
    TypeAdapter,
    ValidationError,
)
from typing_extensions import TypedDict

Text = InstanceOf[str]
"""Any text, also one with half of a surrogate pair, which pydantic's own type of texts refuses."""
Number = StrictFloat
"""A whole number too, and no truth value."""
Part = StrictFloat | StrictBool
"""A number that a grader or a plugin has written, some of which write True for 1."""
Pair = Annotated[list[Text], Field(min_length=2, max_length=2)]
Change = Annotated[list[StrictInt], Field(min_length=2, max_length=2)]
Times = Annotated[list[Number | None], Field(min_length=3, max_length=3)]


class _FileForm(TypedDict):
    path: Text
    size: StrictInt
    sha256: Text
    writer: Text


class _ToolForm(TypedDict):
    tool: Text
    call: Text
    output: Text
    ok: StrictBool
    seconds: NotRequired[Number | None]
    start: NotRequired[Number | None]
    files: NotRequired[list[Text]]
    failure: NotRequired[Text]
    diff: NotRequired[Text]


_Returns = TypedDict("_Returns", {"return": Number | None})
"""A word of Python, which a class cannot have as a name."""


class _ActionForm(_Returns):
    action: Text
    role: Text
    policy: Text
    version: StrictInt
    newer: NotRequired[list[Change]]
    turn: StrictInt
    parents: list[Text]
    derived: NotRequired[list[Text]]
    continues: Text | None
    call: NotRequired[StrictInt]
    extends: NotRequired[StrictBool]
    offered: NotRequired[Text]
    thought: NotRequired[StrictInt]
    defused: NotRequired[StrictInt]
    replayed: NotRequired[StrictBool]
    shown: NotRequired[list[Pair]]
    shown_ids: list[StrictInt]
    ids: list[StrictInt]
    logprobs: list[Number | None]
    trainer_logprobs: NotRequired[list[Number | None]]
    finish: Text
    text: Text
    times: NotRequired[Times]
    tools: list[_ToolForm]
    score: Number | None
    unscored: NotRequired[Text]
    explanation: Text
    reward: Number | None
    terms: NotRequired[dict[Text, Part | None]]
    notes: NotRequired[dict[Text, Any]]
    advantage: Number | None
    advantages: NotRequired[list[Number | None]]
    left_out: Text | None


class _TrajectoryForm(TypedDict):
    step: Number
    task: Text
    sample: StrictInt
    origin: NotRequired[Text]
    forked: NotRequired[tuple[Text, StrictInt]]
    prompt: Text
    label: Any
    metadata: NotRequired[dict[Text, Any]]
    answer: Text | None
    returned: NotRequired[Text | None]
    outcome: Number | None
    outcomes: NotRequired[dict[Text, Number | None]]
    outcome_parts: dict[Text, Part | None]
    actions_scored: NotRequired[StrictBool]
    agent_failure: Text | None
    infrastructure_failure: Text | None
    detail: Text
    start: NotRequired[Number | None]
    seconds: NotRequired[Number | None]
    files: NotRequired[list[_FileForm]]
    tools: NotRequired[list[_ToolForm]]
    actions: list[_ActionForm]


FORM = TypeAdapter(_TrajectoryForm)


def check_form(record: Mapping[str, Any]) -> None:
    """Checks a record.

    Raises:
        ValueError: It is of another form; names the first key that is wrong.
    """
    try:
        FORM.validate_python(record)
    except ValidationError as error:
        first, *_ = error.errors(include_url=False, include_context=False)
        got = "" if first["type"] == "missing" else f", got {reprlib.repr(first['input'])}"
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}{got}") from None
