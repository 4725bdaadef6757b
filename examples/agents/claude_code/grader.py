"""Right where all tests pass with the module that the agent leaves behind; its own changes of the
tests do not count."""

from marl_plugins.sandbox import Checker

checker = Checker(seconds=5)


async def score_outcome(trajectory):
    return float((await checker.passed(trajectory.answer, trajectory.task.label)).passed)
