"""Build what DeepSpeed would otherwise compile during the first run:
`python -m marl_plugins.engine.hosts.prebuild`.

Two C++ operators, a minute or two. A run on CPUs builds them before it starts Ray, whose workers
would give up meanwhile. A process that is killed while it builds or loads an operator leaves a lock
for which every later one would wait forever; such locks are removed here, and at the start of a
run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import cache_folder
from marl_plugins.core.problems import Problem
from marl_plugins.engine.hosts import cpu

OPERATORS = {"FusedAdamBuilder": "fused_adam", "ShareMemCommBuilder": "deepspeed_shm_comm"}
"""The builders of the operators that CPU runs use, and the name of the library that each builds."""


def extensions_folder(device: str) -> Path:
    """Returns the folder in which DeepSpeed's operators are built: torch's own on GPUs."""
    if device == "cpu":
        return Path(cpu.environment()["TORCH_EXTENSIONS_DIR"])
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache_folder() / "torch_extensions")


def _open_files() -> Iterator[Path]:
    """Files that the processes of this machine have open, as far as this user may see them."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for descriptor in (process / "fd").iterdir():
                yield descriptor.readlink()
        except OSError:  # it has ended meanwhile, or is another user's
            continue


def clear_abandoned_locks(folder: Path) -> list[Path]:
    """Removes the locks below a folder whose owners are gone, and returns them.

    The owner keeps the file open (torch/utils/file_baton.py of 2.13). The owner on another machine
    that shares the folder is not seen; without the lock, it and this machine would build the same
    files at once.
    """
    locks = sorted(folder.glob("**/lock"))
    open_files = set(_open_files()) if locks else set()
    abandoned = [lock for lock in locks if lock.resolve() not in open_files]
    for lock in abandoned:
        lock.unlink(missing_ok=True)
    return abandoned


def build_missing_operators() -> None:
    """Builds the operators of CPU runs where they are not, or waits for whoever is building them.

    Raises:
        ConfigurationError: They cannot be built; the compiler's output has been printed.
    """
    folder = extensions_folder("cpu")
    if all(list(folder.glob(f"**/{library}/*.so")) for library in OPERATORS.values()):
        return
    print("building DeepSpeed's two operators, once: a minute or two", file=sys.stderr)
    build = [sys.executable, "-W", "ignore", "-m", "marl_plugins.engine.hosts.prebuild"]
    # In a process of its own, because this one has not set what the compiler needs.
    if subprocess.run(build, stdout=subprocess.DEVNULL).returncode:
        raise ConfigurationError(
            Problem(
                "machine.operators",
                got="DeepSpeed's operators could not be built; the messages above say why",
            )
        )


def main() -> int:
    """Builds the operators into the folder where runs look for them."""
    os.environ[cpu.DEVICE] = "cpu"
    os.environ.update(cpu.environment())
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    for lock in clear_abandoned_locks(folder):
        print(f"removed the lock of a build that was killed: {lock}")
    for name, seconds in load_operators():
        print(f"{name}: ready after {seconds:.0f} s")
    return 0


def load_operators() -> Iterator[tuple[str, float]]:
    """Loads the operators into this process, built first where they are not, and yields each one's
    name and the seconds that it took."""
    from deepspeed.accelerator import get_accelerator

    for name in OPERATORS:
        started = time.monotonic()
        builder = get_accelerator().create_op_builder(name)
        if builder is not None:  # the second one is for CPUs
            builder.load(verbose=False)
            yield name, time.monotonic() - started


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
