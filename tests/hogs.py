"""Programs that take more than they may, in every way that was thought of. Each writes what it
takes, in MB or in tasks, as it takes it.

`python -m benchmarks.attacks` lets them do it as fast as they can, and looks at the machine;
tests/test_sandbox_limits.py gives them pauses.
"""

from dataclasses import dataclass

PRELUDE = """
import ctypes, mmap, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
X86 = os.uname().machine == 'x86_64'
MB = 1 << 20
BAD = ctypes.c_void_p(-1).value
def took(amount):
    os.write(1, b'+%d ' % round(amount * 1000))
    time.sleep({{pause}} * amount)
def call(x86, arm, *arguments):
    found = libc.syscall(ctypes.c_long(x86 if X86 else arm), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
def children(count, work):
    for n in range(count):
        if os.fork() == 0:
            try:
                work()
            finally:
                time.sleep(99)
                os._exit(0)
    time.sleep(99)
def taken(mb):
    kept = []
    while mb > 0:
        kept.append(b'x' * (4 * MB)); took(4); mb -= 4
    return kept
"""


@dataclass(frozen=True)
class Hog:
    """One way to take more.

    Args:
        what: For the docs.
        kind: memory and disk in MB, or tasks.
        program: After the prelude.
    """

    what: str
    kind: str
    program: str


UNMAPPED = bytes.fromhex(
    "7f454c4602010100"
    + "00" * 8
    + "02003e0001000000"
    + "7800400000000000"
    + "4000000000000000"
    + "00" * 8
    + "0000000040003800"
    "0100000000000000"
    + "0100000005000000"
    + "00" * 8
    + "0000400000000000" * 2
    + "dd00000000000000" * 2
    + "0010000000000000"
    # map a page
    "48c7c0090000004831ff48c7c60010000048c7c20700000049c7c22200000049c7c0ffffffff4d31c90f05"
    "4889c74889c3488d350b00000048c7c122000000f3a4ffe3"  # and go on there
    "48c7c00b00000048c7c70000400048c7c6001000000f05"  # unmap the program
    "48c7c0220000000f05ebf5"  # pause
)
"""A program of x86-64 (ELF) of which nothing is mapped while it runs."""

HOGS = {
    # memory
    "children": Hog("memory of children", "memory", "children(8, lambda: taken(200))"),
    "grandchildren": Hog(
        "memory of processes whose parents have ended",
        "memory",
        "def one():\n    if os.fork(): os._exit(0)\n    os.setsid(); taken(200); "
        "time.sleep(99)\nchildren(8, one)",
    ),
    "siblings": Hog(
        "memory of children of the parent's (CLONE_PARENT)",
        "memory",
        "time.sleep(0.6)\nfor n in range(6):\n    if call(56, 220, 0x8011, 0, 0, 0, 0) == 0:\n"
        "        taken(200); time.sleep(99); os._exit(0)\ntime.sleep(99)",
    ),
    "sockets": Hog(
        "memory in buffers of sockets",
        "memory",
        "import socket\ndef fill():\n    kept = []\n    while True:\n        pair = "
        "socket.socketpair(); kept.append(pair)\n"
        "        for one in pair:\n            one.setblocking(False)\n            try:\n"
        "                while True: one.send(bytes(65536))\n            except BlockingIOError: "
        "pass\n"
        "        took(0.4)\nchildren(24, fill)",
    ),
    "datagrams": Hog(
        "memory in datagrams",
        "memory",
        "import socket\ndef fill():\n    kept = []\n    while True:\n"
        "        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); kept.append(pair)\n"
        "        for one in pair:\n            one.setblocking(False)\n            try:\n"
        "                while True: one.send(bytes(65536))\n            except BlockingIOError: "
        "pass\n"
        "        took(0.4)\nchildren(24, fill)",
    ),
    "pipes": Hog(
        "memory in pipes",
        "memory",
        "import fcntl\ndef fill():\n    kept = []\n    while True:\n        r, w = os.pipe(); "
        "kept.append((r, w)); size = 65536\n"
        "        try: size = fcntl.fcntl(w, 1031, 1 << 20)\n        except OSError: pass\n"
        "        os.set_blocking(w, False)\n        done = 0\n        try:\n"
        "            while True: done += os.write(w, bytes(65536))\n        except "
        "BlockingIOError: pass\n"
        "        took(done / MB)\nchildren(28, fill)",
    ),
    "fifos": Hog(
        "memory in pipes with names",
        "memory",
        "def fill():\n    kept = []\n    for n in range(200):\n        name = "
        "f'{os.getpid()}-{n}'; os.mkfifo(name)\n"
        "        r = os.open(name, os.O_RDWR | os.O_NONBLOCK); kept.append(r); os.unlink(name); "
        "done = 0\n        try:\n"
        "            while True: done += os.write(r, bytes(4096))\n        except BlockingIOError: "
        "pass\n"
        "        took(done / MB)\nchildren(28, fill)",
    ),
    "spliced": Hog(
        "memory that only a pipe holds",
        "memory",
        "kept = []\nwhile True:\n    r, w = os.pipe(); kept.append((r, w))\n    for n in "
        "range(15):\n"
        "        memory = mmap.mmap(-1, 4 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "        memory.madvise(14); memory.write(b'x' * 4 * MB)\n"
        "        address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + 2 * MB\n"
        "        vector = (ctypes.c_size_t * 2)(address & -4096, 4096)\n        call(278, 75, w, "
        "vector, 1, 0)\n        took(2)",
    ),
    "shared memory": Hog(
        "memory that is shared without a file, and unmapped",
        "memory",
        "while True:\n    p = libc.mmap(None, 8 * MB, 3, 0x21, -1, 0)\n    if p == BAD: raise "
        "MemoryError('mmap')\n"
        "    ctypes.memset(p, 1, 8 * MB); libc.munmap(p + 4096, 8 * MB - 4096); took(8)",
    ),
    "standard input": Hog(
        "memory in what is given to the program as a memory file",
        "memory",
        "f = os.open('/proc/self/fd/0', os.O_RDWR); n = 0\nwhile True: os.pwrite(f, bytes(4 * MB), "
        "n); n += 4 * MB; took(4)",
    ),
    "huge pages": Hog(
        "huge pages that are unmapped but for a small one",
        "memory",
        "while True:\n    p = libc.mmap(None, 6 * MB, 3, 0x22, -1, 0)\n    if p == BAD: raise "
        "MemoryError('mmap')\n"
        "    q = (p + 2 * MB - 1) & -(2 * MB); libc.madvise(ctypes.c_void_p(q), ctypes.c_size_t(2 "
        "* MB), 14); ctypes.memset(q, 1, 2 * MB)\n"
        "    huge = 'AnonHugePages: 0 kB' not in ' "
        "'.join(open('/proc/self/smaps_rollup').read().split())\n"
        "    libc.munmap(p, q - p); libc.munmap(q + 4096, p + 6 * MB - q - 4096); took(2 if huge "
        "else 4 / 1024)",
    ),
    "memory files": Hog(
        "memory in memory files",
        "memory",
        "kept = []\nwhile True:\n    f = os.memfd_create('x'); os.write(f, bytes(4 * MB)); took(4)",
    ),
    "/dev/shm": Hog(
        "memory in /dev/shm, and as much again",
        "memory",
        "try:\n    f = open('/dev/shm/x', 'wb', 0)\n    while True: f.write(bytes(MB)); took(1)\n"
        "except OSError as e: print(e)\nchildren(4, lambda: taken(200))",
    ),
    "System V": Hog(
        "memory of System V",
        "memory",
        "while True:\n    n = call(29, 194, 0, 8 * MB, 0o1600); p = libc.shmat(n, None, 0); "
        "took(8)",
    ),
    "page tables": Hog(
        "page tables",
        "memory",
        "def sparse():\n    p = libc.mmap(None, 4096, 1, 0x22, -1, 0) & -(1 << 30)\n    for n in "
        "range(30000):\n"
        "        q = libc.mmap(ctypes.c_void_p(p - (n + 40) * (2 << 20)), 4096, 1, 0x100022, -1, "
        "0)\n"
        "        if q == BAD: continue\n        ctypes.string_at(q, 1)\n        if n % 512 == 511: "
        "took(2)\nchildren(12, sparse)",
    ),
    "mappings": Hog(
        "very many mappings",
        "memory",
        "def many():\n    p = libc.mmap(None, 250 * MB, 1, 0x22, -1, 0)\n    for n in "
        "range(60000):\n"
        "        libc.mprotect(ctypes.c_void_p(p + n * 4096), 4096, 3 if n % 2 else 1)\n"
        "        if n % 4096 == 4095: took(1)\nchildren(28, many)",
    ),
    "deep mappings": Hog(
        "many mappings of a chain of processes, each of which keeps links to all above it",
        "memory",
        "p = libc.mmap(None, 40 * MB, 3, 0x22, -1, 0)\nfor n in range(4300):\n    ctypes.memset(p "
        "+ 2 * n * 4096, 1, 1)\n"
        "    libc.mprotect(ctypes.c_void_p(p + (2 * n + 1) * 4096), 4096, 1)\nfor depth in "
        "range(99):\n"
        "    if os.fork(): time.sleep(99)\n    took(4300 * 64 * depth / MB)\ntime.sleep(99)",
    ),
    "beside files": Hog(
        "memory beside very many files",
        "memory",
        "for n in range(2000): open(str(n), 'w').close()\nchildren(8, lambda: taken(200))",
    ),
    "locks": Hog(
        "locks on very many parts of files",
        "memory",
        "import fcntl\ndef many():\n    files = [open(f'{os.getpid()}-{n}', 'wb') for n in "
        "range(200)]\n"
        "    for n in range(20000):\n        for f in files: fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * "
        "n)\n"
        "        if n % 25 == 24: took(1)\nchildren(4, many)",
    ),
    "epolls": Hog(
        "very many watched files",
        "memory",
        "import select\ndef many():\n    polls = [select.epoll() for n in range(120)]; pipes = "
        "[os.pipe() for n in range(60)]\n"
        "    for e in polls:\n        for pair in pipes:\n            for f in pair: "
        "e.register(f)\n        took(0.025)\nchildren(28, many)",
    ),
    "rules": Hog(
        "rules of Landlock",
        "memory",
        "import struct\na = struct.pack('Q', 1)\nf = call(444, 444, a, 8, 0)\nwhile True:\n"
        "    for n in range(4000):\n        os.mkdir(f'd{n}'); p = os.open(f'd{n}', os.O_PATH); "
        "os.rmdir(f'd{n}')\n"
        "        call(445, 445, f, 1, struct.pack('=Qi', 1, p), 0); os.close(p)\n    took(4)",
    ),
    "first thread": Hog(
        "memory behind a first thread that has ended",
        "memory",
        "def child():\n    threading.Thread(target=lambda: (time.sleep(0.1), taken(200), "
        "time.sleep(99))).start()\n"
        "    libc.syscall(60 if X86 else 93, 0)\nchildren(8, child)",
    ),
    "swapped": Hog(
        "memory given to the swap",
        "memory",
        "def child():\n    kept = []\n    for n in range(50):\n        kept.append(mmap.mmap(-1, 4 "
        "* MB, flags=0x22)); "
        "kept[-1].write(b'x' * 4 * MB); took(4)\n        try: kept[-1].madvise(21)\n        except "
        "OSError: pass\nchildren(8, child)",
    ),
    # disk
    "files": Hog(
        "files",
        "disk",
        "while True: open(str(time.monotonic()), 'wb').write(bytes(4 * MB)); took(4)",
    ),
    "files of children": Hog(
        "files of several processes",
        "disk",
        "def write():\n    while True: open(f'{os.getpid()}-{time.monotonic()}', "
        "'wb').write(bytes(4 * MB)); took(4)\nchildren(4, write)",
    ),
    "nameless files": Hog(
        "files without a name",
        "disk",
        "kept = []\nwhile True:\n    f = open('a', 'wb', 0); f.write(bytes(4 * MB)); "
        "kept.append(f); os.unlink('a'); took(4)",
    ),
    "O_TMPFILE": Hog(
        "files that never had a name",
        "disk",
        "kept = []\nwhile True:\n    f = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(f, "
        "bytes(4 * MB)); kept.append(f); took(4)",
    ),
    "mapped files": Hog(
        "files that only a mapping holds",
        "disk",
        "while True:\n    f = os.open('a', os.O_RDWR | os.O_CREAT); os.write(f, bytes(8 * MB))\n"
        "    libc.mmap(None, 4096, 1, 1, f, 0); os.unlink('a'); os.close(f); took(8)",
    ),
    "allocated files": Hog(
        "files that are allocated at once, and that only a mapping holds",
        "disk",
        "while True:\n    f = os.open('a', os.O_RDWR | os.O_CREAT); os.posix_fallocate(f, 0, 32 * "
        "MB)\n"
        "    libc.mmap(None, 4096, 1, 1, f, 0); os.unlink('a'); os.close(f); took(32)",
    ),
    "files under way": Hog(
        "files that are on their way through a socket",
        "disk",
        "import socket\npair = socket.socketpair()\nwhile True:\n    f = os.open('a', os.O_RDWR | "
        "os.O_CREAT)\n"
        "    os.write(f, bytes(8 * MB)); os.unlink('a'); socket.send_fds(pair[0], [b'x'], [f]); "
        "os.close(f); took(8)",
    ),
    "run files": Hog(
        "files that are executed",
        "disk",
        "for n in range(28):\n    f = os.open('a', os.O_RDWR | os.O_CREAT, 0o755); os.write(f, "
        "open('/bin/sleep', 'rb').read())\n"
        "    os.write(f, bytes(20 * MB)); os.close(f)\n    if os.fork() == 0: os.execv('a', ['a', "
        "'99'])\n"
        "    time.sleep(0.05); os.unlink('a'); took(20)\ntime.sleep(99)",
    ),
    "unmapped programs": Hog(
        "files that are executed, and unmapped",
        "disk",
        f"program = {UNMAPPED!r} if X86 else open('/bin/sleep', 'rb').read()\nfor n in range(28):\n"
        "    f = os.open('a', os.O_RDWR | os.O_CREAT, 0o755); os.write(f, program + bytes(20 * "
        "MB)); os.close(f)\n"
        "    if os.fork() == 0: os.execv('a', ['a', '99'])\n"
        "    time.sleep(0.05); os.unlink('a'); took(20)\ntime.sleep(99)",
    ),
    "behind long names": Hog(
        "files that only a mapping holds, behind mappings with very long names",
        "disk",
        "here = os.getcwd()\nfor n in range(15): os.mkdir('d' * 240); os.chdir('d' * 240)\n"
        "open('x', 'wb').write(b'x'); f = os.open('x', os.O_RDONLY); os.chdir(here); p = "
        "libc.mmap(None, 200 * MB, 0, 0x22, -1, 0)\n"
        "for n in range(1400): libc.mmap(ctypes.c_void_p(p + n * 8192), 4096, 1, 0x11, f, 0)\nfor "
        "n in range(200):\n"
        "    g = os.open('a', os.O_RDWR | os.O_CREAT); os.write(g, bytes(8 * MB))\n"
        "    libc.mmap(ctypes.c_void_p(p + 150 * MB + n * 8192), 4096, 1, 0x11, g, 0); "
        "os.unlink('a'); os.close(g); took(8)",
    ),
    "sparse files": Hog(
        "files that are long and empty, written where they are mapped",
        "disk",
        "def write():\n    for n in range(8):\n        f = os.open(f'{os.getpid()}-{n}', os.O_RDWR "
        "| os.O_CREAT); os.ftruncate(f, 100 * MB)\n"
        "        m = mmap.mmap(f, 100 * MB); os.close(f)\n        for k in range(25): m.write(b'x' "
        "* 4 * MB); took(4)\nchildren(4, write)",
    ),
    "moving folder": Hog(
        "files in a folder that moves",
        "disk",
        "os.makedirs('a/x'); os.mkdir('b')\nif os.fork() == 0:\n    while True: os.rename('a/x', "
        "'b/x'); os.rename('b/x', 'a/x')\n"
        "while True:\n    for folder in 'ab':\n        try: f = "
        "open(f'{folder}/x/{time.monotonic()}', 'wb')\n"
        "        except OSError: continue\n        f.write(bytes(4 * MB)); took(4); f.close()",
    ),
    "beside mappings": Hog(
        "files without a name beside very many mappings",
        "disk",
        "def many():\n    p = libc.mmap(None, 80 * MB, 1, 0x22, -1, 0)\n"
        "    for n in range(9000): libc.mprotect(ctypes.c_void_p(p + n * 4096), 4096, 3 if n % 2 "
        "else 1)\n    time.sleep(99)\n"
        "for n in range(6):\n    if os.fork() == 0: many()\nkept = []\nwhile True:\n"
        "    f = open('a', 'wb', 0); f.write(bytes(4 * MB)); kept.append(f); os.unlink('a'); "
        "took(4)",
    ),
    "closed folder": Hog(
        "files in a folder that cannot be listed",
        "disk",
        "os.mkdir('d', 0o300)\nwhile True: open(f'd/{time.monotonic()}', 'wb').write(bytes(4 * "
        "MB)); took(4)",
    ),
    "unreadable program": Hog(
        "files of a process that cannot be looked at",
        "disk",
        "import shutil\nf = os.open('p', os.O_WRONLY | os.O_CREAT, 0o111); os.write(f, "
        "open(os.path.realpath(sys.executable), 'rb').read())\n"
        "os.close(f)\nos.environ['PYTHONHOME'] = sys.base_prefix\n"
        "os.execv('p', ['p', '-S', '-c', '''import os, time\nkept = []\nwhile True:\n    f = "
        "open('a', 'wb', 0); f.write(bytes(4 << 20))\n"
        "    kept.append(f); os.unlink('a'); os.write(1, b'+4000 '); time.sleep({{pause}} * "
        "4)'''])",
    ),
    "files of a thread": Hog(
        "files behind a first thread that has ended",
        "disk",
        "def work():\n    time.sleep(0.1); kept = []\n    while True:\n        f = open('a', 'wb', "
        "0); f.write(bytes(4 * MB)); kept.append(f)\n"
        "        os.unlink('a'); took(4)\nif os.fork() == 0:\n    "
        "threading.Thread(target=work).start()\n"
        "    libc.syscall(60 if X86 else 93, 0)\ntime.sleep(99)",
    ),
    "own files of a thread": Hog(
        "files of a thread that shares none (unshare)",
        "disk",
        "def work():\n    call(272, 97, 0x400); kept = []\n    while True:\n        f = open('a', "
        "'wb', 0); f.write(bytes(4 * MB)); kept.append(f)\n"
        "        os.unlink('a'); took(4)\nthreading.Thread(target=work).start()\ntime.sleep(99)",
    ),
    # processes
    "a bomb": Hog(
        "a bomb of processes",
        "tasks",
        "while True:\n    try:\n        if os.fork() == 0: took(1)\n    except OSError: "
        "time.sleep(0.001)",
    ),
    "many siblings": Hog(
        "children of the parent's",
        "tasks",
        "time.sleep(0.3)\nwhile True:\n    if call(56, 220, 0x8011, 0, 0, 0, 0) == 0:\n        "
        "took(1); time.sleep(99); os._exit(0)",
    ),
    "threads": Hog(
        "threads",
        "tasks",
        "threading.stack_size(65536)\ndef work(): took(1); time.sleep(99)\nwhile True:\n    try: "
        "threading.Thread(target=work).start()\n"
        "    except RuntimeError: time.sleep(0.01)",
    ),
    "interrupted forks": Hog(
        "processes that are made while signals interrupt",
        "tasks",
        "import signal\nsignal.signal(14, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, "
        "0.0005, 0.0005)\nwhile True:\n    try:\n"
        "        if os.fork() == 0: signal.setitimer(signal.ITIMER_REAL, 0); took(1); "
        "time.sleep(99)\n    except OSError: pass",
    ),
    "spawned": Hog(
        "processes that are spawned (vfork)",
        "tasks",
        "while True:\n    try: os.posix_spawn('/bin/sleep', ['sleep', '99'], {}); took(1)\n    "
        "except OSError: time.sleep(0.001)",
    ),
    "orphans": Hog(
        "processes whose parents have ended",
        "tasks",
        "while True:\n    try:\n        if os.fork() == 0:\n            try:\n                if "
        "os.fork() == 0:\n"
        "                    os.setsid(); took(1); time.sleep(99)\n            finally: "
        "os._exit(0)\n    except OSError: time.sleep(0.001)",
    ),
    "moving processes": Hog(
        "processes that start another and end, without end",
        "tasks",
        "for n in range(200):\n    try:\n        if os.fork() == 0:\n            took(1)\n         "
        "   while True:\n                try:\n"
        "                    if os.fork(): os._exit(0)\n                except OSError: "
        "time.sleep(0.001)\n    except OSError: time.sleep(0.001)\n"
        "time.sleep(99)",
    ),
}


def source(hog: Hog, pause: float) -> str:
    """A hog's program, with so many seconds of pause for each MB or task."""
    return (PRELUDE + hog.program).replace("{{pause}}", str(pause))


def amount(output: str) -> float:
    """What a hog has taken, by its own words."""
    return (
        sum(int(word[1:]) for word in output.split() if word.startswith("+") and word[1:].isdigit())
        / 1000
    )
