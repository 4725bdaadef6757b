"""Ray's `setup_worker.py` without Ray: it takes over the environment that was prepared for a
worker, and becomes the worker.

Ray's own imports Ray for that, 0.35 s of CPU for each worker, which then imports it again. This
file is run as a script, so nothing else may be imported at its top.
"""

from __future__ import annotations

import json
import os
import sys


def command(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Returns what Ray runs for a worker, and the variables that it sets
    (ray/_private/runtime_env/context.py of 2.55).

    Args:
        words: The worker's script and its arguments, among them its language and what Ray's agent
            has prepared.
    """
    rest, prepared = [], {}
    for word in words:
        name, _, value = word.partition("=")
        if name == "--serialized-runtime-env-context":
            prepared = json.loads(value)
        elif name != "--language":
            rest.append(word)
    variables, python = (
        prepared.pop("env_vars", None) or {},
        prepared.pop("py_executable", None) or sys.executable,
    )
    if any(prepared.values()) or "$" in "".join(
        variables.values()
    ):  # a container, Java, references to variables
        return [sys.executable, "-m", "ray._private.workers.setup_worker", *words], {}
    return [*python.split(), *rest], variables


if __name__ == "__main__":
    argv, variables = command(sys.argv[1:])
    os.environ.update(variables)
    os.execv(argv[0], argv)
