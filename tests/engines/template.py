"""A process that has imported what a run imports, and forks a run's driver and its fork server: 15
seconds of CPU for each run.

    test       `Template.start` sends words, environment, folder and output, and has the exit code
               when the run has ended
    template   this file as a script, one for all test processes; it ends when the last of them has
               gone
    keeper     a child of the template for each run: whatever the driver starts stays below it, and
               it ends with the test
    driver     `python -m marl_plugins`, from there on as a user starts it; its fork server comes
               from the template as well

tests/gpu/several.py is a driver that has a fork server of its own imports in the same way.

Ray is imported by nobody in advance: it reads the environment then. One run that is killed is
started as users start it (`killed` in conftest.py), and compared with a run that was forked; it is
resumed by a run that is forked.
"""

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.processes import fork_server
from marl_plugins.engine.processes.cluster import quiet
from marl_plugins.sandbox.pool import die_with_parent

SUBREAPER, PARENT_DEATH = 36, 1  # PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG of linux/prctl.h


class Template:
    """The template of all test processes, seen from one of them, which keeps it alive."""

    def __init__(self, folder):
        self.address = str(folder / "template")
        with (folder / "template.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.alive = self._connection() or self._first(folder)

    def _first(self, folder):
        listener = socket.socket(socket.AF_UNIX)
        Path(self.address).unlink(missing_ok=True)  # of one that all have left
        listener.bind(self.address)
        listener.listen(64)
        root = Path(__file__).parents[2]  # where benchmarks are
        path = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (folder / "template.log").open("w") as log:
            subprocess.Popen(
                [sys.executable, "-P", __file__, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    **cpu.environment(),
                    **quiet(False),
                    "PYTHONPATH": os.pathsep.join(path),
                },
                start_new_session=True,
            )
        listener.close()
        return self._connection()

    def _connection(self):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self.address)
        except OSError:
            connection.close()
            return None
        return connection

    def start(self, words, environment, out, errors, module="marl_plugins"):
        """`python -m marl_plugins WORDS` here, with its output in two open files."""
        return self._forked([module, *words], environment, [out, errors])

    def run(self, words, folder):
        """The same, until it has ended: its exit code and what it has printed, out and errors."""
        with (folder / "out").open("w") as out, (folder / "errors").open("w") as errors:
            code = self.start(words, {**os.environ}, out, errors).wait(timeout=400)
        return code, (folder / "out").read_text(), (folder / "errors").read_text()

    def start_server(self, listener, debug):
        """A fork server, in the place of
        `marl_plugins.engine.processes.fork_server.start_server`."""
        return self._forked([], dict(os.environ), [listener])

    def _forked(self, words, environment, files):
        connection = self._connection()
        order = {"words": words, "environment": environment, "folder": os.getcwd()}
        socket.send_fds(
            connection, [json.dumps(order).encode() + b"\n"], [file.fileno() for file in files]
        )
        return Forked(connection)


class Forked:
    """A run or a fork server that was forked, as far as one that was started (`subprocess.Popen`)
    is used."""

    def __init__(self, connection):
        self.connection, self.returncode = connection, None
        self.keeper, self.pid = map(int, connection.recv(32).split())

    def kill(self):
        with contextlib.suppress(ProcessLookupError):  # its keeper may have waited for it
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout=None):
        if self.returncode is None:
            self.connection.settimeout(timeout)
            self.returncode = int(self.connection.recv(16))
        return self.returncode

    def processes(self):
        """Every process of the run that there still is: id to command."""
        found = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.keeper).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found[str(process.pid)] = " ".join(process.cmdline())[:120]
        return found


def serve(listener):
    """Forks a keeper, and so a driver, for each order. Returns in a driver or a fork server, with
    what it is to be."""
    alive, known = [], 0
    while not known or alive:
        ready, _, _ = select.select([listener, *alive], [], [])
        for connection in ready:
            if connection is listener:
                known += 1
                alive.append(listener.accept()[0])
                continue
            alive.remove(connection)
            if not connection.recv(1, socket.MSG_PEEK):  # a test process has gone
                connection.close()
                continue
            request, streams = fork_server._receive(connection)
            if os.fork() == 0:
                for other in (listener, *alive):
                    other.close()
                return keep(connection, request, streams)
            connection.close()
            for stream in streams:
                os.close(stream)
    os._exit(0)


def keep(connection, request, streams):
    """Starts a driver, or a fork server alone, and tells the test how it ends. Returns in what it
    has started."""
    prctl = ctypes.CDLL(None).prctl
    prctl(SUBREAPER, 1)
    prctl(PARENT_DEATH, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    driver = os.fork()
    if driver == 0:
        connection.close()
        return drive(request, streams) if request["words"] else serve_workers(request, *streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(b"%d %d" % (os.getpid(), driver))
    while True:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == driver:
                    with contextlib.suppress(BrokenPipeError):
                        connection.sendall(b"%d" % os.waitstatus_to_exitcode(ended[1]))
            if select.select([connection], [], [], 0.1)[
                0
            ]:  # closed by the test, or with its process
                for process in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                time.sleep(0.1)
            continue
        os._exit(0)  # nothing is left of the run


def drive(request, streams):
    """Be the driver, after a process that may become its fork server has been forked from the same
    imports."""
    if serving := with_fork_server(streams):
        return serving
    null = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((null, *streams)):
        os.dup2(stream, number)
        os.close(stream)
    os.setsid()
    fork_server._take_over(request["environment"])
    os.chdir(request["folder"])
    module, *words = request["words"]
    sys.argv = [module, *words]
    return lambda: runpy.run_module(module, run_name="__main__", alter_sys=True)


def with_fork_server(streams=()):
    """Forks what becomes this process's fork server when it starts one. Returns in both: None, and
    in the fork what it is to do.

    Args:
        streams: Open files that the fork server does not need.
    """
    mine, its = socket.socketpair()
    parent = os.getpid()
    if (server := os.fork()) == 0:
        mine.close()
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()
        order, (listener, *own) = fork_server._receive(its)
        its.close()
        for number, stream in enumerate(own, start=1):
            os.dup2(stream, number)
            os.close(stream)
        for stream in streams:
            os.close(stream)
        return serve_workers(order, listener)
    its.close()

    def start_server(listener, debug):
        with open(os.devnull, "w") as nowhere:
            shown = [1, 2] if debug else [nowhere.fileno()] * 2
            order = {"words": [], "environment": dict(os.environ), "folder": ""}
            socket.send_fds(mine, [json.dumps(order).encode() + b"\n"], [listener.fileno(), *shown])
        mine.close()
        return Server(server)

    fork_server.start_server = start_server
    return None


def serve_workers(order, listener):
    """Be a fork server, whose engines compute in another type if the test says so."""
    fork_server._take_over(order["environment"])
    if dtype := os.environ.get("MARL_TEST_ENGINES"):
        cpu.engine_dtype = lambda: dtype
    return lambda: fork_server.serve(socket.socket(fileno=listener))


class Server:
    """A fork server that was forked, as far as `fork_server` uses what it starts."""

    def __init__(self, pid):
        self.pid = pid

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        os.waitpid(self.pid, 0)


def import_all():
    """What the driver and the workers of a run import, but for Ray."""
    cpu.install()
    fork_server._prepare_what_workers_share()
    import matplotlib.pyplot  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    import marl_plugins.cli
    import marl_plugins.engine.runtime.driver  # noqa: F401

    os.register_at_fork(after_in_child=renew_thread_pool)
    gc.collect()
    gc.freeze()


def renew_thread_pool():
    """Make torch's pool of threads anew in a child, before it has a second thread.

    The first call after a fork replaces the parent's pool, and a call at the same time finds none:
    "Invalid thread pool" (ATen/ParallelOpenMP.cpp:64 of torch 2.13; seen in one of some thirty
    forked runs).
    """
    import torch

    torch.set_num_threads(torch.get_num_threads())


if __name__ == "__main__":
    import_all()
    become = serve(socket.socket(fileno=int(sys.argv[1])))
    become()
