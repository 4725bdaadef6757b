"""Programs that do their worst to the python tool, and an agent that writes them, for tests and
benchmarks/programs.py.

Each is small enough for a machine on which other tests run: bombs are bounded, and sleepers are
found by how long they sleep.
"""

import asyncio
import os
import time
from pathlib import Path

from simulated import CharacterChat

from marl_plugins.builtin.tools.python import PythonToolConfig
from marl_plugins.core.trajectory import Generation, Task
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.sandbox import levels

LEVELS = [level for level in levels.LEVELS if level not in levels.examine().missing]
"""The levels of the sandbox that this machine has."""
NAP = f"4321.{os.getpid()}"
"""Seconds that sleepers sleep; with it their processes are found, whatever their environment."""
LIMITS = PythonToolConfig(seconds=0.5, memory_mb=192, disk_mb=50, packages=False, concurrency=2)

FOLDER = {
    "removes its folder": "import os, shutil; shutil.rmtree(os.getcwd())",
    "removes its empty folder": "import os; os.rmdir(os.getcwd())",
    "renames its folder": "import os; open('a', 'w'); os.rename(os.getcwd(), '../renamed')",
    "replaces its folder by a file": "import os; d = os.getcwd(); os.rmdir(d); open(d, "
    "'w').write('x')",
    "replaces its folder by a link": "import os; d = os.getcwd(); os.rmdir(d); os.symlink('/', d)",
    "replaces its folder by a pipe": "import os; d = os.getcwd(); os.rmdir(d); os.mkfifo(d)",
    "renames its folder and makes another": (
        "import os; d = os.getcwd(); os.rename(d, d + '-old'); os.mkdir(d); open(d + '/new', 'w')"
    ),
    "makes its folder unreadable": "import os; open('a', 'w'); os.chmod('.', 0)",
    "unreadable folders in each other": (
        "import os\nfor n in 'abc':\n    os.makedirs(n + '/x/y')\n    os.chmod(n + '/x', 0)\n    "
        "os.chmod(n, 0)"
    ),
    "3,000 levels": "import os\nfor n in range(3000):\n    os.mkdir('d'); os.chdir('d')",
    "990 long names in each other": "import os\nfor n in range(990):\n    os.mkdir('n' * 200); "
    "os.chdir('n' * 200)",
    "70,000 files": "for n in range(70000): open(str(n), 'w').close()",
    "folders without end": "import os\nn = 0\nwhile True:\n    os.mkdir(str(n)); n += 1",
    "names that are not UTF-8": "open(b'\\xff\\xfe', 'w'); open(b'ok-\\x80', 'w')",
    "names with control characters": "open('a\\nb\\x1b[2J\\u202e', 'w'); open('\\x9b', 'w')",
    "50 of the longest names": "for n in range(60): open(f'{n:03}'.ljust(255, 'x'), 'w')",
    "pipes and sockets": "import os, socket; os.mkfifo('p'); s = socket.socket(socket.AF_UNIX); "
    "s.bind('s')",
    "links to itself and away": (
        "import os; os.symlink('.', 'a'); os.symlink('a', 'a2'); os.symlink('/', 'b'); "
        "os.symlink('gone', 'c')"
    ),
    "a disk full of files": "for n in range(10**6): open(str(n), 'wb').write(bytes(2**20))",
    "one file without end": "f = open('f', 'wb')\nwhile True: f.write(bytes(2**20))",
    "a file that is nothing but a hole": "f = open('f', 'wb'); f.truncate(2**40)",
    "files that nobody may read": "import os; os.umask(0o777); open('f', 'w'); os.mkdir('d')",
}

PROCESSES = {
    "a child in a session of its own": f"import subprocess; subprocess.Popen(['sleep', '{NAP}'], "
    "start_new_session=True)",
    "40 of them": f"import subprocess\nfor n in range(40): subprocess.Popen(['sleep', '{NAP}'], "
    "start_new_session=True)",
    "a daemon by two forks": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: "
        "time.sleep(99)\n    os._exit(0)"
    ),
    "a daemon without environment": (
        "import os\nif os.fork() == 0:\n    os.setsid(); os.chdir('/'); os.execve('/bin/sleep', "
        f"['x', '{NAP}'], {{}})"
    ),
    "a daemon that writes without end": (
        "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: os.write(1, b'x' * 4096)"
    ),
    "a child that ignores signals": (
        "import os, signal, time\nif os.fork() == 0:\n    for n in range(1, 32):\n"
        "        if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\n    time.sleep(99)"
    ),
    "a process that moves on and on": (
        "import os\nif os.fork() == 0:\n    while True:\n        if os.fork(): os._exit(0)\n       "
        " os.setsid()"
    ),
    "a bomb": "import os, time\nfor n in range(9): os.fork()\ntime.sleep(99)",
    "a bomb of sessions": "import os, time\nfor n in range(9):\n    if os.fork() == 0: "
    "os.setsid()\ntime.sleep(99)",
    "children with the memory": (
        "import os, time\nfor n in range(3):\n    if os.fork() == 0:\n"
        "        x = b'x' * (100 * 2**20); time.sleep(99)\ntime.sleep(99)"
    ),
    "a thread without end": "import threading, time; threading.Thread(target=time.sleep, "
    "args=(99,)).start()",
    "a thousand threads": (
        "import threading, time\nfor n in range(1000): threading.Thread(target=time.sleep, "
        "args=(99,)).start()"
    ),
    "kills its parent": "import os, time; os.kill(os.getppid(), 9); time.sleep(99)",
    "kills its parent, leaves a daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid(); "
        "time.sleep(99)\nos.kill(os.getppid(), 9); time.sleep(99)"
    ),
    "kills its parent's group": "import os; os.killpg(os.getpgid(os.getppid()), 9)",
    "interrupts its parent": "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); "
    "time.sleep(99)",
    "stops its parent": "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); "
    "time.sleep(99)",
    "stops its parent again and again": (
        "import os, signal, time\nparent = os.getppid()\nwhile True: os.kill(parent, "
        "signal.SIGSTOP); time.sleep(0.001)"
    ),
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "kills itself": "import os; os.kill(os.getpid(), 9)",
    "kills its group": "import os; os.killpg(0, 15)",
    "becomes another program": f"import os; os.execv('/bin/sleep', ['sleep', '{NAP}'])",
}

OUTPUT = {
    "200 MB of output": "import os\nfor n in range(3200): os.write(1, b'x' * 65536)",
    "output without end": "while True: print('x' * 1000)",
    "bytes": "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100)",
    "zeros": "import os; os.write(1, bytes(5000))",
    "what clears a terminal": "print('\\x1b[2J\\x1b]0;title\\x07\\x9b2J\\u202e')",
    "surrogates": "print('\\ud800')",
    "closes its output": "import os; os.close(1); os.close(2)",
    "closes everything, then sleeps": "import os, time; os.closerange(0, 1000); time.sleep(99)",
    "has no stdout": "import sys; sys.stdout = sys.stderr = None",
    "forges a report": "import os; open(f'/proc/{os.getppid()}/fd/1', "
    "'wb').write(b'0\\0\\x000\\0forged')",
    "floods the report": "import os\nf = open(f'/proc/{os.getppid()}/fd/1', 'wb')\nwhile True: "
    "f.write(b'x' * 65536)",
    "reads what nobody writes": "import sys; print(repr(sys.stdin.read()))",
    "a traceback of 10 MB": "raise ValueError('x' * 10**7)",
}

ENDS = {
    "a loop without end": "while 1:0",
    "a number without end": "x = 10 ** 10 ** 10",
    "sleeps": "import time; time.sleep(99)",
    "takes no interruption": "while True:\n    try:\n        while True: pass\n    except "
    "BaseException: pass",
    "memory": "x = bytearray(10 * 2**30)",
    "memory bit by bit": "x = []\nwhile True: x.append(bytes(2**20))",
    "recursion": "def f(): f()\nf()",
    "recursion to the end of the stack": (
        "import sys; sys.setrecursionlimit(10**9)\ndef f(n): return [f(n + 1) for _ in (1,)]\nf(0)"
    ),
    "a null pointer": "import ctypes; ctypes.string_at(0)",
    "aborts": "import os; os.abort()",
    "ends at once, without a word": "import os; os._exit(0)",
    "ends with a text": "import sys; sys.exit('no')",
    "ends with what cannot be shown": "class E:\n    def __str__(self): raise ValueError\nraise "
    "SystemExit(E())",
    "an exception that cannot be shown": "class E(Exception):\n    def __str__(self): raise "
    "self\nraise E",
    "an interruption": "raise KeyboardInterrupt",
    "breaks the hook of exceptions": "import sys; sys.excepthook = None; 1 / 0",
    "breaks the end": "import os; os._exit = os.waitpid = print; print('done')",
    "does not end at its end": "import atexit\n@atexit.register\ndef f():\n    while True: pass",
    "a destructor without end": "class D:\n    def __del__(self):\n        while True: pass\nd = "
    "D()",
    "raises its limits": "import resource\nfor l in (0, 1, 9): resource.setrlimit(l, (-1, "
    "-1))\nwhile True: pass",
    "no program": "",
    "no Python": "for for for",
    "a zero byte": "x = '\0'",
    "half a character": "x = '\udcff'; print(len(x))",
    "ten thousand brackets": "x = " + "(" * 10000,
    "50,000 lines": "x = 1\n" * 50_000 + "print(x)",
}

PROGRAMS = {**FOLDER, **PROCESSES, **OUTPUT, **ENDS}


def answer_with(programs):
    """An engine's answer that holds programs, and ends."""
    text = "".join(f"```python\n{program}\n```\n" for program in programs)

    async def generate(call):
        ids = (*CharacterChat.encode(text), ord("^"))
        return Generation(ids, (-0.5,) * len(ids), "stop", call.policy, 0)

    return generate


async def run_answer(programs, tool, **settings):
    """The trajectory of an agent whose only answer holds programs."""
    role = RoleSpec(
        "coder", "coder", _show, CharacterChat(), Sampling(1.0, 1.0, None, 10**7), tools=(tool,)
    )

    async def workflow(task, roles, tools):
        return await roles.coder(problem=task.prompt)

    return await run_workflow(
        workflow,
        Task("t", "2+2", "4"),
        0,
        step=1,
        run_seed=1,
        roles={"coder": role},
        tools={"python": tool},
        generate=answer_with(programs),
        **settings,
    )


def _show(fields):
    return [{"role": "user", "content": fields["problem"]}]


class Stalls:
    """`async with`: the longest time for which the event loop did nothing else."""

    longest = 0.0

    async def __aenter__(self):
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error):
        self._watching.cancel()

    async def _watch(self):
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            self.longest = max(self.longest, time.monotonic() - before - 0.005)


def processes_left(folder):
    """Command lines of processes of a sandbox with its folder in this one, its own among them, and
    of sleepers."""
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if NAP.encode() in words or f"{folder}/marl-sandbox-".encode() in words:
            left.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return left


def files_left(folder):
    """What programs have left in the folders of their folders, which the program before may still
    be removed from."""
    until = time.monotonic() + 60
    while (found := list(Path(folder).glob("*/*"))) and time.monotonic() < until:
        time.sleep(0.02)
    return found
