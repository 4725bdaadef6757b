"""Who is rewarded for what: a voter for its own answer, the decider for the decision.

Without this every voter would be rewarded with the decision, also the one that was outvoted and
right.
"""

from marl_plugins import hookimpl


@hookimpl
def marl_credit(run, trajectories):
    letter = run.grader_module.letter
    for trajectory in trajectories:
        for action in trajectory.actions:
            if action.role == "voter" and action.reward is not None:
                action.reward = float(letter(action.text) == trajectory.task.label)
    return trajectories
