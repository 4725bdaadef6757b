"""Build what DeepSpeed would otherwise compile during the first run: `python -m marl_plugins.hosts.prebuild`.

Two C++ operators, about a minute. A killed build leaves a lock for which every later build would wait forever; such locks
are removed first.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.hosts import cpu

OPERATORS = ("FusedAdamBuilder", "ShareMemCommBuilder")
STALE = 900.0
"""A lock older than this many seconds belongs to a build that has died: builds take a minute."""


def clear_stale_locks(folder: Path) -> list[Path]:
    """Remove build locks that are older than any build; returns them."""
    stale = [p for p in folder.glob("*/lock") if time.time() - p.stat().st_mtime > STALE]
    for lock in stale:
        lock.unlink()
    return stale


def main() -> int:
    """Build the operators into the folder where runs look for them."""
    os.environ[cpu.DEVICE] = "cpu"
    os.environ.update(cpu.environment())
    if not (shutil.which("g++") and shutil.which("ninja")):
        missing = " and ".join(tool for tool in ("g++", "ninja") if not shutil.which(tool))
        raise ConfigurationError(
            f"DeepSpeed compiles two operators and {missing} is missing: apt-get install g++ ninja-build"
        )
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    for lock in clear_stale_locks(folder):
        print(f"removed a stale build lock: {lock}")
    from deepspeed.accelerator import get_accelerator

    for name in OPERATORS:
        started = time.monotonic()
        get_accelerator().create_op_builder(name).load(verbose=False)
        print(f"{name}: ready after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
