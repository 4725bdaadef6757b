"""Workers forked from a process that has imported everything are what Python would have started,
only sooner."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from engines.relay import wait_until

from marl_plugins.engine.processes import fork_server

WORKER = """
import json, os, sys, time
print(json.dumps({
    "words": sys.argv, "name": __name__, "folder": os.getcwd(), "environment": dict(os.environ), "read": sys.stdin.read(),
    "imported": "deepspeed" in sys.modules, "parent": os.getppid(),
}), flush=True)
print("to the other stream", file=sys.stderr, flush=True)
if "wait" in sys.argv:
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def python(template):
    """A server that is forked as in most tests of this folder; `killed` (conftest.py) is a run with
    one that is started as in a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "start_server", template.start_server)
        with fork_server.fork_server(debug=False) as command:
            yield command


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("worker") / "worker.py"
    path.write_text(WORKER)
    return path


def run(command, script, *words, folder, **environment):
    env = {"PATH": os.environ["PATH"], "RAY_JOB_ID": "01000000", **environment}
    done = subprocess.run(
        [*command.split(), str(script), *words],
        cwd=folder,
        env=env,
        input="given",
        capture_output=True,
        text=True,
        timeout=120,
    )
    return json.loads(done.stdout), done.stderr


def test_workers_draw_ids_of_their_own(python, script, tmp_path):
    """Two that tried Ray's object store with the same object at once did not both live."""
    script.with_name("draws.py").write_text(
        "import ray\nprint('{\"id\": \"' + ray.ObjectRef.from_random().hex() + '\"}')\n"
    )
    drawn = [run(python, script.with_name("draws.py"), folder=tmp_path)[0]["id"] for _ in range(4)]
    assert len(set(drawn)) == 4


def test_a_forked_worker_has_the_arguments_streams_environment_and_folder_of_a_started_one(
    python, script, tmp_path
):
    started, _ = run(sys.executable, script, "--a=1", "x y", folder=tmp_path, ONLY="here")
    forked, errors = run(python, script, "--a=1", "x y", folder=tmp_path, ONLY="here")
    assert forked.pop("imported")
    assert not started.pop("imported")
    assert forked.pop("parent") != started.pop("parent")
    assert forked == started
    assert "to the other stream" in errors


def test_what_one_worker_changes_is_not_seen_by_the_next(python, script, tmp_path):
    run(python, script, folder=tmp_path, ONLY="one")
    second, _ = run(python, script, folder=tmp_path)
    assert "ONLY" not in second["environment"]


def test_workers_die_with_the_server_and_new_ones_start_without_it(python, script, tmp_path):
    """Last: the server is killed, as the kernel does when the run dies."""
    waiting = subprocess.Popen(
        [*python.split(), str(script), "wait"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
    )
    server = psutil.Process(json.loads(waiting.stdout.readline())["parent"])
    waiting.wait(timeout=60)  # what asked for the worker has ended; the worker has not
    (worker,) = [
        p for p in server.children() if "worker.py" not in " ".join(p.cmdline()) and p.is_running()
    ]
    server.send_signal(signal.SIGKILL)
    assert wait_until(
        lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, 20
    )
    alone, _ = run(python, script, folder=tmp_path)
    assert not alone["imported"]
