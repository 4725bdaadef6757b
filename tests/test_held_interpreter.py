"""Code that keeps the interpreter to itself ends the process, and its line is said; other code does
not."""

import subprocess
import sys

import pytest

PROGRAM = """
import re, time
from marl_plugins.engine.plan import held_interpreter
from marl_plugins.engine.plan.user_code_thread import UserCodeTimeout, run_in_thread

held_interpreter.HELD_SECONDS = 1


def grade():
    {code}


try:
    run_in_thread(lambda caught: grade(), 3)
    print("done")
except UserCodeTimeout as stuck:
    print("left behind at", stuck.place)
"""


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("re.fullmatch('(a+)+b', 'a' * 40)", 2, 'program.py", line 10 in grade'),
        ("while True: pass", 0, "left behind at"),
        ("time.sleep(1.5)", 0, "done"),
    ],
)
def test_only_who_lets_nothing_else_run_ends_the_process(tmp_path, code, exit_code, said):
    (tmp_path / "program.py").write_text(PROGRAM.format(code=code))
    ended = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == exit_code, ended.stderr
    assert said in ended.stdout + ended.stderr


RUN = """
import asyncio, re
from marl_plugins.engine.runtime import lifetime

lifetime.SILENT_SECONDS, lifetime.BEAT_SECONDS = 0.5, 0.1


def score_outcome():
    re.fullmatch("(a+)+b", "a" * 25)


async def work():
    await asyncio.sleep(0)
    score_outcome()


with asyncio.Runner() as loop:
    lifetime.run_until_terminated(loop, None, work())
"""


def test_a_run_names_the_grader_that_lets_nothing_else_run(tmp_path):
    (tmp_path / "program.py").write_text(RUN)
    ended = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert 'program.py", line 9 in score_outcome' in ended.stderr
