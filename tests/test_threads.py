"""Blocking calls in threads that do not keep the process."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from marl_plugins.core.threads import MOST, DaemonThreads, in_daemon_thread


def test_the_result_and_the_error_of_a_call_come_back():
    async def work():
        assert await in_daemon_thread(divmod, 7, 2) == (3, 1)
        assert await in_daemon_thread(threading.current_thread) is not threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            await in_daemon_thread(divmod, 7, 0)
        with pytest.raises(SystemExit):
            await in_daemon_thread(sys.exit, 3)
        with pytest.raises(RuntimeError, match="next raised StopIteration"):
            await asyncio.wait_for(in_daemon_thread(next, iter([])), 60)

    asyncio.run(work())


def test_calls_are_few_at_a_time_and_one_that_is_given_up_makes_room():
    """In one event loop after the other."""
    go, most, running = threading.Event(), [0], []

    def count():
        running.append(1)
        most[0] = max(most[0], len(running))
        go.wait(0.01)
        running.pop()

    async def work(threads):
        stuck = [asyncio.create_task(threads.call(threading.Event().wait)) for _ in range(MOST)]
        waiting = [asyncio.create_task(threads.call(count)) for _ in range(3 * MOST)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        for task in stuck:
            task.cancel()
        await asyncio.gather(*waiting)

    threads = DaemonThreads()
    for _ in range(2):
        asyncio.run(work(threads))
    assert 0 < most[0] <= MOST


REWARD = """
import asyncio, pathlib, sys
from types import SimpleNamespace
sys.path.insert(0, {tests!r})
from simulated import make_trajectory
from marl_plugins.builtin import recipe
from marl_plugins.core.loading import load_file
from marl_plugins.core.scoring import score_outcome
states = {{}}
run = SimpleNamespace(
    reward_module=load_file(pathlib.Path({file!r})),
    grader_module=None,
    state=lambda kind: states.setdefault(kind, kind()),
)
trajectory = make_trajectory({{"a": []}})
scorer = lambda trajectory: recipe.marl_score_outcome(run=run, trajectory=trajectory)
asyncio.run(score_outcome(trajectory, scorer, 0.5, ["a"]))
print(trajectory.infrastructure_failure)
"""


def test_a_reward_function_that_never_returns_does_not_keep_the_run(tmp_path):
    file = tmp_path / "reward.py"
    file.write_text(
        "import threading\n\ndef reward_func(queries, prompts, labels):\n    "
        "threading.Event().wait()\n"
    )
    code = REWARD.format(tests=str(Path(__file__).parent), file=str(file))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, "deadline\n"), done.stderr
