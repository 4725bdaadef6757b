"""What an action is rewarded with: what the agent alone has added to its side's share of the
people.

The final share is the same for all eight; what each has added is known here, because the network
can be run again without its words.
"""

from marl_plugins import hookimpl

from .network import AGENTS, replayed


@hookimpl
def marl_credit(run, trajectories):
    for trajectory in trajectories:
        if trajectory.answer is None:
            continue
        _, added = replayed(trajectory.task.id, trajectory.answer)
        for role in AGENTS:
            spoken = [action for action in trajectory.actions if action.role == role]
            for number, action in enumerate(spoken):
                if action.reward is not None:
                    action.reward = added[role, number]
    return trajectories
