"""Runs in the tool's own process: sets its limits, then executes the program from standard input as `__main__`.

Limits are set here rather than between fork and exec, so that the parent may use a fast, thread-safe spawn.
"""

import resource
import sys

memory, seconds = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
resource.setrlimit(resource.RLIMIT_FSIZE, (memory, memory))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
source = sys.stdin.buffer.read().decode()
sys.argv = ["program.py"]
exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
