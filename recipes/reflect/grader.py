"""The hidden tests decide: the outcome is 1 where the last program passes all of them.

`value`, s_t of a round, is the share that its program passes. Program and tests run apart, so that
no program can say itself that it passes, and no test can be read.
"""

from collections import OrderedDict

from marl_plugins.grading import fenced
from marl_plugins.sandbox import Checker, prepared


class PassRates(OrderedDict):
    """The share of the hidden tests that programs pass, of those asked last: outcome and value ask
    for the same."""

    MOST = 1000

    def __init__(self):
        super().__init__()
        self.checker = Checker(seconds=5)  # as many programs at a time as there are cores

    async def of(self, program, tests):
        key = program, tuple(tests)
        if key not in self:
            called = prepared(program, "\n".join(tests))
            self[key] = await self.checker.pass_rate(called, tests) if program.strip() else 0.0
            if len(self) > self.MOST:
                self.popitem(last=False)
        return self[key]


rates = PassRates()


async def score_outcome(trajectory):
    rate = await rates.of(trajectory.answer or "", trajectory.task.label)
    trajectory.outcome_parts = {"pass_rate": rate, "all_passed": float(rate == 1)}
    return float(rate == 1)


async def value(action, task):
    return await rates.of(fenced(action.text, "python") or "", task.label)
