"""Machines made of namespaces: each has a network, a host name, processes, /tmp and /dev/shm of its
own, and ends with the test.

    with machines(2, kept=[folder]) as (m1, m2):
        m1.run("ping", "-c", "1", "m2")
        m2.pull_the_plug()

A machine is a process that waits, in namespaces of its own; a switch is one more, with a bridge.
Nothing is named and nothing mounted outside, so nothing is left once they have ended. Files are
those of the outer machine, but for /tmp, of which a machine sees only what is `kept`, and for what
is `hidden`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from marl_plugins.sandbox.pool import children_of, die_with_parent

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "10.77.0"
NAMESPACES = ["--net", "--uts", "--ipc", "--mount", "--pid"]
INIT = """
set -e
hostname "$NAME"
ip link set lo up
mount -t tmpfs -o size=4g none /dev/shm
mkdir "$STAGE"
mount -t tmpfs -o mode=1777 none "$STAGE"
cp "$HOSTS" "$STAGE/hosts"
mount --bind "$STAGE/hosts" /etc/hosts
for folder in $KEPT; do
  mkdir -p "$STAGE/${folder#/tmp/}"
  mount --bind "$folder" "$STAGE/${folder#/tmp/}"
done
for folder in $HIDDEN; do mount -t tmpfs none "$folder"; done
mount --move "$STAGE" /tmp
echo up
trap : CHLD
while :; do sleep 3600 & wait; done
"""


def missing() -> str:
    """Returns why no machine can be made here; nothing where they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "machines of namespaces need Linux and root"
    if absent := [name for name in ("ip", "nsenter", "unshare") if not shutil.which(name)]:
        return f"not installed: {', '.join(absent)}"
    tried = "ip link add one type veth peer two; ip link add hub type bridge; mount -t tmpfs a /mnt"
    done = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "sh", "-ec", tried], capture_output=True, text=True
    )
    return done.stderr.strip()


@dataclass
class Machine:
    """A machine that is up.

    Args:
        init: The process whose end is the machine's, as the outer machine numbers it.
    """

    name: str
    address: str
    init: int
    outer: subprocess.Popen[str]
    switch: int

    def command(self, *words: str, folder: Path | str = "/", **env: str) -> list[str]:
        """Returns what runs a command there."""
        entered = ["nsenter", "-t", str(self.init), *NAMESPACES, "--"]
        set_ = [f"{name}={value}" for name, value in env.items()]
        return [*entered, "env", "-C", str(folder), *set_, *words]

    def start(self, *words: str, folder: Path | str = "/", **env: str) -> subprocess.Popen[str]:
        """Starts a command there, which ends with the test."""
        return subprocess.Popen(
            self.command(*words, folder=folder, **env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            preexec_fn=die_with_parent,
        )

    def run(
        self, *words: str, folder: Path | str = "/", seconds: float = 300, **env: str
    ) -> tuple[int, str]:
        """Runs a command there, and returns its exit code and what it printed."""
        process = self.start(*words, folder=folder, **env)
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
            printed += f"\n(ended by the test after {seconds:g} s)"
        return process.returncode, printed

    def pull_the_plug(self) -> None:
        """Ends the machine at once, with every process of it."""
        os.kill(self.init, 9)
        self.outer.wait(10)

    def cable(self, state: str) -> None:
        """Pulls its cable out (`down`), or puts it in (`up`)."""
        in_network(self.switch, "ip", "link", "set", self.name, state)


def in_network(process: int, *words: str) -> None:
    """Runs a command in the network of a process."""
    subprocess.run(["nsenter", "-t", str(process), "--net", *words], check=True)


def first_child(process: subprocess.Popen[str]) -> int:
    """Returns the id of a process's child, once there is one."""
    for _ in range(200):
        if children := children_of(process.pid):
            return children[0]
        time.sleep(0.02)
    raise TimeoutError(f"{process.args}: no child")


class Network:
    """A switch, and the machines that are connected to it."""

    def __init__(self, folder: Path, kept: Sequence[Path], hidden: Sequence[Path], count: int):
        self.kept, self.hidden, self.folder = [ROOT, *kept], hidden, folder
        self._stack = contextlib.ExitStack()
        self.switch = self._started(["unshare", "--net", "sleep", "infinity"])
        own = Path(f"/proc/{os.getpid()}/ns/net").readlink()
        while Path(f"/proc/{self.switch.pid}/ns/net").readlink() == own:
            time.sleep(0.01)
        in_network(self.switch.pid, "ip", "link", "add", "name", "hub", "type", "bridge")
        in_network(self.switch.pid, "ip", "link", "set", "hub", "up")
        lines = [f"{NETWORK}.{k} m{k}" for k in range(1, count + 1)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def _started(self, words: list[str], **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            preexec_fn=die_with_parent,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def boot(self, number: int, name: str = "", hosts: Path | None = None) -> Machine:
        """Starts a machine, again if it was there.

        Args:
            hosts: Its /etc/hosts.
        """
        words = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        outer = self._started(
            [*words, "bash", "-c", INIT],
            NAME=name or f"m{number}",
            HOSTS=str(hosts or self.folder / "hosts"),
            KEPT=" ".join(str(f) for f in self.kept if f.is_relative_to("/tmp")),
            STAGE=tempfile.mktemp(dir=self.folder),
            HIDDEN=" ".join(map(str, self.hidden)),
        )
        assert outer.stdout is not None
        assert outer.stdout.readline() == "up\n", "the machine did not start"
        init, port, address = first_child(outer), f"m{number}", f"{NETWORK}.{number}"
        peer = ["peer", "name", "eth0", "netns", str(init)]
        in_network(self.switch.pid, "ip", "link", "add", "name", port, "type", "veth", *peer)
        in_network(self.switch.pid, "ip", "link", "set", port, "master", "hub", "up")
        in_network(init, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        in_network(init, "ip", "link", "set", "eth0", "up")
        return Machine(port, address, init, outer, self.switch.pid)

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def network(
    count: int, kept: Sequence[Path] = (), hidden: Sequence[Path] = ()
) -> Iterator[Network]:
    """Provides a switch for so many machines."""
    with tempfile.TemporaryDirectory() as folder:
        made = Network(Path(folder), kept, hidden, count)
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def machines(
    count: int, kept: Sequence[Path] = (), hidden: Sequence[Path] = ()
) -> Iterator[list[Machine]]:
    """Provides machines m1, m2, ... in one network.

    Args:
        kept: What they see of /tmp, besides this repository.
        hidden: Folders that each has for itself.
    """
    with network(count, kept, hidden) as made:
        yield [made.boot(number) for number in range(1, count + 1)]


PYTHON = sys.executable
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "MARL_PLUGINS_DEVICE": "cpu",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "ab" * 32,
}


def start_ray(machine: Machine, devices: int, head: Machine | None = None, **env: str) -> None:
    """Starts Ray on a machine, with logical devices; the head's, or one that joins it."""
    where = ["--head", "--port=6379", "--include-dashboard=false"]
    words = where if head is None else [f"--address={head.address}:6379"]
    code, printed = machine.run(
        "ray",
        "start",
        *words,
        f"--node-ip-address={machine.address}",
        f"--num-gpus={devices}",
        "--num-cpus=8",
        "--object-store-memory=1200000000",
        "--disable-usage-stats",
        folder="/tmp",
        **{**ENVIRONMENT, **env},
    )
    assert code == 0, printed
