"""Several runs, one after the other, in one process and on one Ray: to start these takes longer
than the runs of tiny models.

    python several.py FOLDER        # FOLDER/runs.json: a list of {"name": ..., "words": [...]}

Runs share nothing else: a run must give back all devices and end all processes before the next one
begins, which it could not otherwise. FOLDER/codes.json is the exit codes, FOLDER/NAME.txt what each
has printed.
"""

import contextlib
import functools
import json
import math
import sys
import time
from pathlib import Path

from engines import template

from marl_plugins.cli import main
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.processes import cluster
from marl_plugins.engine.runtime import driver


def every(folder):
    """The exit code of each run, by name."""
    runs, codes = json.loads((folder / "runs.json").read_text()), {}
    first = build_plan(runs[0]["words"]).run
    cluster.prepare_environment(first, False)

    sessions = []

    class Session(driver.Session):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            sessions.append(self)

    @contextlib.contextmanager
    def here(run, debug, python, *seen):
        cluster._check_devices(run)
        try:
            yield
        finally:  # a run alone leaves this to the end of its Ray
            sessions[-1].kill()
            wait_until_free(ray)

    with driver.fork_server(False) as python, cluster.ray_cluster(first, False, python):
        import ray  # not before: it reads its environment when it is imported

        driver.Session, driver.ray_cluster, driver.fork_server = (
            Session,
            here,
            lambda debug: contextlib.nullcontext(python),
        )
        for run in runs:
            with (folder / f"{run['name']}.txt").open("w") as out:
                mark(folder, run["name"])
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                    try:
                        codes[run["name"]] = main(["train", *run["words"]])
                    except SystemExit as end:
                        codes[run["name"]] = end.code
            codes[f"{run['name']} left"] = {
                k: v for k, v in ray.available_resources().items() if k in ("GPU", "CPU")
            }
            (folder / "codes.json").write_text(json.dumps(codes))


def wait_until_free(ray, seconds=60.0, settled=1.0):
    """Wait until all devices are given back, and for a moment more, or some time has passed.

    Ray counts a device as free once it has asked its node for it, and as taken again when an older
    report of the node arrives.
    """
    deadline, free_since = time.monotonic() + seconds, math.inf
    while (now := time.monotonic()) < deadline and now - free_since < settled:
        free = ray.available_resources().get("GPU") == ray.cluster_resources()["GPU"]
        free_since = min(free_since, now) if free else math.inf
        time.sleep(0.1)


def mark(folder, name):
    """Note in the stand-in's log, if there is one, which run begins."""
    if "cuda_stand_in" in sys.modules:
        sys.modules["cuda_stand_in"].record("run", name=name)


if __name__ == "__main__":
    template.import_all()
    become = template.with_fork_server() or functools.partial(every, Path(sys.argv[1]))
    become()
