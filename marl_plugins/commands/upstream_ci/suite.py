"""Run a release's own tests against it, in a separate process."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree


def run_suite(root: Path, environment: Mapping[str, str], *words: str) -> dict[str, str]:
    """Returns the outcome of each test in `root/tests` by its name: `passed`, `failed` (also in its
    set-up) or `skipped`.

    Args:
        root: Folder with `openrlhf/` and `tests/`.
        environment: Of the process; `PYTHONPATH` must begin with `root`.
        words: Additional arguments for pytest.

    Raises:
        RuntimeError: The tests could not be run, with the end of the output.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
        command += ["--rootdir", str(root), "--junitxml", str(report), *words, "tests"]
        env = {**environment, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError(
                f"upstream's tests did not run:\n{(done.stdout + done.stderr)[-4000:]}"
            )
        outcomes = {}
        for case in ElementTree.parse(report).iter("testcase"):
            tags = {child.tag for child in case} & {"failure", "error", "skipped"}
            outcome = "passed" if not tags else "skipped" if tags == {"skipped"} else "failed"
            outcomes[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return outcomes
