"""What an action is rewarded with: what its trader has earned on that day, in percent."""

from marl_plugins import hookimpl

from .market import TRADERS, replayed


@hookimpl
def marl_credit(run, trajectories):
    for trajectory in trajectories:
        if trajectory.answer is None:
            continue
        earned = replayed(trajectory.task.id, trajectory.answer)
        for trader in TRADERS:
            taken = [action for action in trajectory.actions if action.role == trader]
            for day, action in enumerate(taken):
                if action.reward is not None:
                    action.reward = 100 * earned[trader][day]
    return trajectories
