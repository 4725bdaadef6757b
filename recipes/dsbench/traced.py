"""Reward backpropagation by the files of the workspace: a failure is blamed on whoever owed what
was missing (root_cause.py).

    --plugin recipes/dsbench/traced.py --coach.rubric recipes/dsbench/symptom_rubric.py

The attributor of `marl_plugins.reward_backprop` is replaced. A failure in whose files no fault can
be seen is spread over all actions, and a success is shared by all.
"""

from marl_plugins import Attribution, BackpropState, hookimpl

requires = ("marl_plugins.reward_backprop",)


class Files:
    """Blames the decisions whose files are missing or unfit, which the grader has noted while the
    files were there."""

    async def attribute(self, action, seen, residual):
        if residual.value >= 0:
            return Attribution(residual.value, why="a success")
        reason = action.notes.get("fault")
        return Attribution(-1.0 if reason else 0.0, why=reason or "no fault is seen here")


@hookimpl
def marl_configure(run):
    run.state(BackpropState).attributor = Files()
