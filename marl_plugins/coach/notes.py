"""Notes of a verdict that are recorded with its action (`notes`, `coach`), in addition to the
score, which may change, and the explanation.

    score, correct, criteria     as the coach gave them
    knew_the_label               whether it did
    asked                        digest of the question, where a model was asked; of several the
                                 first one's
    training                     what that question said of the training, where it said anything
    members, failed              of several coaches
    correction                   a better action, where the coach gave one
    runs                         the programs that it ran first, each with what it printed

With these and the records a question can be asked again, and it can be seen that it is the same one
(distil.py).
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from marl_plugins import Seen, SeenLast
from marl_plugins.coach.verdict import JointVerdict, Verdict

if TYPE_CHECKING:
    from marl_plugins import Action
    from marl_plugins.asking.request import JudgeRequest
    from marl_plugins.coach.model import Questions


NOTES = "coach"


def noted_verdict(action: Action) -> Verdict | None:
    """Returns the verdict that an action's note tells, as it was given; None where there is
    none."""
    if (note := action.notes.get(NOTES)) is None:
        return None
    kind = JointVerdict if "members" in note else Verdict
    fields = {name: note[name] for name in kind.model_fields if name in note} | {
        "explanation": action.explanation
    }
    return kind.model_validate_json(json.dumps(fields))


def asked_of(action: Action, seen: Seen, questions: Questions) -> dict[str, str]:
    """Returns the part of a note that tells what a model is asked."""
    training = questions.training(action.role)
    return {
        "asked": digest_of(questions.of(action, seen)),
        **({"training": training} if training else {}),
    }


def note_of(verdict: Verdict, seen: Seen) -> dict[str, Any]:
    """Returns the note of a verdict, without what was asked.

    Args:
        seen: What the coach saw.
    """
    note: dict[str, Any] = verdict.model_dump(
        include={"score", "correct", "criteria"}, exclude_defaults=True
    )
    note["knew_the_label"] = isinstance(seen, SeenLast)
    if isinstance(verdict, JointVerdict):
        note |= {"members": verdict.members, "failed": verdict.failed}
    if verdict.runs:
        note["runs"] = [run.model_dump() for run in verdict.runs]
    if verdict.correction is not None:
        note["correction"] = verdict.correction
    return note


def digest_of(request: JudgeRequest) -> str:
    """Derives a question's name from its whole text, without its nonce and in the form of lines."""
    text = request.prompt("", "text").encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
