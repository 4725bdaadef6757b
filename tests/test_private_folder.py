"""What killed runs leave in the temporary folder is removed by the next one, with the processes
that use it; nothing else is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from marl_plugins.engine.processes.private_folder import HELD, private_folder

RUN = """
import subprocess, sys, time
from marl_plugins.engine.processes.private_folder import private_folder
with private_folder(sys.argv[1]) as folder:
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"{folder}/ray"], start_new_session=True)
    print(folder, left.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def run(tmp_path):
    """A run in another process: it, its folder and a process that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    folder, pid = process.stdout.readline().split()
    left = psutil.Process(int(pid))
    yield process, Path(folder), left
    process.kill()
    process.wait()
    if left.is_running():
        left.kill()


def ended(process):
    """Whether a process comes to its end."""
    for _ in range(600):
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


def test_the_next_run_removes_what_a_killed_one_left(run, tmp_path):
    process, folder, left = run
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert folder.exists() and left.is_running()
    with private_folder(str(tmp_path)) as mine:
        assert os.listdir(tmp_path) == [Path(mine).name]
        assert ended(left)
    assert os.listdir(tmp_path) == []


def test_a_living_runs_folder_stays(run, tmp_path):
    _, folder, left = run
    with private_folder(str(tmp_path)) as mine:
        assert {Path(mine), folder} == set(tmp_path.iterdir())
        assert os.stat(mine).st_mode & 0o777 == 0o700
        with private_folder(
            str(tmp_path)
        ) as other:  # of the same process: a fork server's and Ray's
            assert other != mine and Path(mine, HELD).exists()
    assert left.is_running() and list(tmp_path.iterdir()) == [folder]


def test_what_is_no_runs_folder_stays(tmp_path):
    (tmp_path / "marl_mine").mkdir()
    (tmp_path / "marl_file").write_text("x")
    (tmp_path / "marl_link").symlink_to(tmp_path / "marl_mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / HELD).write_text("")
    before = set(tmp_path.iterdir())
    with private_folder(str(tmp_path)):
        pass
    assert set(tmp_path.iterdir()) == before
