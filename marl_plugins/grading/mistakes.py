"""Which kinds of mistakes the answers of a trajectory have, and who puts them right (Sandbox-RL,
table 7)."""

from __future__ import annotations

from collections.abc import Sequence


def mistake_parts(
    kinds: Sequence[str], givers: Sequence[str], all_kinds: Sequence[str]
) -> dict[str, float]:
    """Returns what mistakes say as parts of an outcome (`trajectory.outcome_parts`), each in
    [0, 1].

    `mistake/KIND` is the share of the answers with that kind. Of the last mistake before a right
    answer, `corrected/self` says whether its giver gave that answer, `corrected/other` whether
    somebody else did; `mistaken` says whether there was any mistake. So the rate of self-correction
    over trajectories is the mean of `corrected/self` over that of `mistaken`.

    Args:
        kinds: The kind of mistake of each answer in turn; empty: it is right.
        givers: Who gave each answer: a role, or a policy.
        all_kinds: The kinds that there can be, so that all trajectories have the same parts.
    """
    corrections = [
        "self" if before == giver else "other"
        for wrong, kind, before, giver in zip(kinds, kinds[1:], givers, givers[1:], strict=False)
        if wrong and not kind
    ]
    last = corrections[-1] if corrections and not kinds[-1] else ""
    shares = {f"mistake/{kind}": kinds.count(kind) / max(len(kinds), 1) for kind in all_kinds}
    by = {f"corrected/{who}": float(last == who) for who in ("self", "other")}
    return {"mistaken": float(any(kinds)), **by, **shares}
