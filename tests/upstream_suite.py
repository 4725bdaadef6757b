"""Upstream's package and its own tests, as its wheel installs them: a copy to work on, and a run of the tests against a tree."""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree


def copy_upstream(to: Path) -> Path:
    """The installed `openrlhf` and `tests` folders, copied to `to`."""
    for file in metadata.files("openrlhf") or ():
        if file.parts[0] in ("openrlhf", "tests") and file.suffix != ".pyc":
            target = to / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), target)
    return to


def run_upstream_tests(tree: Path) -> dict[str, str]:
    """Run `tree/tests` against `tree/openrlhf` in a process of their own, without an accelerator: test id -> outcome.

    Outcomes are `passed`, `failed` (also in its set-up) and `skipped`. Upstream's tests bring stand-ins for flash_attn themselves.

    Raises:
        RuntimeError: The tests could not be run, with the end of what was printed.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tree), "--junitxml", str(report)]
        done = subprocess.run(
            [*words, "-p", "no:cacheprovider", "-p", "no:asyncio", "tests"],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
        )
        if not report.exists():
            raise RuntimeError(f"upstream's tests did not run:\n{(done.stdout + done.stderr)[-4000:]}")
        outcomes = {}
        for case in ElementTree.parse(report).iter("testcase"):
            found = {child.tag for child in case} & {"failure", "error", "skipped"}
            outcome = "passed" if not found else "skipped" if found == {"skipped"} else "failed"
            outcomes[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return outcomes
