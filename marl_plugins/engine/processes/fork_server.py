"""Workers on CPU, forked from one process that has imported upstream's stack, which takes 15
seconds of CPU each time.

    run        `fork_server()` starts the server, which imports while the run itself still reads and
               checks
    Ray        starts this file instead of Python for each worker (`py_executable`, Ray's own
               setting)
    this file  sends its arguments, environment and output to the server, which forks; without a
    server it becomes Python

Forked workers share the pages of what was imported. They die with the server, and the server with
the run. This file is also run as a script, by a Python without site-packages, so nothing else may
be imported at its top.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import subprocess


class ForkRequest(TypedDict):
    """The worker that Ray asks for: its arguments, the script first, its environment and its
    folder."""

    words: list[str]
    environment: dict[str, str]
    folder: str


@contextlib.contextmanager
def fork_server(debug: bool) -> Iterator[str | None]:
    """Provides a fork server for the length of a run on CPU, with this process's environment.

    Args:
        debug: Show what it prints.

    Yields:
        Ray's `py_executable`; None where workers start as Ray starts them, with accelerators (a
        fork server has not been tried there). On someone else's cluster every node has a server at
        this address, once it has been looked at (`nodes_examined`).
    """
    import psutil

    from marl_plugins.engine.hosts import cpu
    from marl_plugins.engine.processes.private_folder import PREFIX, private_folder, short_path

    def starting(folder: str) -> str:
        return f"{sys.executable} -I -S {__file__} {os.path.join(folder, 'socket')}"

    if not cpu.without_accelerator():
        yield None
        return
    if os.environ.get("RAY_ADDRESS"):
        yield starting(f"/tmp/{PREFIX}{os.urandom(4).hex()}")
        return
    with private_folder(short_path()) as folder:
        with listening(os.path.join(folder, "socket")) as listener:
            server = start_server(listener, debug)
        try:
            yield starting(folder)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.wait_procs(
                    psutil.Process(server.pid).children(), timeout=10
                )  # Ray has told them to end
            server.kill()
            server.wait()


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """Provides what a server is to accept requests from, and closes it here once that has it: a
    worker that asks a dead server is refused, instead of waiting for ever."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(256)
        yield listener


def start_server(listener: socket.socket, debug: bool) -> subprocess.Popen[bytes]:
    """Starts the server in a Python of its own."""
    import subprocess

    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(listener.fileno())],
        pass_fds=[listener.fileno()],
        stdout=None if debug else subprocess.DEVNULL,
        stderr=None if debug else subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the run's to handle
    )


def serve(listener: socket.socket) -> None:
    """Forks a worker for each request, for ever. Returns in the worker, when it has ended."""
    import gc
    import threading

    from marl_plugins.engine.hosts import cpu
    from marl_plugins.sandbox.pool import die_with_parent

    die_with_parent()
    cpu.install()
    _prepare_what_workers_share()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    while True:
        connection, _ = listener.accept()
        request, streams = _receive(connection)
        if request is None:
            connection.close()
            continue
        if "ray" not in sys.modules:
            os.environ.update(
                {
                    name: value
                    for name, value in request["environment"].items()
                    if name.startswith("RAY_")
                }
            )
            _leave_rays_generator_alone()
            import vllm.v1.worker.cpu_worker  # noqa: F401  # else each engine's own process imports it

            import marl_plugins.engine.processes.engine_actor
            import marl_plugins.engine.processes.policy_actor  # noqa: F401

            gc.collect()
            gc.freeze()  # a collection in a worker would copy the shared pages
        assert threading.active_count() == 1, "a process with several threads cannot be forked"
        if os.fork() == 0:
            listener.close()
            connection.close()
            _become(request, streams)
            return
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(b"forked")
        connection.close()


def _prepare_what_workers_share() -> None:
    """Import what they import and find out what each of them would find out for itself.

    Not yet Ray, nor what imports it: its C++ part reads the job's id from the environment when it
    is imported (ray_internal_flag_def.h of 2.55), and only a worker's environment has it.
    """
    import datasets  # noqa: F401
    import deepspeed  # noqa: F401
    import openai  # noqa: F401
    import peft  # noqa: F401
    import transformers  # noqa: F401
    import vllm.v1.sample.sampler  # noqa: F401  # half of what it imports; the other half imports Ray
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    from marl_plugins.engine.hosts.prebuild import load_operators

    pick_vec_isa()  # which instructions a compiled function may use: tried in processes of its own
    for _ in load_operators():  # DeepSpeed's, which else each worker loads under one lock
        pass


def _leave_rays_generator_alone() -> None:
    """Draws the ids of classes that become actors from the system.

    Ray's own generator is seeded in the process that first draws from it. That was this one, when
    it imported an actor's class (`make_actor` of ray/actor.py), and then all workers drew the same
    ids: two that started at once tried the object store with the same object, one of them ended
        there (plasma_store_provider.cc:90 of 2.55), and Ray looked for it for 60 seconds.
    """
    import ray.actor
    from ray import ActorClassID

    ray.actor.ActorClassID = SimpleNamespace(
        from_random=lambda: ActorClassID(os.urandom(ActorClassID.size()))
    )


def _receive(connection: socket.socket) -> tuple[ForkRequest | None, list[int]]:
    """A request, which ends with a newline, and the worker's standard streams; None where whoever
    asks has ended meanwhile."""
    data, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
    while not data.endswith(b"\n"):
        more = connection.recv(2**20)
        if not more:
            return None, streams
        data += more
    return json.loads(data), streams


def _become(request: ForkRequest, streams: list[int]) -> None:
    """Be the worker that was asked for, to its end."""
    import runpy

    from marl_plugins.sandbox.pool import become_program

    become_program(streams)
    for stream in streams:
        os.close(stream)
    _take_over(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["words"]
    runpy.run_path(sys.argv[0], run_name="__main__")


def _take_over(environment: dict[str, str]) -> None:
    """Makes this the environment; what stays is not touched, because Ray finds the place of a
    process's title by it."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(
        {name: value for name, value in environment.items() if os.environ.get(name) != value}
    )


def request(address: str, words: list[str]) -> None:
    """Starts a worker for Ray: has the server fork one, or becomes it."""
    order: ForkRequest = {"words": words, "environment": dict(os.environ), "folder": os.getcwd()}
    answer = b""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(order).encode() + b"\n"], [0, 1, 2])
        answer = connection.recv(16)
    if not answer:
        os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        request(sys.argv[1], sys.argv[2:])
