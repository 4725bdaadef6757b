"""An environment of verifiers with two roles: one sets a sum, the other solves it and looks again.

A sum is worth 1 to who has set it, and its right answer 1 to who has solved it.
"""

import itertools
import re

import verifiers.v1 as vf

__all__ = ["ProposerSolver", "Sums"]
SUM = re.compile(r"(\d{1,3})\s*\+\s*(\d{1,3})")


class ProposerSolverConfig(vf.EnvConfig):
    proposer: vf.AgentConfig = vf.AgentConfig()
    solver: vf.AgentConfig = vf.AgentConfig()


class Sums(vf.Taskset[vf.Task, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for number in itertools.count():
            prompt = f"Set a sum with {number % 90 + 10}, as in 3 + 4."
            yield vf.Task(vf.TaskData(name=f"sum{number}", prompt=prompt), self.config.task)


class ProposerSolver(vf.Env[ProposerSolverConfig]):
    async def run(self, task, agents):
        proposed = await agents.proposer.run(task)
        question = proposed.last_reply
        blank = type(task)(task.data.model_copy(update={"prompt": None}), task.config)
        async with agents.solver.interaction(blank) as solver:
            await solver.turn(f"Solve it: {question}")
            last = await solver.turn("Look again, and say the number alone.")
        found = SUM.search(question)
        right = found and str(int(found[1]) + int(found[2]))
        proposed.record_reward("is_a_sum", float(bool(found)))
        solver.trace.record_reward(
            "is_right", float(bool(found) and last.last_reply.strip() == right)
        )

    async def finalize(self, task, episode):
        pass
