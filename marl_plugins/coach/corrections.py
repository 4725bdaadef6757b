"""The better actions that a run's coach gave: what can be used of them, as rows of `openrlhf export
--table sft` and `--table dpo`.

An SFT row is a conversational prompt and completion, a DPO row a prompt with `chosen` (the
correction) and `rejected` (what the agent said); both name the task, the step, the scores and the
coach's reason. What cannot be used is counted by its reason:

    empty      the coach gave an empty one
    unchanged  it is what the agent said
    label      the coach knew the label, and the correction holds it although nothing that the agent
               was shown does, the task itself left out: who learns it learns the answers by heart
    too_long   more tokens than the role may write, or than the context has room for
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from marl_plugins import (
    Action,
    ConfigurationError,
    Filter,
    Problem,
    RunReader,
    Trajectory,
    at,
    json_value,
)
from marl_plugins.coach.notes import NOTES

# inside: reads the records of a run
from marl_plugins.core.files import read_bytes
from marl_plugins.core.redaction import encodable

NUMBER = re.compile(r"(?<![\w.])[+-]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?!\d)")
"""Of a text; a unit may follow at once, as in 42kg."""
MAX_INTEGER_DIGITS = 1000
RESULTS = ("written", "empty", "unchanged", "label", "too_long")
Row = dict[str, Any]


Room = Callable[[Action, str], bool]
"""Whether a correction of an action has no more tokens than the role may write and the context has
room for."""


def room_of(folder: Path) -> Room:
    """Counts with the tokenizer of the policy's saved weights or of its model; without one, as the
    action has characters a token.

    Raises:
        ConfigurationError: The folder holds no plan of a run, or one of an earlier release.
    """
    from marl_plugins.engine.plan.lengths import counter_of

    path = folder / "plan.json"
    try:
        plan: Any = json_value(read_bytes(path))
        longest = {name: role["max_new_tokens"] for name, role in plan["roles"].items()}
        rooms = {name: policy["max_len"] for name, policy in plan["policies"].items()}
        models = {name: policy["model"] for name, policy in plan["policies"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            Problem("run_folder.plan", at(file=path), f"is no plan of a run: {error}")
        ) from None
    counters = {
        name: counter_of(str(folder / name)) or counter_of(model) for name, model in models.items()
    }

    def fits(action: Action, correction: str) -> bool:
        counter, ids = counters[action.policy], action.generation.ids
        tokens = (
            counter.count_text(correction)
            if counter
            else len(correction) * max(1, len(ids)) / max(1, len(action.text))
        )
        left = rooms[action.policy] - len(action.context_ids)
        return bool(tokens <= min(left, longest[action.role]))

    return fits


def lines_of(
    form: Callable[[Row, str, str], Row], run: RunReader, selection: Filter, words: Sequence[str]
) -> Iterator[tuple[Action, str, Row | None]]:
    """Yields every action, what became of its correction, and a row where that can be used."""
    fits = room_of(run.folder)
    for trajectory, action in run.actions(selection):
        note = action.notes.get(NOTES) or {}
        if "correction" not in note or trajectory.infrastructure_failure:
            yield action, "", None
        elif refused := why_refused(trajectory, action, note, fits):
            yield action, refused, None
        else:
            row = form(row_of(trajectory, action), note["correction"], action.text)
            yield action, "written", row


def sft(row: Row, correction: str, text: str) -> Row:
    return row | {"completion": message(correction), "said": encodable(text)}


def dpo(row: Row, correction: str, text: str) -> Row:
    return row | {"chosen": message(correction), "rejected": message(text)}


def message(text: str, role: str = "assistant") -> list[dict[str, str]]:
    return [{"role": role, "content": encodable(text)}]


def why_refused(trajectory: Trajectory, action: Action, note: Mapping[str, Any], fits: Room) -> str:
    """Returns why a correction is not used; empty where it is."""
    correction = str(note["correction"])
    if not correction.strip():
        return "empty"
    if correction.strip() == action.text.strip():
        return "unchanged"
    if note.get("knew_the_label", True) and leaks(
        correction, trajectory.task.label, material_of(trajectory, action)
    ):
        return "label"
    return "" if fits(action, correction) else "too_long"


def material_of(trajectory: Trajectory, action: Action) -> str:
    """Returns what the agent was shown, without the task's own text, whose numbers say nothing of
    the answer."""
    shown = "\n".join(text for _, text in action.messages[:-1])
    return shown.replace(trajectory.task.prompt, "")


def leaks(correction: str, label: Any, material: str) -> bool:
    """Returns whether a correction holds a label that the material does not."""
    return any(holds(correction, part) and not holds(material, part) for part in parts_of(label))


def parts_of(label: Any) -> Iterator[str]:
    """Yields the texts of a label: each answer that a list accepts, each value of a mapping, the
    number at the end of GSM8K's."""
    if isinstance(label, list | tuple | dict):
        for part in label.values() if isinstance(label, dict) else label:
            yield from parts_of(part)
    elif label is not None and (text := str(label).rpartition("####")[2].strip()):
        yield text


def holds(text: str, part: str) -> bool:
    """Returns whether a text has a part of a label in it: a number by its value, anything else word
    by word, whatever its case."""
    value = number(part)
    if value is not None:
        return any(number(figure) == value for figure in NUMBER.findall(text))
    words = r"\s+".join(re.escape(word) for word in part.split())
    return re.search(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE) is not None


def number(text: str) -> Fraction | None:
    """Returns the value of a number; None of one with more digits than any label has, which Python
    would refuse to read."""
    return (
        Fraction(text.replace(",", ""))
        if len(text) <= MAX_INTEGER_DIGITS and NUMBER.fullmatch(text)
        else None
    )


def row_of(trajectory: Trajectory, action: Action) -> Row:
    """Returns what a row says of its action in any form."""
    return {
        "prompt": [m for role, text in action.messages[:-1] for m in message(text, role)],
        "tools": action.conversation[0].offered or None,
        "reason": encodable(action.explanation),
        **about(trajectory, action),
    }


def about(trajectory: Trajectory, action: Action) -> Row:
    """Returns where a row comes from."""
    return {
        "task": encodable(trajectory.task.id),
        "sample": trajectory.sample,
        "step": trajectory.step,
        "action": action.path,
        "role": action.role,
        "score": action.score,
        "outcome": trajectory.outcome_of(action.role),
    }
