"""What a shell or a scheduler leaves to a command: a dead cluster, an ASCII console, a `~`."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def openrlhf(*words, folder, **environment):
    return subprocess.run(
        [sys.executable, "-m", "marl_plugins", *map(str, words)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        timeout=120,
    )


@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "another server"])
def test_a_cluster_that_is_not_there_is_said_soon(listens, tmp_path):
    """Ray itself would try for ever, and hear no SIGTERM; a port of something else for 35 s."""
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        if listens:
            there.listen()
        address = f"127.0.0.1:{there.getsockname()[1]}"
        command = ["train", "--recipe", "vote/tiny.yaml", "--max_steps", "1"]
        ended = openrlhf(*command, folder=tmp_path, RAY_ADDRESS=address)
    assert ended.returncode == 2 and address in ended.stderr.decode()


def test_what_a_console_cannot_show_is_escaped(tmp_path):
    folder = tmp_path / "prüfen"
    folder.mkdir()
    command = ["train", "--recipe", "vote/tiny.yaml", "--dry-run", "--ckpt.output_dir", "prüfen"]
    ended = openrlhf(*command, folder=tmp_path, PYTHONIOENCODING="ascii")
    assert ended.returncode == 0, ended.stderr
    assert rb"pr\xfcfen" in ended.stdout


def test_a_tilde_is_the_home_folder(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    words = ["--ckpt.output_dir=~/out", "--ckpt.path", "~/saved", "--dry-run"]
    ended = openrlhf("train", "--recipe", "vote/tiny.yaml", *words, folder=tmp_path, HOME=str(home))
    assert ended.returncode == 0, ended.stderr
    assert str(home / "out") in ended.stdout.decode()
    assert not Path(tmp_path / "~").exists()
