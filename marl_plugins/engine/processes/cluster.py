"""The surroundings of a run: environment and Ray."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from marl_plugins.core.failures import ConfigurationError, RunEnded
from marl_plugins.core.problems import Problem
from marl_plugins.core.run import ProcessEnvironment, Run
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.hosts.prebuild import (
    build_missing_operators,
    clear_abandoned_locks,
    extensions_folder,
)
from marl_plugins.engine.plan.devices import needed_cpus, needed_devices, shown_devices, too_few
from marl_plugins.engine.plan.estimate import gb, store_bytes
from marl_plugins.engine.processes import setup_worker
from marl_plugins.engine.processes.nodes import living_nodes, nodes_examined
from marl_plugins.engine.processes.private_folder import private_folder, short_path

if TYPE_CHECKING:
    import psutil


CLOSING_SECONDS = 30.0
"""Seconds for Ray to end what it has started; then that is killed."""
RAYS_SHARE = 0.3
"""Of the memory, which Ray's object store has unless its size is given."""
WITHOUT_SHARED_MEMORY = 10**10
"""Largest store that Ray puts elsewhere where /dev/shm has no room for it (services.py:2199)."""


def prepare_environment(run: Run, debug: bool) -> None:
    """Sets this process's environment, before anything heavy is imported; the workers get it
    through Ray."""
    os.environ[cpu.DEVICE] = run.device
    if run.device == "cpu":
        os.environ.update(cpu.environment())
        os.environ.pop(
            "CUDA_VISIBLE_DEVICES", None
        )  # Ray refuses more logical devices than it lists
    for lock in clear_abandoned_locks(extensions_folder(run.device)):
        print(
            f"removed the lock of a process that was killed while it loaded an operator: {lock}",
            file=sys.stderr,
        )
    if run.device == "cpu":
        build_missing_operators()
    if own_cluster():
        os.environ.update(closed())
    else:
        reach_cluster()
    for name, value in quiet(debug).items():
        os.environ.setdefault(name, value)
    if not debug:
        warnings.filterwarnings(
            "ignore"
        )  # upstream's stack; this package's own are errors in its tests
        logging.disable(logging.INFO)


def quiet(debug: bool) -> dict[str, str]:
    """Returns the environment of all processes: no usage statistics, no bars of workers between
    ours."""
    env = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NCCL_DEBUG": "WARN",
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",  # upstream's own setting, train_ppo_ray.py:28
        # Ray's coming default, which it announces at every start otherwise
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONWARNINGS": "ignore",
    }
    if not debug:
        env |= {
            "VLLM_LOGGING_LEVEL": "ERROR",
            "TQDM_DISABLE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "RAY_DEDUP_LOGS": "0",
        }
    return env


def own_cluster() -> bool:
    """Returns whether the run starts a Ray of its own, on this machine, instead of joining the one
    in RAY_ADDRESS."""
    return not os.environ.get("RAY_ADDRESS")


def reach_cluster(seconds: float = 5.0) -> None:
    """Tries the cluster in RAY_ADDRESS, if there is one. Ray itself tries a dead address for ever,
    deaf to SIGTERM, a wrong token for 20 s, and a port of something else for 35 s.

    Raises:
        ConfigurationError: Nobody listens there, it is not Ray's head, the token is not the
            cluster's, or it was started with another Ray or Python.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if not port.isdecimal():  # "auto", "local"
        return
    os.environ.setdefault("RAY_py_gcs_connect_timeout_s", f"{seconds:g}")  # read by the import
    from ray.exceptions import AuthenticationError, RpcError

    fix = "unset RAY_ADDRESS, or name a cluster that is there"
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
        if not address.startswith("ray://"):
            fix = "export the RAY_AUTH_MODE and RAY_AUTH_TOKEN with which the cluster was started"
            client = importlib.import_module("ray._raylet").GcsClient(address=address)
            client.internal_kv_get(b"", None, timeout=seconds)
            started_with = importlib.import_module("ray._common.usage.usage_lib")
            utils = importlib.import_module("ray._private.utils")
            utils.check_version_info(
                started_with.get_cluster_metadata(client), socket.gethostname()
            )
    except (OSError, AuthenticationError, RpcError, RuntimeError) as error:
        if isinstance(error, RpcError):
            fix = "name the port of Ray's head, 6379 by default, not the dashboard's or a job's"
        elif isinstance(error, RuntimeError):
            fix = "install the cluster's versions here, or start it with these"
        why = " ".join(str(error).partition(". ")[0].rstrip(".").split())
        raise ConfigurationError(
            Problem("devices.ray", got=f"RAY_ADDRESS {address}: {why}", fix=fix)
        ) from error


def closed() -> dict[str, str]:
    """Returns the environment of a Ray that only its own processes can use; to be set before Ray is
    imported.

    By default Ray listens on all interfaces and runs whatever anybody who reaches a port sends it.
    """
    return {
        "RAY_AUTH_MODE": "token",  # Ray 2.52 and newer
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Off, Ray's address is 127.0.0.1, on every system (services.py:787 of 2.55), and everything
        # of it listens there.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }


@contextmanager
def ray_cluster(
    run: Run,
    debug: bool,
    python: str | None,
    folders: Sequence[Path] = (),
    models: Sequence[str] = (),
) -> Iterator[None]:
    """Provides Ray for the length of a run: the cluster in RAY_ADDRESS (or of the Ray job we run
    in), else one of our own.

    Args:
        python: What starts its workers instead of Python (`fork_server`).
        folders, models: Which every node of the cluster should see (`nodes_examined`).

    Raises:
        ConfigurationError: The cluster has fewer devices than the plan needs, or a node is not as
            the others are.
        RunEnded: Ray's node was not up in time, or its store and the disk behind it are full.
    """
    import psutil
    import ray

    before, on_sigterm = set(psutil.Process().children()), signal.getsignal(signal.SIGTERM)
    ours: set[psutil.Process] = set()
    with _private_folder(debug) as folder, contextlib.ExitStack() as stack:
        watch_raylet = stack.enter_context(ended_without_raylet(run.recipe.limits.silence_seconds))
        stack.callback(lambda: _shut_down(ours))
        try:
            with _sigterm_blocked(), small_node(debug):
                ray.init(**_options(run, debug, python, folder))
        except (ConnectionError, ValueError) as error:
            raise ConfigurationError(
                Problem(
                    "devices.ray",
                    got="Ray cannot be reached or started (RAY_ADDRESS "
                    f"{os.environ.get('RAY_ADDRESS')!r}): {error}",
                )
            ) from error
        except Exception as error:
            if type(error) is not Exception:
                raise
            # Ray's own, for a node that is not up after 30 s (node.py:423 of 2.55), as on a machine
            # that is very busy.
            raise RunEnded(
                f"Ray did not start: {error} Nothing has been trained; the same command starts "
                "again"
            ) from error
        finally:  # a raylet and a GCS server, unless the cluster is someone else's
            ours = set(psutil.Process().children()) - before
        if threading.current_thread() is threading.main_thread():
            # Ray's own handler exits, which aborts the process inside Ray's calls.
            signal.signal(signal.SIGTERM, on_sigterm)
        if not debug:
            importlib.import_module(
                "ray._private.tensor_serialization_utils"
            )  # resets the filters of warnings
            warnings.filterwarnings("ignore")
        _check_devices(run)
        for process in ours:
            if process.name() == "raylet":
                watch_raylet(process.pid)
        if not own_cluster():
            stack.enter_context(nodes_examined(folders, models, python))
        try:
            yield
        except ray.exceptions.OutOfDiskError as error:
            raise RunEnded(
                "Ray's object store is full, and so is the disk that it spills to "
                f"({folder or 'of its nodes'}): weights on their way to engines found no room; "
                "free some of either"
            ) from error


@contextmanager
def ended_without_raylet(seconds: float) -> Iterator[Callable[[int], None]]:
    """Ends this process, with all that it has started, where Ray's raylet has gone and the run has
    not ended some time later.

    Without a raylet a call of Ray's may wait for ever, also those that end a run, and nothing in
    the event loop is heard.

    Args:
        seconds: How long the run has to end by itself.

    Yields:
        What is told the raylet's process id, once there is one.
    """
    import psutil

    left = threading.Event()

    def watch(pid: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            raylet = psutil.Process(pid)
            while raylet.status() != psutil.STATUS_ZOMBIE:
                if left.wait(1.0):
                    return
        if left.wait(seconds):
            return
        print(
            f"error: Ray's raylet (process {pid}) has gone, and the run did not end within "
            f"{seconds:g} s "
            "(limits.silence_seconds); steps that are saved can be resumed: --ckpt.load_enable",
            file=sys.stderr,
            flush=True,
        )
        _kill(psutil.Process().children(recursive=True))
        os._exit(1)

    try:
        yield lambda pid: threading.Thread(target=watch, args=(pid,), daemon=True).start()
    finally:
        left.set()


def _shut_down(ours: set[psutil.Process]) -> None:
    """Leaves the cluster, and ends the processes that were started for it, with their children."""
    import psutil
    import ray

    everyone = set(ours)
    for process in ours:
        with contextlib.suppress(psutil.NoSuchProcess):
            everyone.update(process.children(recursive=True))
            if process.name() not in (
                "gcs_server",
                "raylet",
            ):  # its monitors: `ray.shutdown` waits a second for each
                process.kill()
    unanswered = threading.Timer(
        CLOSING_SECONDS, _kill, [ours]
    )  # `ray.shutdown` waits for ever for a raylet that is stopped
    unanswered.daemon = True
    unanswered.start()
    ray.shutdown()
    unanswered.cancel()
    _, left = psutil.wait_procs(
        everyone, timeout=10
    )  # workers end a moment after `ray.shutdown` has returned
    _kill(left)
    psutil.wait_procs(
        left, timeout=10
    )  # on a busy machine a killed process is there a little longer


def _kill(processes: Iterable[psutil.Process]) -> None:
    """Ends processes that may have ended."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def small_node(debug: bool) -> Iterator[None]:
    """Has a Ray that is started meanwhile start only what a run needs: seconds of CPU at every
    start.

    Left out are the dashboard's server (`include_dashboard` leaves out only its pages), the monitor
    that adds machines, the modules of the dashboard's agent, workers that nobody has asked for,
    and, but for `--debug`, what reads workers' logs. Workers start through `setup_worker.py`.
    `ray.init` has no argument for any of it (node.py:1032, 1053, 1199, 1242; services.py:1873;
    2.55).
    """
    from ray._private.node import Node

    def start_raylet(node: Node, *args: object, **options: object) -> None:
        node._ray_params.setup_worker_path = setup_worker.__file__
        start(node, *args, **options)

    def error() -> ImportError:
        return ImportError("not asked for")

    start = Node.start_raylet
    unread = ["start_api_server", "start_monitor", *([] if debug else ["start_log_monitor"])]
    left_out: dict[str, Any] = dict.fromkeys(unread, lambda node, **options: None)
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    with (
        patch.multiple(Node, create=True, start_raylet=start_raylet, **left_out),
        patch("ray._private.utils.get_dashboard_dependency_error", error, create=True),
    ):
        yield


@contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """Blocks SIGTERM: what is started meanwhile ignores it, for good.

    Slurm's `scancel` and GNU `timeout` send it to every process. Without its Ray the driver could
    neither end its workers nor
    say what is saved: it would wait a minute for the GCS, and be aborted.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _private_folder(debug: bool) -> Iterator[str]:
    """Returns the folder in which a Ray of our own keeps its sockets and logs: Ray opens its folder
    to all users, so it lies in one of ours (0700).

    With `--debug` it stays, because the logs are there.
    """
    if not own_cluster():
        yield ""
        return
    with private_folder(short_path(), kept=debug) as folder:
        if debug:
            print(f"Ray's logs are in {folder}/ray/session_latest/logs", file=sys.stderr)
        yield folder


def _options(run: Run, debug: bool, python: str | None, folder: str) -> dict[str, Any]:
    """Arguments of `ray.init`."""
    import psutil

    env = {
        **quiet(debug),
        cpu.DEVICE: run.device,
        **(cpu.environment() if run.device == "cpu" else {}),
        **run.state(ProcessEnvironment),
    }
    options: dict[str, Any] = {
        "runtime_env": {"env_vars": env},
        "log_to_driver": debug,
        "logging_level": "ERROR",
    }
    if python:
        options["runtime_env"]["py_executable"] = python
    if not own_cluster():
        return options
    shared = max(WITHOUT_SHARED_MEMORY, shutil.disk_usage("/dev/shm").free)
    _check_store(run, min(psutil.virtual_memory().total, shared))
    env["VLLM_RPC_BASE_PATH"] = folder  # vLLM's engines never remove their sockets
    options |= {
        "address": "local",
        "include_dashboard": False,
        "_temp_dir": os.path.join(folder, "ray"),
    }
    if run.device == "cpu":  # logical devices: every process holds one, whatever the machine has
        needed = sum(needed_devices(run).values())
        options |= {
            "num_gpus": needed,
            "num_cpus": needed + 4,
            "object_store_memory": store_bytes(run),
        }
    # every device is reserved with a CPU; Ray counts those of the machine, or of its container
    else:
        options["num_cpus"] = max(os.cpu_count() or 1, needed_cpus(run) + 4)
        if store_bytes(run) > RAYS_SHARE * psutil.virtual_memory().total:
            options["object_store_memory"] = store_bytes(run)
    return options


def _check_store(run: Run, there: float) -> None:
    """Refuses weights that Ray's store cannot hold: it would move them to the disk without a word.

    Raises:
        ConfigurationError: The store needs more than there is.
    """
    if (needed := store_bytes(run)) > there:
        raise ConfigurationError(
            Problem(
                "sync.object_store",
                got=f"weights on their way to engines, and what else is in Ray's object store, "
                f"need {gb(needed)}, and there is room for {gb(there)}",
                fix="use smaller models or fewer policies (--mapping), or give it more memory: "
                "/dev/shm of this machine, or ray start --object-store-memory",
            )
        )


def _check_devices(run: Run) -> None:
    import ray

    needed = sum(needed_devices(run).values())
    total = int(ray.cluster_resources().get("GPU", 0))
    if total < needed:
        devices, fix = "GPUs", too_few(run, total)
        if run.device == "cpu":
            devices = "logical devices, one a process,"
            fix = f"start Ray's nodes with them: ray start --num-gpus={needed}, also without GPUs"
        raise ConfigurationError(
            Problem(
                "devices.too_few",
                got=f"the plan needs {needed} {devices} ({shown_devices(run)}) and Ray has {total}",
                fix=fix,
            )
        )
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if cpus < needed_cpus(run):  # placement groups would be waited for
        raise ConfigurationError(
            Problem(
                "devices.too_few_cpus",
                got=f"every device is reserved with a CPU: the plan needs {needed_cpus(run)} CPUs "
                f"and Ray has {cpus}",
                fix="start Ray with more (ray start --num-cpus); they are counted, not measured",
            )
        )
    if not own_cluster():
        _check_store(run, ray.cluster_resources().get("object_store_memory", 0))
    if run.processes is not None:
        run.processes.check_cluster(run)
    free, silence = int(ray.available_resources().get("GPU", 0)), run.recipe.limits.silence_seconds
    if free < needed:
        message = (
            f"the plan needs {needed} GPUs and {free} of {total} are free: waiting for the "
            f"others, at most {silence:g} s"
        )
        print(f"{message} (limits.silence_seconds)", file=sys.stderr)
    largest = max(living_nodes().values(), default=0)
    for policy in run.policies:
        if (size := run.policy_args[policy.name].vllm.tensor_parallel_size) > largest:
            message = (
                f"an engine of policy {policy.name!r} has {size} devices "
                f"(--vllm.tensor_parallel_size), a node at most {largest}"
            )
            print(f"{message}: what its parts exchange goes over the network", file=sys.stderr)
