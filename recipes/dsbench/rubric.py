"""How the coach judges full-size models when no other model is to be asked: programs that run,
files that are made, what comes out.

What a program lacked is charged to whoever should have made it: a role is not blamed for a file
that another one owed. What the last action is worth is capped by the metric, after MAPPA's table
(C.4): a submission of little use is no good work, however tidy.
"""

import re
from pathlib import Path

from marl_plugins import Criterion, SeenLast

from . import files, judging

TURNS = {"engineer": 3, "modeler": 5, "analyst": 2}
MISSING = re.compile(r"No such file or directory: '(?:[^'\n]*/)?([^'/\n]+)'")
AUC = ((0.85, 9), (0.75, 8), (0.65, 6), (0.55, 4))
ERROR = ((10, 9), (25, 8), (50, 6))
GAP = ((0.7, 9), (0.5, 8), (0.3, 6), (0.1, 4))
"""Points out of ten that are allowed: from a ROC-AUC on, below an RMSE in percent of the answer's
range, from a relative gap on."""


def owed_by(role):
    """The names, without endings, of what other roles have to make."""
    return {name for other, names in judging.MADE.items() if other != role for name in names}


def missed(action, seen):
    """Files that the action's programs looked for in vain, that another role owes and that nobody
    has made."""
    there = {Path(path).stem for path in files.written(seen)}
    names = {
        Path(name).stem
        for r in action.tool_results
        if not r.ok
        for name in MISSING.findall(r.output)
    }
    return (names & owed_by(action.role)) - there


def runs(action, seen):
    """Its programs run, or lacked what another role owed; an action without any repeats nothing
    that failed."""
    if not action.tool_results:
        return action.before is not None and all(result.ok for result in action.before.tool_results)
    return bool(missed(action, seen)) or all(result.ok for result in action.tool_results)


def makes_its_files(action, seen):
    """What its role owes is there; half where it is not yet, and turns are left; nobody can build
    on what is not there."""
    there = {Path(path).stem for path in files.written(seen)}
    if judging.MADE[action.role] <= there or missed(action, seen):
        return 1.0
    return 0.5 if action.tool_results and action.turn + 1 < TURNS[action.role] else 0.0


def cap(result):
    """The share of the points that the metric allows."""
    if result is None or result.scored.value is None:
        return 0.0
    quality, metric = result.scored.quality or {}, result.metric
    if metric == "roc_auc":
        return next((points for least, points in AUC if result.scored.value >= least), 3) / 10
    if "rmse" in quality:
        return next((points for most, points in ERROR if quality["rmse"] < most), 4) / 10
    return next((points for least, points in GAP if result.gap >= least), 3) / 10


def capped(holds):
    """A criterion of the last action, which cannot hold to more than the metric allows."""

    async def to(action, seen):
        share = float(holds(action, seen))
        return (
            min(share, cap(await judging.judged(seen.label, seen)))
            if isinstance(seen, SeenLast)
            else share
        )

    return to


async def comes_out(action, seen):
    return cap(await judging.judged(seen.label, seen))


RUNS, MAKES = "its programs run, or lacked what others owed", "what it has to make is there"
RUBRIC = {
    "engineer": [Criterion(RUNS, 4, runs), Criterion(MAKES, 6, makes_its_files)],
    "modeler": [Criterion(RUNS, 4, runs), Criterion(MAKES, 6, makes_its_files)],
    "analyst": [
        Criterion(RUNS, 2, capped(runs)),
        Criterion(MAKES, 3, capped(makes_its_files)),
        Criterion("what comes out is of use", 5, comes_out, needs_label=True),
    ],
}
