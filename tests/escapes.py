"""Attempts to get out of the sandbox, the victims that they are made on, and from which level on
each is held.

    KEY=anything python tests/escapes.py LEVEL [ABI [quick]]    runs them at a level and prints
        {attempt: what came of it} as JSON

An attempt that gets out prints OUT. At the level `process` many do, so this runs as an ordinary
user, and where the caller is root in a mount namespace of its own (test_sandbox_escapes.py sees to
that).
"""

import asyncio
import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from marl_plugins.sandbox import Limits, Program, levels, open_sandbox
from marl_plugins.sandbox.section import SandboxConfig

OUT = "print('OUT')"
LIMITS = Limits(seconds=3.0, memory_mb=128, processes=64, file_mb=16, disk_mb=32, output_mb=64)


@dataclass(frozen=True)
class Attempt:
    """One attempt.

    Args:
        what: For the docs; those of one kind have the same.
        program: With names of victims as fields in double braces.
        held: The first level that holds it.
        language: Of the program.
        status: What a bounded program has to end with, in the place of OUT.
    """

    what: str
    program: str
    held: str = "landlock"
    language: str = "python"
    status: tuple[str, ...] = ()


P, L, N = "process", "landlock", "namespaces"
CALL = """import ctypes, os
libc, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(256)
def call(x86, arm, *given):
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in given]
    return libc.syscall(ctypes.c_long(x86 if os.uname().machine == 'x86_64' else arm), *words)
"""
ATTEMPTS = {
    # what it can read
    "environment": Attempt(
        "read the environment of the run", "import os\nif 'KEY' in os.environ: print('OUT')", P
    ),
    "environment of the parent": Attempt(
        "read or trace another process",
        "if b'{{secret}}' in open('/proc/{{owner}}/environ', 'rb').read(): print('OUT')",
    ),
    "memory of the run": Attempt(
        "read or trace another process", "open('/proc/{{owner}}/mem', 'rb'); print('OUT')"
    ),
    "command lines": Attempt(
        "see what other processes there are",
        "import os\nfor p in os.listdir('/proc'):\n    if p.isdigit() and int(p) == {{victim}}:\n"
        "        open(f'/proc/{p}/cmdline').read(); print('OUT'); break",
    ),
    "files of others": Attempt(
        "read files outside its workspace",
        "if '{{secret}}' in open('{{file}}').read(): print('OUT')",
    ),
    "files by bash": Attempt(
        "read files outside its workspace",
        "grep -q {{secret}} {{file}} && echo OUT",
        language="bash",
    ),
    "list a folder": Attempt(
        "read files outside its workspace", "import os\nif os.listdir('{{folder}}'): print('OUT')"
    ),
    "passwd": Attempt(
        "read files outside its workspace", "open('/etc/passwd').read(); print('OUT')"
    ),
    "shadow": Attempt("read /etc/shadow", "open('/etc/shadow').read(); print('OUT')", P),
    "symlink": Attempt(
        "read files outside its workspace",
        "import os\nos.symlink('{{file}}', 'a')\nif '{{secret}}' in open('a').read(): print('OUT')",
    ),
    "link": Attempt(
        "read files outside its workspace",
        "import os\nos.link('{{file}}', 'a'); open('a').read(); print('OUT')",
    ),
    "root by proc": Attempt(
        "read files outside its workspace",
        "if '{{secret}}' in open('/proc/{{victim}}/root{{file}}').read(): print('OUT')",
    ),
    "another workspace": Attempt(
        "read files outside its workspace",
        "if '{{secret}}' in open('{{other}}/a').read(): print('OUT')",
    ),
    "descriptors": Attempt(
        "use descriptors that were left open",
        "import os\nfor n in os.listdir('/proc/self/fd'):\n    try:\n        if int(n) > 2 and "
        "os.readlink(f'/proc/self/fd/{n}') "
        "!= f'/proc/{os.getpid()}/fd': print('OUT')\n    except OSError: pass",
        P,
    ),
    # what it can change
    "write a file": Attempt(
        "change files outside its workspace", "open('{{file}}', 'a').write('x'); print('OUT')"
    ),
    "cut a file": Attempt(
        "change files outside its workspace", "import os\nos.truncate('{{file}}', 0); print('OUT')"
    ),
    "cut by opening": Attempt(
        "change files outside its workspace",
        "import os\nos.open('{{file}}', os.O_RDONLY | os.O_TRUNC); print('OUT')",
    ),
    "cut by the third way of opening": Attempt(
        "change files outside its workspace",
        "import os\nos.close(os.open('{{file}}', os.O_TRUNC | 3)); print('OUT')",
    ),
    "make a file": Attempt(
        "change files outside its workspace", "open('/tmp/{{secret}}', 'w').close(); print('OUT')"
    ),
    "make a file in /dev/shm": Attempt(
        "change files outside its workspace",
        "open('/dev/shm/{{secret}}', 'w').close()",
        L,
        status=("no file in /dev/shm",),
    ),
    "another workspace's": Attempt(
        "change files outside its workspace", "open('{{other}}/b', 'w').close(); print('OUT')"
    ),
    "remove": Attempt(
        "change files outside its workspace",
        "import os\nos.unlink('{{victim_file}}'); print('OUT')",
    ),
    "its parent folder": Attempt(
        "change files outside its workspace", "open('../../beside', 'w').close(); print('OUT')"
    ),
    "rights": Attempt(
        "change rights, times or attributes of files",
        "import os\nos.chmod('{{file}}', 0o600)\nif os.stat('{{file}}').st_mode & 0o777 == 0o600: "
        "print('OUT')",
    ),
    "times": Attempt(
        "change rights, times or attributes of files",
        "import os\nos.utime('{{file}}', (1, 1))\nif os.stat('{{file}}').st_mtime == 1: "
        "print('OUT')",
    ),
    "attributes": Attempt(
        "change rights, times or attributes of files",
        "import os\nos.setxattr('{{file}}', 'user.x', b'1'); print('OUT')",
    ),
    "watch": Attempt(
        "watch a folder of the user's",
        "import ctypes\nl = ctypes.CDLL(None)\nif l.inotify_add_watch(l.inotify_init(), "
        "b'{{folder}}', 0x100) > 0: print('OUT')",
    ),
    "see": Attempt(
        "see whether a file of the user's is there",
        "import os\nos.stat('{{file}}'); print('OUT')",
        N,
    ),
    "python": Attempt(
        "change the Python that it runs in",
        "import os\nopen(os.__file__, 'a').close(); print('OUT')",
        P,
    ),
    # the network
    "TCP": Attempt(
        "use the network",
        "import socket\nsocket.create_connection(('127.0.0.1', {{tcp}}), 2); print('OUT')",
    ),
    "TCP, listening": Attempt(
        "use the network",
        "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0)); s.listen(); print('OUT')",
    ),
    "UDP": Attempt(
        "use the network",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', "
        "('127.0.0.1', {{udp}})); print('OUT')",
    ),
    "socket with a path": Attempt(
        "reach a socket of the machine's, as Ray and Docker have",
        "import socket\nsocket.socket(socket.AF_UNIX).connect('{{unix}}'); print('OUT')",
    ),
    "abstract socket": Attempt(
        "reach a socket of the machine's, as Ray and Docker have",
        "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{{secret}}'); print('OUT')",
    ),
    "datagram from a pair": Attempt(
        "reach a socket of the machine's, as Ray and Docker have",
        "import socket\na, b = socket.socketpair(socket.AF_UNIX, "
        "socket.SOCK_DGRAM)\na.sendto(b'x', '{{datagrams}}'); print('OUT')",
    ),
    "connect a pair": Attempt(
        "reach a socket of the machine's, as Ray and Docker have",
        "import socket\na, b = socket.socketpair(socket.AF_UNIX, "
        "socket.SOCK_DGRAM)\na.connect('{{datagrams}}'); print('OUT')",
    ),
    "sockets of the machine": Attempt(
        "see the sockets of the machine",
        "if '{{unix}}' in open('/proc/self/net/unix').read(): print('OUT')",
    ),
    # other processes
    "signal": Attempt(
        "signal other processes, or have the kernel do it",
        "import os\nos.kill({{victim}}, 15); print('OUT')",
    ),
    "stop the run": Attempt("signal the run", "import os\nos.kill({{owner}}, 0); print('OUT')", P),
    "end its parent": Attempt(
        "signal the run", "import os\nos.kill(os.getppid() or {{owner}}, 0); print('OUT')", P
    ),
    "signal everybody": Attempt(
        "signal other processes, or have the kernel do it",
        "import os\ntry:\n    os.kill(-1, 0)\nexcept PermissionError: pass\nos.kill({{victim}}, "
        "0); print('OUT')",
    ),
    "pidfd": Attempt(
        "signal other processes, or have the kernel do it",
        "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open({{victim}}), 0); print('OUT')",
    ),
    "signal by the kernel": Attempt(
        "signal other processes, or have the kernel do it",
        "import fcntl, os, time\nr, w = os.pipe()\nfcntl.fcntl(r, 8, {{victim}}); fcntl.fcntl(r, "
        "10, 28)\n"
        "fcntl.fcntl(r, fcntl.F_SETFL, os.O_RDONLY | os.O_ASYNC); os.write(w, b'x'); print('OUT')",
    ),
    "signal by the kernel to a group": Attempt(
        "signal other processes, or have the kernel do it",
        "import fcntl, os, struct\nr, w = os.pipe()\nfcntl.fcntl(r, 15, struct.pack('ii', 2, "
        "{{victim}})); "
        "fcntl.fcntl(r, fcntl.F_SETFL, os.O_RDONLY | os.O_ASYNC); print('OUT')",
    ),
    "owner by ioctl": Attempt(
        "signal other processes, or have the kernel do it",
        "import fcntl, socket, struct\na, b = socket.socketpair()\nfor command in (0x8901, "
        "0x8902):\n"
        "    fcntl.ioctl(a, command, struct.pack('i', {{victim}})); print('OUT')",
    ),
    "signal by a lease": Attempt(
        "signal other processes, or have the kernel do it",
        "import fcntl, os\nf = os.open('a', os.O_CREAT)\nfcntl.fcntl(f, 8, {{victim}}); "
        "fcntl.fcntl(f, 1024, 0); print('OUT')",
    ),
    "signal by a queue": Attempt(
        "signal other processes, or have the kernel do it",
        CALL + "info = (ctypes.c_int * 32)(0, 0, -1, 0, os.getpid())\n"
        "if call(129, 138, {{victim}}, 0, info) == 0 or call(297, 240, {{victim}}, {{victim}}, 0, "
        "info) == 0: print('OUT')",
    ),
    "signal to a thread": Attempt(
        "signal other processes, or have the kernel do it",
        CALL
        + "if call(234, 131, {{victim}}, {{victim}}, 0) == 0 or call(200, 130, {{victim}}, 0) == "
        "0: print('OUT')",
    ),
    "signal by a timer": Attempt(
        "signal the run",
        CALL + "event = (ctypes.c_int * 16)(0, 0, 15, 4, {{victim}})\nif call(222, 107, 1, event, "
        "buffer) == 0: print('OUT')",
        P,
    ),
    "descriptors of others": Attempt(
        "read or trace another process",
        CALL + "if call(438, 438, os.pidfd_open({{victim}}), 0, 0) >= 0: print('OUT')",
    ),
    "file by its number": Attempt(
        "open a file of the user's by its number in the file system",
        CALL + "buffer[:8] = (80).to_bytes(8, 'little')\nmount = (ctypes.c_int * 1)()\n"
        "name = ctypes.create_string_buffer(b'{{file}}')\nif call(303, 264, -100, name, buffer, "
        "mount, 0) == 0 and "
        "call(304, 265, os.open('.', 0), buffer, 0) >= 0: print('OUT')",
        P,
    ),
    "typing": Attempt(
        "type into a terminal (TIOCSTI)",
        "import fcntl\nfor n in (0, 1, 2):\n    try: fcntl.ioctl(n, 0x5412, b'x'); print('OUT')\n  "
        "  except OSError: pass",
        P,
    ),
    "change its input": Attempt(
        "change what it was given on standard input",
        "import os\nfor n in (0, os.open('/proc/self/fd/0', os.O_RDWR)):\n"
        "    for change in (lambda: os.write(n, b'x'), lambda: os.ftruncate(n, 9)):\n        try: "
        "change(); print('OUT')\n"
        "        except OSError: pass",
        P,
    ),
    "be ended last": Attempt(
        "have the kernel end others where memory is short",
        "open('/proc/self/oom_score_adj', 'w').write('0'); print('OUT')",
    ),
    "real time": Attempt(
        "take a core for itself (SCHED_FIFO)",
        "import os\nos.sched_setscheduler(0, 1, os.sched_param(1)); print('OUT')",
        P,
    ),
    "faults of its own": Attempt(
        "answer its own page faults", CALL + "if call(323, 282, 1) >= 0: print('OUT')"
    ),
    "secret memory": Attempt("hide memory", CALL + "if call(447, 447, 0) >= 0: print('OUT')"),
    "file system": Attempt(
        "open a file system", CALL + "if call(430, 430, b'tmpfs', 0) >= 0: print('OUT')", P
    ),
    "child of the parent's": Attempt(
        "start a process as a child of what runs it",
        "import ctypes, os\npid = ctypes.CDLL(None).syscall(56 if os.uname().machine == 'x86_64' "
        "else 220, 0x8011, 0, 0, 0, 0)\n"
        "if pid == 0: os._exit(0)\nif pid > 0: print('OUT')",
        P,
    ),
    "end signal": Attempt(
        "start a process whose end sends another signal",
        "import ctypes, os\npid = ctypes.CDLL(None).syscall(56 if os.uname().machine == 'x86_64' "
        "else 220, 0x13, 0, 0, 0, 0)\n"
        "if pid == 0: os._exit(0)\nif pid > 0: print('OUT')",
    ),
    "hidden": Attempt(
        "hide from who watches it",
        "import ctypes\nif ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0: print('OUT')",
    ),
    "descriptors under way": Attempt(
        "send descriptors through a socket",
        "import os, socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0]); "
        "print('OUT')",
    ),
    "ptrace": Attempt(
        "read or trace another process",
        "import ctypes\nif ctypes.CDLL(None).ptrace(16, {{victim}}, 0, 0) == 0: print('OUT')",
    ),
    "priority": Attempt(
        "read or trace another process",
        "import resource\nresource.prlimit({{victim}}, resource.RLIMIT_CPU); print('OUT')",
    ),
    "shared memory": Attempt(
        "use the machine's System V memory",
        "import ctypes\nif ctypes.CDLL(None).shmget({{key}}, 4096, 0o1600) >= 0: print('OUT')",
    ),
    "poisoned pickle": Attempt(
        "have its result unpickled outside",
        "open('result.pkl', 'wb').write({{pickle}})",
        P,
        status=("not unpickled",),
    ),
    "own numpy": Attempt(
        "put a numpy.py where the next program imports it",
        "open('numpy.py', 'w').write(\"print('OUT')\")\nimport sys\nsys.modules.pop('numpy', "
        "None)\ntry:\n    import numpy\n"
        "except ImportError: pass",
        P,
    ),
    "renice": Attempt(
        "slow a process down",
        "import os\nos.setpriority(os.PRIO_PROCESS, {{victim}}, 19); print('OUT')",
    ),
    "affinity": Attempt(
        "move a process to another core",
        "import os\nos.sched_setaffinity({{victim}}, os.sched_getaffinity(0)); print('OUT')",
    ),
    # privileges
    "user namespace": Attempt(
        "make a namespace",
        "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == 0: print('OUT')",
    ),
    "namespace by clone": Attempt(
        "make a namespace",
        "import ctypes, os\nl = ctypes.CDLL(None)\n"
        "pid = l.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, "
        "0, 0)\nif pid == 0: os._exit(0)\nif pid > 0: print('OUT')",
    ),
    "mount": Attempt(
        "mount something",
        "import ctypes\nl = ctypes.CDLL(None)\nif l.unshare(0x10020000) == 0 and l.mount(b'x', "
        "b'/tmp', b'tmpfs', "
        "0, 0) == 0: print('OUT')",
    ),
    "setuid": Attempt("gain rights", "import os\nos.setuid(0); print('OUT')", P),
    "capabilities": Attempt(
        "gain rights",
        "if any(int(l.split()[1], 16) for l in open('/proc/self/status') if "
        "l.startswith(('CapPrm', 'CapEff', 'CapInh', 'CapAmb')))"
        ": print('OUT')",
        P,
    ),
    "new privileges": Attempt(
        "gain rights",
        "import subprocess\nif '\\nNoNewPrivs:\\t0' in open('/proc/self/status').read(): "
        "print('OUT')",
        P,
    ),
    "setuid file": Attempt(
        "make a setuid file",
        "import os\nopen('a', 'w').close(); os.chmod('a', 0o4755)\nif os.stat('a').st_mode & "
        "0o4000: print('OUT')",
    ),
    "setuid file by opening": Attempt(
        "make a setuid file",
        "import os\nos.close(os.open('a', os.O_CREAT | os.O_WRONLY, 0o4755))\nif "
        "os.stat('a').st_mode & 0o4000: print('OUT')",
    ),
    "chroot": Attempt("gain rights", "import os\nos.chroot('.'); print('OUT')", P),
    "limits": Attempt(
        "raise its limits",
        "import resource\nfor l in (0, 1, 7, 9): resource.setrlimit(l, (-1, -1)); print('OUT')",
        P,
    ),
    "io_uring": Attempt(
        "reach the kernel by io_uring",
        "import ctypes\nif ctypes.CDLL(None).syscall(425, 1, ctypes.create_string_buffer(120)) >= "
        "0: print('OUT')",
    ),
    "keys": Attempt(
        "add a key to the kernel's",
        "import ctypes, os\nn = 248 if os.uname().machine == 'x86_64' else 217\n"
        "if ctypes.CDLL(None).syscall(n, b'user', b'{{secret}}', b'x', 1, -3) >= 0: print('OUT')",
    ),
    "bpf": Attempt(
        "load a program into the kernel",
        "import ctypes, os\nn = 321 if os.uname().machine == 'x86_64' else 280\n"
        "if ctypes.CDLL(None).syscall(n, 0, ctypes.create_string_buffer(72), 72) >= 0: "
        "print('OUT')",
        P,
    ),
    # what it can take
    "memory": Attempt("take memory", "x = bytearray(10**9)", P, status=("memory",)),
    "memory of children": Attempt(
        "take memory",
        "import os, time\nfor n in range(3):\n    if os.fork() == 0:\n"
        "        x = b'x' * (100 << 20); time.sleep(99)\ntime.sleep(99)",
        P,
        status=("memory", "time"),
    ),
    "memory files": Attempt(
        "take memory",
        "import os, time\nfor n in range(20):\n    os.write(os.memfd_create('x'), bytes(10 << "
        "20))\ntime.sleep(9); print('OUT')",
        P,
        status=("killed", "failed", "time"),
    ),
    "disk": Attempt(
        "fill the disk",
        "for n in range(100): open(str(n), 'wb').write(bytes(8 << 20))\nimport time; "
        "time.sleep(9); print('OUT')",
        P,
        status=("killed", "time"),
    ),
    "deleted files": Attempt(
        "fill the disk",
        "import os, time\nkept = []\nfor n in range(100):\n    kept.append(open('a', 'wb')); "
        "kept[-1].write(bytes(8 << 20)); os.unlink('a')\n"
        "time.sleep(9); print('OUT')",
        P,
        status=("killed", "time"),
    ),
    "one large file": Attempt(
        "fill the disk",
        "f = open('a', 'wb')\nfor n in range(100): f.write(bytes(1 << 20))\nf.flush(); "
        "print('OUT')",
        P,
    ),
    "many files": Attempt(
        "fill the disk",
        "import time\nfor n in range(40000): open(str(n), 'w').close()\ntime.sleep(9); "
        "print('OUT')",
        P,
        status=("killed", "time"),
    ),
    "processes": Attempt(
        "a bomb of processes",
        "import os, time\nfor n in range(9): os.fork()\ntime.sleep(99)",
        P,
        status=("killed", "time", "failed", "memory"),
    ),
    "time": Attempt("run or write for ever", "while True: pass", P, status=("time",)),
    "output": Attempt(
        "run or write for ever", "while True: print('x' * 10000)", P, status=("output", "time")
    ),
    "binary output": Attempt(
        "write what clears a terminal",
        "import os\nos.write(1, bytes(range(256)))",
        P,
        status=("finished",),
    ),
    "daemon": Attempt(
        "leave a daemon",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.execv('/bin/sleep', ['sleep', '{{nap}}'])\n"
        "    os._exit(0)",
        P,
        status=("no process",),
    ),
}


@contextlib.contextmanager
def victims(place):
    """What attempts are made on, by the names that programs call them by."""
    secret = os.environ["KEY"]
    nap = f"5432.{os.getpid()}"
    (place / "folder").mkdir()
    for name in ("file", "victim_file"):
        (place / "folder" / name).write_text(secret)
    other = place / "workspaces" / "other"
    other.mkdir(parents=True)
    (other / "a").write_text(secret)
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        datagrams = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagrams.bind(str(place / "datagrams"))
        for address in (str(place / "socket"), f"\0{secret}"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        victim = stack.enter_context(subprocess.Popen(["/bin/sleep", "3600"]))
        stack.callback(victim.kill)
        poison = pickle.dumps(Poison(str(place / "poisoned")))
        yield {
            **{
                "secret": secret,
                "nap": nap,
                "owner": os.getpid(),
                "victim": victim.pid,
                "file": place / "folder" / "file",
            },
            **{
                "folder": place / "folder",
                "victim_file": place / "folder" / "victim_file",
                "other": other,
            },
            **{
                "tcp": tcp.getsockname()[1],
                "udp": udp.getsockname()[1],
                "unix": place / "socket",
                "pickle": repr(poison),
            },
            **{
                "datagrams": place / "datagrams",
                "key": os.getpid(),
                "poisoned": place / "poisoned",
            },
        }


class Poison:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


async def attempt_all(level, abi=None, which="all"):
    """What came of every attempt: held, or how it got out.

    Args:
        abi: Act as if the kernel had only this version of Landlock.
        which: `all`, or `quick`: without those that take what they can get.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder, victims(Path(folder)) as names:
        os.chmod(folder, 0o711)  # where this is root's, programs are other users
        workspaces = Path(folder) / "workspaces"
        mine = workspaces / "mine"
        mine.mkdir()
        if abi is not None:
            there = levels.examine()
            levels.examine = lambda: replace(there, abi=abi)
        async with open_sandbox(
            SandboxConfig(isolation=level), workspaces=workspaces, concurrency=1
        ) as sandbox:
            chosen = {n: a for n, a in ATTEMPTS.items() if which == "all" or not a.status}
            for name, attempt in chosen.items():
                source = attempt.program
                for field, value in names.items():
                    source = source.replace("{{" + field + "}}", str(value))
                program = Program(source, attempt.language, wanted=("result.pkl",), limits=LIMITS)
                got = await sandbox.run(
                    program, mine if name in ("own numpy", "another workspace's") else None
                )
                found[name] = judge(attempt, got, names)
    return found


def judge(attempt, got, names):
    """Whether an attempt was held, and else what came of it."""
    if "OUT" in got.stdout:
        return "out"
    match attempt.status:
        case ():
            return "held"
        case ("no file in /dev/shm",):
            with contextlib.suppress(FileNotFoundError):
                Path("/dev/shm", names["secret"]).unlink()
                return "out"
            return "held"
        case ("not unpickled",):
            return "out" if names["poisoned"].exists() else "held"
        case ("no process",):
            left = [p for p in Path("/proc").glob("[0-9]*") if names["nap"].encode() in words(p)]
            return f"out: {left}" if left else "held"
    return "held" if got.status in attempt.status else f"out: {got}"


def words(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def table():
    """The attempts by the weakest level that holds them, as Markdown."""
    lines = ["| held from | a program tries to |", "|---|---|"]
    for level in (P, L, N):
        attempts = [attempt.what for attempt in ATTEMPTS.values() if attempt.held == level]
        lines.append(f"| `{level}` | {'; '.join(dict.fromkeys(attempts))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    level, *options = sys.argv[1:]
    print(
        json.dumps(
            asyncio.run(
                attempt_all(level, *[int(word) if word.isdigit() else word for word in options])
            )
        )
    )
