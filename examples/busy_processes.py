"""Who gives policies their training processes, as a plugin: the built-in way, with the seconds in
which they were in use.

    openrlhf train --recipe mathchat/tiny.yaml --plugin examples/busy_processes.py

`processes/POLICY/busy` says for how many seconds of a step the policy's processes were asked for
something. In the rest of the step another policy could use their devices
(`marl_plugins.process_groups`).
"""

import contextlib
import time

from marl_plugins import OwnProcesses, hookimpl


class BusyProcesses(OwnProcesses):
    """Processes of each policy's own, whose use is timed."""

    def __init__(self):
        self.seconds = {}

    def processes_of(self, spec):
        from marl_plugins import TrainingProcesses

        seconds = self.seconds
        seconds[spec.policy] = 0.0

        class Timed(TrainingProcesses):
            @contextlib.asynccontextmanager
            async def active(self):
                began = time.monotonic()
                async with super().active():
                    yield
                seconds[self.policy] += time.monotonic() - began

        return Timed(spec)

    def metrics(self):
        busy = {f"processes/{policy}/busy": seconds for policy, seconds in self.seconds.items()}
        self.seconds.update(dict.fromkeys(self.seconds, 0.0))
        return busy


@hookimpl
def marl_processes():
    return BusyProcesses()
