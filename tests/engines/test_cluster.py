"""A Ray of a run's own: who gets in, where it listens, and what SIGTERM to everybody does."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

RUN = """
    import json, os, signal, sys, time
    from marl_plugins.engine.plan.build import build_plan
    from marl_plugins.engine.processes.cluster import prepare_environment, ray_cluster

    run = build_plan(["--recipe", sys.argv[1]]).run
    prepare_environment(run, False)
    with ray_cluster(run, False, None):
        import psutil, ray

        @ray.remote(num_cpus=0)
        def answer():
            return 42

        def scripts(process):
            return {os.path.basename(word) for word in process.cmdline()}

        first = ray.get(answer.remote())
        everyone = [psutil.Process(), *psutil.Process().children(recursive=True)]
        services = [p for p in everyone if p.name() in ("gcs_server", "raylet")]
        ports = {c.laddr.ip for p in everyone for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        folder = ray._private.worker._global_node.get_session_dir_path()
        print(json.dumps({
            "address": ray.get_runtime_context().gcs_address,
            "services": len(services),
            "ports": sorted(ports),
            "unread": [p.cmdline() for p in everyone if {"dashboard.py", "monitor.py", "log_monitor.py"} & scripts(p)],
            "folder": folder,
            "rights": oct(os.stat(os.path.dirname(os.path.dirname(folder))).st_mode & 0o777),
        }), flush=True)
        sys.stdin.readline()
        for process in services:
            process.send_signal(signal.SIGTERM)
        time.sleep(1)
        print(json.dumps([first, ray.get(answer.remote())]), flush=True)
    print(json.dumps([p.pid for p in everyone[1:] if p.is_running() and p.status() != "zombie"]), flush=True)
"""
STOPPED = """
    import json, signal, sys
    from marl_plugins.engine.plan.build import build_plan
    from marl_plugins.engine.processes import cluster

    run = build_plan(["--recipe", sys.argv[1]]).run
    cluster.prepare_environment(run, False)
    cluster.CLOSING_SECONDS = 2.0
    with cluster.ray_cluster(run, False, None):
        import psutil

        everyone = psutil.Process().children(recursive=True)
        (raylet,) = [p for p in everyone if p.name() == "raylet"]
        raylet.send_signal(signal.SIGSTOP)
    print(json.dumps([p.pid for p in everyone if p.is_running() and p.status() != "zombie"]), flush=True)
"""
INTRUDER = """
    import sys, ray
    ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
    print("inside", flush=True)
"""


@pytest.fixture(scope="module")
def seen(relay):
    """What the run says of its Ray, and how each intruder ended: with no token, and with a wrong
    one."""

    def python(code, *words, **env):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        words = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            words, env={**inherited, **env}, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    run = python(RUN, relay)
    found = json.loads(run.stdout.readline() or run.communicate()[1][-2000:])
    # Else it looks for the node at another address, for minutes.
    here = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    tokens = ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32})
    intruders = [python(INTRUDER, found["address"], **here, **env) for env in tokens]
    found["intruders"] = [
        (process.communicate(timeout=120), process.returncode) for process in intruders
    ]
    out, errors = run.communicate("\n", timeout=120)
    assert run.returncode == 0, errors[-2000:]
    found["answers"], found["left"] = map(json.loads, out.splitlines())
    return found


def test_who_has_no_token_is_refused(seen):
    for (out, errors), code in seen["intruders"]:
        assert code == 1 and "inside" not in out
        assert "Failed to connect to Ray cluster" in errors or "token" in errors


def test_it_listens_on_the_loopback_only(seen):
    assert seen["services"] == 2
    assert set(seen["ports"]) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def test_it_has_no_services_that_nobody_asks(seen):
    assert seen["unread"] == []


def test_its_folder_is_ours_alone_and_goes_with_it(seen):
    assert seen["rights"] == "0o700"
    assert not Path(seen["folder"]).parent.parent.exists()


def test_sigterm_to_every_process_ends_only_the_run(seen):
    """`scancel` and `timeout` send it to all; the driver needs its Ray to end in order."""
    assert seen["answers"] == [42, 42]
    assert seen["left"] == []


def test_a_run_whose_raylet_is_stopped_ends_and_leaves_nothing(relay):
    words = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(STOPPED), str(relay)]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        words, env=inherited, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
