"""The offline attributor: rules over what a coach can read of an action. Deterministic, without a
model.

A failure is blamed on the actions in which a fault can be seen, the one nearest to the outcome
first; each takes the part of what reached it that its faults weigh. A missing file is the fault of
its producer, not of the action that looked for it. A success is shared among the actions without a
fault. Faults:

    an empty answer             an answer that was cut off      a program that failed and was not
        fixed
    a missing file that its instructions name                   a look for a file that nobody was to
    produce an ignored form (JSON, a fenced program, \\boxed{}, one line, a required word)
    numbers none of which is in anything it had seen, although it had a result to pass on

The rules know neither label nor outcome beyond its value, nor which role is which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from marl_plugins import Action, Seen
from marl_plugins.reward_backprop.backward import Attribution, Residual

NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
COMPUTED = re.compile(r"[=\u2248]\s*(\S+)")
"""A number that follows from the text itself."""
FIXED = "fixed"
"""Begins what a turn passes on that has fixed what the turn before had done wrong."""
FILE = re.compile(r"[\w-]+\.(?:csv|json|txt|npy|npz|pkl|joblib|parquet|md|py|html|png)\b")
MISSING = re.compile(
    r"(?:No such file|not found|FileNotFound)[^\n]*?['\"]?(" + FILE.pattern + r")", re.IGNORECASE
)
QUOTED_WORD = re.compile(
    r"(?:the word|the line|begins? with|starts? with|ends? with)\s+[`\"']([^`\"'{}\n]+)[`\"']",
    re.IGNORECASE,
)
TO_MAKE = re.compile(r"\b(?:save|write|store|produce|create)\b(?:[^.\n]|\.(?=\w))*", re.IGNORECASE)
"""A sentence about producing something; a full stop inside a file's name does not end it."""


class Rules:
    """See the module.

    Args:
        duties: By role, the text of its prompt.
    """

    def __init__(self, duties: Mapping[str, str]):
        self.duties = duties

    async def attribute(self, action: Action, seen: Seen, residual: Residual) -> Attribution:
        turns_after = [note for role, note in residual.notes if role == action.role]
        fixed = any(note.startswith(FIXED) for note in turns_after)
        faults = list(self.faults(action, seen, continued=bool(turns_after), fixed=fixed))
        why = "; ".join(text for _, text in faults)
        if (
            residual.value >= 0
        ):  # actions without a fault share it equally, once contributions are made to add up
            return Attribution(
                0.0 if faults else residual.value, "a success", why or "did its part"
            )
        to, note = self._blame_producer(action, seen)
        if fixed or _fixes(action):
            note = f"{FIXED}; {note}" if note else FIXED
        weight = min(1.0, sum(w for w, _ in faults))
        return Attribution(
            residual.left * weight,
            note or ("partly explained here" if faults else "no fault seen here"),
            why,
            to,
        )

    def faults(
        self, action: Action, seen: Seen, continued: bool = False, fixed: bool = False
    ) -> Iterator[tuple[float, str]]:
        """Returns what is wrong with an action by itself, as (weight, words).

        Args:
            continued: A later turn follows, and is responsible for the form.
            fixed: A later turn's program ran where this one's had failed.
        """
        text = action.text.strip()
        if not text:
            yield 1.0, "gave no answer"
            return
        if action.generation.finish == "length":
            yield 0.9, "was cut off"
        elif len(re.findall(r"^```", text, re.MULTILINE)) % 2:
            yield 0.6, "a fenced block is not closed"
        missing = self._missing(action)
        if _failed(action) and not missing and not fixed:
            yield 0.8, "its program failed and was not fixed"
        if missing and not self._producers(missing, seen):
            yield 0.8, f"looked for {missing}, which nobody was to produce"
        if not continued:
            yield from self._ignored_instructions(action, self.duties[action.role])
        yield from self._unfounded_number(action, seen)

    def _ignored_instructions(self, action: Action, duties: str) -> Iterator[tuple[float, str]]:
        text = action.text
        results = [result for turn in action.conversation for result in turn.tool_results]
        mine = {file for result in results for file in result.files}
        for sentence in TO_MAKE.findall(duties):
            for file in FILE.findall(sentence):
                if file not in mine:
                    yield 0.9, f"was to produce {file}, which is missing"
        if re.search(r"\bJSON\b", duties) and not _holds_json(text):
            yield 0.7, "was to answer in JSON"
        if "```python" in duties and "```python" not in text and action.before is None:
            yield 0.7, "was to write a program"
        if "\\boxed" in duties and "\\boxed" not in text:
            yield 0.5, "was to box its answer"
        if re.search(r"\b(?:one|single) line\b", duties) and len(text.strip().splitlines()) > 1:
            yield 0.5, "was to write one line"
        for word in QUOTED_WORD.findall(duties):
            if word not in text:
                yield 0.6, f"was to use {word!r}"

    def _unfounded_number(self, action: Action, seen: Seen) -> Iterator[tuple[float, str]]:
        """No number of an answer is in anything that was seen, although there was a result to pass
        on."""
        results = [r.output for r in action.tool_results] or [
            r.output for a in seen.before for r in a.tool_results
        ]
        if not results or (action.tool_results and action.before is None and "```" in action.text):
            return  # nothing to pass on, or its own program, which may hold any number
        figures = numbers(action.text)
        known = " ".join(
            [seen.prompt, *(t for _, t in seen.messages), *(a.text for a in seen.before), *results]
        )
        founded = {*numbers(known), *numbers(" ".join(COMPUTED.findall(action.text)))}
        if figures and founded.isdisjoint(figures):
            yield 0.7, f"gives {figures[-1]:g}, which is in nothing it had seen"

    def _missing(self, action: Action) -> str | None:
        """A file that the action's tools did not find."""
        for result in reversed(action.tool_results):
            if not result.ok and (match := MISSING.search(result.output)):
                return match.group(1)
        return None

    def _producers(self, file: str, seen: Seen) -> list[Action]:
        """The earlier actions whose instructions or words name a file."""
        return [a for a in seen.before if file in self.duties[a.role] or file in a.text]

    def _blame_producer(self, action: Action, seen: Seen) -> tuple[dict[str, float], str]:
        """Puts the blame for a missing file on the first action that was to produce it, or towards
        it."""
        missing = self._missing(action)
        producers = self._producers(missing, seen) if missing else []
        if not producers:
            return {}, ""
        first = producers[0]
        below = {first.path}
        for other in seen.before:  # parents come first
            if below.intersection(other.parents):
                below.add(other.path)
        towards = [path for path in action.parents if path in below]
        return dict.fromkeys(towards, 1.0), f"{missing} is missing; {first.role} was to produce it"


def numbers(text: str) -> list[float]:
    """Returns the numbers in a text, by value: 60,000 and 60{,}000 and 60000.0 are one."""
    return [float(figure.replace(",", "")) for figure in NUMBER.findall(text.replace("{,}", ","))]


def _failed(action: Action) -> bool:
    return bool(action.tool_results) and not action.tool_results[-1].ok


def _fixes(action: Action) -> bool:
    """Returns whether the action's program runs where that of the turn before had failed."""
    return (
        action.before is not None
        and _failed(action.before)
        and bool(action.tool_results)
        and not _failed(action)
    )


def _holds_json(text: str) -> bool:
    start = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    if start < 0:
        return False
    try:
        json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return False
    return True
