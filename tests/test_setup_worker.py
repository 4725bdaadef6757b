"""A worker starts through our script as it starts through Ray's own: the same words, the same
environment."""

import json
import os
import subprocess
import sys

import pytest

from marl_plugins.engine.processes import setup_worker

SHOW = "import json, os, sys; print(json.dumps([sys.argv, dict(os.environ)]))"
WORDS = ["--node-id=1", "--labels={'a': 'b c'}", "--language=PYTHON"]


def started(script, folder, prepared):
    """The words and the environment of a worker that a script has started."""
    worker = folder / "default worker.py"
    worker.write_text(SHOW)
    context = (
        [] if prepared is None else [f"--serialized-runtime-env-context={json.dumps(prepared)}"]
    )
    environment = {"PATH": os.environ["PATH"], "RAY_NODE_ID": "1"}
    command = [sys.executable, *script, str(worker), *WORDS, *context]
    words, found = json.loads(subprocess.check_output(command, env=environment, text=True))
    for name in (
        "_",
        "SHLVL",
        "PWD",
        "OLDPWD",
        "RAY_CLIENT_MODE",
    ):  # of Ray's script: its shell's, and of importing Ray
        found.pop(name, None)
    return words, found


@pytest.mark.parametrize(
    "prepared",
    [
        None,
        {
            "command_prefix": [],
            "env_vars": {"A": "b c", "RAY_NODE_ID": "2"},
            "py_executable": f"{sys.executable} -I -S",
        },
        {"env_vars": {"A": "${RAY_NODE_ID}$HOME"}, "java_jars": [], "py_executable": None},
    ],
    ids=["nothing", "environment", "references"],
)
def test_a_worker_starts_as_through_rays_own_script(tmp_path, prepared):
    theirs = started(["-m", "ray._private.workers.setup_worker"], tmp_path, prepared)
    assert started([setup_worker.__file__], tmp_path, prepared) == theirs
