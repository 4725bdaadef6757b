"""The share of the graph's problems that were solved; one that was never met counts as not
solved."""

PROBLEMS = 7
"""Three easy ones, three middle ones, and the one hard one that the budget covers."""


def score_outcome(trajectory):
    notes = [action.notes["graph"] for action in trajectory.actions]
    best = {
        note["node"]: max(other["score"] for other in notes if other["node"] == note["node"])
        for note in notes
    }
    return sum(best.values()) / PROBLEMS
