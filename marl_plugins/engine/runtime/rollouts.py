"""The rollouts of a run: each is made by the weights that engines hold then, and trained later.

    rollouts = RolloutQueue(roll_out, size, last)
    step = await rollouts.take(s)        what waits for step s; made now where nothing does
    await rollouts.ahead(s)              during the training of step s: the rollout of step s + size

With size 0 nothing waits: a step's rollout is made, then trained. With `--train.async_enable` the
size is q, the `--train.async_queue_size`. Engines get weights between two calls of `ahead`, so that
the rollout of step s is sampled by the weights after step s - 1 - q (the first q + 1 rollouts by
the first weights), whatever takes longer: which version a row has is a function of the step alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from marl_plugins.core.failures import RunPaused
from marl_plugins.engine.runtime.step import RunningStep


class RolloutQueue:
    """Rollouts that wait to be trained, by step.

    Args:
        roll_out: Makes the rollout of a step.
        size: How many steps a rollout is made ahead.
        last: The last step of which a rollout is made.
    """

    def __init__(self, roll_out: Callable[[int], Awaitable[RunningStep]], size: int, last: int):
        self.size, self.last = size, last
        self.waiting: dict[int, RunningStep] = {}
        self.paused: RunPaused | None = None
        """Why the rollout during the last training could not be made; that training is complete."""
        self._roll_out = roll_out

    async def take(self, step: int) -> RunningStep:
        """Returns the rollout of a step, which waits no longer; what should wait and does not, as
        when a run begins, is made first."""
        for number in range(step, min(step + max(self.size, 1), self.last + 1)):
            if number not in self.waiting:
                self.waiting[number] = await self._roll_out(number)
        return self.waiting.pop(step)

    async def ahead(self, step: int) -> None:
        """Makes the rollout that is due while a step is trained; none without a queue, and none
        after the last."""
        number = step + self.size
        if not self.size or number > self.last or number in self.waiting:
            return
        try:
            self.waiting[number] = await self._roll_out(number)
        except RunPaused as paused:
            self.paused = paused
