"""What a trajectory has come to, for graders and coaches: its submission scored, and what each role
has made."""

import asyncio
import functools
from pathlib import Path

from . import files, layout

scorer = layout.scorer
SUBMISSION = "submission.csv"
ENOUGH = 0.9
"""The part of the way to the reference's score from which on a task of the tiny recipe counts as
solved."""
MADE = {
    "engineer": {"X_train", "y_train", "X_test"},
    "modeler": {"model"},
    "analyst": {"submission"},
}
"""What each role has to make, whatever the format."""


def judge(card, workspace, written):
    """The result of one trajectory.

    Args:
        written: The files in the workspace that an action wrote: what came with the task is no
            submission.
    """
    made = {role: names <= {Path(file).stem for file in written} for role, names in MADE.items()}
    if SUBMISSION not in written:
        return scorer.Result(
            card.type, card.metric, scorer.Scored(None, f"no action wrote {SUBMISSION}"), made=made
        )
    scored = scorer.score(card, card.answer, Path(workspace, SUBMISSION))
    if scored.value is None:
        return scorer.Result(card.type, card.metric, scored, made=made)
    gap = scorer.relative_gap(scored.value, baseline(card), card.best)
    return scorer.Result(card.type, card.metric, scored, gap, made)


@functools.cache
def baseline(card):
    """The score that counts as 0: the table's, or that of the sample submission.

    Raises:
        ValueError: That is no valid submission; a fault of the data.
    """
    if card.baseline is not None:
        return card.baseline
    scored = scorer.score(card, card.answer, card.samples[0])
    if scored.value is None:
        table = layout.table_of(card.root)
        raise ValueError(
            f"{card.samples[0]} is no valid submission ({scored.reason}); give {card.name!r} a "
            f"`baseline` in {table}"
        )
    return scored.value


async def judged(label, owner):
    """`judge` in a thread, of a trajectory or of what a coach sees; None without a workspace, as in
    a rehearsal."""
    if owner.workspace is None:
        return None
    return await asyncio.to_thread(
        judge, layout.card_of(label), owner.workspace, files.written(owner)
    )


async def gap(trajectory):
    """The part of the way from the sample submission to the best score that a trajectory has come;
    its parts are recorded."""
    result = await judged(trajectory.task.label, trajectory)
    if result is None:
        return 0.0
    parts = {
        "valid": float(result.scored.value is not None),
        "gap": result.gap,
        **(result.scored.quality or {}),
    }
    trajectory.outcome_parts = parts | {
        f"made/{role}": float(made) for role, made in result.made.items()
    }
    return result.gap
